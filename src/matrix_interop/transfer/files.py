"""Mapped files: asking the system for pages before they are touched."""

from __future__ import annotations

import mmap
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np

__all__ = ["advised", "will_need"]

_AHEAD: Final = 2


def advised(parts: Iterable[tuple[np.ndarray, int]]) -> Iterator[tuple[np.ndarray, int]]:
    """The same parts; those of a mapped file are read ahead by the system, two at a time."""
    waiting: deque[tuple[np.ndarray, int]] = deque()
    for part in parts:
        will_need(part[0])
        waiting.append(part)
        if len(waiting) > _AHEAD:
            yield waiting.popleft()
    yield from waiting


def will_need(array: np.ndarray) -> None:
    """Have the system read the pages of ``array`` now, if it is a dense part of a mapped file. Does not wait."""
    if not array.flags.c_contiguous or not array.size:
        return
    base: object = array
    while isinstance(base, np.ndarray):
        base = base.base
    if isinstance(base, memoryview):
        base = base.obj
    if not isinstance(base, mmap.mmap) or not hasattr(base, "madvise"):
        return
    start = int(np.frombuffer(base, np.uint8, 1).__array_interface__["data"][0])
    first = (int(array.__array_interface__["data"][0]) - start) // mmap.PAGESIZE * mmap.PAGESIZE
    last = int(array.__array_interface__["data"][0]) - start + array.nbytes
    if 0 <= first < last <= len(base):
        base.madvise(mmap.MADV_WILLNEED, first, last - first)
