"""Mapped files: pages asked for before they are touched, or read without being touched."""

from __future__ import annotations

import mmap
import os
import weakref
from pathlib import Path
from typing import Final, Self

import numpy as np

from matrix_interop.errors import FormatError

__all__ = ["MappedFile", "Pages", "pages_of", "will_need"]

#: Parts that the system is asked for before they are touched.
_AHEAD: Final = 2


class MappedFile(mmap.mmap):
    """A file mapped into memory that can be read by system calls as well.

    Reading takes a fraction of the time of touching mapped pages for the first time, which costs a fault for every
    64 KiB, and no page comes into the process.  The descriptor is this mapping's own: the path may name another file
    by now.
    """

    path: Path
    #: -1 where memory may differ from the file: in a mapping whose changes are private.
    descriptor: int

    def __new__(cls, path: Path, nbytes: int, access: int) -> Self:
        """The first ``nbytes``, at least one, of the file; ``access`` as `mmap.mmap` takes it. Raises OSError."""
        with path.open("r+b" if access == mmap.ACCESS_WRITE else "rb", buffering=0) as file:
            self = super().__new__(cls, file.fileno(), nbytes, access=access)
            shared = access != mmap.ACCESS_COPY and hasattr(os, "preadv")
            self.descriptor = os.dup(file.fileno()) if shared else -1
        self.path = path
        if shared:
            weakref.finalize(self, os.close, self.descriptor).atexit = False
        return self


class Pages:
    """The pages of a mapped file in which an array lies."""

    def __init__(self, mapped: mmap.mmap) -> None:
        self._mapped = mapped
        self._start = int(np.frombuffer(mapped, np.uint8, 1).__array_interface__["data"][0])
        self._file = mapped if isinstance(mapped, MappedFile) and mapped.descriptor >= 0 else None

    @property
    def readable(self) -> bool:
        """True where `read` works."""
        return self._file is not None

    def position(self, array: np.ndarray) -> int:
        """The byte of the mapping at which an array begins."""
        return int(array.__array_interface__["data"][0]) - self._start

    def will_need(self, array: np.ndarray) -> None:
        """Have the system read the pages of ``array`` now, if it is a dense part of the file. Does not wait."""
        if not array.flags.c_contiguous or not array.size:
            return
        first = self.position(array)
        last = first + array.nbytes
        first = first // mmap.PAGESIZE * mmap.PAGESIZE
        if 0 <= first < last <= len(self._mapped):
            self._mapped.madvise(mmap.MADV_WILLNEED, first, last - first)

    def read_ahead(self, array: np.ndarray, start: int, step: int) -> None:
        """Rows of ``array`` are about to be read, ``step`` from ``start`` on: ask for those that come next."""
        first = start + (_AHEAD if start else 0) * step
        self.will_need(array[first : start + (_AHEAD + 1) * step])

    def read(self, out: memoryview, position: int) -> None:
        """Fill ``out`` from that byte of the file on. Raises `FormatError` where the file ends before."""
        file = self._file
        assert file is not None  # noqa: S101 - for the type checker: `readable` was asked
        done = 0
        while done < len(out):
            count = os.preadv(file.descriptor, [out[done:]], position + done)
            if not count:
                msg = f"{file.path}: ends before byte {position + len(out)}, which it had when it was mapped"
                raise FormatError(msg)
            done += count


def pages_of(array: np.ndarray) -> Pages | None:
    """Where an array lies, if that is a mapped file."""
    base: object = array
    while isinstance(base, np.ndarray):
        base = base.base
    if isinstance(base, memoryview):
        base = base.obj
    return Pages(base) if isinstance(base, mmap.mmap) and hasattr(base, "madvise") and len(base) else None


def will_need(array: np.ndarray) -> None:
    """Have the system read the pages of ``array`` now, if it is a dense part of a mapped file. Does not wait."""
    pages = pages_of(array)
    if pages is not None:
        pages.will_need(array)
