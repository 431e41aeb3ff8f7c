"""The thread that gives an idle arena's memory back."""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matrix_interop.memory.arena import PinnedArena

__all__ = ["Janitor"]


class Janitor:
    """Calls an arena's `tend` every ``period_s`` seconds until that says False or the arena is gone.

    It knows the arena only weakly, and as a daemon thread it keeps no process from ending.
    """

    def __init__(self, arena: PinnedArena, period_s: float) -> None:
        self._arena = weakref.ref(arena)
        self._period_s = period_s
        self._never = threading.Event()
        threading.Thread(target=self._run, name="matrix_interop arena janitor", daemon=True).start()

    def _run(self) -> None:
        while not self._never.wait(self._period_s):
            arena = self._arena()
            if arena is None or not arena.tend():
                return
            del arena
