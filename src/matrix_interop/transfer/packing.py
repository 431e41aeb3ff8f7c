"""How the values of a host array get into chunks and out of them.

A chunk is a part of a pinned block.  Whatever is the same for all chunks is made once: while chunks are copied the
processor's caches hold their bytes, so that each line of Python between two of them runs from cold.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import cycle, pairwise
from typing import Any, Final, Protocol

import numpy as np

from matrix_interop.memory import Block
from matrix_interop.transfer.copying import copy_by_torch, copy_values, pool_is_there, pool_serves, tensor_of
from matrix_interop.transfer.files import Pages, pages_of

__all__ = ["Packing", "Part", "packing_of"]

#: Shares begin at multiples of so many bytes of a dense array.
_GRAIN: Final = 4096

#: A part of a host array and the chunk that it goes through: chunk, values, address of the chunk, first byte of the
#: values once packed, bytes.
Part = tuple[Any, Any, int, int, int]


class Packing(Protocol):
    """A host array, or a lane's share of one, and the way its values are copied."""

    #: Whether all threads of a pool copy each part, so that one lane is enough.
    pooled: bool
    #: Bytes of all its values once packed.
    nbytes: int
    #: ``copy(out, values)`` between chunk and values, either way.
    copy: Callable[[Any, Any], Any]

    def spread(self, lanes: int) -> list[tuple[Packing, int]]:
        """At most so many shares of about one size, each with its offset in bytes."""

    def parts(self, block: Block, nbytes: int, count: int) -> Iterator[Part]:
        """Parts of at most so many bytes, one behind the other, in ``count`` chunks of a block that take turns.

        Raises `FormatError` where a mapped file was cut.
        """


def packing_of(array: np.ndarray, dtype: np.dtype[Any], *, pool: bool) -> Packing:
    """The way to pack ``array`` as dense rows of ``dtype``; ``pool``: by torch's threads if they serve."""
    file = pages_of(array)
    if array.dtype == dtype and array.flags.c_contiguous:
        return _Dense(array.reshape(-1).view(np.uint8), file, pooled=pool and pool_is_there())
    pooled = pool and pool_serves(np.empty(0, dtype), array)
    return _Strided(array if array.ndim else array.reshape(1), dtype, file, pooled=pooled)


class _Dense:
    """Values that are bytes in a row: parts are slices of a flat array, or of a tensor of torch over it."""

    def __init__(self, flat: np.ndarray, file: Pages | None, *, pooled: bool) -> None:
        tensor = tensor_of(flat) if pooled else None
        self.pooled = tensor is not None
        self.nbytes = flat.nbytes
        self._values: Any = flat if tensor is None else tensor
        self.copy: Callable[[Any, Any], Any] = np.copyto if tensor is None else type(tensor).copy_
        self._flat = flat
        self._file = file

    def spread(self, lanes: int) -> list[tuple[Packing, int]]:
        flat, edges = self._flat, _edges(self.nbytes, lanes, _GRAIN)
        return [(_Dense(flat[a:b], self._file, pooled=self.pooled), a) for a, b in pairwise(edges)]

    def parts(self, block: Block, nbytes: int, count: int) -> Iterator[Part]:
        flat, values, file, total, address = block.array, self._values, self._file, self.nbytes, block.address
        chunks = tensor_of(flat) if self.pooled else flat
        places = cycle(range(0, nbytes * count, nbytes))
        for start, at in zip(range(0, total, nbytes), places, strict=False):
            if file is not None:
                file.require()
            stop = min(start + nbytes, total)
            length = stop - start
            yield chunks[at : at + length], values[start:stop], address + at, start, length


class _Strided:
    """Values in any layout, byte order and dtype: each part is a view, packed and converted on its way."""

    def __init__(self, array: np.ndarray, dtype: np.dtype[Any], file: Pages | None, *, pooled: bool) -> None:
        self.pooled = pooled
        self.nbytes = array.size * dtype.itemsize
        self._array = array
        self._dtype = dtype
        self._file = file
        self.copy: Callable[[Any, Any], Any] = copy_by_torch if pooled else copy_values

    def spread(self, lanes: int) -> list[tuple[Packing, int]]:
        array, row = self._array, math.prod(self._array.shape[1:]) * self._dtype.itemsize
        return [
            (_Strided(array[a:b], self._dtype, self._file, pooled=self.pooled), a * row)
            for a, b in pairwise(_edges(len(array), lanes))
        ]

    def parts(self, block: Block, nbytes: int, count: int) -> Iterator[Part]:
        dtype = self._dtype
        places = cycle(range(0, nbytes * count, nbytes))
        for (values, offset), at in zip(self._cut(self._array, nbytes, 0), places, strict=False):
            if self._file is not None:
                self._file.require()
            chunk: np.ndarray = np.ndarray(values.shape, dtype, block, at)
            yield chunk, values, block.address + at, offset, chunk.nbytes

    def _cut(self, array: np.ndarray, nbytes: int, offset: int) -> Iterator[tuple[np.ndarray, int]]:
        row = math.prod(array.shape[1:]) * self._dtype.itemsize
        if row > nbytes and array.ndim > 1:
            for number, one in enumerate(array):
                yield from self._cut(one, nbytes, offset + number * row)
            return
        step = max(1, nbytes // row)
        for start in range(0, len(array), step):
            yield array[start : start + step], offset + start * row


def _edges(count: int, lanes: int, grain: int = 1) -> list[int]:
    """Where ``count`` things are cut into shares of about one size, each of whole grains but the last."""
    lanes = max(1, min(lanes, count // grain))
    return [count * number // lanes // grain * grain for number in range(lanes)] + [count]
