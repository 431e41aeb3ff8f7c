"""What an arena says about itself."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ArenaStats"]


@dataclass(frozen=True, slots=True)
class ArenaStats:
    """One moment of an arena. Sizes in bytes; counts since it was made.

    ``reserved`` is all that it holds: ``live`` in blocks, ``pending`` in dead blocks that wait for the device, and
    ``cached``, free for the next block. ``results`` is the part of ``live`` that came from `empty` and `result`.
    ``allocs``, ``frees`` and ``taken`` count what was asked of upstream, ``stalls`` the requests that waited for it,
    ``moved`` the pages put elsewhere. ``ordinary_results`` counts results that were not given pinned memory.
    ``upstream`` is the best one in use, "" before the first block; ``reasons`` says why others were passed over.
    """

    policy: str
    upstream: str
    pinned: bool
    reasons: tuple[str, ...]
    limit: int
    reserved: int
    live: int
    pending: int
    cached: int
    results: int
    ordinary_results: int
    peak_reserved: int
    allocs: int
    frees: int
    stalls: int
    taken: int
    moved: int
