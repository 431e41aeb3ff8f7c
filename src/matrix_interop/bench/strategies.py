"""The strategies of the AMReX threads #4451 and #4531, as policies for our arena, and memory that is only simulated.

Written from what those threads say, to be compared with our own policies; none is meant for use.
"""

from __future__ import annotations

import math
from typing import ClassVar, Final

from matrix_interop.memory.hunks import Hunk, HunkStore
from matrix_interop.memory.policies import Growth, HunkPolicy

__all__ = ["STRATEGIES", "PowerOfTwoPool", "SimulatedPages"]


class _FirstFit(HunkPolicy):
    """Sizes in steps of 16 bytes, hunks of 8 MiB at least, first fit at the lowest address, nothing given back."""

    name = "no defragmentation"
    alignment = 16
    first_fit = True
    hunk: ClassVar[int] = 8 << 20

    def grow(self, held: HunkStore, nbytes: int) -> Growth:
        return Growth([], max(nbytes, self.hunk))


class _CombineFreed(_FirstFit):
    """#4451: give all unused hunks back and take as much with the request, so that the total stays the same."""

    name = "combine what is freed (#4451)"

    def grow(self, held: HunkStore, nbytes: int) -> Growth:
        unused = held.unused()
        return Growth(unused, max(nbytes + _bytes(unused), self.hunk))


class _CombineIfEnough(_FirstFit):
    """#4531: give unused hunks back only where together they hold the request, and take as much in one piece."""

    name = "combine if enough (#4531)"

    def grow(self, held: HunkStore, nbytes: int) -> Growth:
        unused = held.unused()
        if _bytes(unused) < nbytes:
            return Growth([], max(nbytes, self.hunk))
        return Growth(unused, max(_bytes(unused), self.hunk))


class _AtLeastFreed(_FirstFit):
    """The one-line patch in #4531: give all unused hunks back and take at least as much."""

    name = "at least what was freed"

    def grow(self, held: HunkStore, nbytes: int) -> Growth:
        unused = held.unused()
        return Growth(unused, max(nbytes, _bytes(unused), self.hunk))


class _ReleaseThreshold0(_FirstFit):
    """Release threshold 0: give all unused hunks back before every request."""

    name = "release threshold 0"
    eager = True

    def before(self, held: HunkStore, nbytes: int) -> list[Hunk]:
        return held.unused()


def _bytes(hunks: list[Hunk]) -> int:
    return sum(hunk.nbytes for hunk in hunks)


#: Name -> policy.
STRATEGIES: Final[dict[str, type[HunkPolicy]]] = {
    strategy.name: strategy
    for strategy in (_FirstFit, _CombineFreed, _CombineIfEnough, _AtLeastFreed, _ReleaseThreshold0)
}


class SimulatedPages:
    """An upstream of addresses with nothing behind them, for counting only. Its pages move, too."""

    name = "simulated"
    pinned = False

    def __init__(self, granularity: int = 16) -> None:
        self.granularity = granularity
        self._next = 1 << 30
        self._handles = 0

    def allocate(self, nbytes: int) -> int:
        """The next addresses; pieces never touch."""
        address = self._next
        self._next += (nbytes // (4 << 20) + 2) * (4 << 20)
        return address

    def free(self, address: int, nbytes: int) -> None:
        """Nothing to give back."""

    reserve = allocate
    unreserve = free

    def create(self, nbytes: int) -> int:
        """A number."""
        self._handles += 1
        return self._handles

    def destroy(self, handle: int) -> None:
        """Nothing to give back."""

    def map(self, address: int, nbytes: int, handle: int) -> None:
        """Nothing to map."""

    def unmap(self, address: int, nbytes: int) -> None:
        """Nothing is mapped."""


class PowerOfTwoPool:
    """What the pinned pools of torch and CuPy do: sizes rounded up to powers of two, kept for ever, never split."""

    def __init__(self) -> None:
        self.allocs = 0
        self.reserved = 0
        self._kept: dict[int, int] = {}

    def take(self, nbytes: int) -> int:
        """A block; its rounded size, which `give` wants back."""
        size = 1 << max(0, math.ceil(math.log2(max(1, nbytes))))
        if self._kept.get(size):
            self._kept[size] -= 1
        else:
            self.allocs += 1
            self.reserved += size
        return size

    def give(self, size: int) -> None:
        """The block is free."""
        self._kept[size] = self._kept.get(size, 0) + 1
