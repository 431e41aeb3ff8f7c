"""Raw values: nothing but what the caller says."""

from __future__ import annotations

import numpy as np
import pytest

from matrix_interop.errors import FormatError, UnsupportedLayoutError
from matrix_interop.io import open_matrix, save_matrix


@pytest.mark.parametrize("keywords", [{}, {"dtype": "f4"}, {"dim": 4}, {"dtype": "f4", "dim": 0}])
def test_dtype_and_dim_are_needed(tmp_path, keywords):
    """A raw file says nothing about itself."""
    (tmp_path / "x.raw").write_bytes(bytes(32))
    with pytest.raises(FormatError, match="dtype='float32', dim=128"):
        open_matrix(tmp_path / "x.raw", **keywords)


def test_any_file_can_be_raw(tmp_path):
    """format= says so, whatever the suffix; bfloat16 by name; a rest is refused or left out."""
    path = tmp_path / "x.data"
    path.write_bytes(b"\x80\x3f\x20\xc0" * 3 + b"\0")
    with pytest.raises(FormatError, match="3 whole rows, 1 bytes left"):
        open_matrix(path, format="raw", dtype="bfloat16", dim=2)
    m = open_matrix(path, format="raw", dtype="bfloat16", dim=2, partial=True)
    assert np.asarray(m).astype("f4").tolist() == [[1, -2.5]] * 3


def test_rows_without_values_are_refused(tmp_path):
    """The size of the file could not tell how many there were."""
    with pytest.raises(UnsupportedLayoutError, match=r"\(3, 0\)"):
        save_matrix(tmp_path / "x.raw", np.ones((3, 0)))
    assert list(tmp_path.iterdir()) == []
