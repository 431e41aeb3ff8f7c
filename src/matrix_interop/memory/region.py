"""A region of ordinary memory that grows in place."""

from __future__ import annotations

import mmap
import weakref
from typing import Any, Final, Literal

import numpy as np

from matrix_interop.memory.pages import HUGE_PAGE, Mapping, available_memory, populate

__all__ = ["Region"]

#: Address space asked for at least when a machine allows little of it.
_LEAST: Final = 64 << 20


#: Regions that are not finished. Address space ends, too: where so many times as many grow, each takes a share.
_growing: weakref.WeakSet[Region] = weakref.WeakSet()
_MANY: Final = 8


class Region:
    """Memory whose address never changes while it grows, so that growing copies nothing.

    It takes address space for ``capacity`` bytes; None: for all the memory that the process may use, or a share of it
    where many regions grow.  The kernel gives pages as they are written. `touch` fetches them ahead, faster, by several
    threads. `array` shows the bytes; `finish` gives back what is beyond the end. The memory is freed with the last
    array.
    """

    def __init__(self, capacity: int | None = None) -> None:
        share = available_memory() // (1 + len(_growing) // _MANY)
        wish = max(share, _LEAST) if capacity is None else capacity
        least = _LEAST if capacity is None else capacity
        while True:
            try:
                self._mapping = Mapping(wish)
                break
            except MemoryError:
                # Limits on address space (ulimit -v, strict overcommit): take what they leave.
                if wish == least:
                    raise
                wish = max(wish // 2, least)
        self.nbytes = wish
        self._touched = 0
        _growing.add(self)

    @property
    def address(self) -> int:
        """Where the region starts, a multiple of 2 MiB."""
        return self._mapping.address

    def array(
        self, shape: tuple[int, ...], dtype: np.dtype[Any], *, offset: int = 0, order: Literal["C", "F"] = "C"
    ) -> np.ndarray[Any, np.dtype[Any]]:
        """A writeable array over the bytes from ``offset`` on. Raises TypeError when it would pass the region's end."""
        return np.ndarray(shape, dtype, self._mapping.buffer, offset, None, order)

    def touch(self, nbytes: int) -> None:
        """Have pages behind the first ``nbytes`` now. What is beyond the region's end is left out."""
        stop = min(-(-nbytes // HUGE_PAGE) * HUGE_PAGE, self.nbytes)
        if stop > self._touched:
            populate(self.address + self._touched, stop - self._touched)
            self._touched = stop

    def finish(self, nbytes: int) -> None:
        """Only the first ``nbytes`` are needed any more: give back the others, their address space, too, where we can.

        What was written may move then, without a copy: make arrays anew.
        """
        _growing.discard(self)
        kept = self._mapping.moved(nbytes)
        if kept is self._mapping:
            start = -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
            if self._touched > start:
                kept.discard(start, self._touched - start)
        self._mapping, self.nbytes, self._touched = kept, nbytes, nbytes
