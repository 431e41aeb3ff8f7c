""".npy: both memory orders, both header versions, and types that NumPy cannot name."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from matrix_interop.errors import FormatError, UnsupportedDtypeError, UnsupportedLayoutError
from matrix_interop.io import is_mapped, open_matrix, open_rows


@pytest.mark.parametrize("name", ["x.npy", "x", "x.fbin"])
@pytest.mark.parametrize("mmap", [True, False])
def test_the_header_is_recognised_by_content(tmp_path, name, mmap):
    """T56: whatever the name, mapped or not."""
    with (tmp_path / name).open("wb") as file:
        np.save(file, np.arange(128, dtype=np.float32).reshape(4, 32))
    m = open_matrix(tmp_path / name, mmap=mmap)
    assert (is_mapped(m), np.asarray(m)[0].tolist()) == (mmap, list(range(32)))


def test_fortran_order_is_mapped_as_it_lies_and_read_by_rows(tmp_path):
    """A view with swapped strides; blocks of rows come in C order."""
    array = np.asfortranarray(np.arange(12, dtype=np.float32).reshape(4, 3))
    np.save(tmp_path / "x.npy", array)
    m = open_matrix(tmp_path / "x.npy")
    assert (m.order, m.strides, np.asarray(m).tolist()) == ("F", (4, 16), array.tolist())
    with open_rows(tmp_path / "x.npy") as rows:
        block = rows.read(1, 3)
        assert (block.flags.c_contiguous, block.tolist()) == (True, array[1:3].tolist())


@pytest.mark.parametrize("values", range(12))
def test_partial_rows_of_fortran_order_are_those_whose_last_value_is_there(tmp_path, values):
    """Columns are stored one after the other: a row is whole only if the last column reaches it."""
    array = np.asfortranarray(np.arange(12, dtype=np.float32).reshape(4, 3))
    path = tmp_path / "x.npy"
    np.save(path, array)
    path.write_bytes(path.read_bytes()[: 128 + 4 * values + 3])
    whole = max(0, values - 8)
    assert np.asarray(open_matrix(path, partial=True)).tolist() == array[:whole].tolist()


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_all_header_versions(tmp_path, version):
    """As NumPy writes them."""
    array = np.arange(6, dtype=np.int16).reshape(2, 3)
    with (tmp_path / "x.npy").open("wb") as file:
        np.lib.format.write_array(file, array, version)
    np.testing.assert_array_equal(np.asarray(open_matrix(tmp_path / "x.npy")), array, strict=True)


def test_nameless_bytes_need_a_dtype(tmp_path):
    """NumPy saves bfloat16 as "V2": refused with the way out, opened with it."""
    array = np.array([[1.5, -2]], ml_dtypes.bfloat16)
    np.save(tmp_path / "x.npy", array)
    with pytest.raises(UnsupportedDtypeError, match="dtype='bfloat16'"):
        open_matrix(tmp_path / "x.npy")
    with pytest.raises(UnsupportedDtypeError, match="dtype='bfloat16'"):
        open_matrix(tmp_path / "x.npy", dtype="float32")
    actual = np.asarray(open_matrix(tmp_path / "x.npy", dtype="bfloat16"))
    np.testing.assert_array_equal(actual, array, strict=True)


def test_other_ranks_are_refused_and_dim_makes_rows_of_one(tmp_path):
    """One dimension becomes rows only as the caller says; three never."""
    np.save(tmp_path / "one.npy", np.arange(6))
    np.save(tmp_path / "three.npy", np.zeros((2, 2, 2)))
    for name in ("one.npy", "three.npy"):
        with pytest.raises(UnsupportedLayoutError, match="two dimensions"):
            open_matrix(tmp_path / name)
    assert np.asarray(open_matrix(tmp_path / "one.npy", dim=3)).tolist() == [[0, 1, 2], [3, 4, 5]]
    for dim in (0, 4):
        with pytest.raises(UnsupportedLayoutError):
            open_matrix(tmp_path / "one.npy", dim=dim)


@pytest.mark.parametrize(
    "header",
    [
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 1), 'more': 1}",
        "{'descr': '<f4', 'fortran_order': False}",
        "{'descr': '<f4', 'fortran_order': 'False', 'shape': (1, 1)}",
        "{'descr': '<f3', 'fortran_order': False, 'shape': (1, 1)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (-1, 1)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': '(1, 1)'}",
        "{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (1, 1)}",
        "[1]",
    ],
)
def test_a_header_of_another_shape_is_refused(tmp_path, header):
    """Exactly the three entries of the format, each of its kind."""
    text = header.encode() + b"\n"
    (tmp_path / "x.npy").write_bytes(b"\x93NUMPY\1\0" + len(text).to_bytes(2, "little") + text + bytes(4))
    with pytest.raises(FormatError):
        open_matrix(tmp_path / "x.npy")
