"""A store of hunks: pieces from upstream of any size, each its own range of addresses, cut into blocks."""

from __future__ import annotations

import threading
import time
from bisect import bisect_left, insort
from typing import Final

from matrix_interop.memory.policies import Counters, HunkPolicy, NoRoomError
from matrix_interop.memory.upstreams import REFUSALS, Upstream

__all__ = ["Hunk", "HunkStore"]

#: A free span is kept as one integer, size * 2**57 + address, which sorts by size, then address, and compares fast.
_SHIFT: Final = 57
_ADDRESS: Final = (1 << _SHIFT) - 1


class Hunk:
    """One piece from upstream. ``used`` counts the bytes of its blocks; ``idle_since`` is when that fell to 0."""

    __slots__ = ("address", "idle_since", "nbytes", "used")

    def __init__(self, address: int, nbytes: int) -> None:
        self.address = address
        self.nbytes = nbytes
        self.used = 0
        self.idle_since = 0.0


class HunkStore:
    """`Store` under a `HunkPolicy`.

    Free neighbours merge, but only inside one hunk: one copy over two registrations would fail.
    """

    def __init__(self, upstream: Upstream, policy: HunkPolicy, lock: threading.Lock) -> None:
        self.upstream = upstream
        self.counters = Counters()
        self.reserved = 0
        self.used = 0
        self.losses: list[str] = []
        self.hunks: set[Hunk] = set()
        self._policy = policy
        self._lock = lock
        self._mask = policy.alignment - 1
        self._eager = policy.eager
        self._first_fit = policy.first_fit
        #: Start of a free span -> (size, hunk); its end -> its start; and all of them sorted by size.
        self._free: dict[int, tuple[int, Hunk]] = {}
        self._ends: dict[int, int] = {}
        self._by_size: list[int] = []
        self._blocks: dict[int, tuple[int, Hunk]] = {}
        #: The block freed last, kept whole for the next request: staging asks for one size again and again.
        self._last: int | None = None
        self._last_nbytes = 0

    def round(self, nbytes: int) -> int:
        return (nbytes + self._mask) & ~self._mask or self._mask + 1

    def take(self, nbytes: int) -> int | None:
        if nbytes == self._last_nbytes:
            address, self._last, self._last_nbytes = self._last, None, 0
            self.used += nbytes
            return address
        return None if self._eager else self._place(nbytes)

    def give(self, address: int) -> None:
        nbytes = self._blocks[address][0]
        self.used -= nbytes
        self._merge_last()
        self._last, self._last_nbytes = address, nbytes
        if self._eager or self._first_fit:  # which reuse a block only where their own rule finds it
            self._merge_last()

    def _merge_last(self) -> None:
        """Let the block freed last go back among the free spans of its hunk."""
        if self._last is None:
            return
        start, self._last, self._last_nbytes = self._last, None, 0
        nbytes, hunk = self._blocks.pop(start)
        hunk.used -= nbytes
        if not hunk.used:
            hunk.idle_since = time.monotonic()
        end = start + nbytes
        after = self._free.get(end)
        if after is not None and after[1] is hunk:
            self._drop(end)
            end += after[0]
        before = self._ends.get(start)
        if before is not None and self._free[before][1] is hunk:
            self._drop(before)
            start = before
        self._add(start, end, hunk)

    def unused(self) -> list[Hunk]:
        """Hunks without a block, oldest address first."""
        self._merge_last()
        return sorted((hunk for hunk in self.hunks if not hunk.used), key=lambda hunk: hunk.address)

    def grow(self, nbytes: int, room: int) -> int:
        if self._eager:
            with self._lock:
                released = self._detach(self._policy.before(self, nbytes))
            room += self._release(released)
        with self._lock:
            address = self._place(nbytes)
            if address is not None:
                return address
            growth = self._policy.grow(self, nbytes)
            released = self._detach(growth.release)
            room += sum(hunk.nbytes for hunk in released)
            # At the limit, what no block uses goes first, then the room the policy wished for.
            if self._pages(nbytes) > room:
                more = self._detach(self.unused())
                room += sum(hunk.nbytes for hunk in more)
                released += more
        self._release(released)
        if self._pages(nbytes) > room:
            raise NoRoomError
        hunk = self._allocate(min(self._pages(growth.nbytes), room - room % self.upstream.granularity), nbytes)
        with self._lock:
            self.hunks.add(hunk)
            self.reserved += hunk.nbytes
            self.counters.allocs += 1
            self.counters.stalls += 1
            self.counters.taken += hunk.nbytes
            self._add(hunk.address, hunk.address + hunk.nbytes, hunk)
            return self._cut(hunk.address, nbytes)

    def trim(self, keep: int, idle_since: float) -> int:
        with self._lock:
            gone, reserved = [], self.reserved
            for hunk in sorted(self.unused(), key=lambda hunk: hunk.idle_since):
                if hunk.idle_since <= idle_since and reserved - hunk.nbytes >= keep:
                    gone.append(hunk)
                    reserved -= hunk.nbytes
            self._detach(gone)
        return self._release(gone)

    def close(self) -> None:
        self.trim(0, float("inf"))

    # Placing -----------------------------------------------------------------------------------
    def _place(self, nbytes: int) -> int | None:
        self._merge_last()
        if self._first_fit:
            start = min((start for start, (size, _) in self._free.items() if size >= nbytes), default=None)
            return None if start is None else self._cut(start, nbytes)
        at = bisect_left(self._by_size, nbytes << _SHIFT)
        return None if at == len(self._by_size) else self._cut(self._by_size[at] & _ADDRESS, nbytes)

    def _cut(self, start: int, nbytes: int) -> int:
        size, hunk = self._drop(start)
        if size > nbytes:
            self._add(start + nbytes, start + size, hunk)
        self._blocks[start] = nbytes, hunk
        hunk.used += nbytes
        self.used += nbytes
        return start

    def _add(self, start: int, end: int, hunk: Hunk) -> None:
        self._free[start] = end - start, hunk
        self._ends[end] = start
        insort(self._by_size, (end - start) << _SHIFT | start)

    def _drop(self, start: int) -> tuple[int, Hunk]:
        span = self._free.pop(start)
        size = span[0]
        del self._ends[start + size]
        del self._by_size[bisect_left(self._by_size, size << _SHIFT | start)]
        return span

    # Upstream ----------------------------------------------------------------------------------
    def _pages(self, nbytes: int) -> int:
        return -(-nbytes // self.upstream.granularity) * self.upstream.granularity

    def _allocate(self, nbytes: int, least: int) -> Hunk:
        """A new hunk; when upstream refuses, once more for just the request after everything unused went back."""
        try:
            return Hunk(self.upstream.allocate(nbytes), nbytes)
        except REFUSALS:
            self.trim(0, float("inf"))
        nbytes = self._pages(least)
        return Hunk(self.upstream.allocate(nbytes), nbytes)

    def _detach(self, hunks: list[Hunk]) -> list[Hunk]:
        """Take unused hunks out of the books, so that nobody places a block there."""
        for hunk in hunks:
            self.hunks.remove(hunk)
            self._drop(hunk.address)
            self.reserved -= hunk.nbytes
            self.counters.frees += 1
        return hunks

    def _release(self, hunks: list[Hunk]) -> int:
        for hunk in hunks:
            try:
                self.upstream.free(hunk.address, hunk.nbytes)
            except REFUSALS as error:
                self.losses.append(f"{self.upstream.name}: {hunk.nbytes} bytes would not go back: {error}")
        return sum(hunk.nbytes for hunk in hunks)
