"""Every file of the shared real data equals what an independent reader gives."""

from __future__ import annotations

import json

import h5py
import ml_dtypes
import numpy as np
import pyarrow.parquet as pq
import pytest
from safetensors import safe_open

from matrix_interop.io import is_mapped, open_matrix, open_rows


def records(path, dtype):
    """.fvecs and its kin, cut by arithmetic from bytes."""
    data = np.fromfile(path, np.uint8)
    dim = int.from_bytes(data[:4].tobytes(), "little")
    rows = data.reshape(-1, 4 + dim * np.dtype(dtype).itemsize)
    assert (rows[:, :4] == rows[0, :4]).all()
    return rows[:, 4:].copy().view(dtype)


def binary(path, dtype):
    """.fbin and its kin, likewise."""
    n, d = np.fromfile(path, "<u4", 2).tolist()
    return np.fromfile(path, dtype, offset=8).reshape(n, d)


def tensor(path, name):
    """A tensor by the library, bfloat16 by hand: the library has it only for torch."""
    with safe_open(path, "numpy") as file:
        if file.get_slice(name).get_dtype() != "BF16":
            return file.get_tensor(name)
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    entry = json.loads(raw[8 : 8 + length])[name]
    start, stop = entry["data_offsets"]
    return np.frombuffer(raw[8 + length :][start:stop], ml_dtypes.bfloat16).reshape(entry["shape"])


def column(path, name):
    """A column of lists, row by row."""
    return np.array(pq.read_table(path)[name].to_pylist(), np.float32)


def vectors_of(data, suffix, read, mapped=True):
    """All files of one suffix."""
    return [(path, {}, read(path), mapped) for path in sorted(data.rglob(f"*.{suffix}"))]


def everything(data):
    """(path, keywords, what an independent reader gives, mapped) of every matrix in the shared data."""
    yield from vectors_of(data, "fvecs", lambda path: records(path, "<f4"))
    yield from vectors_of(data, "ivecs", lambda path: records(path, "<i4"))
    yield from vectors_of(data, "bvecs", lambda path: records(path, "u1"))
    yield from vectors_of(data, "fbin", lambda path: binary(path, "<f4"))
    yield from vectors_of(data, "ibin", lambda path: binary(path, "<i4"))
    yield from vectors_of(data, "u8bin", lambda path: binary(path, "u1"))
    yield from vectors_of(data, "parquet", lambda path: column(path, "vector"), mapped=False)
    for path in sorted(data.rglob("*.npy")):
        array = np.load(path)
        yield path, {} if array.ndim == 2 else {"dim": 1}, array.reshape(len(array), -1), True
    for path in sorted(data.rglob("*.npz")):
        with np.load(path) as members:
            for name in members.files:
                yield path, {"dataset": name, "mmap": False}, members[name], False
    for path in sorted(data.rglob("*.bin")):
        n, k = np.fromfile(path, "<u4", 2).tolist()
        for name, dtype, offset in (("ids", "<i4", 8), ("distances", "<f4", 8 + 4 * n * k)):
            yield path, {"dataset": name}, np.fromfile(path, dtype, n * k, offset=offset).reshape(n, k), True
    for path in sorted(data.rglob("*.hdf5")):
        with h5py.File(path) as file:
            for name in file:
                yield path, {"dataset": name}, file[name][:], file[name].id.get_offset() is not None
    for path in sorted(data.rglob("*.safetensors")):
        with safe_open(path, "numpy") as file:
            names = list(file.keys())
        for name in names:
            array = tensor(path, name)
            yield (
                path,
                {"dataset": name, **({} if array.ndim == 2 else {"dim": 1})},
                array.reshape(len(array), -1),
                True,
            )


@pytest.fixture(scope="module")
def matrices(shared_data):
    """All of them, read once."""
    return list(everything(shared_data))


def test_no_file_of_the_shared_data_is_left_out(shared_data, matrices):
    """Every file but texts and lists is read below."""
    files = {path for path in shared_data.rglob("*") if path.is_file()}
    others = {path for path in files if path.suffix in {".md", ".txt", ".jsonl", ""}}
    assert {path for path, *_ in matrices} == files - others


def test_open_matrix_equals_an_independent_reader(matrices):
    """Values, dtype, and mapped exactly where the file is one plain region."""
    for path, keywords, expected, mapped in matrices:
        m = open_matrix(path, **keywords)
        actual = np.asarray(m)
        assert (actual.dtype, is_mapped(m)) == (expected.dtype, mapped), path
        np.testing.assert_array_equal(actual, expected, strict=True, err_msg=str(path))


def test_open_rows_equals_an_independent_reader(matrices):
    """Ranges and single rows in any order, from every file."""
    for path, keywords, expected, _ in matrices:
        with open_rows(path, **{key: value for key, value in keywords.items() if key != "mmap"}) as rows:
            ids = [len(rows) - 1, 0, len(rows) // 2, 0]
            np.testing.assert_array_equal(rows.read(1, len(rows)), expected[1:], strict=True, err_msg=str(path))
            np.testing.assert_array_equal(rows.take(ids), expected[ids], strict=True, err_msg=str(path))
