"""Streams of our own, for work that must not stand in the queue of the user's."""

from __future__ import annotations

from collections import deque
from weakref import WeakKeyDictionary

from matrix_interop.runtime import Runtime

__all__ = ["SideStream", "follow"]

#: Runtime -> (ordinal -> streams that nobody uses now). Streams are kept: making one costs as much as a small move.
_idle: WeakKeyDictionary[Runtime, dict[int, deque[int]]] = WeakKeyDictionary()


class SideStream:
    """``with SideStream(...) as stream``: one that goes on once all that the stream ``after`` holds now is done."""

    __slots__ = ("_after", "_idle", "_ordinal", "_runtime", "_stream")

    def __init__(self, runtime: Runtime, ordinal: int, after: int | None = None) -> None:
        self._runtime = runtime
        self._ordinal = ordinal
        self._after = after
        self._idle = _idle.setdefault(runtime, {}).setdefault(ordinal, deque())

    def __enter__(self) -> int:
        try:
            self._stream = self._idle.pop()
        except IndexError:
            self._stream = self._runtime.stream_create(self._ordinal)
        if self._after is not None:
            try:
                follow(self._runtime, self._ordinal, self._stream, self._after)
            except BaseException:
                self._idle.append(self._stream)
                raise
        return self._stream

    def __exit__(self, *_: object) -> None:
        self._idle.append(self._stream)


def follow(runtime: Runtime, ordinal: int, stream: int, after: int) -> None:
    """Make ``stream`` wait for all that ``after``, of the same device, holds now."""
    event = runtime.record(after, ordinal)
    try:
        runtime.wait(stream, event, ordinal)
    finally:
        runtime.release(event)
