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

    Keep it, or its result, until the move is done: it owns the memory that is being filled.  Leave the source as it
    is until then.
    """

    __slots__ = ("_done", "_error", "_finish", "_keep", "_lock", "_query", "_result")

    def __init__(
        self,
        result: T,
        query: Callable[[], bool] | None = None,
        finish: Callable[[], None] | None = None,
        keep: object = None,
    ) -> None:
        """``finish`` blocks until the data is there, and is called once; without it the move is done already."""
        self._result = result
        self._keep = keep  # what is being read
        self._query = query
        self._finish = finish
        self._lock = threading.Lock()
        self._done = finish is None
        self._error: BaseException | None = None

    def done(self) -> bool:
        """True once the data is there, or the move has failed; never blocks."""
        if not self._done and self._lock.acquire(blocking=False):
            try:
                if self._is_over():
                    self._end()
            finally:
                self._lock.release()
        return self._done

    def wait(self) -> None:
        """Block until the data is there. Raises what went wrong on the way, each time."""
        if not self._done:
            with self._lock:
                if not self._done:
                    self._end()
        if self._error is not None:
            raise self._error

    def result(self) -> T:
        """Wait, then the matrix."""
        self.wait()
        return self._result

    def then(self, finished: Callable[[T], U]) -> Transfer[U]:
        """The same move with another result, made of this one right away."""
        made = cast("Transfer[U]", self)
        made._result = finished(self._result)
        return made

    def _is_over(self) -> bool:
        try:
            return self._query is not None and self._query()
        except Exception:  # noqa: BLE001 - it has failed, and the end hears why
            return True

    def _end(self) -> None:
        try:
            if self._finish is not None:
                self._finish()
        except Exception as error:  # noqa: BLE001 - raised by `wait`
            self._error = error
        self._done = True
        self._keep = self._query = self._finish = None

    def __repr__(self) -> str:
        state = "under way" if not self.done() else "done" if self._error is None else "failed"
        return f"<Transfer of {self._result!r}, {state}>"
