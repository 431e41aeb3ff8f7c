"""Which arena the library draws from."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matrix_interop.memory.arena import PinnedArena

__all__ = ["default_arena", "use_arena"]

_chosen: ContextVar[PinnedArena | None] = ContextVar("matrix_interop_arena", default=None)
_default: PinnedArena | None = None
_lock = threading.Lock()


def default_arena() -> PinnedArena:
    """The arena of `use_arena` in this context, else the one of the process, made at the first call.

    A forked child gets its own, which uses no device if the parent did.
    """
    chosen = _chosen.get()
    if chosen is not None and not chosen.forked:
        return chosen
    return _default or _make_default()


@contextmanager
def use_arena(arena: PinnedArena) -> Iterator[PinnedArena]:
    """Let everything inside the block draw from ``arena``. Holds for this context (thread or task) only."""
    from matrix_interop.memory.arena import PinnedArena  # not before somebody needs one

    given: Any = arena
    if not isinstance(given, PinnedArena):
        msg = f"use_arena takes a PinnedArena, as in use_arena(PinnedArena(1 << 30)), not {given!r}"
        raise TypeError(msg)
    token = _chosen.set(arena)
    try:
        yield arena
    finally:
        _chosen.reset(token)


def _make_default() -> PinnedArena:
    global _default  # noqa: PLW0603 - one arena for the process is the point
    with _lock:
        if _default is None:
            from matrix_interop.memory.arena import PinnedArena  # not before somebody needs one

            _default = PinnedArena()
        return _default


def _forget() -> None:
    global _default, _lock
    _default, _lock = None, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
