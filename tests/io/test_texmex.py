""".fvecs, .ivecs and .bvecs: records whose dimension stands in each of them."""

from __future__ import annotations

import numpy as np
import pytest

from matrix_interop.errors import FormatError
from matrix_interop.io import open_matrix, open_rows, save_matrix


def write_records(path, rows, dims=None):
    """Records of float32 rows; ``dims`` overrides what each says of itself."""
    dims = [len(row) for row in rows] if dims is None else dims
    path.write_bytes(
        b"".join(
            dim.to_bytes(4, "little", signed=True) + np.asarray(row, "<f4").tobytes()
            for dim, row in zip(dims, rows, strict=True)
        )
    )


def test_a_mapped_file_is_a_strided_view(tmp_path):
    """Rows lie one head further apart than they are long; nothing is copied."""
    write_records(tmp_path / "x.fvecs", [[1, 2, 3], [4, 5, 6]])
    m = open_matrix(tmp_path / "x.fvecs")
    assert (m.shape, m.strides, np.asarray(m).tolist()) == ((2, 3), (16, 4), [[1, 2, 3], [4, 5, 6]])


def test_a_cut_file_tells_its_whole_rows_and_gives_them_when_asked(tmp_path):
    """T55: 3 rows of 4 values, the last 5 bytes cut."""
    path = tmp_path / "x.fvecs"
    write_records(path, np.arange(12).reshape(3, 4))
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(FormatError, match=r"55 bytes: 2 whole rows, 15 bytes left; partial=True"):
        open_matrix(path)
    assert np.asarray(open_matrix(path, partial=True)).tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    with open_rows(path, partial=True) as rows:
        assert rows.read(1, 2).tolist() == [[4, 5, 6, 7]]


@pytest.mark.parametrize("dim", [0, -1, 2**31 - 1])
def test_a_dimension_that_no_row_has_is_refused(tmp_path, dim):
    """Zeros of a file that was made longer before it was written, and heads beyond the file."""
    write_records(tmp_path / "x.fvecs", [[0, 0, 0]], [dim])
    with pytest.raises(FormatError, match=str(dim)):
        open_matrix(tmp_path / "x.fvecs")


@pytest.mark.parametrize("row", [1, 100, 255])
def test_a_record_of_another_dimension_is_found_at_opening(tmp_path, row):
    """Up to 256 records, each is looked at."""
    dims = [2] * 256
    dims[row] = 3
    write_records(tmp_path / "x.fvecs", np.zeros((256, 2)), dims)
    with pytest.raises(FormatError, match=f"row {row} at byte {row * 12} says dimension 3, the first one 2"):
        open_matrix(tmp_path / "x.fvecs")


def test_beyond_256_records_verify_and_every_read_look_at_each(tmp_path):
    """One wrong head among 10 000: found by verify=True at once, else when its row is read, never returned."""
    path = tmp_path / "x.fvecs"
    dims = [2] * 10_000
    dims[5001] = 3
    write_records(path, np.zeros((10_000, 2)), dims)
    with pytest.raises(FormatError, match="row 5001"):
        open_matrix(path, verify=True)
    with open_rows(path) as rows:
        assert rows.read(0, 5001).shape == (5001, 2)
        with pytest.raises(FormatError, match="row 5001"):
            rows.take([1, 5001])


def test_an_empty_file_needs_dim(tmp_path):
    """Nothing in it says how long its rows would be."""
    (tmp_path / "x.fvecs").touch()
    with pytest.raises(FormatError):
        open_matrix(tmp_path / "x.fvecs")
    assert open_matrix(tmp_path / "x.fvecs", dim=7).shape == (0, 7)
    with open_rows(tmp_path / "x.fvecs", dim=7) as rows:
        assert rows.read(0, 0).shape == (0, 7)


def test_wide_values_in_bytes_files_stay_bytes(tmp_path):
    """.bvecs heads are 4 bytes too."""
    array = np.arange(250, 256, dtype=np.uint8).reshape(2, 3)
    save_matrix(tmp_path / "x.bvecs", array)
    assert (tmp_path / "x.bvecs").read_bytes() == b"\3\0\0\0\xfa\xfb\xfc\3\0\0\0\xfd\xfe\xff"
