"""The TEXMEX formats .fvecs, .ivecs and .bvecs (http://corpus-texmex.irisa.fr).

Each row is a record: its dimension as little-endian int32, then that many float32, int32 or uint8
values. No count stands anywhere: the number of rows follows from the file's size. A mapped file is
a view whose rows are 4 bytes further apart than they are long.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, BinaryIO, Final

import numpy as np

from matrix_interop.errors import FormatError, UnsupportedLayoutError
from matrix_interop.io.base import (
    BLOCK_BYTES,
    Array,
    DType,
    Format,
    Layout,
    Options,
    PlainRows,
    Rows,
    require_addressable,
    require_dtype,
)
from matrix_interop.io.writing import blocks

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["FORMATS", "fits_records"]

_HEAD: Final = 4
#: So many records, spread evenly, have their dimension compared at opening; `Options.verify` compares all.
_SAMPLES: Final = 256


class Vecs(Format):
    """One of the three formats, by its value type."""

    def __init__(self, name: str, dtype: str) -> None:
        self.name = name
        self._dtype = np.dtype(dtype)

    def describe(self, path: Path, options: Options) -> Layout:
        """See `Format.describe`."""
        size = path.stat().st_size
        if size == 0 and options.dim is not None:
            return Layout(
                (0, options.dim), self._dtype, 0, (_HEAD + options.dim * self._dtype.itemsize, self._dtype.itemsize)
            )
        with path.open("rb") as file:
            head = file.read(_HEAD)
        if len(head) < _HEAD:
            msg = f"{path}: a .{self.name} file starts with a row's dimension in 4 bytes, but the file has {size}"
            raise FormatError(msg)
        layout = self._count(path, size, int.from_bytes(head, "little", signed=True), options)
        rows = _VecsRows(path, layout)
        try:
            rows.check(every=options.verify)
        finally:
            rows.close()
        return layout

    def _count(self, path: Path, size: int, dim: int, options: Options) -> Layout:
        if dim <= 0:
            msg = (
                f"{path}: the first record of .{self.name} says dimension {dim}, which no row has ({size} bytes in all)"
            )
            raise FormatError(msg)
        record = _HEAD + dim * self._dtype.itemsize
        whole, left = divmod(size, record)
        if left and not options.partial:
            msg = (
                f"{path}: the first record says dimension {dim}, so {record} bytes a row of {self._dtype}, but "
                f"the file has {size} bytes: {whole} whole rows, {left} bytes left; partial=True reads the whole rows"
            )
            raise FormatError(msg)
        require_addressable(path, "the first record", (whole, dim), self._dtype)
        return Layout((whole, dim), self._dtype, _HEAD, (record, self._dtype.itemsize))

    def open(self, path: Path, options: Options) -> Rows:
        """See `Format.open`."""
        return _VecsRows(path, self.describe(path, options))

    def storage(self, shape: tuple[int, int], dtype: DType) -> DType:
        """See `Format.storage`."""
        if 0 in shape or shape[1] >= 2**31:
            msg = f"a .{self.name} file cannot hold shape {shape}: every row carries its dimension, 1 to 2**31 - 1"
            raise UnsupportedLayoutError(msg)
        return require_dtype("." + self.name, dtype, (self._dtype.name,))

    def write(self, file: BinaryIO, rows: Rows, dtype: DType, dataset: str) -> None:
        """See `Format.write`."""
        head = np.frombuffer(rows.shape[1].to_bytes(_HEAD, "little"), np.uint8)
        for block in blocks(rows, dtype):
            records = np.empty((len(block), _HEAD + rows.shape[1] * dtype.itemsize), np.uint8)
            records[:, :_HEAD] = head
            records[:, _HEAD:] = block.view(np.uint8)
            file.write(records.data)


class _VecsRows(PlainRows):
    """Rows whose record heads are compared with the first one as they are read."""

    def read(self, start: int, stop: int) -> Array:
        dim, record = self.layout.shape[1], self.layout.strides[0]
        records = np.empty((stop - start, record), np.uint8)
        self._fill(memoryview(records.reshape(-1).data), start * record)
        heads = records[:, :_HEAD].copy().view("<i4")[:, 0]
        wrong = np.flatnonzero(heads != dim)
        if wrong.size:
            at = int(wrong[0])
            msg = (
                f"{self._path}: the record of row {start + at} at byte {(start + at) * record} says dimension "
                f"{int(heads[at])}, the first one {dim}: rows of different lengths, or not this format"
            )
            raise FormatError(msg)
        return records[:, _HEAD:].copy().view(self.layout.dtype)

    def gather(self, ids: Array, places: Array, out: Array) -> None:
        Rows.gather(self, ids, places, out)  # by `read`, which compares the heads

    def check(self, *, every: bool) -> None:
        """Compare the heads of every record, or of up to 256, the first and the last among them."""
        n, record = self.layout.shape[0], self.layout.strides[0]
        if every:
            step = max(1, BLOCK_BYTES // record)
            for start in range(0, n, step):
                self.read(start, min(n, start + step))
            return
        for row in np.linspace(0, n - 1, min(n, _SAMPLES), dtype=np.int64).tolist():
            head = bytearray(_HEAD)
            self._fill(memoryview(head), row * record)
            if int.from_bytes(head, "little", signed=True) != self.layout.shape[1]:
                self.read(row, row + 1)


def fits_records(head: bytes, size: int, itemsize: int) -> bool:
    """True if a file of ``size`` bytes that starts with ``head`` could be records of one dimension."""
    dim = int.from_bytes(head[:_HEAD], "little", signed=True)
    return len(head) >= _HEAD and dim > 0 and size % (_HEAD + dim * itemsize) == 0


FORMATS: Final[dict[str, Format]] = {
    "fvecs": Vecs("fvecs", "<f4"),
    "ivecs": Vecs("ivecs", "<i4"),
    "bvecs": Vecs("bvecs", "u1"),
}
