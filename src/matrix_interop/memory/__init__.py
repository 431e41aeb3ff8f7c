"""Host memory of our own: aligned, pinned where there is a device, drawn from an arena."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from matrix_interop.memory.block import Block, is_pinned
from matrix_interop.memory.current import default_arena, use_arena

if TYPE_CHECKING:
    from matrix_interop.memory.arena import PinnedArena
    from matrix_interop.memory.region import Region
    from matrix_interop.memory.stats import ArenaStats

__all__ = ["ArenaStats", "Block", "PinnedArena", "Region", "default_arena", "is_pinned", "use_arena"]

#: Loaded on first use: work on ordinary memory needs no arena.
_LATER = {"ArenaStats": "stats", "PinnedArena": "arena", "Region": "region"}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_LATER[name]}"), name)
