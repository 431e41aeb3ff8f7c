"""Between ordinary host memory and a device: through pinned chunks, several of them in flight.

Host arrays may have any layout, byte order and dtype: they are packed and converted while a chunk is
filled or emptied, never as a whole.  The device side is dense.
"""

from __future__ import annotations

import contextlib
import contextvars
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from types import TracebackType
from typing import Any, Final, Self

import numpy as np

from matrix_interop.devices import Device
from matrix_interop.errors import DeviceUnavailableError
from matrix_interop.memory import Block, PinnedArena, default_arena, is_pinned
from matrix_interop.memory.upstreams import REFUSALS
from matrix_interop.runtime import Runtime, get_runtime
from matrix_interop.transfer.base import Transfer
from matrix_interop.transfer.copying import copy_values
from matrix_interop.transfer.crew import CREW
from matrix_interop.transfer.files import require_whole
from matrix_interop.transfer.packing import Packing, packing_of
from matrix_interop.transfer.probe import PROBED_BYTES, setting_for
from matrix_interop.transfer.progress import Progress, reporter
from matrix_interop.transfer.settings import Setting, engine_of_lanes, engine_of_torch
from matrix_interop.transfer.staging import staging_of
from matrix_interop.transfer.streams import follow, side_stream

__all__ = ["Mark", "download", "start_download", "upload"]

#: Streams up to this one are names. Each call that uses one looks it up, and the per-thread one is another elsewhere.
_LAST_NAMED: Final = 2
#: Moves of at most so many bytes are one chunk, and no lane has less.
_SMALL: Final = 1 << 20
_AT_ONCE: Final = Setting(1, _SMALL, 1)
#: From so many bytes on, several threads are faster than one.
_POOLED: Final = 256 << 10
#: A move of one lane has at least so many chunks, of no less than `_SMALL`, so that packing and bus work at once.
_PARTS: Final = 4
#: Chunks begin at multiples of so many bytes.
_ALIGNMENT: Final = 256
#: Where there is room for less than was asked for, chunks shrink to so many bytes before there are fewer of them.
_LEAST: Final = 4096


def upload(source: np.ndarray, address: int, dtype: np.dtype[Any], device: Device, stream: int) -> None:
    """Enqueue writing the values of ``source`` as dense rows of ``dtype`` at a device ``address``.

    On return ``source`` may be changed; the device memory is ready in the order of ``stream``.  What goes wrong on
    the way names the array and the byte; then no part of the device memory can be relied on.
    """
    runtime = get_runtime(device.type)
    nbytes = source.size * dtype.itemsize
    if nbytes <= runtime.captured_bytes:
        if nbytes:
            require_whole(source)
            dense = np.array(source, dtype, order="C")  # in ordinary memory: the driver reads pinned memory late
            runtime.copy(address, address_of(dense), nbytes, ordinal=device.index, stream=stream)
        return
    with _Move(source, address, dtype, device, stream) as move:
        if move.needs_no_staging():
            finish(runtime, move.enqueue_whole(to_device=True))
            move.tell_end()
        else:
            move.run(to_device=True)


def download(address: int, dtype: np.dtype[Any], out: np.ndarray, device: Device, stream: int) -> None:
    """Fill ``out`` with dense rows of ``dtype`` from a device ``address`` as ``stream`` leaves them; done on return."""
    start_download(address, dtype, out, device, stream).wait()


def start_download(
    address: int,
    dtype: np.dtype[Any],
    out: np.ndarray,
    device: Device,
    stream: int,
    *,
    early: bool = False,
    keep: object = None,
) -> Transfer[np.ndarray]:
    """`download` that returns at once where the device fills ``out`` by itself, and with ``early`` always.

    ``keep``: what owns the device memory, held until it has been read.  With ``early`` a thread of its own fills an
    ``out`` in pageable memory.
    """
    if not out.size:
        return Transfer(out)
    with _Move(out, address, dtype, device, stream) as move:
        if move.nbytes <= move.runtime.captured_bytes and not early and not is_pinned(out):
            move.receive_at_once()
        elif move.needs_no_staging():
            return _by_the_device(move, keep)
        elif early:
            return _in_background(move, keep)
        else:
            move.run(to_device=False)
    return Transfer(out)


def _by_the_device(move: _Move, keep: object) -> Transfer[np.ndarray]:
    mark = Mark(move.runtime, move.enqueue_whole(to_device=False))

    def end() -> None:
        with move:
            mark.synchronize()
            move.tell_end()

    return Transfer(move.array, mark.query, end, keep)


def _in_background(move: _Move, keep: object) -> Transfer[np.ndarray]:
    runtime, ordinal = move.runtime, move.ordinal
    over, errors = threading.Event(), []
    ready = runtime.record(move.stream, ordinal)

    def work(_keep: object) -> None:
        try:
            with move, side_stream(runtime, ordinal) as side:
                runtime.wait(side, ready, ordinal)
                move.stream = side
                move.run(to_device=False)
        except BaseException as error:  # noqa: BLE001 - raised by the Transfer
            errors.append(error)
        finally:
            runtime.release(ready)
            over.set()

    def end() -> None:
        over.wait()
        if errors:
            raise errors[0]

    context = contextvars.copy_context()
    thread = threading.Thread(target=context.run, args=(work, keep), name="matrix-interop transfer")
    try:
        thread.start()
    except RuntimeError:  # there can be no more threads
        work(keep)
    return Transfer(move.array, over.is_set, end, keep)


class Mark:
    """An event that goes back to its runtime with its last user: a transfer may be dropped before it is done."""

    __slots__ = ("_event", "_runtime")

    def __init__(self, runtime: Runtime, event: int) -> None:
        self._runtime = runtime
        self._event = event

    def query(self) -> bool:
        return self._runtime.query(self._event)

    def synchronize(self) -> None:
        self._runtime.synchronize(self._event)

    def __del__(self) -> None:
        self._runtime.release(self._event)


def finish(runtime: Runtime, event: int) -> None:
    """Wait for an event and give it back."""
    try:
        runtime.synchronize(event)
    finally:
        runtime.release(event)


class _Move:
    """One move of an array: where from, where to, by which setting, and how far it is."""

    def __init__(self, array: np.ndarray, address: int, dtype: np.dtype[Any], device: Device, stream: int) -> None:
        self.array = array
        self.address = address
        self.dtype = dtype
        self.device = device
        self.ordinal = device.index
        self.stream = stream
        self.nbytes = array.size * dtype.itemsize
        self.runtime: Runtime = get_runtime(device.type)
        self.arena: PinnedArena = default_arena()
        #: Whether torch's threads may copy.
        self.pool = self.nbytes >= _POOLED
        self.report: Progress | None = reporter(self.nbytes)
        self.stopped = False
        #: The error that says already what was moved.
        self._told: BaseException | None = None
        self._moved = 0
        self._lock = threading.Lock()
        self._caller = 0

    # Without staging ---------------------------------------------------------------------------
    def needs_no_staging(self) -> bool:
        """True where the device reads and writes the array as it lies: pinned memory, or any on coherent machines."""
        if self.dtype != self.array.dtype or not self.array.flags.c_contiguous:
            return False
        if is_pinned(self.array):
            return True
        if self.nbytes <= _SMALL:
            return False  # asking the driver about the memory costs what staging costs
        if self.runtime.reads_pageable(self.ordinal):
            return True
        first = address_of(self.array)
        return all(
            self.runtime.pointer(address).kind in ("pinned", "managed") for address in (first, first + self.nbytes - 1)
        )

    def enqueue_whole(self, *, to_device: bool) -> int:
        """Enqueue one copy of everything; the event after it."""
        host = address_of(self.array)
        dst, src = (self.address, host) if to_device else (host, self.address)
        return self.enqueue(dst, src, self.nbytes)

    def receive_at_once(self) -> None:
        """A small move into pageable memory, which the driver stages itself."""
        dense = self.array
        if dense.dtype != self.dtype or not dense.flags.c_contiguous:
            dense = np.empty(dense.shape, self.dtype)
        finish(self.runtime, self.enqueue(address_of(dense), self.address, self.nbytes))
        if dense is not self.array:
            copy_values(self.array, dense)

    # Through chunks ----------------------------------------------------------------------------
    def run(self, *, to_device: bool, setting: Setting | None = None) -> None:
        """Move everything, in one thread or several."""
        packing = packing_of(self.array, self.dtype, pool=self.pool)
        if setting is None and self.nbytes <= _SMALL:  # a stream of its own would cost more than it saves
            self._lane(packing, 0, _AT_ONCE, to_device=to_device)
            return
        if setting is None:
            engine = engine_of_torch(to_device=to_device) if packing.pooled else engine_of_lanes()
            way = f"to {self.device.type}" if to_device else f"from {self.device.type}"
            setting = setting_for(engine, way, self.nbytes, partial(_trial, to_device, packing.pooled, self.device))
        self._caller = threading.get_ident()
        named = self.stream
        if named > _LAST_NAMED:
            self._spread(packing, setting, to_device=to_device)
        else:
            with side_stream(self.runtime, self.ordinal, named) as self.stream:
                try:
                    self._spread(packing, setting, to_device=to_device)
                finally:  # whoever takes the memory next, after an error too, does so after what is under way
                    try:
                        follow(self.runtime, self.ordinal, named, self.stream)
                    except BaseException:
                        self.drain()
                        raise
        self.tell_end()

    def enqueue(self, dst: int, src: int, nbytes: int) -> int:
        """Enqueue a copy; the event after it. Where that cannot be had the copy is over, so that memory may go."""
        self.runtime.copy(dst, src, nbytes, ordinal=self.ordinal, stream=self.stream)
        try:
            return self.runtime.record(self.stream, self.ordinal)
        except BaseException:
            self.drain()
            raise

    def drain(self) -> None:
        """Wait for all that is under way. A device that failed reads and writes nothing any more."""
        with contextlib.suppress(*REFUSALS):
            self.runtime.stream_synchronize(self.stream, self.ordinal)

    def _spread(self, packing: Packing, setting: Setting, *, to_device: bool) -> None:
        lanes = min(setting.lanes, -(-self.nbytes // _SMALL))
        if lanes == 1:
            self._lane(packing, 0, setting, to_device=to_device)
        else:
            shares = packing.spread(lanes)
            CREW.run([partial(self._lane, *share, setting, to_device=to_device) for share in shares])

    def _lane(self, packing: Packing, offset: int, setting: Setting, *, to_device: bool) -> None:
        with _Lane(self, packing, offset, setting, to_device=to_device) as lane:
            lane.run()

    def count(self, nbytes: int) -> None:
        """So many bytes more have been handed on; for a move that reports."""
        with self._lock:
            self._moved += nbytes
        if self.report is not None and self._moved < self.nbytes and threading.get_ident() == self._caller:
            self.report(self._moved, self.nbytes)

    def tell_end(self) -> None:
        """All bytes are there, or under way to a device; for a move that reports."""
        if self.report is not None:
            self.report(self.nbytes, self.nbytes)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        told, self._told = self._told, None
        if error is not None and error is not told:
            explained = self.explained(error)
            if explained is not error:
                raise explained

    def explained(self, error: BaseException, place: int | None = None) -> BaseException:
        """The error with what was moved, where to, and how far a lane came."""
        what = f"{self.array.dtype} {self.array.shape}, host memory, and {self.device} memory as {self.dtype}"
        how = "failed" if place is None else f"stopped at byte {place} of {self.nbytes}"
        text = f"the move between {what} {how}"
        if type(error) in (DeviceUnavailableError, MemoryError):
            explained = type(error)(f"{text}: {error}")
            explained.__cause__ = error
            self._told = explained
            return explained
        error.add_note(text)
        self._told = error
        return error


class _Lane:
    """One thread's share of a move, and its chunks: places in one pinned block that are used in turn."""

    def __init__(self, move: _Move, packing: Packing, offset: int, setting: Setting, *, to_device: bool) -> None:
        self._move = move
        self._packing = packing
        self._offset = offset
        self._setting = setting
        self._to_device = to_device
        self._staging = staging_of(move.arena)
        self._block: Block | None = None
        #: Copies that the device has not done yet, the oldest first: event, chunk, values.
        self._flight: deque[tuple[int, Any, Any]] = deque()
        #: The byte of the share that is being moved.
        self._place = 0

    def run(self) -> None:
        """Move the share: all chunks, in order."""
        move, packing, flight, to_device = self._move, self._packing, self._flight, self._to_device
        runtime, stream, ordinal = move.runtime, move.stream, move.ordinal
        there = move.address + self._offset
        nbytes, count = self._sizes()
        self._block = block = self._staging.take(move.arena, nbytes * count, nbytes)
        if block.nbytes < nbytes * count:
            nbytes = max(block.nbytes // count // _ALIGNMENT * _ALIGNMENT, min(nbytes, _LEAST))
            count = min(count, block.nbytes // nbytes)
        # Short and in one place: with the caches full of chunks, each further call here costs a microsecond or two.
        for chunk, values, address, place, length in packing.parts(block, nbytes, count):
            if move.stopped:
                return
            if len(flight) == count:
                self._land()
            self._place = place
            if to_device:
                packing.copy(chunk, values)
                runtime.copy(there + place, address, length, ordinal=ordinal, stream=stream)
            else:
                runtime.copy(address, there + place, length, ordinal=ordinal, stream=stream)
            flight.append((runtime.record(stream, ordinal), chunk, values))
            if move.report is not None:
                move.count(length)
        if not to_device:
            while flight:
                self._land()
        elif packing.nbytes >= 2 * self._setting.chunk_bytes:
            for _ in range(min(self._setting.extra, len(flight))):
                packing.copy(*self._land())

    def _sizes(self) -> tuple[int, int]:
        """Bytes of a chunk, and how many there are."""
        total, setting = self._packing.nbytes, self._setting
        chunk = min(setting.chunk_bytes, total)
        if setting.lanes == 1:  # nobody else uses the bus while the first chunk is filled or the last one emptied
            chunk = min(chunk, max(-(-total // _PARTS), _SMALL))
        chunk = self._staging.largest(-(-chunk // _ALIGNMENT) * _ALIGNMENT)
        return chunk, max(1, min(setting.in_flight, -(-total // chunk), self._staging.limit // chunk))

    def _land(self) -> tuple[Any, Any]:
        """Wait for the oldest copy; what came from the device goes where it belongs. The chunk, and its values."""
        event, chunk, values = self._flight.popleft()
        finish(self._move.runtime, event)
        if not self._to_device:
            self._packing.copy(values, chunk)
        return chunk, values

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        move, block, events = self._move, self._block, [event for event, _chunk, _values in self._flight]
        move.stopped = move.stopped or error is not None
        if block is not None and error is not None:  # the last copy may have no event
            move.drain()
        for event in events[:-1] if error is None else events:
            move.runtime.release(event)
        if block is not None and events and error is None:
            self._staging.leave(move.arena, move.runtime, move.ordinal, move.stream, block, events[-1])
        elif block is not None:
            self._staging.give(move.arena, block)
        if error is not None:
            explained = move.explained(error, self._offset + self._place)
            if explained is not error:
                raise explained


@contextlib.contextmanager
def _trial(to_device: bool, pool: bool, device: Device) -> Iterator[Callable[[Setting], float]]:
    """A function that gives the seconds of a move by a setting."""
    runtime, ordinal = get_runtime(device.type), device.index
    array = np.zeros(PROBED_BYTES // 4, np.float32)
    address = runtime.device_alloc(array.nbytes, ordinal)

    def measure(setting: Setting) -> float:
        move = _Move(array, address, array.dtype, device, stream)
        move.pool, move.report = pool, None
        began = time.perf_counter()
        move.run(to_device=to_device, setting=setting)
        runtime.stream_synchronize(stream, ordinal)
        return time.perf_counter() - began

    try:
        with side_stream(runtime, ordinal) as stream:
            array.fill(1)  # zeros have no pages of their own
            yield measure
    finally:
        runtime.device_free(address, ordinal)


def address_of(array: np.ndarray) -> int:
    """Where the first entry lies."""
    return int(array.__array_interface__["data"][0])
