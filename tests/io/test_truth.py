"""Ground truth: ids and distances in one file."""

from __future__ import annotations

import numpy as np
import pytest

from matrix_interop.errors import FormatError
from matrix_interop.io import open_matrix


def test_the_two_halves_by_name(tmp_path):
    """ids int32, distances float32; without a name the error lists both."""
    ids, distances = np.arange(6, dtype="<i4").reshape(2, 3), np.arange(6, dtype="<f4").reshape(2, 3) / 2
    (tmp_path / "x.bin").write_bytes(np.array([2, 3], "<u4").tobytes() + ids.tobytes() + distances.tobytes())
    np.testing.assert_array_equal(np.asarray(open_matrix(tmp_path / "x.bin", dataset="ids")), ids, strict=True)
    np.testing.assert_array_equal(
        np.asarray(open_matrix(tmp_path / "x.bin", dataset="distances")), distances, strict=True
    )
    with pytest.raises(FormatError, match="'ids', 'distances'"):
        open_matrix(tmp_path / "x.bin")


def test_a_file_without_distances_is_refused(tmp_path):
    """Ids alone are an .ibin: header, expected and real size are named."""
    (tmp_path / "x.bin").write_bytes(np.array([2, 3], "<u4").tobytes() + bytes(24))
    with pytest.raises(FormatError, match=r"2 queries x 3 neighbours.*56 bytes in all, but the file has 32"):
        open_matrix(tmp_path / "x.bin", dataset="ids")
