"""Writing a file so that it is there whole or not at all, in blocks and in logical row order."""

from __future__ import annotations

import os
import secrets
import shutil
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

from matrix_interop.io.base import BLOCK_BYTES, Array, DType, Layout, Rows
from matrix_interop.transfer.files import pages_of

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["ArrayRows", "blocks", "replacing", "write_blocks"]


class ArrayRows(Rows):
    """The rows of an array in memory; `read` gives views. `FormatError` where a mapped file was cut."""

    def __init__(self, array: Array) -> None:
        super().__init__(Layout((array.shape[0], array.shape[1]), array.dtype))
        self.array = array
        self._file = pages_of(array)

    def read(self, start: int, stop: int) -> Array:
        """See `Rows.read`."""
        if self._file is not None:
            self._file.require()
        return self.array[start:stop]


def blocks(rows: Rows, dtype: DType) -> Iterator[Array]:
    """All rows as C-contiguous arrays of ``dtype``, about 8 MiB each; views where ``rows`` has them so already."""
    n, d = rows.shape
    step = max(1, BLOCK_BYTES // max(1, d * dtype.itemsize))
    for start in range(0, n, step):
        yield np.ascontiguousarray(rows.read(start, min(n, start + step)), dtype)


def write_blocks(file: BinaryIO, rows: Rows, dtype: DType) -> None:
    """All rows, one after the other, as plain values."""
    file.writelines(block.reshape(-1).view(np.uint8).data for block in blocks(rows, dtype))


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A new file beside ``path`` that takes its place when the block ends well, and vanishes when it does not.

    The bytes are on the disk (fsync) before the name changes, so that even after a power cut the
    name means the old file or the new one, whole. A symbolic link stays and its target is replaced.
    """
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():
        msg = f"{path}: is there and is not a regular file"
        raise FileExistsError(msg)
    temporary = target.with_name(f".{secrets.token_hex(8)}.tmp")
    try:
        file = temporary.open("xb")
    except OSError as error:  # that names the file which was meant
        raise OSError(error.errno, f"{error.strerror} (a new file in {target.parent})", str(path)) from error
    try:
        with file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if target.exists():
            shutil.copymode(target, temporary)
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync_folder(target.parent)


def _sync_folder(folder: Path) -> None:
    """Put the new name itself on the disk."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
