"""One line that tells how far a long task is: on a terminal, on standard error, and only after a second."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from typing import Final, Self

import numpy as np

__all__ = ["Progress"]

_AFTER: Final = 1.0
_EVERY: Final = 0.2


class Progress:
    """Counts rows of ``total``; used in a ``with`` block, whose end takes the line away."""

    def __init__(self, what: str, total: int) -> None:
        self._what = what
        self._total = total
        self._done = 0
        self._began = time.monotonic()
        self._next = self._began + _AFTER if sys.stderr.isatty() else float("inf")
        self._shown = 0

    def advance(self, rows: int) -> None:
        """So many rows more are done."""
        self._done += rows
        now = time.monotonic()
        if now < self._next or not self._done:
            return
        self._next = now + _EVERY
        left = (now - self._began) * (self._total - self._done) / self._done
        share = self._done / max(self._total, 1)
        self._show(f"{self._what}: {self._done:,} of {self._total:,} rows, {share:.0%}, about {left:,.0f} s left")

    def count(self, blocks: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
        """``blocks`` as they are, each counted when the next is asked for."""
        for block in blocks:
            yield block
            self.advance(len(block))

    def _show(self, line: str) -> None:
        sys.stderr.write(f"\r{line.ljust(self._shown)}")
        sys.stderr.flush()
        self._shown = len(line)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._shown:
            sys.stderr.write(f"\r{' ' * self._shown}\r")
