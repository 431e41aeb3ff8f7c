"""Cutting an array into parts that follow each other once it is packed: small ones first and last.

The bus idles while the first part is packed, and the processor while the last one crosses; so both are small.  A part
must not take longer to pack than the one before takes to cross: packing is little faster than the bus, so parts grow
by half.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

import numpy as np

__all__ = ["cut", "spans"]

#: The first part is this fraction of the largest one, but at least so many bytes.
_FIRST: Final = 4
_LEAST: Final = 256 << 10
_PAGE: Final = 4096


def spans(array: np.ndarray, itemsize: int, count: int) -> list[tuple[np.ndarray, int]]:
    """At most ``count`` views of ``array`` of about one size, with their offsets in bytes once packed."""
    if array.flags.c_contiguous or array.ndim == 0:
        array = array.reshape(-1)
    count = min(count, len(array))
    row = math.prod(array.shape[1:]) * itemsize
    edges = [len(array) * number // count for number in range(count + 1)]
    return [(array[edges[at] : edges[at + 1]], edges[at] * row) for at in range(count)]


def cut(array: np.ndarray, itemsize: int, largest: int, *, ramp: bool = True) -> Iterator[tuple[np.ndarray, int]]:
    """Views of at most ``largest`` bytes as they are packed, items of ``itemsize``, with their offsets in bytes.

    ``ramp``: the first and last ones are smaller.
    """
    if array.flags.c_contiguous or array.ndim == 0:
        array = array.reshape(-1)
    if array.size:
        least = min(largest, max(largest // _FIRST, _LEAST)) if ramp else largest
        yield from _cut(array, itemsize, _Ramp(array.size * itemsize, largest, least), 0)


class _Ramp:
    """Sizes that grow from the first up to the largest, and halve towards the end."""

    def __init__(self, total: int, largest: int, least: int) -> None:
        self._left = total
        self._largest = largest
        self._least = self._up = least

    def size(self) -> int:
        half = max(self._left // 2 // _PAGE * _PAGE, self._least)
        return min(self._up, half)

    def took(self, nbytes: int) -> None:
        self._left -= nbytes
        self._up = min(self._up * 3 // 2, self._largest)


def _cut(array: np.ndarray, itemsize: int, ramp: _Ramp, offset: int) -> Iterator[tuple[np.ndarray, int]]:
    row = math.prod(array.shape[1:]) * itemsize
    start = 0
    while start < len(array):
        count = ramp.size() // row
        if count == 0 and array.ndim > 1:
            yield from _cut(array[start], itemsize, ramp, offset + start * row)
            start += 1
            continue
        part = array[start : start + max(count, 1)]
        yield part, offset + start * row
        ramp.took(part.size * itemsize)
        start += len(part)
