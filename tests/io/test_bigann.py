"""The .fbin family: two counts, then values."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from matrix_interop.errors import FormatError
from matrix_interop.io import open_matrix, open_rows, save_matrix


def test_fvecs_opened_as_fbin_is_refused_and_named(tmp_path):
    """T54: 2 records of 4 values whose first value is 0.0 are not 4 rows of 0 columns."""
    path = tmp_path / "x.fvecs"
    save_matrix(path, np.array([[0, 1, 2, 3], [4, 5, 6, 7]], np.float32))
    with pytest.raises(
        FormatError, match=r"4 rows x 0 columns.* 8 bytes in all, but the file has 40.*\.fvecs.*2 records"
    ):
        open_matrix(path, format="fbin")


def test_the_size_tells_the_long_header_from_the_short_one(tmp_path):
    """Two uint64 in front: same rows."""
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    path = tmp_path / "x.fbin"
    path.write_bytes(np.array([3, 4], "<u8").tobytes() + array.tobytes())
    np.testing.assert_array_equal(np.asarray(open_matrix(path)), array, strict=True)
    with open_rows(path) as rows:
        np.testing.assert_array_equal(rows.read(1, 3), array[1:], strict=True)


@pytest.mark.parametrize("change", [-1, 1, 4, 16])
def test_neither_header_fitting_names_both_and_the_size(tmp_path, change):
    """Shorter or longer than either header says."""
    path = tmp_path / "x.fbin"
    save_matrix(path, np.zeros((3, 4), np.float32))
    os.truncate(path, 56 + change)
    with pytest.raises(
        FormatError, match=f"3 rows x 4 columns.*56 bytes in all, but the file has {56 + change}.*16-byte"
    ):
        open_matrix(path)


def test_partial_gives_the_whole_rows_of_a_short_file_but_never_of_a_long_one(tmp_path):
    """One byte of the last row is missing; one byte is too many."""
    path = tmp_path / "x.fbin"
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    save_matrix(path, array)
    data = path.read_bytes()
    path.write_bytes(data[:-1])
    np.testing.assert_array_equal(np.asarray(open_matrix(path, partial=True)), array[:2], strict=True)
    path.write_bytes(data + b"x")
    with pytest.raises(FormatError):
        open_matrix(path, partial=True)


def resident():
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_more_than_2_to_the_32_elements(tmp_path):
    """T61: a sparse file of 2**22 + 1 rows of 1024 bytes, the last row 7."""
    path, n, d = tmp_path / "x.u8bin", 2**22 + 1, 1024
    with path.open("wb") as file:
        file.write(np.array([n, d], "<u4").tobytes())
        file.seek((n - 1) * d, os.SEEK_CUR)
        file.write(b"\7" * d)
    m = open_matrix(path)
    assert (m.size, np.unique(np.asarray(m)[n - 1 : n]).tolist()) == (4294968320, [7])
    with open_rows(path) as rows:
        assert np.unique(rows.read(n - 1, n)).tolist() == [7]
        assert rows.take([n - 1, 0, n - 1]).sum(axis=1, dtype=int).tolist() == [7 * d, 0, 7 * d]
        with pytest.raises(IndexError):
            rows.take([n])


def test_a_mapping_touches_only_the_pages_it_needs(tmp_path):
    """T63: opening, describing and slicing a sparse file of 4 GiB stays below 50 MB of resident memory."""
    path, n, d = tmp_path / "x.fbin", 2**20, 1024
    with path.open("wb") as file:
        file.write(np.array([n, d], "<u4").tobytes())
    os.truncate(path, 8 + 4 * n * d)
    before = resident()
    m = open_matrix(path)
    assert (m.shape, m.dtype, m.device, m.pinned) == ((n, d), np.float32, "cpu", False)
    assert not np.asarray(m[5:6]).any()
    assert resident() - before < 50_000_000
