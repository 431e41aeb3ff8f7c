"""Host memory of our own: aligned, pinned where there is a device, drawn from an arena."""

from __future__ import annotations

from matrix_interop.memory.arena import PinnedArena
from matrix_interop.memory.block import Block, is_pinned
from matrix_interop.memory.current import default_arena, use_arena
from matrix_interop.memory.region import Region
from matrix_interop.memory.stats import ArenaStats

__all__ = ["ArenaStats", "Block", "PinnedArena", "Region", "default_arena", "is_pinned", "use_arena"]
