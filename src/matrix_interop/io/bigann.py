"""The big-ann-benchmarks formats: .fbin, .u8bin, .i8bin, .ibin, .f16bin, .hbin and .u64bin.

uint32 rows, uint32 columns, then the values row by row, all little-endian. Files of more rows than
uint32 counts start with two uint64 instead. Nothing in the file says which header it has, nor
what dtype: the size decides the one, the suffix the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, BinaryIO, Final

import numpy as np

from matrix_interop.errors import FormatError
from matrix_interop.io.base import DType, Format, Layout, Options, Rows, plain_layout, require_dtype
from matrix_interop.io.texmex import fits_records
from matrix_interop.io.writing import write_blocks

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["FORMATS"]


class Bin(Format):
    """One of the formats, by its value type."""

    def __init__(self, name: str, dtype: str) -> None:
        self.name = name
        self._dtype = np.dtype(dtype)

    def describe(self, path: Path, options: Options) -> Layout:
        """See `Format.describe`."""
        size = path.stat().st_size
        with path.open("rb") as file:
            head = file.read(16)
        if len(head) < 8:
            msg = f"{path}: a .{self.name} file starts with rows and columns in 8 bytes, but the file has {size}"
            raise FormatError(msg)
        short = (int.from_bytes(head[:4], "little"), int.from_bytes(head[4:8], "little"))
        long = (int.from_bytes(head[:8], "little"), int.from_bytes(head[8:], "little"))
        # At most one fits: read as uint64, the row count is at least 2**32 unless the uint32 columns are 0,
        # and then the short reading expects 8 bytes. (16 bytes with 0 columns could be both: short wins.)
        item = self._dtype.itemsize
        if size != 8 + short[0] * short[1] * item and len(head) == 16 and size == 16 + long[0] * long[1] * item:
            return plain_layout(path, "the 16-byte header", size, options, offset=16, shape=long, dtype=self._dtype)
        try:
            return plain_layout(path, "the 8-byte header", size, options, offset=8, shape=short, dtype=self._dtype)
        except FormatError as e:
            raise FormatError(str(e) + self._hints(head, size, long)) from None

    def _hints(self, head: bytes, size: int, long: tuple[int, int]) -> str:
        hint = (
            f". Read as a 16-byte header it says {long[0]} x {long[1]}, which does not fit either"
            if len(head) == 16
            else ""
        )
        for suffix, item in (("fvecs or .ivecs", 4), ("bvecs", 1)):
            if fits_records(head, size, item):
                dim = int.from_bytes(head[:4], "little")
                return f"{hint}. It looks like .{suffix}: {size // (4 + dim * item)} records of dimension {dim}"
        return hint

    def storage(self, shape: tuple[int, int], dtype: DType) -> DType:
        """See `Format.storage`."""
        return require_dtype("." + self.name, dtype, (self._dtype.name,))

    def write(self, file: BinaryIO, rows: Rows, dtype: DType, dataset: str) -> None:
        """See `Format.write`. The 16-byte header is written where the short one cannot count the rows or columns."""
        width = 4 if max(rows.shape) < 2**32 else 8
        file.write(rows.shape[0].to_bytes(width, "little") + rows.shape[1].to_bytes(width, "little"))
        write_blocks(file, rows, dtype)


FORMATS: Final[dict[str, Format]] = {
    name: Bin(name, dtype)
    for name, dtype in {
        "fbin": "<f4",
        "u8bin": "u1",
        "i8bin": "i1",
        "ibin": "<i4",
        "f16bin": "<f2",
        "hbin": "<f2",
        "u64bin": "<u8",
    }.items()
}
