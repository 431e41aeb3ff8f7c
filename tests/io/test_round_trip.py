"""What is saved comes back: every format, every dtype it holds, every memory order."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from matrix_interop import Matrix
from matrix_interop.errors import UnsupportedDtypeError, UnsupportedLayoutError
from matrix_interop.io import is_mapped, open_matrix, open_rows, save_matrix

INTEGERS = ["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"]
FLOATS = ["f2", "f4", "f8"]
EXTENSIONS = ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu"]
MORE = ["float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz"]
HELD = {
    "npy": [*INTEGERS, *FLOATS, *EXTENSIONS, *MORE, "?", "c8", "c16", ">f4"],
    "npz": [*INTEGERS, *FLOATS, *EXTENSIONS, *MORE, "?", "c8", "c16", ">f4"],
    "raw": [*INTEGERS, *FLOATS, *EXTENSIONS, *MORE, "?", "c8", "c16"],
    "safetensors": [*INTEGERS, *FLOATS, *EXTENSIONS, "?", "c8"],
    "hdf5": [*INTEGERS, *FLOATS],
    "h5": ["f4"],
    "parquet": [*INTEGERS, *FLOATS],
    "arrow": [*INTEGERS, *FLOATS],
    "feather": ["f4"],
    "fvecs": ["f4"],
    "ivecs": ["i4"],
    "bvecs": ["u1"],
    "fbin": ["f4"],
    "u8bin": ["u1"],
    "i8bin": ["i1"],
    "ibin": ["i4"],
    "f16bin": ["f2"],
    "hbin": ["f2"],
    "u64bin": ["u8"],
}
NOT_MAPPED = {"npz", "parquet"}


def sample(dtype, shape=(7, 5)):
    """Powers of two, which every dtype holds, in a pattern that differs from row to row."""
    exponents = np.add.outer(2 * np.arange(shape[0]), np.arange(shape[1])) % 5
    return (2.0**exponents).astype(np.dtype(dtype))


def said(suffix, array):
    """The keywords that a file of this format needs to be opened."""
    return {"dtype": array.dtype, "dim": array.shape[1]} if suffix == "raw" else {}


def reopened(path, array, suffix):
    """The file's matrix, mapped where its format can be."""
    m = open_matrix(path, mmap=suffix not in NOT_MAPPED, **said(suffix, array))
    assert is_mapped(m) == (suffix not in NOT_MAPPED)
    return np.asarray(m)


@pytest.mark.parametrize(("suffix", "dtype"), [(suffix, dtype) for suffix, held in HELD.items() for dtype in held])
def test_every_dtype_that_a_format_holds_comes_back(tmp_path, suffix, dtype):
    """Same values, same dtype (bfloat16 as bfloat16, also from .npy), mapped where the format allows."""
    array = sample(dtype)
    path = tmp_path / f"x.{suffix}"
    save_matrix(path, array)
    np.testing.assert_array_equal(reopened(path, array, suffix), array, strict=True)
    with open_rows(path, **said(suffix, array)) as rows:
        np.testing.assert_array_equal(rows.take([6, 0, 3, 3]), array[[6, 0, 3, 3]], strict=True)
    np.testing.assert_array_equal(np.asarray(open_matrix(path, mmap=False, **said(suffix, array))), array, strict=True)


@pytest.mark.parametrize("suffix", HELD)
@pytest.mark.parametrize(
    "layout", [np.asfortranarray, lambda a: np.repeat(a, 2, axis=0)[::2], lambda a: a[:, ::-1], lambda a: a.T.copy().T]
)
def test_memory_order_does_not_matter(tmp_path, suffix, layout):
    """T57: logical row-major order is written, whatever the strides."""
    array = layout(sample(HELD[suffix][0], (40, 6)))
    path = tmp_path / f"x.{suffix}"
    save_matrix(path, array)
    np.testing.assert_array_equal(reopened(path, array, suffix), array)


@pytest.mark.parametrize("suffix", HELD)
def test_more_than_one_block_is_written(tmp_path, monkeypatch, suffix):
    """Blocks of a few rows, a shorter one at the end."""
    monkeypatch.setattr("matrix_interop.io.writing.BLOCK_BYTES", 64)
    array = np.asfortranarray(sample(HELD[suffix][0], (25, 5)))
    path = tmp_path / f"x.{suffix}"
    save_matrix(path, array)
    np.testing.assert_array_equal(np.asarray(open_matrix(path, mmap=False, **said(suffix, array))), array)


@pytest.mark.parametrize("suffix", ["npy", "npz", "fbin", "safetensors", "hdf5", "arrow", "parquet"])
def test_no_rows_keep_their_width(tmp_path, suffix):
    """(0, 128) comes back as (0, 128)."""
    path = tmp_path / f"x.{suffix}"
    save_matrix(path, np.empty((0, 128), np.float32))
    m = open_matrix(path, mmap=suffix != "npz")
    with open_rows(path) as rows:
        assert (m.shape, m.dtype, rows.shape, rows.read(0, 0).shape) == ((0, 128), np.float32, (0, 128), (0, 128))


@pytest.mark.parametrize("suffix", ["npy", "npz", "fbin", "safetensors", "hdf5"])
def test_rows_without_columns_keep_their_number(tmp_path, suffix):
    """(5, 0) comes back as (5, 0)."""
    path = tmp_path / f"x.{suffix}"
    save_matrix(path, np.empty((5, 0), np.float32))
    with open_rows(path) as rows:
        assert (open_matrix(path, mmap=suffix != "npz").shape, rows.take([4, 0]).shape) == ((5, 0), (2, 0))


@pytest.mark.parametrize(
    ("suffix", "dtype", "named"),
    [
        ("fvecs", "f8", "float32"),
        ("bvecs", "i1", "uint8"),
        ("ibin", "i8", "int32"),
        ("f16bin", "bfloat16", "float16"),
        ("hdf5", "bfloat16", "float32"),
        ("parquet", "?", "float32"),
        ("arrow", "c8", "float32"),
        ("safetensors", "c16", "float32"),
        ("safetensors", "float8_e3m4", "float32"),
    ],
)
def test_a_dtype_that_a_format_cannot_hold_is_refused_untouched(tmp_path, suffix, dtype, named):
    """The error names astype and what to convert to; the folder stays as it was."""
    path = tmp_path / f"x.{suffix}"
    path.write_bytes(b"old")
    with pytest.raises(UnsupportedDtypeError, match=rf"astype\('{named}'\)"):
        save_matrix(path, sample(dtype))
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == {path.name: b"old"}


@pytest.mark.parametrize(
    ("suffix", "shape"), [("fvecs", (0, 4)), ("fvecs", (4, 0)), ("arrow", (4, 0)), ("bin", (4, 4))]
)
def test_a_shape_that_a_format_cannot_hold_is_refused_untouched(tmp_path, suffix, shape):
    """Rows that carry their dimension need a row; ground truth is two matrices."""
    with pytest.raises(UnsupportedLayoutError):
        save_matrix(tmp_path / f"x.{suffix}", np.empty(shape, np.float32))
    assert list(tmp_path.iterdir()) == []


def test_foreign_byte_order_is_converted_where_the_format_has_one_order(tmp_path):
    """Big-endian values arrive right in a little-endian format."""
    array = sample(">f4")
    save_matrix(tmp_path / "x.fbin", array)
    actual = np.asarray(open_matrix(tmp_path / "x.fbin"))
    np.testing.assert_array_equal(actual, array.astype("<f4"), strict=True)


def test_matrices_sources_and_tensors_are_saved_alike(tmp_path):
    """A Matrix, a RowSource of another format and nested lists."""
    array = sample("f4")
    save_matrix(tmp_path / "a.fvecs", Matrix.from_tensor(array))
    with open_rows(tmp_path / "a.fvecs") as rows:
        save_matrix(tmp_path / "b.h5", rows)
    save_matrix(tmp_path / "c.npy", array.tolist())
    np.testing.assert_array_equal(np.asarray(open_matrix(tmp_path / "b.h5")), array, strict=True)
    np.testing.assert_array_equal(np.asarray(open_matrix(tmp_path / "c.npy")), array.astype("f8"), strict=True)


def test_other_readers_read_what_is_written(tmp_path):
    """NumPy, safetensors, h5py and pyarrow see the same values under the name given."""
    import h5py
    import pyarrow as pa
    import pyarrow.parquet as pq
    from safetensors.numpy import load_file

    array = sample("f4")
    for suffix in ("npy", "npz", "safetensors", "h5", "parquet", "arrow"):
        save_matrix(tmp_path / f"x.{suffix}", array, dataset="rows")
    with np.load(tmp_path / "x.npz") as members, h5py.File(tmp_path / "x.h5") as file:
        seen = {
            "npy": np.load(tmp_path / "x.npy"),
            "npz": members["rows"],
            "safetensors": load_file(tmp_path / "x.safetensors")["rows"],
            "h5": file["rows"][:],
            "parquet": np.array(pq.read_table(tmp_path / "x.parquet")["rows"].to_pylist(), "f4"),
            "arrow": np.array(pa.ipc.open_file(tmp_path / "x.arrow").read_all()["rows"].to_pylist(), "f4"),
        }
    for suffix, actual in seen.items():
        np.testing.assert_array_equal(actual, array, strict=True, err_msg=suffix)


def test_numpy_reads_the_bfloat16_file_without_pickle(tmp_path):
    """The named record of .npy is a valid array of two bytes a value."""
    array = sample("bfloat16")
    save_matrix(tmp_path / "x.npy", array)
    np.testing.assert_array_equal(np.load(tmp_path / "x.npy").view(ml_dtypes.bfloat16), array, strict=True)
