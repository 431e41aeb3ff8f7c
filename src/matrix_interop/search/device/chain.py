"""The answer that runs along the blocks of a base, one block behind what the device works on."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Final

import numpy as np

from matrix_interop.search.device.best import Best, Blank
from matrix_interop.search.device.screen import Attempt, Queries, Screen

__all__ = ["MOST", "Chain"]

#: Queries searched at once.
MOST: Final = 4096


class Chain:
    """The answer of all queries after the blocks that were added.

    The last block is not settled: the device is told of the next one first, so that it has work while the host waits
    for the proof.  Until then the next one builds on an answer that is not proven yet, which is nearly always right.

    ``queries``: made when the device has something to do.  ``careful``: blocks had better be searched carefully.
    """

    def __init__(self, made: Callable[[], Queries], k: int) -> None:
        self._made = made
        self._k = k
        self._attempts: list[Attempt] = []
        self.careful = False

    @cached_property
    def queries(self) -> Queries:
        """All of them."""
        return self._made()

    @cached_property
    def _parts(self) -> list[Queries]:
        queries, count = self.queries, len(self.queries)
        if count <= MOST:
            return [queries]
        arange = queries.source.arange
        return [queries.rows(arange(start, min(start + MOST, count))) for start in range(0, count, MOST)]

    @cached_property
    def _best(self) -> list[Best]:
        return [Blank(self.queries.arrays, len(part), self._k) for part in self._parts]

    def add(self, screen: Screen) -> None:
        """Search one more block."""
        screen.prepare()
        begun = [screen.begin(part) for part in self._parts]
        if self._attempts:
            if self._attempts[0].early:
                _build(begun, [attempt.found for attempt in self._attempts])
            with np.errstate(all="ignore"):  # what overflows on the host leaves a query unproven
                self._settle()
        _build(begun, self._best)  # again, where that was not proven
        self._attempts = begun

    def answer(self) -> Best:
        """That of all queries."""
        self._settle()
        whole = self._best[0]
        for more in self._best[1:]:
            whole = whole.below(more)
        return whole

    def _settle(self) -> None:
        """Where the last block was not proven, its answer is another one then."""
        if self._attempts:
            self._best = [attempt.settled(best) for attempt, best in zip(self._attempts, self._best, strict=True)]
            self.careful = self.careful or self._attempts[-1].screen.careful
            self._attempts = []


def _build(attempts: list[Attempt], answers: list[Best]) -> None:
    """Tell the device to make the next answers, where it was not told yet."""
    for attempt, best in zip(attempts, answers, strict=True):
        if attempt.early and attempt.best is not best:
            attempt.build_on(best)
