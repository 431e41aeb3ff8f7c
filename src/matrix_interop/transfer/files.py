"""Mapped files: asking the system for pages before they are touched."""

from __future__ import annotations

import mmap
from typing import Final

import numpy as np

__all__ = ["Mapped", "mapped_file", "will_need"]

#: Parts that the system is asked for before they are touched.
_AHEAD: Final = 2


class Mapped:
    """A file mapped into memory."""

    def __init__(self, pages: mmap.mmap) -> None:
        self._pages = pages
        self._start = int(np.frombuffer(pages, np.uint8, 1).__array_interface__["data"][0])

    def will_need(self, array: np.ndarray) -> None:
        """Have the system read the pages of ``array`` now, if it is a dense part of the file. Does not wait."""
        if not array.flags.c_contiguous or not array.size:
            return
        first = int(array.__array_interface__["data"][0]) - self._start
        last = first + array.nbytes
        first = first // mmap.PAGESIZE * mmap.PAGESIZE
        if 0 <= first < last <= len(self._pages):
            self._pages.madvise(mmap.MADV_WILLNEED, first, last - first)

    def read_ahead(self, array: np.ndarray, start: int, step: int) -> None:
        """Rows of ``array`` are about to be read, ``step`` from ``start`` on: ask for those that come next."""
        first = start + (_AHEAD if start else 0) * step
        self.will_need(array[first : start + (_AHEAD + 1) * step])


def mapped_file(array: np.ndarray) -> Mapped | None:
    """The file in which an array lies, if it is a mapped one."""
    base: object = array
    while isinstance(base, np.ndarray):
        base = base.base
    if isinstance(base, memoryview):
        base = base.obj
    return Mapped(base) if isinstance(base, mmap.mmap) and hasattr(base, "madvise") and len(base) else None


def will_need(array: np.ndarray) -> None:
    """Have the system read the pages of ``array`` now, if it is a dense part of a mapped file. Does not wait."""
    file = mapped_file(array)
    if file is not None:
        file.will_need(array)
