"""A store of pages that move: addresses are fixed, and the memory behind them goes where it is needed.

One range of addresses is backed by pages of one size. Blocks are cut from the range without regard to pages, so that
neighbours share them. A page that no block touches is spare. A block goes where it needs the fewest new pages, and
what is missing there is taken from spare pages elsewhere; upstream is asked only when none are left. So the memory held
is never much more than the most that blocks touched, however they are fragmented.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left, insort
from collections import Counter
from typing import Final

from matrix_interop.memory.host import ALIGNMENT
from matrix_interop.memory.policies import Bounded, Counters, NoRoomError, Store
from matrix_interop.memory.upstreams import REFUSALS, PagedUpstream, Upstream, is_paged

__all__ = ["PageStore", "Remap", "page_size"]

_MIB: Final = 1 << 20
_SHIFT: Final = 57
_OFFSET: Final = (1 << _SHIFT) - 1

#: States of a page: nothing behind the addresses; memory that no block touches; memory in use.
_ABSENT: Final = 0
_SPARE: Final = 1
_USED: Final = 2


class Remap:
    """Policy "remap": a `PageStore` where the upstream can move pages, else "bounded".

    ``page`` is the size of a page in bytes, by default `page_size` of the arena's limit. Small pages fit tighter, large
    ones move faster.
    """

    name = "remap"
    upstreams: tuple[str, ...] = ("virtual", "registered", "host_alloc", "ordinary")

    def __init__(self, page: int | None = None) -> None:
        self._page = page

    def store(self, upstream: Upstream, lock: threading.Lock, limit: int) -> Store:
        if not is_paged(upstream):
            return Bounded().store(upstream, lock, limit)
        page = self._page or page_size(limit)
        return PageStore(upstream, lock, limit, -(-page // upstream.granularity) * upstream.granularity)


def page_size(limit: int) -> int:
    """The largest power of two of which ``limit`` bytes hold 256, from 2 to 64 MiB; at most a quarter of the limit."""
    return min(max(1 << max(1, limit // 256).bit_length() - 1, 2 * _MIB), 64 * _MIB, limit // 4)


class PageStore:
    """`Store` over movable pages of ``page`` bytes. All positions inside are offsets into the range."""

    def __init__(self, upstream: PagedUpstream, lock: threading.Lock, limit: int, page: int) -> None:
        self.upstream: PagedUpstream = upstream
        self.counters = Counters()
        self.used = 0
        self.losses: list[str] = []
        self._lock = lock
        self._page = page
        # Addresses cost nothing. Holes between blocks take some beyond the limit: four times was never used up.
        self._range = max(4 * limit // page, 64) * page
        self._base = upstream.reserve(self._range)
        self._state = bytearray(self._range // page)
        self._handles: dict[int, int] = {}
        #: Whether a page would not be unmapped, so that the range has to stay, too.
        self._stuck = False
        #: Blocks per page that is the first or the last of a block: pages inside a block have one user.
        self._edges: Counter[int] = Counter()
        self._spare = 0
        self._spare_low = 0
        self._low_since = time.monotonic()
        #: Free spans below `_end`: start -> size, end -> start, and size * 2**57 + start, sorted. Above it all is free.
        self._free: dict[int, int] = {}
        self._ends: dict[int, int] = {}
        self._by_size: list[int] = []
        self._end = 0
        self._blocks: dict[int, int] = {}

    @property
    def reserved(self) -> int:
        return len(self._handles) * self._page

    def round(self, nbytes: int) -> int:
        return -(-nbytes // ALIGNMENT) * ALIGNMENT or ALIGNMENT

    def take(self, nbytes: int) -> int | None:
        # By rising size: the first place with all its pages present is also the tightest.
        for key in self._by_size[bisect_left(self._by_size, nbytes << _SHIFT) :]:
            start, size = key & _OFFSET, key >> _SHIFT
            for at in (start, start + size - nbytes):
                if not self._missing(at, nbytes):
                    return self._claim(at, nbytes)
        if self._end + nbytes <= self._range and not self._missing(self._end, nbytes):
            return self._claim(self._end, nbytes)
        return None

    def give(self, address: int) -> None:
        start = address - self._base
        nbytes = self._blocks.pop(start)
        self.used -= nbytes
        first, last = start // self._page, (start + nbytes - 1) // self._page
        for page in {first, last}:
            self._edges[page] -= 1
            if not self._edges[page]:
                del self._edges[page]
                self._set_spare(page, page + 1)
        if last > first + 1:
            self._set_spare(first + 1, last)
        self._add(start, start + nbytes)

    def grow(self, nbytes: int, room: int) -> int:
        with self._lock:
            address = self.take(nbytes)
            if address is not None:
                return address
            at = self._place(nbytes)
            if at is None or self._cost(at, nbytes)[0] * self._page > room:
                raise NoRoomError
            address = self._claim(at, nbytes)
            first, stop = self._pages(at, nbytes)
            missing = [page for page in range(first, stop) if self._state[page] == _ABSENT]
            spare = self._detach_spare(len(missing))
        try:
            self._fill(missing, spare)
        except BaseException:
            with self._lock:
                # What did arrive is spare memory now; pages still absent stay out of it.
                self.give(address)
            raise
        return address

    def trim(self, keep: int, idle_since: float) -> int:
        with self._lock:
            count = self._spare if idle_since == float("inf") else self._spare_low
            if idle_since < self._low_since:
                return 0
            count = max(0, min(count, (self.reserved - keep) // self._page))
            pages = self._detach_spare(count)
            self._spare_low, self._low_since = self._spare, time.monotonic()
        for page in pages:
            self._discard(page)
        return len(pages) * self._page

    def close(self) -> None:
        self.trim(0, float("inf"))
        if self._range and not self._blocks and not self._handles and not self._stuck:
            try:
                self.upstream.unreserve(self._base, self._range)
            except REFUSALS as error:
                self.losses.append(f"{self.upstream.name}: the range of addresses would not go back: {error}")
            self._range = 0

    # Placing -----------------------------------------------------------------------------------
    def _pages(self, at: int, nbytes: int) -> tuple[int, int]:
        return at // self._page, (at + nbytes - 1) // self._page + 1

    def _missing(self, at: int, nbytes: int) -> int:
        return self._state.count(_ABSENT, *self._pages(at, nbytes))

    def _cost(self, at: int, nbytes: int) -> tuple[int, int]:
        """(pages to create, pages to create or move) for a block there."""
        first, stop = self._pages(at, nbytes)
        missing = self._state.count(_ABSENT, first, stop)
        return max(0, missing - self._spare + self._state.count(_SPARE, first, stop)), missing

    def _place(self, nbytes: int) -> int | None:
        """Where the fewest pages must be created, then moved, then the tightest, then the lowest place."""
        places = [
            (*self._cost(at, nbytes), (key >> _SHIFT) - nbytes, at)
            for key in self._by_size[bisect_left(self._by_size, nbytes << _SHIFT) :]
            for at in {key & _OFFSET, (key & _OFFSET) + (key >> _SHIFT) - nbytes}
        ]
        if self._end + nbytes <= self._range:
            places.append((*self._cost(self._end, nbytes), self._range, self._end))
        return min(places)[-1] if places else None

    def _claim(self, at: int, nbytes: int) -> int:
        """Make a block there; its address. Spare pages under it become used, absent ones are the caller's to bring."""
        if at == self._end:
            self._end += nbytes
        else:
            start = self._start_of(at, nbytes)
            size = self._drop(start)
            if at > start:
                self._add(start, at)
            if start + size > at + nbytes:
                self._add(at + nbytes, start + size)
        first, stop = self._pages(at, nbytes)
        for page in {first, stop - 1}:
            self._edges[page] += 1
        self._spare -= self._state.count(_SPARE, first, stop)
        self._spare_low = min(self._spare_low, self._spare)
        self._state[first:stop] = self._state[first:stop].replace(bytes([_SPARE]), bytes([_USED]))
        self._blocks[at] = nbytes
        self.used += nbytes
        return self._base + at

    def _start_of(self, at: int, nbytes: int) -> int:
        """The free span that holds a place at one of its ends."""
        return at if at in self._free else self._ends[at + nbytes]

    def _add(self, start: int, end: int) -> None:
        if end in self._free:
            end += self._drop(end)
        if start in self._ends:
            start = self._ends[start]
            self._drop(start)
        if end == self._end:
            self._end = start
            return
        self._free[start] = end - start
        self._ends[end] = start
        insort(self._by_size, (end - start) << _SHIFT | start)

    def _drop(self, start: int) -> int:
        size = self._free.pop(start)
        del self._ends[start + size]
        del self._by_size[bisect_left(self._by_size, size << _SHIFT | start)]
        return size

    def _set_spare(self, first: int, stop: int) -> None:
        count = self._state.count(_USED, first, stop)
        self._state[first:stop] = self._state[first:stop].replace(bytes([_USED]), bytes([_SPARE]))
        self._spare += count

    def _detach_spare(self, count: int) -> list[int]:
        """Up to ``count`` spare pages, highest first, out of the books: nobody places a block there."""
        pages: list[int] = []
        at = len(self._state)
        while len(pages) < count and (at := self._state.rfind(_SPARE, 0, at)) >= 0:
            self._state[at] = _ABSENT
            pages.append(at)
        self._spare -= len(pages)
        self._spare_low = min(self._spare_low, self._spare)
        return pages

    # Upstream ----------------------------------------------------------------------------------
    def _address(self, page: int) -> int:
        return self._base + page * self._page

    def _fill(self, missing: list[int], spare: list[int]) -> None:
        """Put memory behind the missing pages: the spare pages', then new."""
        created = 0
        try:
            for page in missing:
                if spare:
                    handle = self._lift(spare[-1])
                    spare.pop()
                else:
                    handle = self.upstream.create(self._page)
                    created += 1
                self._put(page, handle, moved=not created)
        finally:
            with self._lock:
                for page in spare:  # not reached after a refusal: still where they were
                    self._state[page] = _SPARE
                self._spare += len(spare)
                self.counters.allocs += created
                self.counters.stalls += bool(created)
                self.counters.taken += created * self._page

    def _lift(self, page: int) -> int:
        self.upstream.unmap(self._address(page), self._page)
        return self._handles.pop(page)

    def _put(self, page: int, handle: int, *, moved: bool) -> None:
        try:
            self.upstream.map(self._address(page), self._page, handle)
        except REFUSALS:
            self._destroy(handle)
            raise
        with self._lock:
            self._handles[page] = handle
            self._state[page] = _USED
            self.counters.moved += moved

    def _discard(self, page: int) -> None:
        try:
            handle = self._lift(page)
        except REFUSALS as error:
            self.losses.append(f"{self.upstream.name}: {self._page} bytes would not go back: {error}")
            self._handles.pop(page)
            self._stuck = True
            return
        self._destroy(handle)

    def _destroy(self, handle: int) -> None:
        self.counters.frees += 1
        try:
            self.upstream.destroy(handle)
        except REFUSALS as error:
            self.losses.append(f"{self.upstream.name}: {self._page} bytes would not go back: {error}")
