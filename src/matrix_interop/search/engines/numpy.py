"""NumPy: GEMM tiles, and a threshold a query that lets almost every score pass by with one comparison."""

from __future__ import annotations

from typing import Final

import numpy as np

from matrix_interop.search.engines import Form
from matrix_interop.search.merge import Best
from matrix_interop.search.metrics import dot

__all__ = ["NumpyEngine"]

#: Scores in one tile: 4 MB of float32, which stay in the cache from the product to the comparison.
_TILE: Final = 1 << 20


class NumpyEngine:
    """The engine where nothing else is installed."""

    roundoff = 2.0**-24

    def candidates(self, queries: np.ndarray, block: np.ndarray, k: int, form: Form) -> tuple[np.ndarray, np.ndarray]:
        best = Best.empty(len(queries), k)
        with np.errstate(all="ignore"):
            own = dot(queries, queries)[:, None] if form == "l2" else None
            step = max(256, 2 * k, _TILE // max(len(queries), 1))
            tile = np.empty((len(queries), min(step, len(block))), np.float32)
            waiting: list[tuple[np.ndarray, ...]] = []
            for start in range(0, len(block), step):
                rows = block[start : start + step]
                scores = np.matmul(queries, rows.T, out=tile[:, : len(rows)] if len(rows) == tile.shape[1] else None)
                if own is None:
                    np.negative(scores, out=scores)
                else:
                    scores *= -2
                    scores += dot(rows, rows)
                    scores += own
                if start == 0:
                    best = _first(scores, k)
                    limit = best.last.astype(np.float32)[:, None]
                    continue
                which, number = np.nonzero(scores < limit)
                waiting.append((which, scores[which, number].astype(np.float64), number + start))
                if sum(len(part[0]) for part in waiting) > best.keys.size:
                    best = _settle(best, waiting)
                    limit = best.last.astype(np.float32)[:, None]
            best = _settle(best, waiting)
        missing = ~np.isfinite(best.keys)
        best.ids[missing] = -1
        best.keys[missing] = np.inf
        return best.ids, best.keys


def _first(scores: np.ndarray, k: int) -> Best:
    """The k best of the first tile; NaN sorts last."""
    k_here = min(k, scores.shape[1])
    chosen = np.argpartition(scores, k_here - 1, axis=1)[:, :k_here]
    keys = np.take_along_axis(scores, chosen, axis=1).astype(np.float64).ravel()
    which = np.repeat(np.arange(len(scores)), k_here)
    return Best.empty(len(scores), k).with_pairs(which, keys, chosen.ravel())


def _settle(best: Best, waiting: list[tuple[np.ndarray, ...]]) -> Best:
    """Let the waiting pairs join; the list is empty afterwards."""
    if waiting:
        which, keys, ids = (np.concatenate(parts) for parts in zip(*waiting, strict=True))
        waiting.clear()
        best = best.with_pairs(which, keys, ids)
    return best
