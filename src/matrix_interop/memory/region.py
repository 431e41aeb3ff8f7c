"""A region of ordinary memory that grows in place."""

from __future__ import annotations

import mmap
from typing import Any, Final, Literal

import numpy as np

from matrix_interop.memory.pages import HUGE_PAGE, Mapping, available_memory, populate

__all__ = ["Region"]

#: Address space asked for at least when a machine allows little of it.
_LEAST: Final = 64 << 20


class Region:
    """Memory whose address never changes while it grows, so that growing copies nothing.

    It takes address space for all the memory the process may use (``capacity`` bytes at least), and the kernel gives
    pages as they are written. `touch` fetches them ahead, faster, by several threads. `array` shows the bytes;
    `finish` gives back what is beyond the end. The memory is freed with the last array.
    """

    def __init__(self, capacity: int = 0) -> None:
        wish = max(capacity, available_memory(), _LEAST)
        while True:
            try:
                self._mapping = Mapping(wish)
                break
            except MemoryError:
                # Limits on address space (ulimit -v, strict overcommit): take what they leave, but what was asked for.
                if wish == max(capacity, _LEAST):
                    raise
                wish = max(wish // 2, capacity, _LEAST)
        self.nbytes = wish
        self._touched = 0

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
        """Nothing is written beyond the first ``nbytes`` any more: give the pages there back."""
        start = -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
        stop = max(self._touched, start)
        if stop > start:
            self._mapping.discard(start, stop - start)
