"""Reading device memory block by block, ahead of whoever uses the blocks.

Blocks are handed out as they lie in page-locked memory, without a copy.  A block that the caller still holds is left
alone; while all of them are held, further blocks come in ordinary memory, so that pinned use stays bounded.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any, Final, NamedTuple

import numpy as np

from matrix_interop.devices import Device
from matrix_interop.memory import Block, default_arena
from matrix_interop.memory.host import aligned_empty
from matrix_interop.memory.upstreams import REFUSALS
from matrix_interop.runtime import get_runtime
from matrix_interop.transfer.copying import copy_values_in_pool
from matrix_interop.transfer.lanes import address_of, download, finish
from matrix_interop.transfer.staging import staging_of
from matrix_interop.transfer.streams import follow, side_stream

__all__ = ["Piece", "block_bytes", "read_ahead"]

#: Bytes of one block, and how many there are: those in flight, the one in use, and the one before it.
_BLOCK: Final = 4 << 20
_BLOCKS: Final = 6
#: Copies that wait for the bus while the caller works on a block.
_IN_FLIGHT: Final = 4


class Piece(NamedTuple):
    """Rows to be read: ``header`` (n, d) over device memory, each row dense.

    ``stream``: the one after which they are there; None where an earlier piece named it.  ``keep``: what owns them.
    """

    header: np.ndarray
    stream: int | None
    keep: object


def block_bytes() -> int:
    """Bytes that a piece should have at most, unless it is a single row."""
    return staging_of(default_arena()).largest(_BLOCK)


def read_ahead(pieces: Iterable[Piece], device: Device) -> Iterator[np.ndarray]:
    """Each piece as a read-only array in C order, several read ahead. The first piece is the largest.

    The memory must not be written before its block has come.  The iterator must be closed or used up.
    """
    coming = iter(pieces)
    piece = next(coming, None)
    if piece is None:
        return
    runtime = get_runtime(device.type)
    with side_stream(runtime, device.index) as stream:
        ring = _Ring(device, stream, piece.header.nbytes)
        try:
            while piece is not None or ring.flight:
                if piece is not None and ring.start(piece):
                    piece = next(coming, None)
                elif ring.flight:
                    yield ring.oldest()
                elif piece is not None:
                    yield ring.in_ordinary_memory(piece)
                    piece = next(coming, None)
        finally:
            ring.end()


class Lease(Block):
    """Memory of a block for one use. The block is free again when the last array over the lease is gone."""

    __slots__ = ("block",)
    block: Block


class _Slot:
    """One pinned block, and the lease on it that a caller may still hold."""

    __slots__ = ("block", "lease")

    def __init__(self, block: Block) -> None:
        self.block = block
        self.lease: weakref.ref[Lease] | None = None


class _Ring:
    """The pinned blocks of one reader, and the copies into them that are under way."""

    def __init__(self, device: Device, stream: int, nbytes: int) -> None:
        self._device = device
        self._stream = stream
        self._nbytes = nbytes
        self._runtime = get_runtime(device.type)
        self._arena = default_arena()
        self._slots: list[_Slot] = []
        self.flight: deque[tuple[int, np.ndarray, object]] = deque()

    def start(self, piece: Piece) -> bool:
        """Have the device write the piece into a free block; False where none is free or enough are under way."""
        if len(self.flight) >= _IN_FLIGHT:
            return False
        slot = self._free_slot()
        if slot is None:
            return False
        lease: Lease = Lease.from_address(slot.block.address)
        lease.block, lease.arena = slot.block, self._arena
        lease.nbytes, lease.pinned = slot.block.nbytes, slot.block.pinned
        slot.lease = weakref.ref(lease)
        array: np.ndarray = np.ndarray(piece.header.shape, piece.header.dtype, lease)
        array.flags.writeable = False
        self._enqueue(piece, slot.block.address)
        self.flight.append((self._runtime.record(self._stream, self._device.index), array, piece.keep))
        return True

    def _free_slot(self) -> _Slot | None:
        for slot in self._slots:
            if slot.lease is None:
                return slot
            if slot.lease() is None:
                self._wait_for_users()
                return slot
        if len(self._slots) >= _BLOCKS:
            return None
        block = staging_of(self._arena).keep(self._arena, self._nbytes)
        if block is None:
            return None
        slot = _Slot(block)
        self._slots.append(slot)
        return slot

    def _wait_for_users(self) -> None:
        """Let our stream wait for all work of today: the caller may have started copies from the block that died."""
        runtime = self._runtime
        for ordinal in runtime.active():
            event = runtime.record_all(ordinal)
            try:
                runtime.wait(self._stream, event, self._device.index)
            finally:
                runtime.release(event)

    def _enqueue(self, piece: Piece, target: int) -> None:
        header, runtime, ordinal, stream = piece.header, self._runtime, self._device.index, self._stream
        if piece.stream is not None:
            follow(runtime, ordinal, stream, piece.stream)
        if header.flags.c_contiguous:
            runtime.copy(target, address_of(header), header.nbytes, ordinal=ordinal, stream=stream)
            return
        width = header.shape[1] * header.itemsize
        pitch, rows = header.strides[0], len(header)
        runtime.copy_rows(target, width, address_of(header), pitch, width, rows, ordinal=ordinal, stream=stream)

    def oldest(self) -> np.ndarray:
        """The piece that was started first, once it is there."""
        event, array, _ = self.flight.popleft()
        finish(self._runtime, event)
        return array

    def end(self) -> None:
        """Let go of what is under way, once it is over: the device must not write memory that is given back."""
        try:
            if self.flight:
                self._drain()
        finally:
            for event, _, _ in self.flight:
                self._runtime.release(event)

    def _drain(self) -> None:
        with suppress(*REFUSALS):  # a device that failed writes nothing any more
            self._runtime.stream_synchronize(self._stream, self._device.index)

    def in_ordinary_memory(self, piece: Piece) -> np.ndarray:
        """The piece in memory of its own that is not pinned."""
        header = piece.header
        out: np.ndarray[Any, Any] = aligned_empty(header.shape, header.dtype)
        if header.flags.c_contiguous:
            if piece.stream is not None:
                follow(self._runtime, self._device.index, self._stream, piece.stream)
            download(address_of(header), header.dtype, out, self._device, self._stream)
        else:
            staging = staging_of(self._arena)
            block = staging.take(self._arena, header.nbytes, header.nbytes)
            try:
                self._enqueue(piece, block.address)
                finish(self._runtime, self._runtime.record(self._stream, self._device.index))
                copy_values_in_pool(out, np.ndarray(header.shape, header.dtype, block))
            except BaseException:
                self._drain()
                raise
            finally:
                staging.give(self._arena, block)
        out.flags.writeable = False
        return out
