"""The pinned memory that all transfers of an arena share: never more of it at once than its staging reserve."""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from contextlib import suppress
from typing import Final

from matrix_interop.memory import Block, PinnedArena
from matrix_interop.memory.upstreams import REFUSALS
from matrix_interop.runtime import Runtime

__all__ = ["Staging", "staging_of"]

#: Most pinned bytes that transfers, readers and builders of one arena hold together.
_LIMIT: Final = 64 << 20
_GRAIN: Final = 4096


class Staging:
    """Blocks out on loan, in bytes: of running moves, of moves that returned while the bus still reads, and kept ones.

    A lane takes one block, waits for it if need be, and cuts it into chunks.  Whoever holds a block gives it back
    without waiting for another, and kept ones take at most half, so every wait ends.
    """

    def __init__(self, arena: PinnedArena) -> None:
        self.limit = max(min(_LIMIT, arena.staging_bytes), _GRAIN)
        self._used = 0
        #: Runtime, event, bytes: blocks that are with the arena again and may not be filled before the event.
        self._leaving: deque[tuple[Runtime, int, int]] = deque()
        self._kept: list[weakref.ref[Block]] = []
        # Re-entrant, as a finaliser may run anywhere and move something.
        self._change = threading.Condition(threading.RLock())

    def largest(self, wish: int) -> int:
        """The chunk size nearest to ``wish`` that leaves room for several."""
        return max(min(wish, self.limit // 4 // _GRAIN * _GRAIN), _GRAIN)

    def take(self, arena: PinnedArena, wish: int, least: int) -> Block:
        """A block of ``wish`` bytes; of fewer, but at least ``least``, where other moves hold the rest."""
        nbytes = self._reserve(wish, least)
        try:
            return self._block(arena, nbytes)
        except BaseException:
            self._free(nbytes)
            raise

    def _block(self, arena: PinnedArena, nbytes: int) -> Block:
        if not arena.reserved:
            # An arena takes 40 MiB more than it is asked for, as room for the next. Asked for so much first, its piece
            # is as large as the limit, and all that moves take one after the other or two at a time lies in it.
            with suppress(*REFUSALS):
                arena.release(arena.block(self.limit * 3 // 8))
        return arena.block(nbytes)

    def _reserve(self, wish: int, least: int) -> int:
        while True:
            with self._change:
                self._settle()
                room = self.limit - self._used - self._kept_bytes()
                if room < least and self._leaving:  # the oldest may wait for a slow stream
                    self._settle(thorough=True)
                    room = self.limit - self._used - self._kept_bytes()
                if room >= least or not self._used:
                    nbytes = max(min(wish, room), least)
                    self._used += nbytes
                    return nbytes
                if not self._leaving:
                    self._change.wait()
                    continue
                entry = self._leaving.popleft()
            self._finish(*entry)

    def give(self, arena: PinnedArena, block: Block) -> None:
        """The block is free now."""
        arena.release(block)
        self._free(block.nbytes)

    def leave(self, arena: PinnedArena, runtime: Runtime, ordinal: int, stream: int, block: Block, event: int) -> None:
        """The block is free after the event, the last recorded on ``stream``, which is the arena's from now on."""
        mark = None
        try:
            if arena.runtime is runtime:  # which else would not know what the events are
                with suppress(*REFUSALS):
                    mark = runtime.record(stream, ordinal)
        finally:
            if mark is None:
                self._finish_and_give(arena, runtime, block, event)
            else:
                arena.release(block, (event,))
                with self._change:
                    self._leaving.append((runtime, mark, block.nbytes))
                    self._change.notify_all()

    def _finish_and_give(self, arena: PinnedArena, runtime: Runtime, block: Block, event: int) -> None:
        try:
            with suppress(*REFUSALS):  # a device that failed reads no chunk any more
                runtime.synchronize(event)
        finally:
            runtime.release(event)
            self.give(arena, block)

    def keep(self, arena: PinnedArena, nbytes: int) -> Block | None:
        """A block for memory that a user may hold on to, or None where those take half of the room already.

        It is never given back: its last view takes it along.
        """
        with self._change:
            self._settle()
            kept = self._kept_bytes()
            if kept + nbytes > self.limit // 2 or self._used + kept + nbytes > self.limit:
                return None
            self._used += nbytes
        try:
            block = self._block(arena, nbytes)
            with self._change:
                self._kept.append(weakref.ref(block))
            return block
        finally:
            self._free(nbytes)

    def _free(self, nbytes: int) -> None:
        with self._change:
            self._used -= nbytes
            self._change.notify_all()  # what is too little for one may be enough for another

    def _kept_bytes(self) -> int:
        if not self._kept:
            return 0
        alive = [(ref, block.nbytes) for ref in self._kept if (block := ref()) is not None]
        self._kept = [ref for ref, _ in alive]
        return sum(nbytes for _, nbytes in alive)

    def _settle(self, *, thorough: bool = False) -> None:
        """Note blocks that the device is done with: the oldest ones, or all."""
        while self._leaving and self._is_over(*self._leaving[0]):
            self._forget(*self._leaving.popleft())
        if thorough:
            for entry in [entry for entry in self._leaving if self._is_over(*entry)]:
                self._leaving.remove(entry)
                self._forget(*entry)

    @staticmethod
    def _is_over(runtime: Runtime, event: int, _nbytes: int) -> bool:
        try:
            return runtime.query(event)
        except REFUSALS:  # a device that failed reads no chunk any more
            return True

    def _finish(self, runtime: Runtime, event: int, nbytes: int) -> None:
        try:
            with suppress(*REFUSALS):
                runtime.synchronize(event)
        finally:
            self._forget(runtime, event, nbytes)

    def _forget(self, runtime: Runtime, event: int, nbytes: int) -> None:
        runtime.release(event)
        self._free(nbytes)


_stagings: weakref.WeakKeyDictionary[PinnedArena, Staging] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def staging_of(arena: PinnedArena) -> Staging:
    """The one `Staging` of an arena."""
    with _lock:
        found = _stagings.get(arena)
        if found is None:
            found = _stagings[arena] = Staging(arena)
        return found


def _after_fork_in_child() -> None:
    global _lock  # noqa: PLW0603 - a thread of the parent may have held it
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
