"""Streams of our own, for work that must not stand in the queue of the user's."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from weakref import WeakKeyDictionary

from matrix_interop.runtime import Runtime

__all__ = ["follow", "side_stream"]

#: Runtime -> (ordinal -> streams that nobody uses now). Streams are kept: making one costs as much as a small move.
_idle: WeakKeyDictionary[Runtime, dict[int, deque[int]]] = WeakKeyDictionary()


@contextmanager
def side_stream(runtime: Runtime, ordinal: int, after: int | None = None) -> Iterator[int]:
    """A stream that goes on once all that the stream ``after`` holds now is done."""
    idle = _idle.setdefault(runtime, {}).setdefault(ordinal, deque())
    try:
        stream = idle.pop()
    except IndexError:
        stream = runtime.stream_create(ordinal)
    try:
        if after is not None:
            follow(runtime, ordinal, stream, after)
        yield stream
    finally:
        idle.append(stream)


def follow(runtime: Runtime, ordinal: int, stream: int, after: int) -> None:
    """Make ``stream`` wait for all that ``after``, of the same device, holds now."""
    event = runtime.record(after, ordinal)
    try:
        runtime.wait(stream, event, ordinal)
    finally:
        runtime.release(event)
