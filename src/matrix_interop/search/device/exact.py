"""The float64 pass on a device: `matrix_interop.search.exact` in the framework's operations, with the same bound."""

from __future__ import annotations

from typing import Any, Final

from matrix_interop.search.device.arrays import Arrays
from matrix_interop.search.device.best import Best, smallest
from matrix_interop.search.device.measure import pair_keys, unit
from matrix_interop.search.metrics import Kind

__all__ = ["search_exactly"]

#: Entries of float64 rows, and of one tile of keys, worked on at once.
_ROWS: Final = 1 << 25
_TILE: Final = 1 << 25
_TWICE: Final = 2 * 1.01 * 2.0**-53
_TINY: Final = 2.0**-1000


def search_exactly(arrays: Arrays, kind: Kind, queries: Any, rows: Any, number: int, best: Best) -> Best:
    """``best`` after ``rows`` (n, d), of which the first is number ``number``; ``queries`` (q, d) float64, finite."""
    xp, (count, width) = arrays.xp, rows.shape
    row_step = max(1, min(_TILE // 64, _ROWS // max(width, 1)))
    query_step = max(1, _TILE // min(row_step, count))
    for start in range(0, count, row_step):
        wide = arrays.astype(rows[start : start + row_step, :], "float64")
        finite = xp.all(xp.isfinite(wide), axis=1)
        wide = xp.where(finite[:, None], wide, 0.0)
        parts = []
        for first in range(0, queries.shape[0], query_step):
            numbers = arrays.arange(first, min(first + query_step, queries.shape[0]))
            part = best.rows(numbers)
            some = queries[first : first + query_step, :]
            which, place = xp.nonzero(_near(arrays, kind, some, wide, finite, part))
            if which.shape[0]:
                keys = pair_keys(arrays, kind, some, which, wide, place)
                part = part.joined_pairs(which, keys, place + (start + number))
            parts.append(part)
        best = parts[0]
        for part in parts[1:]:
            best = best.below(part)
    return best


def _near(arrays: Arrays, kind: Kind, q: Any, rows: Any, finite: Any, best: Best) -> Any:
    """Mask (q, n) of the pairs that may be among the k nearest."""
    xp, width, k = arrays.xp, rows.shape[1], best.keys.shape[1]
    last = best.keys[:, -1]
    last = xp.where(xp.isnan(last), xp.inf, last)
    if kind == "squared":
        centre = xp.sum(rows, axis=0) / rows.shape[0]
        x, y = q - centre, rows - centre
        own, norms = xp.sum(x * x, axis=1), xp.sum(y * y, axis=1)
        keys = xp.matmul(x, y.T) * -2.0 + norms + own[:, None]
        length = xp.sqrt(own)
        far, near = xp.sqrt(xp.max(norms)), 1.001 * (length + xp.sqrt(last))
        reach = length + xp.where(far < near, far, near)
        error = _TWICE * (width + 8) * reach * reach + width * _TINY
    elif kind == "product":
        keys = -xp.matmul(q, rows.T)
        largest = xp.max(xp.sum(rows * rows, axis=1))
        error = _TWICE * (width + 8) * xp.sqrt(xp.sum(q * q, axis=1) * largest) + width * _TINY
    else:
        keys = 1 - xp.matmul(unit(xp, q), unit(xp, rows).T)
        error = q[:, 0] * 0.0 + 2 * _TWICE * (width + 16)
    error, limit = error[:, None], last[:, None]
    keys = xp.where(finite, keys, xp.inf)
    if k <= rows.shape[0]:
        kth = arrays.largest(smallest(arrays, keys + error, k)[0])[:, None]
        limit = xp.where(kth < limit, kth, limit)
    # Written so that NaN and infinite errors count as near.
    return ~(keys - error > limit) & finite
