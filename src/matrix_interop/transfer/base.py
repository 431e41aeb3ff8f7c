"""A move of bytes that may still be under way."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar, cast

__all__ = ["Transfer"]

T = TypeVar("T")
U = TypeVar("U")


class Transfer(Generic[T]):
    """The handle of a move that returned early; `result` waits for it.

    Keep it, or its result, until the move is done: it owns the memory that is being filled.
    """

    __slots__ = ("_done", "_finish", "_keep", "_lock", "_query", "_result")

    def __init__(self, result: T, query: Callable[[], bool], finish: Callable[[], None], keep: object = None) -> None:
        self._result = result
        self._keep = keep  # what is being read
        self._query = query
        self._finish = finish
        self._lock = threading.Lock()
        self._done = False

    def done(self) -> bool:
        """True once the data is there; never blocks."""
        if not self._done and self._lock.acquire(blocking=False):
            try:
                if not self._done and self._query():
                    self._finish()
                    self._done = True
            finally:
                self._lock.release()
        return self._done

    def wait(self) -> None:
        """Block until the data is there. Raises what went wrong on the way."""
        with self._lock:
            if not self._done:
                self._finish()
                self._done = True

    def result(self) -> T:
        """Wait, then the matrix."""
        self.wait()
        return self._result

    def then(self, finished: Callable[[T], U]) -> Transfer[U]:
        """The same move with another result, made of this one right away."""
        made = cast("Transfer[U]", self)
        made._result = finished(self._result)
        return made

    def __repr__(self) -> str:
        return f"<Transfer of {self._result!r}, {'done' if self.done() else 'under way'}>"
