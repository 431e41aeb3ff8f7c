"""The small interface through which everything else moves bytes and orders work.

`cuda.py` implements it over cuda-bindings; the tests implement it a second time as a device whose
queue runs late and in any order that events allow, so that a missing wait shows on a CPU.
Streams and events are plain integers (driver handles); addresses and sizes are 64-bit integers.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal, Protocol

__all__ = ["Pointer", "Runtime", "VirtualMemory"]


@dataclass(frozen=True, slots=True)
class Pointer:
    """What a runtime knows about one address.

    ``kind`` is "device" (only the device addresses it), "managed" (both do), "pinned" (page-locked
    host memory that the device also addresses) or "pageable" (ordinary, or unknown to the runtime).
    ``ordinal`` is the device number, or None where the memory belongs to no device: pageable
    memory, and some kinds of pinned memory.
    """

    kind: Literal["device", "managed", "pinned", "pageable"]
    ordinal: int | None


class Runtime(Protocol):
    """One kind of device: its memory, streams and events.

    Every call names its device by ``ordinal`` where that matters and leaves the calling thread's
    current device as it found it.  Failures raise `DeviceUnavailableError` (no driver, no such
    ordinal) or MemoryError (out of memory) and leave no pending error behind in the driver.
    """

    #: Device type as in device strings ("cuda").
    device_type: str
    #: Copies of at most so many bytes from ordinary memory to a device have read it when `copy` returns.
    captured_bytes: int

    def device_count(self) -> int:
        """Number of devices; 0 is never returned, an absent runtime raises instead."""

    def active(self) -> tuple[int, ...]:
        """Ordinals whose context exists in this process already: only they can have work in flight. Creates none."""

    def current(self, ordinal: int) -> AbstractContextManager[None]:
        """The device is the calling thread's current one inside, for libraries that go by that."""

    def pointer(self, address: int) -> Pointer:
        """Facts about ``address``, found without dereferencing it."""

    # Host memory -------------------------------------------------------------------------------
    def host_alloc(self, nbytes: int) -> int:
        """Page-locked host memory; its address."""

    def host_free(self, address: int) -> None:
        """Give back what `host_alloc` gave."""

    def host_register(self, address: int, nbytes: int) -> None:
        """Page-lock ordinary memory in place, for every device."""

    def host_unregister(self, address: int) -> None:
        """Undo `host_register`."""

    # Device memory -----------------------------------------------------------------------------
    def device_alloc(self, nbytes: int, ordinal: int) -> int:
        """Device memory; its address. Frameworks allocate their own: this serves probes and tests."""

    def device_free(self, address: int, ordinal: int) -> None:
        """Give back what `device_alloc` gave."""

    def memory_info(self, ordinal: int) -> tuple[int, int]:
        """(free, total) device memory in bytes."""

    def reads_pageable(self, ordinal: int) -> bool:
        """True where the device reads ordinary host memory coherently, so that staging is waste."""

    def virtual_memory(self, ordinal: int) -> VirtualMemory | None:
        """Page-locked host memory near the device whose pages can move; None where the device has no such thing."""

    # Moving bytes ------------------------------------------------------------------------------
    def copy(self, dst: int, src: int, nbytes: int, *, ordinal: int, stream: int) -> None:
        """Enqueue a copy on ``stream`` of device ``ordinal``; either side may be host memory."""

    def copy_rows(
        self, dst: int, dst_pitch: int, src: int, src_pitch: int, width: int, rows: int, *, ordinal: int, stream: int
    ) -> None:
        """Enqueue a copy of ``rows`` rows of ``width`` bytes whose starts lie ``pitch`` bytes apart."""

    def copy_peer(self, dst: int, dst_ordinal: int, src: int, src_ordinal: int, nbytes: int, *, stream: int) -> None:
        """Enqueue a copy from one device to another on a stream of the source device."""

    # Order -------------------------------------------------------------------------------------
    def stream_create(self, ordinal: int) -> int:
        """A new stream that does not synchronise with the legacy default stream."""

    def stream_destroy(self, stream: int, ordinal: int) -> None:
        """Destroy a stream of our own once its work is done."""

    def stream_synchronize(self, stream: int, ordinal: int) -> None:
        """Block the calling thread until all work on ``stream`` is done."""

    def record(self, stream: int, ordinal: int) -> int:
        """Take an event from the pool and record it on ``stream``; the event."""

    def record_all(self, ordinal: int) -> int:
        """An event that is done when everything enqueued so far on *any* stream of the device is."""

    def wait(self, stream: int, event: int, ordinal: int) -> None:
        """Make ``stream`` wait for ``event``, without blocking the calling thread."""

    def query(self, event: int) -> bool:
        """True when the event's work is done."""

    def synchronize(self, event: int) -> None:
        """Block the calling thread until the event's work is done."""

    def release(self, event: int) -> None:
        """Hand an event back to the pool."""


class VirtualMemory(Protocol):
    """Page-locked host memory in pieces: addresses are reserved once, pages come and go behind them.

    Sizes and addresses are multiples of ``granularity``.  Memory that is mapped is readable and
    writeable by the CPU and by every device; touching a reserved address with nothing behind it crashes.
    """

    #: The smallest piece, in bytes.
    granularity: int

    def reserve(self, nbytes: int) -> int:
        """A range of addresses with nothing behind it; its start."""

    def unreserve(self, address: int, nbytes: int) -> None:
        """Give a whole range back, once nothing is mapped in it."""

    def create(self, nbytes: int) -> int:
        """Pages without an address; a handle. MemoryError when there are none."""

    def destroy(self, handle: int) -> None:
        """Give the pages back, once they are mapped nowhere."""

    def map(self, address: int, nbytes: int, handle: int) -> None:
        """Put the whole of ``handle``, ``nbytes`` long, behind ``address``."""

    def unmap(self, address: int, nbytes: int) -> None:
        """Take away what `map` put there; the pages keep their contents and can be mapped elsewhere."""
