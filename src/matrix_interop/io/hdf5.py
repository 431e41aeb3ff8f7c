"""HDF5, through h5py: any dataset of two dimensions, the layout of ann-benchmarks among them.

ann-benchmarks files hold the datasets "train", "test", "neighbors" and "distances" (and "angular"
ones are not normalised). A contiguous, unfiltered dataset is a plain region of the file: it is
mapped and read without the library. Chunked or compressed ones are read in runs of whole chunks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, BinaryIO, Final

import numpy as np

from matrix_interop.errors import FormatError, UnsupportedDtypeError
from matrix_interop.io.base import (
    Array,
    DType,
    Format,
    Layout,
    Options,
    PlainRows,
    Rows,
    as_matrix,
    choose,
    plain_layout,
    refusing,
    require_addressable,
    require_dtype,
    require_library,
)
from matrix_interop.io.writing import blocks

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["FORMATS"]

_ERRORS: Final = (OSError, RuntimeError, ValueError, KeyError, TypeError, MemoryError, OverflowError)
_NUMBERS: Final = tuple(
    f"{kind}{bits}" for kind in ("float", "int", "uint") for bits in (32, 64, 16, 8) if (kind, bits) != ("float", 8)
)


class Hdf5(Format):
    """The format."""

    name = "hdf5"
    takes = ("dataset",)

    def sniff(self, head: bytes, tail: bytes) -> bool:
        """See `Format.sniff`."""
        return head.startswith(b"\x89HDF\r\n\x1a\n")

    def describe(self, path: Path, options: Options) -> Layout:
        """See `Format.describe`."""
        h5py = require_library("h5py", "h5py", "HDF5")
        size = path.stat().st_size
        with refusing(path, "HDF5", *_ERRORS), h5py.File(path, "r") as file:
            return _describe(h5py, path, size, _pick(h5py, file, path, options), options)

    def open(self, path: Path, options: Options) -> Rows:
        """See `Format.open`."""
        layout = self.describe(path, options)
        return PlainRows(path, layout) if layout.offset is not None else _Dataset(path, layout, options)

    def storage(self, shape: tuple[int, int], dtype: DType) -> DType:
        """See `Format.storage`."""
        return require_dtype("HDF5", dtype, _NUMBERS)

    def write(self, file: BinaryIO, rows: Rows, dtype: DType, dataset: str) -> None:
        """See `Format.write`. Contiguous, so that it can be mapped; readable from HDF5 1.10 on."""
        h5py = require_library("h5py", "h5py", "HDF5")
        # The headers of this version carry checksums, those of the default one do not.
        with h5py.File(file, "w", libver=("v110", "v110")) as out:
            stored = out.create_dataset(dataset, rows.shape, dtype)
            at = 0
            for block in blocks(rows, dtype):
                stored[at : at + len(block)] = block
                at += len(block)


def _pick(h5py: Any, file: Any, path: Path, options: Options) -> Any:
    names: list[str] = []
    file.visititems(lambda name, item: names.append(name) if isinstance(item, h5py.Dataset) else None)
    wanted = None if options.dataset is None else options.dataset.strip("/")
    return file[choose(path, "dataset", names, wanted)]


def _describe(h5py: Any, path: Path, size: int, stored: Any, options: Options) -> Layout:
    what = f"dataset {stored.name!r}"
    if stored.shape is None:
        msg = f"{path}: {what} is empty: it has no shape"
        raise FormatError(msg)
    dtype = stored.dtype
    if dtype.kind in "iuf" and stored.id.get_type() != h5py.h5t.py_create(dtype):
        msg = f"{path}: {what} describes its {dtype} in no usual way: damaged, or read it with h5py and convert it"
        raise FormatError(msg)
    if dtype.name not in _NUMBERS:
        msg = f"{path}: {what} holds {dtype}, not plain numbers: read it with h5py and convert it"
        raise UnsupportedDtypeError(msg)
    shape = as_matrix(path, what, stored.shape, options)
    require_addressable(path, what, shape, dtype)
    nbytes = shape[0] * shape[1] * dtype.itemsize
    creation = stored.id.get_create_plist()
    if nbytes and creation.get_layout() == h5py.h5d.CONTIGUOUS and creation.get_external_count() == 0:
        offset = stored.id.get_offset()
        if offset is None or stored.id.get_storage_size() != nbytes:
            found = stored.id.get_storage_size()
            msg = f"{path}: {what} of shape {shape}, {dtype}, needs {nbytes} bytes, stored are {found}"
            raise FormatError(msg)
        end = max(offset, min(size, offset + nbytes))
        return plain_layout(path, what, end, options, offset=offset, shape=shape, dtype=dtype)
    if nbytes and creation.get_layout() == h5py.h5d.CHUNKED:
        expected = 1
        for length, chunk in zip(stored.shape, stored.chunks, strict=True):
            expected *= -(-length // chunk)
        if stored.id.get_num_chunks() != expected:
            found = stored.id.get_num_chunks()
            msg = f"{path}: {what} of shape {stored.shape} has {expected} chunks of {stored.chunks}, stored are {found}"
            raise FormatError(msg)
    return Layout(shape, dtype)


class _Dataset(Rows):
    """Rows that the library reads: chunked, compressed, or not in this file at all."""

    def __init__(self, path: Path, layout: Layout, options: Options) -> None:
        super().__init__(layout)
        h5py = require_library("h5py", "h5py", "HDF5")
        self._path = path
        with refusing(path, "HDF5", *_ERRORS):
            self._file = h5py.File(path, "r")
            self._stored = _pick(h5py, self._file, path, options)
        if self._stored.chunks is not None:
            # From one wanted row to the next within a chunk or into the next one: no chunk is read for nothing.
            self.near = self._stored.chunks[0]

    def read(self, start: int, stop: int) -> Array:
        dim = self.layout.shape[1]
        out = np.empty((stop - start, dim), self.layout.dtype)
        with refusing(self._path, "HDF5", *_ERRORS):
            if self._stored.ndim == 1:
                self._stored.read_direct(out.reshape(-1), np.s_[start * dim : stop * dim])
            elif out.size:
                self._stored.read_direct(out, np.s_[start:stop])
        return out

    def close(self) -> None:
        self._file.close()


FORMATS: Final[dict[str, Format]] = dict.fromkeys(("hdf5", "h5"), Hdf5())
