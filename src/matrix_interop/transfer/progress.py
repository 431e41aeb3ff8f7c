"""Telling the caller how far a long move is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

__all__ = ["Progress", "report_progress", "reporter"]

#: Called with the bytes moved so far and the bytes of the whole move.
Progress = Callable[[int, int], None]

#: Moves of fewer bytes are over before anybody could read it.
_LONG: Final = 64 << 20

_chosen: ContextVar[Progress | None] = ContextVar("matrix_interop_progress", default=None)


@contextmanager
def report_progress(callback: Progress) -> Iterator[None]:
    """Inside the block, ``callback(done, total)`` is told in bytes how far each move of 64 MiB or more between host
    and device is, last with ``done == total``.

    It is called in the thread that moves, after each chunk, and must be quick; what it raises ends the move.  Holds
    for this context (thread or task).
    """
    token = _chosen.set(callback)
    try:
        yield
    finally:
        _chosen.reset(token)


def reporter(nbytes: int) -> Progress | None:
    """Whom to tell about a move of ``nbytes``, or None."""
    return _chosen.get() if nbytes >= _LONG else None
