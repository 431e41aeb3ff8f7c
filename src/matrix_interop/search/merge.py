"""The running answer: the k best keys of each query so far."""

from __future__ import annotations

from typing import Final

import numpy as np

__all__ = ["Best"]

_LAST: Final = np.iinfo(np.int64).max


class Best:
    """``keys`` (q, k) float64 and ``ids`` (q, k) int64, sorted by (key, id); missing entries are (+inf, -1)."""

    __slots__ = ("ids", "keys")

    def __init__(self, keys: np.ndarray, ids: np.ndarray) -> None:
        self.keys = keys
        self.ids = ids

    @classmethod
    def empty(cls, queries: int, k: int) -> Best:
        """No neighbours yet."""
        return cls(np.full((queries, k), np.inf), np.full((queries, k), -1, np.int64))

    @property
    def last(self) -> np.ndarray:
        """(q,) the k-th key: what a row must undercut, or equal with a lower id; +inf while there are fewer than k."""
        return self.keys[:, -1]

    def __getitem__(self, which: slice | np.ndarray) -> Best:
        return Best(self.keys[which], self.ids[which])

    def put(self, which: slice | np.ndarray, part: Best) -> None:
        """Replace the answers of the queries ``which``."""
        self.keys[which] = part.keys
        self.ids[which] = part.ids

    def with_pairs(self, which: np.ndarray, keys: np.ndarray, ids: np.ndarray) -> Best:
        """The answer after the pairs (query ``which[i]``, row ``ids[i]``) joined; a pair whose key is NaN does not."""
        kept = ~np.isnan(keys)
        if not kept.all():
            which, keys, ids = which[kept], keys[kept], ids[kept]
        count, k = self.keys.shape
        query = np.concatenate([np.repeat(np.arange(count), k), which])
        key = np.concatenate([self.keys.ravel(), keys])
        number = np.concatenate([self.ids.ravel(), ids])
        # A missing entry comes after rows whose distance overflowed to +inf: those are neighbours.
        order = np.lexsort((np.where(number < 0, _LAST, number), key, query))
        query = query[order]
        first = np.searchsorted(query, np.arange(count))
        chosen = order[np.arange(len(query)) - first[query] < k]
        return Best(key[chosen].reshape(count, k), number[chosen].reshape(count, k))
