"""A device that runs late: `Runtime` for "ext" devices, in a thread of its own, in any order that events allow.

Enqueueing does nothing but queue. Work is done only when somebody waits for it, and then no more than needs
to be (with a probability drawn from the seed: something else first). Copies read and write host
memory when they run. So whoever forgets to wait reads old values, and whoever overwrites memory that queued
work still reads changes what that work sees. Everything is decided by the seed: the same calls give
the same order.
"""

from __future__ import annotations

import itertools
import random
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from matrix_interop.errors import DeviceUnavailableError
from matrix_interop.runtime import Pointer, register_runtime
from simulated.memory import Allocation, host_bytes
from simulated.virtual import SimulatedVirtualMemory

DEVICE_TYPE = "ext"
#: Names of streams, as in DLPack: the legacy default stream and the one of the calling thread.
LEGACY, PER_THREAD = 1, 2
#: How often slow work must be picked before it is done; other work takes 1 to 4.
SLOW = 32


class _Work:
    """One entry of a stream's queue: ``run`` once it was picked ``ticks`` times, not before ``after`` is done."""

    __slots__ = ("after", "done", "run", "stream", "ticks")

    def __init__(self, stream: _Stream, run: Callable[[], None], ticks: int, after: tuple[_Work, ...] = ()) -> None:
        self.stream = stream
        self.run = run
        self.ticks = ticks
        self.after = after
        self.done = False

    def pending(self) -> list[_Work]:
        return [work for work in self.after if not work.done]


class _Stream:
    __slots__ = ("destroyed", "ordinal", "queue")

    def __init__(self, ordinal: int) -> None:
        self.ordinal = ordinal
        self.queue: deque[_Work] = deque()
        self.destroyed = False

    def tail(self) -> tuple[_Work, ...]:
        """The work after which all that is queued now is done."""
        try:  # at once: others run and queue meanwhile
            return (self.queue[-1],)
        except IndexError:
            return ()


class _Event:
    __slots__ = ("free", "marks", "ordinal")

    def __init__(self, ordinal: int) -> None:
        self.ordinal = ordinal
        self.marks: tuple[_Work, ...] = ()
        self.free = False


class SimulatedRuntime:
    """``devices`` devices whose order of work follows from ``seed``.

    Beyond `Runtime`: `launch` queues a kernel, `quiesce` runs all that is queued, `run_all_but` what need not wait for
    one stream, `fail` makes calls fail, ``calls`` counts calls by name, `events_out` counts events not released.
    """

    device_type = DEVICE_TYPE
    captured_bytes = 0

    def __init__(self, seed: int = 0, devices: int = 2, device_bytes: int = 1 << 30) -> None:
        self._random = random.Random(seed)
        self._eagerness = self._random.choice((0.0, 0.0, 0.1, 0.5))
        self._device_bytes = device_bytes
        self._ordinals = range(devices)
        self._streams: dict[int | tuple[int, int], _Stream] = {}
        self._events: dict[int, _Event] = {}
        self._allocations: dict[int, Allocation] = {}
        self._pinned: dict[int, tuple[int, np.ndarray | None]] = {}
        self._virtual = SimulatedVirtualMemory()
        self._numbers = itertools.count(0x1000, 0x10)
        self._faults: dict[str, list[Exception | None]] = {}
        self._broken: Exception | None = None
        self._still: _Stream | None = None
        self.calls: Counter[str] = Counter()
        # Re-entrant: the garbage collector may free an array, which queues work, at any allocation in here.
        self._lock = threading.RLock()
        self._executor = ThreadPoolExecutor(1, "simulated-device")

    # Of the tests ------------------------------------------------------------------------------
    def install(self) -> SimulatedRuntime:
        """Let matrix_interop find this runtime; itself."""
        register_runtime(DEVICE_TYPE, lambda: self)
        return self

    def close(self) -> None:
        """End the device's thread."""
        self._executor.shutdown()

    def launch(self, run: Callable[[], None], *, ordinal: int, stream: int, ticks: int | None = None) -> None:
        """Queue a kernel. ``ticks``: how often it must be picked before it is done; None: few."""
        self._queue(self._stream(stream, ordinal), run, ticks=ticks)

    def quiesce(self) -> None:
        """Run all that is queued; raises what failed on the device."""
        with self._lock:
            tails = [work for stream in list(self._streams.values()) for work in stream.tail()]
        self._finish(tails)

    def run_all_but(self, stream: int, ordinal: int = 0) -> None:
        """Run all that need not wait for ``stream``, which stands still meanwhile."""
        self._still = self._stream(stream, ordinal)
        try:
            while self._run(self._idle, 8):
                pass
        finally:
            self._still = None

    def fail(self, name: str, error: Exception, *, after: int = 0) -> None:
        """Make the call of method ``name`` that follows ``after`` good ones raise ``error``, once."""
        self._faults.setdefault(name, []).extend([*[None] * after, error])

    def events_out(self) -> int:
        """Events that were recorded and not released."""
        return sum(not event.free for event in self._events.values())

    def managed_alloc(self, nbytes: int, ordinal: int) -> int:
        """Memory that host and device address; freed by `device_free`."""
        return self._allocate(Allocation(nbytes, ordinal, "managed"))

    def array(self, address: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
        """Device memory as the device sees it: for kernels only."""
        return self._allocation(address).array(address, shape, strides, dtype)

    # Facts -------------------------------------------------------------------------------------
    def device_count(self) -> int:
        return len(self._ordinals)

    def active(self) -> tuple[int, ...]:
        return tuple(self._ordinals)

    def pointer(self, address: int) -> Pointer:
        self._enter("pointer")
        for allocation in list(self._allocations.values()):
            if allocation.holds(address):
                return Pointer(allocation.kind, allocation.ordinal)
        if self._virtual.holds(address):
            return Pointer("pinned", None)
        if any(start <= address < start + nbytes for start, (nbytes, _) in list(self._pinned.items())):
            return Pointer("pinned", 0)
        return Pointer("pageable", None)

    def memory_info(self, ordinal: int) -> tuple[int, int]:
        self._enter("memory_info", ordinal)
        used = sum(found.nbytes for found in list(self._allocations.values()) if found.ordinal == ordinal)
        return self._device_bytes - used, self._device_bytes

    def reads_pageable(self, ordinal: int) -> bool:
        self._enter("reads_pageable", ordinal)
        return False

    def virtual_memory(self, ordinal: int) -> SimulatedVirtualMemory | None:
        self._enter("virtual_memory", ordinal)
        return self._virtual

    # Memory ------------------------------------------------------------------------------------
    def host_alloc(self, nbytes: int) -> int:
        self._enter("host_alloc")
        memory = np.zeros(nbytes + 4096, np.uint8)
        address = -(-memory.ctypes.data // 4096) * 4096
        self._pinned[address] = nbytes, memory
        return address

    def host_free(self, address: int) -> None:
        self._enter("host_free")
        self._unpin(address)

    def host_register(self, address: int, nbytes: int) -> None:
        self._enter("host_register")
        if any(start < address + nbytes and address < start + size for start, (size, _) in self._pinned.items()):
            msg = f"simulated device: host memory at {address:#x} is already registered"
            raise DeviceUnavailableError(msg)
        self._pinned[address] = nbytes, None

    def host_unregister(self, address: int) -> None:
        self._enter("host_unregister")
        self._unpin(address)

    def device_alloc(self, nbytes: int, ordinal: int) -> int:
        self._enter("device_alloc", ordinal)
        return self._allocate(Allocation(nbytes, ordinal))

    def device_free(self, address: int, ordinal: int) -> None:
        self._enter("device_free", ordinal)
        self.quiesce()
        del self._allocations[address]

    # Moving bytes ------------------------------------------------------------------------------
    def copy(self, dst: int, src: int, nbytes: int, *, ordinal: int, stream: int) -> None:
        self._enter("copy", ordinal)
        if 0 < nbytes <= self.captured_bytes and self.pointer(src).kind == "pageable":
            taken = host_bytes(src, nbytes).copy()
            self._queue(self._stream(stream, ordinal), lambda: np.copyto(self._bytes(dst, nbytes), taken))
            return
        self._copy(dst, nbytes, src, nbytes, nbytes, 1, self._stream(stream, ordinal))

    def copy_rows(
        self, dst: int, dst_pitch: int, src: int, src_pitch: int, width: int, rows: int, *, ordinal: int, stream: int
    ) -> None:
        self._enter("copy_rows", ordinal)
        if width > min(dst_pitch, src_pitch):
            msg = f"simulated device: rows of {width} bytes do not fit pitches of {dst_pitch} and {src_pitch}"
            raise DeviceUnavailableError(msg)
        self._copy(dst, dst_pitch, src, src_pitch, width, rows, self._stream(stream, ordinal))

    def copy_peer(self, dst: int, dst_ordinal: int, src: int, src_ordinal: int, nbytes: int, *, stream: int) -> None:
        self._enter("copy_peer", dst_ordinal)
        for address, ordinal in ((dst, dst_ordinal), (src, src_ordinal)):
            if nbytes and self._allocation(address).ordinal != ordinal:
                msg = f"simulated device: {address:#x} is not memory of device {ordinal}"
                raise DeviceUnavailableError(msg)
        self._copy(dst, nbytes, src, nbytes, nbytes, 1, self._stream(stream, src_ordinal))

    # Order -------------------------------------------------------------------------------------
    def stream_create(self, ordinal: int) -> int:
        self._enter("stream_create", ordinal)
        number = next(self._numbers)
        self._streams[number] = _Stream(ordinal)
        return number

    def stream_destroy(self, stream: int, ordinal: int) -> None:
        self._enter("stream_destroy", ordinal)
        self._stream(stream, ordinal).destroyed = True

    def stream_synchronize(self, stream: int, ordinal: int) -> None:
        self._enter("stream_synchronize", ordinal)
        self._finish(self._stream(stream, ordinal).tail())

    def record(self, stream: int, ordinal: int) -> int:
        self._enter("record", ordinal)
        return self._record(self._stream(stream, ordinal).tail(), ordinal)

    def record_all(self, ordinal: int) -> int:
        self._enter("record_all", ordinal)
        with self._lock:
            streams = [stream for stream in self._streams.values() if stream.ordinal == ordinal]
        return self._record(tuple(work for stream in streams for work in stream.tail()), ordinal)

    def wait(self, stream: int, event: int, ordinal: int) -> None:
        self._enter("wait", ordinal)
        self._queue(self._stream(stream, ordinal), _nothing, ticks=1, after=self._event(event).marks)

    def query(self, event: int) -> bool:
        self._enter("query")
        marks = self._event(event).marks
        self._run(self._idle, self._random.randrange(3))
        return all(work.done for work in marks)

    def synchronize(self, event: int) -> None:
        self._enter("synchronize")
        self._finish(self._event(event).marks)

    def release(self, event: int) -> None:
        self._event(event).free = True

    # -------------------------------------------------------------------------------------------
    def _enter(self, name: str, ordinal: int = 0) -> None:
        self.calls[name] += 1
        planned = self._faults.get(name)
        if planned and (error := planned.pop(0)) is not None:
            raise error
        if ordinal not in self._ordinals:
            msg = f"there is no device {DEVICE_TYPE}:{ordinal}: {len(self._ordinals)} are simulated"
            raise DeviceUnavailableError(msg)

    def _stream(self, number: int, ordinal: int) -> _Stream:
        name = number or LEGACY
        key = (-ordinal - 1, 0 if name == LEGACY else threading.get_ident()) if name <= PER_THREAD else name
        with self._lock:
            if name <= PER_THREAD and key not in self._streams:
                self._streams[key] = _Stream(ordinal)
            stream = self._streams.get(key)
        if stream is None or stream.destroyed or stream.ordinal != ordinal:
            msg = f"simulated device: {number:#x} is no stream of device {ordinal}"
            raise DeviceUnavailableError(msg)
        return stream

    def _event(self, number: int) -> _Event:
        event = self._events.get(number)
        if event is None or event.free:
            msg = f"simulated device: {number:#x} is no event, or was released"
            raise DeviceUnavailableError(msg)
        return event

    def _record(self, marks: tuple[_Work, ...], ordinal: int) -> int:
        with self._lock:
            free = (number for number, event in self._events.items() if event.free and event.ordinal == ordinal)
            number = next(free, None) or next(self._numbers)
            event = self._events.setdefault(number, _Event(ordinal))
            event.marks, event.free = marks, False
            return number

    def _allocate(self, allocation: Allocation) -> int:
        with self._lock:
            if allocation.nbytes > self.memory_info(allocation.ordinal)[0]:
                msg = f"simulated device {allocation.ordinal}: no {allocation.nbytes} bytes left"
                raise MemoryError(msg)
            self._allocations[allocation.address] = allocation
        return allocation.address

    def _allocation(self, address: int) -> Allocation:
        for allocation in list(self._allocations.values()):
            if allocation.holds(address):
                return allocation
        msg = f"simulated device: {address:#x} is not device memory"
        raise DeviceUnavailableError(msg)

    def _unpin(self, address: int) -> None:
        self.quiesce()  # as CUDA: giving pinned memory back waits for the device
        if self._pinned.pop(address, None) is None:
            msg = f"simulated device: {address:#x} is not the start of pinned memory"
            raise DeviceUnavailableError(msg)

    def _copy(self, dst: int, dst_pitch: int, src: int, src_pitch: int, width: int, rows: int, stream: _Stream) -> None:
        if not width or not rows:
            return
        for start, pitch in ((dst, dst_pitch), (src, src_pitch)):
            self._check_range(start, pitch * (rows - 1) + width)

        def run() -> None:
            for row in range(rows):
                target = self._bytes(dst + row * dst_pitch, width)
                target[:] = self._bytes(src + row * src_pitch, width)

        self._queue(stream, run)

    def _check_range(self, address: int, nbytes: int) -> None:
        """A copy must stay inside one allocation or registration, or touch none: as measured on CUDA."""
        ranges = [(found.address, found.nbytes) for found in list(self._allocations.values())]
        ranges += [(start, size) for start, (size, _) in list(self._pinned.items())]
        for start, size in ranges:
            touches = start < address + nbytes and address < start + size
            if touches and not (start <= address and address + nbytes <= start + size):
                msg = f"simulated device: invalid value: {nbytes} bytes at {address:#x} cross the edge of an allocation"
                raise DeviceUnavailableError(msg)

    def _bytes(self, address: int, nbytes: int) -> np.ndarray:
        if self.pointer(address).kind in {"device", "managed"}:
            return self.array(address, (nbytes,), (1,), np.dtype(np.uint8))
        return host_bytes(address, nbytes)

    def _queue(
        self, stream: _Stream, run: Callable[[], None], *, ticks: int | None = None, after: tuple[_Work, ...] = ()
    ) -> None:
        with self._lock:
            ticks = self._random.randint(1, 4) if ticks is None else ticks
            stream.queue.append(_Work(stream, run, ticks, after))

    def _finish(self, target: Iterable[_Work]) -> None:
        """Block the caller until the work is done."""
        left = list(target)
        while left := [work for work in left if not work.done]:
            self._run(lambda left=left: self._next_for(left), 8)
        if self._broken is not None:
            msg = f"simulated device: queued work failed: {self._broken}"
            raise DeviceUnavailableError(msg) from self._broken

    def _run(self, pick: Callable[[], _Work | None], steps: int) -> bool:
        """Up to ``steps`` ticks of the work that ``pick`` names; False where it named none in the end."""
        return not steps or self._executor.submit(self._advance, pick, steps).result()

    def _advance(self, pick: Callable[[], _Work | None], steps: int) -> bool:
        """In the device's thread."""
        with self._lock:
            for _ in range(steps):
                stray = self._random.random() < self._eagerness
                work = (self._idle() if stray else pick()) or pick()
                if work is None:
                    return False
                work.ticks -= 1
                if work.ticks <= 0:
                    try:
                        work.run()
                    except Exception as error:  # noqa: BLE001  a device reports failures later, to whoever waits
                        self._broken = error
                    work.done = True
                    work.stream.queue.popleft()
        return True

    def _idle(self) -> _Work | None:
        """Any work that may run now."""
        streams = [stream for stream in list(self._streams.values()) if stream is not self._still]
        heads = [stream.queue[0] for stream in streams if stream.queue]
        ready = [work for work in heads if not work.pending()]
        return self._random.choice(ready) if ready else None

    def _next_for(self, target: list[_Work]) -> _Work | None:
        """Work that must run now before the target can be done. It is there: nothing waits for later work."""
        while target := [work for work in target if not work.done]:
            head = self._random.choice(target).stream.queue[0]
            target = head.pending()
            if not target:
                return head
        return None


def _nothing() -> None:
    """What waiting for an event does, once the event is done."""
