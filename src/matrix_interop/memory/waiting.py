"""Blocks that are dead but not yet free: the device may still read or write them."""

from __future__ import annotations

import contextlib
from collections import deque
from typing import NamedTuple

from matrix_interop.memory.block import Live
from matrix_interop.memory.upstreams import REFUSALS
from matrix_interop.runtime import Runtime

__all__ = ["Entry", "Waiting"]


class Entry(NamedTuple):
    """Blocks that are free once all events are done."""

    events: tuple[int, ...]
    blocks: list[Live]


class Waiting:
    """Under its arena's lock, except for `ended` and `wait`.

    A block that a user could see waits for an event over all work that was enqueued, on any stream, when its death is
    noticed: nobody knows what the user did with it. A block that only a pipeline used waits for the pipeline's events.
    """

    def __init__(self) -> None:
        self.runtime: Runtime | None = None
        #: What ended and is not yet in the books: weak references append themselves here when their block dies, and
        #: `PinnedArena.release` appends entries. Appending takes no lock.
        self.ended: deque[Live | Entry] = deque()
        #: The ordinals of all devices, once all are in use.
        self._every_device: tuple[int, ...] = ()
        #: Bytes that wait.
        self.nbytes = 0
        #: Dead blocks whose event could not be recorded yet.
        self._unrecorded: list[Live] = []
        #: Entries of dead blocks: their events are done in this order.
        self._ordered: deque[Entry] = deque()
        #: Entries of released blocks: their events are done in any order.
        self._released: deque[Entry] = deque()

    def reap(self, live: dict[int, Live], *, thorough: bool) -> int:
        """Take in what ended, dead blocks out of ``live``, and free what is done; the bytes of results that ended.

        Asks only about the oldest entries, unless ``thorough``.
        """
        results = 0
        ended = self.ended
        while ended:
            item = ended.popleft()
            if isinstance(item, Entry):
                block, waits = item.blocks[0], bool(item.events)
                if waits:
                    self._released.append(item)
            else:
                if live.get(item.address) is not item:
                    continue  # released before it died
                del live[item.address]
                block, waits = item, self.runtime is not None
                if waits:
                    self._unrecorded.append(block)
            if not block.staging:
                results += block.nbytes
            if waits:
                self.nbytes += block.nbytes
            else:
                block.store.give(block.address)
        if self.nbytes:
            self._poll(thorough=thorough)
        return results

    def _poll(self, *, thorough: bool) -> None:
        if self._unrecorded:
            events = self._record()
            if events is not None:
                self._ordered.append(Entry(events, self._unrecorded))
                self._unrecorded = []
        while self._ordered and self._done(self._ordered[0]):
            self.give(self._ordered.popleft())
        while self._released and self._done(self._released[0]):
            self.give(self._released.popleft())
        if thorough and self._released:
            entries, self._released = self._released, deque()
            for entry in entries:
                if self._done(entry):
                    self.give(entry)
                else:
                    self._released.append(entry)

    def pop(self) -> Entry | None:
        """An entry to `wait` for and then to `give`; nobody else gives it."""
        for entries in (self._released, self._ordered):
            if entries:
                return entries.popleft()
        return None

    def wait(self, entry: Entry) -> None:
        """Block the calling thread until the entry's blocks may be reused. A device that failed uses them no more."""
        if self.runtime is not None:
            with contextlib.suppress(*REFUSALS):
                for event in entry.events:
                    self.runtime.synchronize(event)

    def give(self, entry: Entry) -> None:
        """The entry's blocks are free, and its events the runtime's again."""
        for block in entry.blocks:
            block.store.give(block.address)
            self.nbytes -= block.nbytes
        if self.runtime is not None:
            for event in entry.events:
                self.runtime.release(event)

    def _record(self) -> tuple[int, ...] | None:
        """Events over all work enqueued so far on devices in use; None where that fails now, to be tried again."""
        runtime = self.runtime
        if runtime is None:
            return ()
        events: list[int] = []
        try:
            for ordinal in self._every_device or self._devices_in_use(runtime):
                events.append(runtime.record_all(ordinal))  # noqa: PERF401 - those recorded before a failure count
        except REFUSALS:
            for event in events:
                runtime.release(event)
            return None
        return tuple(events)

    def _devices_in_use(self, runtime: Runtime) -> tuple[int, ...]:
        active = runtime.active()
        if len(active) == runtime.device_count():  # no more can come, so there is no need to ask again
            self._every_device = active
        return active

    def _done(self, entry: Entry) -> bool:
        runtime = self.runtime
        try:
            return runtime is None or all(runtime.query(event) for event in entry.events)
        except REFUSALS:
            return False
