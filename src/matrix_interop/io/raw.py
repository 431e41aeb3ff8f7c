"""Values row by row and nothing else: the caller says dtype and dim, the size gives the rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, BinaryIO, Final

from matrix_interop.errors import FormatError, UnsupportedLayoutError
from matrix_interop.io.base import DType, Format, Layout, Options, Rows, plain_layout
from matrix_interop.io.writing import write_blocks

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["FORMATS"]


class Raw(Format):
    """The format without a header."""

    name = "raw"

    def describe(self, path: Path, options: Options) -> Layout:
        """See `Format.describe`."""
        if options.dtype is None or options.dim is None or options.dim < 1:
            msg = f"{path}: a raw file says nothing about itself: give dtype= and dim=, as in dtype='float32', dim=128"
            raise FormatError(msg)
        size = path.stat().st_size
        row = options.dim * options.dtype.itemsize
        rows = -(-size // row)
        says = f"dtype={options.dtype.name!r}, dim={options.dim} ({row} bytes a row)"
        return plain_layout(path, says, size, options, offset=0, shape=(rows, options.dim), dtype=options.dtype)

    def storage(self, shape: tuple[int, int], dtype: DType) -> DType:
        """See `Format.storage`."""
        if shape[1] == 0:
            msg = f"a raw file cannot hold shape {shape}: its size tells the rows, and rows without values have none"
            raise UnsupportedLayoutError(msg)
        return dtype.newbyteorder("<")

    def write(self, file: BinaryIO, rows: Rows, dtype: DType, dataset: str) -> None:
        """See `Format.write`."""
        write_blocks(file, rows, dtype)


FORMATS: Final[dict[str, Format]] = {"raw": Raw()}
