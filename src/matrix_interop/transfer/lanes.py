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
from matrix_interop.transfer.copying import copy_by_torch, copy_values, pool_serves
from matrix_interop.transfer.crew import CREW
from matrix_interop.transfer.files import advised
from matrix_interop.transfer.parts import cut, spans
from matrix_interop.transfer.probe import PROBED_BYTES, setting_for
from matrix_interop.transfer.progress import Progress, reporter
from matrix_interop.transfer.settings import Engine, Setting, engine_of_lanes, engine_of_torch
from matrix_interop.transfer.staging import staging_of
from matrix_interop.transfer.streams import follow, side_stream

__all__ = ["download", "start_download", "upload"]

#: Streams up to this one are names. Each call that uses one looks it up, and the per-thread one is another elsewhere.
_LAST_NAMED: Final = 2
#: Moves of at most so many bytes are one chunk, filled by the thread that asks.
_SMALL: Final = 1 << 20
#: From so many bytes on, several threads are faster than one.
_POOLED: Final = 256 << 10


def upload(source: np.ndarray, address: int, dtype: np.dtype[Any], device: Device, stream: int) -> None:
    """Enqueue writing the values of ``source`` as dense rows of ``dtype`` at a device ``address``.

    On return ``source`` may be changed; the device memory is ready in the order of ``stream``.  What goes wrong on
    the way names the array and the byte; then no part of the device memory can be relied on.
    """
    runtime = get_runtime(device.type)
    nbytes = source.size * dtype.itemsize
    if nbytes <= runtime.captured_bytes:
        if nbytes:
            dense = np.ascontiguousarray(source, dtype)
            runtime.copy(address, address_of(dense), nbytes, ordinal=device.index, stream=stream)
        return
    move = _Move(source, address, dtype, device, stream)
    if move.needs_no_staging():
        finish(runtime, move.enqueue_whole(to_device=True))
    elif move.fits_one_chunk():
        move.send_chunk()
    else:
        move.run(move.send)


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

    ``keep``: what owns the device memory.  With ``early`` a thread of its own fills an ``out`` in pageable memory.
    """
    if not out.size:
        return Transfer(out)
    move = _Move(out, address, dtype, device, stream)
    if move.nbytes <= move.runtime.captured_bytes and not early and not is_pinned(out):
        move.receive_at_once()
        return Transfer(out)
    if move.needs_no_staging():
        mark = _Mark(move.runtime, move.enqueue_whole(to_device=False))
        return Transfer(out, mark.query, mark.synchronize, keep)
    if early:
        return _in_background(move, out, keep)
    if move.fits_one_chunk():
        move.receive_chunk()
    else:
        move.run(move.receive)
    return Transfer(out)


def _in_background(move: _Move, out: np.ndarray, keep: object) -> Transfer[np.ndarray]:
    runtime, ordinal = move.runtime, move.ordinal
    over, errors = threading.Event(), []
    ready = runtime.record(move.stream, ordinal)

    def work() -> None:
        try:
            with side_stream(runtime, ordinal) as side:
                runtime.wait(side, ready, ordinal)
                move.stream = side
                move.run(move.receive)
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
    threading.Thread(target=context.run, args=(work,), name="matrix-interop transfer").start()
    return Transfer(out, over.is_set, end, keep)


class _Mark:
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
        self.copy: Callable[[np.ndarray, np.ndarray], None] = copy_values
        self.report: Progress | None = reporter(self.nbytes)
        self.stopped = False
        self._moved = 0
        self._lock = threading.Lock()
        self._caller = 0
        #: Several lanes share the bus, so that it idles little while each fills its first chunk.
        self._ramps = True

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
        self.runtime.copy(dst, src, self.nbytes, ordinal=self.ordinal, stream=self.stream)
        return self.runtime.record(self.stream, self.ordinal)

    def receive_at_once(self) -> None:
        """A small move into pageable memory, which the driver stages itself."""
        dense = self.array
        if dense.dtype != self.dtype or not dense.flags.c_contiguous:
            dense = np.empty(dense.shape, self.dtype)
        dst = address_of(dense)
        self.runtime.copy(dst, self.address, self.nbytes, ordinal=self.ordinal, stream=self.stream)
        finish(self.runtime, self.runtime.record(self.stream, self.ordinal))
        if dense is not self.array:
            copy_values(self.array, dense)

    # Through chunks ----------------------------------------------------------------------------
    def fits_one_chunk(self) -> bool:
        """True for moves so small that cutting them costs more than it saves."""
        return self.nbytes <= min(_SMALL, staging_of(self.arena).largest(_SMALL))

    def send_chunk(self) -> None:
        """`send` of a single chunk."""
        self._choose_engine()
        with _Lane(self, self.nbytes, 1, 0) as lane:
            block = lane.chunk() or lane.passed()
            self.copy(np.ndarray(self.array.shape, self.dtype, block), self.array)
            lane.launch(self.address, block.address, self.array)

    def receive_chunk(self) -> None:
        """`receive` of a single chunk."""
        self._choose_engine()
        with _Lane(self, self.nbytes, 1, 0) as lane:
            block = lane.chunk() or lane.passed()
            lane.launch(block.address, self.address, self.array)
            lane.emptied()

    def run(self, work: Callable[[np.ndarray, int, int, int], None], setting: Setting | None = None) -> None:
        """Move everything by ``work(span, its offset, bytes a chunk, chunks in flight)``, in one thread or several."""
        if setting is None:
            setting = setting_for(self._choose_engine(), self.device.type, self.nbytes, partial(_trial, self))
        self._caller = threading.get_ident()
        named = self.stream
        if named > _LAST_NAMED:
            self._spread(work, setting)
        else:
            with side_stream(self.runtime, self.ordinal, named) as self.stream:
                try:
                    self._spread(work, setting)
                finally:  # whoever takes the memory next, after an error too, does so after what is under way
                    follow(self.runtime, self.ordinal, named, self.stream)
        if self.report is not None:
            self.report(self.nbytes, self.nbytes)

    def _spread(self, work: Callable[[np.ndarray, int, int, int], None], setting: Setting) -> None:
        lanes = min(setting.lanes, -(-self.nbytes // _SMALL))
        chunk = staging_of(self.arena).largest(min(setting.chunk_bytes, -(-self.nbytes // lanes)))
        self._ramps = lanes == 1
        if lanes == 1:
            work(self.array, 0, chunk, setting.in_flight)
        else:
            pieces = spans(self.array, self.dtype.itemsize, lanes)
            CREW.run([partial(work, span, offset, chunk, setting.in_flight) for span, offset in pieces])

    def _choose_engine(self) -> Engine:
        """How values are copied: sets `copy`."""
        if self.nbytes >= _POOLED and pool_serves(np.empty(0, self.dtype), self.array):
            self.copy = copy_by_torch
            return engine_of_torch()
        return engine_of_lanes()

    def send(self, span: np.ndarray, offset: int, chunk: int, in_flight: int) -> None:
        """Host to device: fill a chunk, let the device fetch it, fill the next."""
        with _Lane(self, chunk, in_flight, offset) as lane:
            for part, at in advised(cut(span, self.dtype.itemsize, chunk, ramp=self._ramps)):
                if self.stopped:
                    return
                lane.place = offset + at
                block = lane.chunk() or lane.passed()
                self.copy(np.ndarray(part.shape, self.dtype, block), part)
                lane.launch(self.address + offset + at, block.address, part)

    def receive(self, span: np.ndarray, offset: int, chunk: int, in_flight: int) -> None:
        """Device to host: keep the device writing chunks, and empty the oldest meanwhile."""
        with _Lane(self, chunk, in_flight, offset) as lane:
            for part, at in cut(span, self.dtype.itemsize, chunk, ramp=self._ramps):
                if self.stopped:
                    return
                block = lane.chunk() or lane.emptied()
                lane.place = offset + at
                lane.launch(block.address, self.address + offset + at, part)
            while lane.flight:
                lane.emptied()
                lane.give()

    def count(self, nbytes: int) -> None:
        """So many bytes more have been handed on."""
        if self.report is None:
            return
        with self._lock:
            self._moved += nbytes
        if self._moved < self.nbytes and threading.get_ident() == self._caller:
            self.report(self._moved, self.nbytes)

    def explained(self, error: BaseException, place: int) -> BaseException:
        """The error with what was moved, where to, and how far it came."""
        what = f"{self.array.dtype} {self.array.shape}, host memory, and {self.device} memory as {self.dtype}"
        text = f"the move between {what} stopped at byte {place} of {self.nbytes}"
        if type(error) in (DeviceUnavailableError, MemoryError):
            explained = type(error)(f"{text}: {error}")
            explained.__cause__ = error
            return explained
        error.add_note(text)
        return error


class _Lane:
    """One thread's chunks: those that the device works on, and the one in hand.  They all go back at the end."""

    def __init__(self, move: _Move, chunk: int, in_flight: int, place: int) -> None:
        self._move = move
        self._staging = staging_of(move.arena)
        self._nbytes = chunk
        self._in_flight = in_flight
        self._block: Block | None = None
        self.flight: deque[tuple[int, Block, np.ndarray]] = deque()
        #: The byte that is being moved.
        self.place = place

    def chunk(self) -> Block | None:
        """A chunk that nothing is done with, or None where there are enough in flight."""
        if len(self.flight) == self._in_flight:
            return None
        self._block = self._staging.take(self._move.arena, self._nbytes, wait=not self.flight)
        return self._block

    def launch(self, dst: int, src: int, part: np.ndarray) -> None:
        """Have the device move ``part`` from or to the chunk in hand."""
        move, block = self._move, self._in_hand()
        nbytes = part.size * move.dtype.itemsize
        move.runtime.copy(dst, src, nbytes, ordinal=move.ordinal, stream=move.stream)
        try:
            event = move.runtime.record(move.stream, move.ordinal)
        except BaseException:
            with contextlib.suppress(*REFUSALS):
                move.runtime.stream_synchronize(move.stream, move.ordinal)
            raise
        self.flight.append((event, block, part))
        self._block = None
        move.count(nbytes)

    def passed(self) -> Block:
        """The oldest chunk in flight, in hand again once the device is done with it."""
        return self._landed()[0]

    def emptied(self) -> Block:
        """`passed`, after its values went where they belong."""
        block, part = self._landed()
        self._move.copy(part, np.ndarray(part.shape, self._move.dtype, block))
        return block

    def _landed(self) -> tuple[Block, np.ndarray]:
        event, block, part = self.flight.popleft()
        self._block = block
        finish(self._move.runtime, event)
        return block, part

    def give(self) -> None:
        """Give the chunk in hand back."""
        self._staging.give(self._move.arena, self._in_hand())
        self._block = None

    def _in_hand(self) -> Block:
        assert self._block is not None  # noqa: S101 - for the type checker: `chunk` or `passed` was called
        return self._block

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        move = self._move
        if self._block is not None:
            self.give()
        flight = [(event, block) for event, block, _ in self.flight]
        self._staging.leave(move.arena, move.runtime, move.ordinal, move.stream, flight)
        if error is not None:
            move.stopped = True
            explained = move.explained(error, self.place)
            if explained is not error:
                raise explained


@contextlib.contextmanager
def _trial(model: _Move) -> Iterator[Callable[[Setting], float]]:
    """A function that gives the seconds of a move there and back by a setting, with the copies of ``model``."""
    runtime, ordinal = model.runtime, model.ordinal
    array = np.zeros(PROBED_BYTES // 4, np.float32)
    address = runtime.device_alloc(array.nbytes, ordinal)

    def measure(setting: Setting) -> float:
        began = time.perf_counter()
        for work in ("send", "receive"):
            move = _Move(array, address, array.dtype, model.device, stream)
            move.copy, move.report = model.copy, None
            move.run(getattr(move, work), setting)
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
