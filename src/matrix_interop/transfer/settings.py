"""How a move is cut and spread over threads, and how to say so by hand."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import cache
from typing import Final

import numpy as np

__all__ = [
    "Engine",
    "Setting",
    "changed",
    "engine_of_lanes",
    "engine_of_torch",
    "processors",
    "transfer_setting",
]

_MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Setting:
    """``lanes`` threads share a move, each with ``in_flight`` pinned chunks of ``chunk_bytes``.

    ``extra``: how many chunks a lane fills again, for nothing, after its last one to a device.  What the processors
    just wrote lies in their nearest caches, from where a device fetches it at half the speed of the bus (H200 beside
    Xeon processors of 2 MiB a core: 8 MiB in 391 us, and in 155 once other writes had pushed them out).  Chunks
    are pushed out by the ones behind them; the last chunks by these.
    """

    lanes: int
    chunk_bytes: int
    in_flight: int
    extra: int = 0

    def __post_init__(self) -> None:
        for name in ("lanes", "chunk_bytes", "in_flight", "extra"):
            if not isinstance(getattr(self, name), (int, np.integer)):
                msg = f"{self}: {name} must be a whole number"
                raise TypeError(msg)
        if min(self.lanes, self.in_flight) < 1 or self.chunk_bytes < 4096 or self.extra < 0:
            msg = f"{self}: at least one lane, one chunk in flight and 4096 bytes a chunk are needed"
            raise ValueError(msg)


@dataclass(frozen=True, slots=True)
class Engine:
    """A way to copy chunks: its setting where nothing was probed, and what a probe tries. All stay within 48 MiB.

    The chunks of all lanes together should stay in the last-level cache, where they are copied faster than memory is.
    Two moves at once get as much as they wish.
    """

    name: str
    default: Setting
    candidates: tuple[Setting, ...]


def processors() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@cache
def engine_of_torch(*, to_device: bool = True) -> Engine:
    """One lane, whose chunks are copied by all of torch's threads.

    To a device, large chunks have partly left the nearest caches once they are filled. From one, nothing speaks for
    them: the first is waited for, and the last one emptied, while the other side rests.
    """
    if to_device:
        default = Setting(1, 8 * _MIB, 4, extra=2)
        others = Setting(1, 8 * _MIB, 4), Setting(1, 16 * _MIB, 3, extra=1), Setting(1, 4 * _MIB, 6, extra=2)
    else:
        default = Setting(1, 4 * _MIB, 8)
        others = Setting(1, 8 * _MIB, 4), Setting(1, 4 * _MIB, 6), Setting(1, 8 * _MIB, 6)
    return Engine("torch", default, (default, *others))


@cache
def engine_of_lanes() -> Engine:
    """Lanes that keep their part of the array: handing chunks from thread to thread costs more than the copies.

    Each time a lane takes the interpreter lock from another, that one has to wake up first: about 50 us measured on
    a virtual machine. So few large chunks are better than many in flight.
    """
    count = processors()
    default = Setting(min(8, count), 4 * _MIB, 2)
    more = ((8, 8, 1), (6, 4, 2), (10, 3, 2), (12, 4, 1), (16, 4, 1))
    others = (Setting(lanes, size * _MIB, in_flight) for lanes, size, in_flight in more if lanes <= count)
    return Engine("lanes", default, (default, *others))


_VARIABLE: Final = "MATRIX_INTEROP_TRANSFER"
_changes: ContextVar[tuple[tuple[str, int], ...]] = ContextVar("matrix_interop_transfer", default=())


@contextmanager
def transfer_setting(
    *, lanes: int | None = None, chunk_bytes: int | None = None, in_flight: int | None = None
) -> Iterator[None]:
    """Inside the block, moves of this context use these instead of what was probed; None leaves one as it is.

    The environment variable MATRIX_INTEROP_TRANSFER does so for a process: "lanes=8,chunk_bytes=4194304,in_flight=2".
    """
    given = (("lanes", lanes), ("chunk_bytes", chunk_bytes), ("in_flight", in_flight))
    wanted = tuple((name, value) for name, value in given if value is not None)
    replace(engine_of_torch().default, **dict(wanted))  # refuses what makes no sense
    token = _changes.set((*_changes.get(), *wanted))
    try:
        yield
    finally:
        _changes.reset(token)


def changed(setting: Setting) -> Setting | None:
    """The setting with what was said by hand, or None where nothing was."""
    text, changes = os.environ.get(_VARIABLE), _changes.get()
    return replace(setting, **{**_of_environment(text or ""), **dict(changes)}) if text or changes else None


@cache
def _of_environment(text: str) -> dict[str, int]:
    try:
        pairs = (item.partition("=") for item in text.split(",") if item)
        found = {name.strip(): int(value) for name, _, value in pairs}
        replace(engine_of_torch().default, **found)
    except (TypeError, ValueError) as error:
        msg = f"{_VARIABLE}={text!r}: write lanes=8,chunk_bytes=4194304,in_flight=2 or some of them ({error})"
        raise ValueError(msg) from error
    return found
