"""What a store must do for an arena, and what a policy may decide about it."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple, Protocol

from matrix_interop.memory.host import ALIGNMENT
from matrix_interop.memory.upstreams import Upstream

if TYPE_CHECKING:
    from matrix_interop.memory.hunks import Hunk, HunkStore

__all__ = ["Bounded", "Counters", "Growth", "HunkPolicy", "NoRoomError", "Policy", "Store", "Uncached"]

#: What upstreams are tried in, best first, where the user names none.
PINNED_ORDER: Final = ("registered", "host_alloc", "ordinary")


class NoRoomError(Exception):
    """Between a store and its arena: growing would pass the arena's limit."""


@dataclass(slots=True)
class Counters:
    """What a store asked of its upstream so far; ``taken`` counts bytes ever taken, ``moved`` pieces remapped."""

    allocs: int = 0
    frees: int = 0
    stalls: int = 0
    taken: int = 0
    moved: int = 0


class Store(Protocol):
    """The books over memory from one upstream.

    `take`, `give` and the numbers need the arena's lock, are quick and call nothing outside. `grow` and `trim` call
    the upstream, one at a time (the arena sees to it), and hold the lock only for the books.
    """

    counters: Counters
    #: Bytes in use by blocks.
    used: int
    #: Reasons of refusals while giving memory back; that memory is out of the books.
    losses: list[str]

    @property
    def upstream(self) -> Upstream:
        """Where the memory comes from."""

    @property
    def reserved(self) -> int:
        """Bytes held from upstream."""

    def round(self, nbytes: int) -> int:
        """The size of the block that serves a request."""

    def take(self, nbytes: int) -> int | None:
        """Place a block of a rounded size in memory at hand; its address, or None when `grow` is needed."""

    def give(self, address: int) -> None:
        """A block is free again."""

    def grow(self, nbytes: int, room: int) -> int:
        """Get memory for a block and place it; at most ``room`` bytes more than held now may be held afterwards.

        Raises NoRoomError, or what the upstream raised when it refuses even after everything unused went back.
        """

    def trim(self, keep: int, idle_since: float) -> int:
        """Give unused memory back, down to ``keep`` bytes held, if unused since that time; the bytes given back."""

    def close(self) -> None:
        """Give back all that no block uses, and the addresses themselves once no block is left."""


class Policy(Protocol):
    """Decides how a store over one upstream is kept."""

    name: str
    #: Upstreams tried for it in this order, where the user names none.
    upstreams: tuple[str, ...]

    def store(self, upstream: Upstream, lock: threading.Lock, limit: int) -> Store:
        """A new, empty store; ``limit`` is the arena's, in bytes."""


class Growth(NamedTuple):
    """What a policy asks of upstream: first give ``release`` back, then take ``nbytes`` in one piece."""

    release: list[Hunk]
    nbytes: int


class HunkPolicy(ABC):
    """A policy for hunks: pieces from upstream that blocks are cut from. Called under the arena's lock."""

    name: str
    upstreams: tuple[str, ...] = PINNED_ORDER
    #: Sizes of blocks are rounded up to it.
    alignment: int = ALIGNMENT
    #: Lowest address that fits, found by a linear search; else the smallest span that fits, found by bisection.
    first_fit: ClassVar[bool] = False
    #: Whether `before` must be asked at every request.
    eager: ClassVar[bool] = False

    def store(self, upstream: Upstream, lock: threading.Lock, limit: int) -> Store:
        from matrix_interop.memory.hunks import HunkStore

        return HunkStore(upstream, self, lock)

    def before(self, held: HunkStore, nbytes: int) -> list[Hunk]:
        """Unused hunks to give back before room is looked for. Only asked when ``eager``."""
        return []

    @abstractmethod
    def grow(self, held: HunkStore, nbytes: int) -> Growth:
        """No free span holds ``nbytes``: what to give back and how much to take, ``nbytes`` or more."""


class Bounded(HunkPolicy):
    """Hold at most 17/16 of what is in use, plus one hunk, wherever hunks in use allow it.

    Unused hunks go back, smallest first, only until the request fits that budget. What is left of the budget, at most
    a hunk, is taken with the request as room for the next ones.
    """

    name = "bounded"
    slack: ClassVar[float] = 1 / 16
    #: Bytes. Of 8 to 64 MiB, 40 is the best trade of stalls against memory over the traces of `bench arena`.
    hunk: ClassVar[int] = 40 << 20

    def grow(self, held: HunkStore, nbytes: int) -> Growth:
        budget = int((1 + self.slack) * (held.used + nbytes)) + self.hunk
        reserved, release = held.reserved, []
        for hunk in sorted(held.unused(), key=lambda hunk: hunk.nbytes):
            if reserved + nbytes <= budget:
                break
            release.append(hunk)
            reserved -= hunk.nbytes
        return Growth(release, nbytes + max(0, min(self.hunk, budget - reserved - nbytes)))


class Uncached(HunkPolicy):
    """Policy "none": every block is a piece of its own, and goes back at the next request after it is free."""

    name = "none"
    eager = True

    def before(self, held: HunkStore, nbytes: int) -> list[Hunk]:
        return held.unused()

    def grow(self, held: HunkStore, nbytes: int) -> Growth:
        return Growth([], nbytes)
