"""HDF5: contiguous datasets mapped, others read in runs of chunks."""

from __future__ import annotations

import h5py
import numpy as np
import pytest

from matrix_interop.errors import FormatError, UnsupportedDtypeError
from matrix_interop.io import hdf5, is_mapped, open_matrix, open_rows

ARRAY = np.arange(20, dtype=np.float32).reshape(10, 2)


def test_contiguous_is_mapped_and_the_rest_is_read(tmp_path):
    """By name, also in groups; compressed, chunked, and with a user block in front."""
    with h5py.File(tmp_path / "x.h5", "w", userblock_size=512) as file:
        file["plain"] = ARRAY
        file.create_dataset("group/chunked", data=ARRAY, chunks=(3, 2))
        file.create_dataset("small", data=ARRAY, chunks=(4, 1), compression="gzip", shuffle=True)
    for name, mapped in {"plain": True, "/plain": True, "group/chunked": False, "small": False}.items():
        m = open_matrix(tmp_path / "x.h5", dataset=name)
        assert (is_mapped(m), np.asarray(m).tolist()) == (mapped, ARRAY.tolist())


def test_big_endian_and_float64_of_a_file_are_kept(tmp_path):
    """The dtype is the file's, also foreign byte order."""
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("rows", data=ARRAY.astype(">f8"), chunks=(3, 2))
    np.testing.assert_array_equal(np.asarray(open_matrix(tmp_path / "x.h5")), ARRAY.astype(">f8"), strict=True)


def test_one_dimension_is_cut_by_dim(tmp_path):
    """As sparse sets of ann-benchmarks keep their rows end to end; chunked and contiguous."""
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["plain"] = ARRAY.reshape(-1)
        file.create_dataset("chunked", data=ARRAY.reshape(-1), chunks=(7,))
    for name in ("plain", "chunked"):
        with open_rows(tmp_path / "x.h5", dataset=name, dim=2) as rows:
            assert rows.take([9, 0]).tolist() == ARRAY[[9, 0]].tolist()


def test_random_rows_decode_each_chunk_about_once(tmp_path, monkeypatch):
    """T59: rows come in the order asked; 20 000 of 100 000 rows read no more than the file twice over."""
    n = 100_000
    array = np.arange(n * 8, dtype=np.float32).reshape(n, 8)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("rows", data=array, chunks=(1000, 8), compression="gzip")
    read, done = hdf5._Dataset.read, []
    monkeypatch.setattr(hdf5._Dataset, "read", lambda self, a, b: (done.append(b - a), read(self, a, b))[1])
    ids = np.random.default_rng(0).integers(0, n, 20_000)
    with open_rows(tmp_path / "x.h5") as rows:
        np.testing.assert_array_equal(rows.take([7, 2, 5]), array[[7, 2, 5]], strict=True)
        done.clear()
        np.testing.assert_array_equal(rows.take(ids), array[ids], strict=True)
    assert sum(done) <= 2 * n


def test_missing_chunks_are_refused(tmp_path):
    """A dataset that was declared and never filled is not a matrix of zeros, however large it says it is."""
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("chunked", (10**12, 4), "f4", chunks=(1000, 4))
        file.create_dataset("plain", (10, 4), "f4")
    for name in ("chunked", "plain"):
        with pytest.raises(FormatError, match="stored are 0"):
            open_matrix(tmp_path / "x.h5", dataset=name)


def test_what_is_no_matrix_of_numbers_is_refused(tmp_path):
    """Booleans, texts, records, empty datasets."""
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["bool"] = ARRAY > 3
        file["text"] = [["a", "b"]]
        file["record"] = np.zeros((2, 2), [("a", "f4")])
        file["empty"] = h5py.Empty("f4")
    for name in ("bool", "text", "record"):
        with pytest.raises(UnsupportedDtypeError):
            open_matrix(tmp_path / "x.h5", dataset=name)
    with pytest.raises(FormatError):
        open_matrix(tmp_path / "x.h5", dataset="empty")
