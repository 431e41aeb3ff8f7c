"""Damaged files: each truncation point and each flipped bit of a header gives FormatError or the right rows."""

from __future__ import annotations

import numpy as np
import pytest

from matrix_interop.errors import FormatError, UnsupportedDtypeError
from matrix_interop.io import open_matrix, open_rows, save_matrix

ARRAY = (np.arange(20, dtype=np.float32) + 1).reshape(5, 4)
OWN = ["npy", "fvecs", "fbin", "safetensors"]
#: Read through a library, which is slower: `make test` tries some of the places, the slow tests all.
LIBRARIES = ["npz", "h5", "parquet", "arrow"]
SOME_OR_ALL = pytest.mark.parametrize("step", [41, pytest.param(1, marks=pytest.mark.slow)])
BYTE_ORDER_OF_NPY = 21


def saved(path):
    """The bytes of a whole file."""
    save_matrix(path, ARRAY)
    return path.read_bytes()


def values_of(data):
    """The bytes that are values, where they stand in the file as they are."""
    found = np.zeros(len(data), bool)
    for row in ARRAY:
        at = data.find(row.tobytes())
        found[at : at + row.nbytes] = at >= 0
    return found


def outcomes(path, data):
    """What opening and reading by rows give: an array, or the error."""
    path.write_bytes(data)
    try:
        yield np.array(open_matrix(path, mmap=path.suffix != ".npz"))
    except (FormatError, UnsupportedDtypeError) as e:
        yield e
    try:
        with open_rows(path) as rows:
            yield rows.take(np.arange(len(rows)))
    except (FormatError, UnsupportedDtypeError) as e:
        yield e


def truncate(path, step):
    """Cut the file at every ``step``-th byte."""
    data = saved(path)
    record = 4 + ARRAY.shape[1] * 4
    for size in range(0, len(data), step):
        for outcome in outcomes(path, data[:size]):
            if path.suffix == ".fvecs" and size and size % record == 0:
                np.testing.assert_array_equal(outcome, ARRAY[: size // record], strict=True)
            else:
                assert type(outcome) is FormatError, (size, outcome)


@pytest.mark.parametrize("suffix", OWN)
def test_each_truncation_is_refused(tmp_path, suffix):
    """No shorter file passes, but .fvecs cut between two records, which is a whole file of fewer rows."""
    truncate(tmp_path / f"x.{suffix}", 1)


@pytest.mark.parametrize("suffix", LIBRARIES)
@SOME_OR_ALL
def test_truncations_of_library_formats_are_refused(tmp_path, suffix, step):
    """The same."""
    truncate(tmp_path / f"x.{suffix}", step)


def flip_bits(path, step, also=()):
    """Flip every ``step``-th bit that is not a value's."""
    data = saved(path)
    values = values_of(data)
    for bit in range(0, len(data) * 8, step):
        byte = bit // 8
        if values[byte] or (path.suffix == ".npy" and byte == BYTE_ORDER_OF_NPY):
            continue  # a valid file of other values: nothing in these formats can tell
        damaged = bytearray(data)
        damaged[byte] ^= 1 << bit % 8
        for outcome in outcomes(path, damaged):
            if isinstance(outcome, np.ndarray):
                np.testing.assert_array_equal(outcome, ARRAY, strict=True, err_msg=f"bit {bit}")
            else:
                assert type(outcome) in {FormatError, *also}, (bit, outcome)


@pytest.mark.parametrize("suffix", OWN)
def test_each_flipped_bit_of_a_header_is_refused_or_harmless(tmp_path, suffix):
    """Never wrong rows, and never another error than FormatError."""
    flip_bits(tmp_path / f"x.{suffix}", 1)


@pytest.mark.parametrize("suffix", LIBRARIES)
@SOME_OR_ALL
def test_flipped_bits_of_library_formats_are_refused_or_harmless(tmp_path, suffix, step):
    """The same; a flipped type of a Parquet list may also be a type that no matrix has."""
    flip_bits(tmp_path / f"x.{suffix}", step, also={UnsupportedDtypeError})


@pytest.mark.parametrize("dtype", ["object", [("a", "f4"), ("b", "f4")], "S4", "M8[s]", "f16"])
def test_npy_of_anything_but_numbers_is_refused(tmp_path, dtype):
    """Objects are never unpickled, records and texts never taken for numbers."""
    np.save(tmp_path / "x.npy", np.zeros((3, 2), dtype), allow_pickle=True)
    with pytest.raises(UnsupportedDtypeError):
        open_matrix(tmp_path / "x.npy")


@pytest.mark.parametrize(
    ("suffix", "header"),
    [
        ("fbin", (2**32 - 1).to_bytes(4, "little") * 2),
        ("fbin", (2**63).to_bytes(8, "little") * 2),
        ("u8bin", (2**63).to_bytes(8, "little") + bytes(8)),
        ("fvecs", (2**31 - 1).to_bytes(4, "little")),
        ("bin", (2**32 - 1).to_bytes(4, "little") * 2),
        ("npy", b"\x93NUMPY\1\0F\0{'descr': '<f4', 'fortran_order': False, 'shape': (4000000000, 99)}\n"),
        ("npy", b"\x93NUMPY\2\0\xff\xff\xff\xff{"),
        ("safetensors", (2**63).to_bytes(8, "little") + b"{}"),
        ("safetensors", b'@\0\0\0\0\0\0\0{"x":{"dtype":"U8","shape":[99999999,0],"data_offsets":[0,9]}}'),
        ("safetensors", b"\x06\0\0\0\0\0\0\0[[[[[["),
    ],
)
def test_a_forged_header_allocates_nothing(tmp_path, suffix, header):
    """Terabytes in a header of a few bytes: FormatError from arithmetic alone."""
    path = tmp_path / f"x.{suffix}"
    path.write_bytes(header)
    for mmap in (True, False):
        with pytest.raises(FormatError):
            open_matrix(path, mmap=mmap, dataset="ids" if suffix == "bin" else None)
    with pytest.raises(FormatError):
        open_rows(path, dataset="ids" if suffix == "bin" else None)
