"""Between ordinary host memory and a device: through pinned chunks, several of them in flight.

Host arrays may have any layout, byte order and dtype: they are packed and converted while a chunk is
filled or emptied, never as a whole.  The device side is dense.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from matrix_interop.devices import Device
from matrix_interop.memory import Block, PinnedArena, default_arena
from matrix_interop.runtime import Runtime, get_runtime

__all__ = ["download", "upload"]

CHUNK_BYTES: Final = 4 << 20
IN_FLIGHT: Final = 3


def upload(source: np.ndarray, address: int, dtype: np.dtype[Any], device: Device, stream: int) -> None:
    """Enqueue writing the values of ``source`` as dense rows of ``dtype`` at a device ``address``.

    On return ``source`` may be changed; the device memory is ready in the order of ``stream``.
    """
    runtime, arena = get_runtime(device.type), default_arena()
    flight: deque[tuple[int, Block]] = deque()
    for part, offset in _parts(source, dtype):
        if len(flight) == IN_FLIGHT:
            event, block = flight.popleft()
            _pass(runtime, event)
            arena.release(block)
        nbytes = part.size * dtype.itemsize
        block = arena.block(nbytes)
        np.copyto(np.ndarray(part.shape, dtype, block), part, casting="unsafe")
        runtime.copy(address + offset, block.address, nbytes, ordinal=device.index, stream=stream)
        flight.append((runtime.record(stream, device.index), block))
    for event, block in flight:
        arena.release(block, (event,))


def download(address: int, dtype: np.dtype[Any], out: np.ndarray, device: Device, stream: int) -> None:
    """Fill ``out`` with dense rows of ``dtype`` from a device ``address`` as ``stream`` leaves them; done on return."""
    runtime, arena = get_runtime(device.type), default_arena()
    flight: deque[tuple[int, Block, np.ndarray]] = deque()
    for part, offset in _parts(out, dtype):
        if len(flight) == IN_FLIGHT:
            _land(runtime, arena, dtype, *flight.popleft())
        nbytes = part.size * dtype.itemsize
        block = arena.block(nbytes)
        runtime.copy(block.address, address + offset, nbytes, ordinal=device.index, stream=stream)
        flight.append((runtime.record(stream, device.index), block, part))
    while flight:
        _land(runtime, arena, dtype, *flight.popleft())


def _land(
    runtime: Runtime, arena: PinnedArena, dtype: np.dtype[Any], event: int, block: Block, part: np.ndarray
) -> None:
    _pass(runtime, event)
    np.copyto(part, np.ndarray(part.shape, dtype, block), casting="unsafe")
    arena.release(block)


def _pass(runtime: Runtime, event: int) -> None:
    try:
        runtime.synchronize(event)
    finally:
        runtime.release(event)


def _parts(array: np.ndarray, dtype: np.dtype[Any]) -> Iterator[tuple[np.ndarray, int]]:
    """Views of ``array`` that follow each other when it is packed as ``dtype``, with their offsets in bytes."""
    if array.ndim == 0:
        array = array.reshape(1)
    yield from _split(array, dtype.itemsize, 0)


def _split(array: np.ndarray, itemsize: int, offset: int) -> Iterator[tuple[np.ndarray, int]]:
    if array.size * itemsize <= CHUNK_BYTES:
        if array.size:
            yield array, offset
        return
    row = math.prod(array.shape[1:]) * itemsize
    step = CHUNK_BYTES // row
    if step == 0:
        for index in range(len(array)):
            yield from _split(array[index], itemsize, offset + index * row)
        return
    for start in range(0, len(array), step):
        yield array[start : start + step], offset + start * row
