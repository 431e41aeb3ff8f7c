"""One line that tells how far a long task is: on a terminal, on standard error, and only after a second."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Final, Self

import numpy as np

from matrix_interop.io import RowSource
from matrix_interop.transfer import report_progress

__all__ = ["Counted", "Progress"]

_AFTER: Final = 1.0
_EVERY: Final = 0.2


class Progress:
    """Counts rows of ``total``; used in a ``with`` block, whose end takes the line away.

    A thread writes the line, so that it stands there even while one long step, such as unpacking an .npz, counts
    nothing.  Long moves between host and device inside the block show, too.
    """

    def __init__(self, what: str, total: int) -> None:
        self._what = what
        self._total = total
        self._done = 0
        self._moved: tuple[int, int] | None = None
        self._shown = 0
        self._began = time.monotonic()
        self._over = threading.Event()
        self._inside = ExitStack()
        self._writer: threading.Thread | None = None
        self._stream = sys.stderr
        if self._stream is not None and self._stream.isatty():
            self._writer = threading.Thread(target=self._write, args=(_AFTER, _EVERY), daemon=True)

    def advance(self, rows: int) -> None:
        """So many rows more are done."""
        self._done += rows

    def line(self) -> str:
        """How far it is."""
        text = f"{self._what}: {self._done:,} of {self._total:,} rows"
        if self._done:
            left = (time.monotonic() - self._began) * (self._total - self._done) / self._done
            text += f", {self._done / max(self._total, 1):.0%}, about {max(left, 0):,.0f} s left"
        if self._moved is not None:
            done, total = self._moved
            text += f"; {done >> 20:,} of {total >> 20:,} MiB between host and device"
        return text

    def _move(self, done: int, total: int) -> None:
        self._moved = None if done >= total else (done, total)

    def _write(self, after: float, every: float) -> None:
        pause = after
        while not self._over.wait(pause):
            pause = every
            line = self.line()
            self._stream.write(f"\r{line.ljust(self._shown)}")
            self._stream.flush()
            self._shown = max(self._shown, len(line))

    def __enter__(self) -> Self:
        self._inside.enter_context(report_progress(self._move))
        if self._writer is not None:
            self._writer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._inside.close()
        if self._writer is not None:
            self._over.set()
            self._writer.join()
        if self._shown:
            self._stream.write(f"\r{' ' * self._shown}\r")
            self._stream.flush()


class Counted:
    """A row source whose rows are counted as they are read."""

    def __init__(self, source: RowSource, progress: Progress) -> None:
        self.shape = source.shape
        self.dtype = source.dtype
        self._source = source
        self._progress = progress

    def __len__(self) -> int:
        return self.shape[0]

    def read(self, start: int, stop: int) -> np.ndarray:
        """See `RowSource.read`."""
        rows = self._source.read(start, stop)
        self._progress.advance(len(rows))
        return rows

    def blocks(self, block: int) -> Iterator[np.ndarray]:
        """See `RowSource.blocks`."""
        return (self.read(start, min(len(self), start + block)) for start in range(0, len(self), block))
