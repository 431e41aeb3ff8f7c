"""The running answer on a device: the k best keys of each query so far."""

from __future__ import annotations

from functools import cached_property
from typing import Any, Final

import numpy as np

from matrix_interop.search.device.arrays import Arrays

__all__ = ["Best", "Blank", "smallest"]

#: Below this many scores in a group, choosing groups first saves nothing.
_LEAST: Final = 8
_MOST: Final = 256
#: Below this many scores, more operations cost more than more readings; but choosing from one longer row takes torch
#: twenty kernels.
_FEW: Final = 1 << 22
_LONG: Final = 1 << 14


class Best:
    """``keys`` (q, k) float64 and ``ids`` (q, k) int64, sorted by (key, id).

    Missing entries have the key NaN, so that they come after rows whose distance overflowed to +inf, and any id.
    """

    def __init__(self, arrays: Arrays, keys: Any, ids: Any) -> None:
        self.arrays = arrays
        self.keys = keys
        self.ids = ids

    def rows(self, numbers: Any) -> Best:
        """The answers of some queries."""
        return Best(self.arrays, self.arrays.rows(self.keys, numbers), self.arrays.rows(self.ids, numbers))

    def below(self, other: Best) -> Best:
        """The queries of both, one after the other."""
        concat = self.arrays.xp.concat
        return Best(self.arrays, concat([self.keys, other.keys], axis=0), concat([self.ids, other.ids], axis=0))

    def joined(self, keys: Any, ids: Any) -> Best:
        """The answer after other neighbours (q, m) joined: nearest first, equal ones by lowest id.

        Their ids are above those that are here already, and, but on the host, ascend in each row as far as keys are
        equal.
        """
        concat = self.arrays.xp.concat
        return _nearest(
            self.arrays, concat([self.keys, keys], axis=1), concat([self.ids, ids], axis=1), self.keys.shape[1]
        )

    def on(self, arrays: Arrays) -> Best:
        """The same answer, on another device."""
        if arrays is self.arrays:
            return self
        return Best(arrays, *(arrays.array(self.arrays.host(part)) for part in (self.keys, self.ids)))

    def joined_pairs(self, which: Any, keys: Any, ids: Any) -> Best:
        """The answer after pairs (query ``which[i]``, row ``ids[i]``), sorted by query and id, joined."""
        arrays, xp, (count, k) = self.arrays, self.arrays.xp, self.keys.shape
        order = arrays.order(keys[None, :])[0, :]
        order = arrays.rows(order, arrays.order(arrays.rows(which, order)[None, :])[0, :])
        query = arrays.rows(which, order)
        numbers = arrays.arange(0, count + 1)
        first = xp.searchsorted(query, numbers)
        place = first[:-1, None] + arrays.arange(0, k)[None, :]
        inside = place < first[1:, None]
        chosen = arrays.rows(order, xp.reshape(xp.where(inside, place, 0), (-1,)))
        keys, ids = (xp.reshape(arrays.rows(part, chosen), (count, k)) for part in (keys, ids))
        return self.joined(xp.where(inside, keys, xp.nan), ids)


class Blank(Best):
    """The answer before there are neighbours. Its arrays are made when they are asked for."""

    def __init__(self, arrays: Arrays, queries: int, k: int) -> None:
        self.arrays = arrays
        self.shape = queries, k

    @cached_property
    def keys(self) -> Any:
        """All missing."""
        return self.arrays.full(self.shape, np.nan, "float64")

    @cached_property
    def ids(self) -> Any:
        """Of nothing."""
        return self.arrays.full(self.shape, -1, "int64")

    def joined(self, keys: Any, ids: Any) -> Best:
        """As above."""
        k = self.shape[1]
        return super().joined(keys, ids) if keys.shape[1] < k else _nearest(self.arrays, keys, ids, k)


def _nearest(arrays: Arrays, keys: Any, ids: Any, k: int) -> Best:
    """The first k of each row."""
    order = arrays.order_pairs(keys, ids)[:, :k]
    return Best(arrays, arrays.along(keys, order), arrays.along(ids, order))


def smallest(arrays: Arrays, scores: Any, k: int) -> tuple[Any, Any]:
    """The k smallest scores of each row (q, n), in any order, and their places (q, k); k <= n, no score is NaN.

    First the least of each group of neighbouring scores: only the k groups with the smallest ones can hold any of
    the k smallest.  That reads the scores once, where choosing from all of them reads them several times.
    """
    xp, (count, n) = arrays.xp, scores.shape
    if count * n < _FEW and n < _LONG:
        return arrays.top(scores, k)
    size = 1 << max(0, int(np.sqrt(n / k)).bit_length() - 1)
    size = min(size, _MOST)
    size = next((even for even in range(size, size // 2, -1) if n % even == 0), size)  # so that nothing is left over
    groups = n // size
    if size < _LEAST or groups <= k:
        return arrays.top(scores, k)
    whole = groups * size
    least = xp.min(xp.reshape(scores[:, :whole] if whole < n else scores, (count, groups, size)), axis=2)
    chosen = arrays.top(least, k)[1]
    places = xp.reshape(chosen[:, :, None] * size + arrays.arange(0, size), (count, k * size))
    values = arrays.along(scores, places)
    if whole < n:  # what is left over is looked at as it is
        rest = xp.broadcast_to(arrays.arange(whole, n)[None, :], (count, n - whole))
        places = xp.concat([places, rest], axis=1)
        values = xp.concat([values, scores[:, whole:]], axis=1)
    found, where = arrays.top(values, k)
    return found, arrays.along(places, where)
