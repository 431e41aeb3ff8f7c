"""Mapped files: whether they are still as long as they were, and pages asked for before they are touched."""

from __future__ import annotations

import contextlib
import mmap
from pathlib import Path
from typing import Any, Self

import numpy as np

from matrix_interop.errors import FormatError

__all__ = ["MappedFile", "Pages", "pages_of", "require_whole", "will_need"]


class MappedFile(mmap.mmap):
    """A file mapped from its first byte on that knows its path, which may name another file by now."""

    path: Path

    def __new__(cls, path: Path, nbytes: int, access: int) -> Self:
        """The first ``nbytes``, at least one, of the file; ``access`` as `mmap.mmap` takes it. Raises OSError."""
        with path.open("r+b" if access == mmap.ACCESS_WRITE else "rb", buffering=0) as file:
            self = super().__new__(cls, file.fileno(), nbytes, access=access)
        self.path = path
        return self


class Pages:
    """The pages of a mapped file in which an array lies."""

    def __init__(self, mapped: mmap.mmap, start: int) -> None:
        """``start``: the byte of the file at which the mapping begins."""
        self._mapped = mapped
        self._end = start + len(mapped)

    def require(self) -> None:
        """Raise `FormatError` where the file is shorter than it was: touching a lost page would end the process."""
        nbytes = self._mapped.size()
        if nbytes < self._end:
            name = self._mapped.path if isinstance(self._mapped, MappedFile) else "a mapped file"
            raise FormatError(f"{name}: {nbytes} bytes are left of {self._end} that were mapped: it was cut meanwhile")

    def will_need(self, array: np.ndarray) -> None:
        """Have the system read the pages of ``array`` now, if it is a dense part of the file. Does not wait."""
        if not array.flags.c_contiguous or not array.size or not hasattr(self._mapped, "madvise"):
            return
        start = int(np.frombuffer(self._mapped, np.uint8, 1).__array_interface__["data"][0])
        first = int(array.__array_interface__["data"][0]) - start
        last = first + array.nbytes
        first = first // mmap.PAGESIZE * mmap.PAGESIZE
        if 0 <= first < last <= len(self._mapped):
            with contextlib.suppress(OSError):  # no advice, no harm
                self._mapped.madvise(mmap.MADV_WILLNEED, first, last - first)


def pages_of(array: np.ndarray) -> Pages | None:
    """Where an array lies, if that is a mapped file."""
    base: Any = array
    start = 0
    while isinstance(base, np.ndarray):
        if isinstance(base, np.memmap):
            start = int(base.offset or 0) // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY  # a copy has none
        base = base.base
        if hasattr(type(base), "_view"):  # a Matrix, which this room cannot import
            base = base._view.header
    if isinstance(base, memoryview):
        base = base.obj
    if not isinstance(base, mmap.mmap) or not len(base):
        return None
    try:
        base.size()
    except OSError:  # memory of no file
        return None
    return Pages(base, start)


def require_whole(array: np.ndarray) -> None:
    """Raise `FormatError` where an array lies in a mapped file that was cut: before it is touched."""
    pages = pages_of(array)
    if pages is not None:
        pages.require()


def will_need(array: np.ndarray) -> None:
    """Have the system read the pages of ``array`` now, if it is a dense part of a mapped file. Does not wait."""
    pages = pages_of(array)
    if pages is not None:
        pages.will_need(array)
