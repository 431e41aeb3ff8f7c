"""The float64 pass: right for any input, and as fast as float64 products are.

Used where float32 candidates prove nothing: small blocks, dense ties, extreme values.  It narrows the
rows of a block by float64 products whose error is bounded as in `matrix_interop.search.screen`
(u = 2**-53), and measures every row within that bound of the k-th pair by pair.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from matrix_interop.search.merge import Best
from matrix_interop.search.metrics import Kind, dot, evaluate, unit

__all__ = ["search_exactly", "widened"]

#: Bytes of float64 rows, and entries of one tile of keys, worked on at once.
_ROWS: Final = 4 << 20
_TILE: Final = 1 << 20
#: Twice the bound of screen.py, once for the products here and once for the keys themselves, and its slack.
_TWICE: Final = 2 * 1.01 * 2.0**-53
_TINY: Final = 2.0**-1000


def widened(rows: np.ndarray) -> np.ndarray:
    """A new C-ordered float64 array of ``rows``; exact for every type that the search admits."""
    wide = np.empty(rows.shape)
    with np.errstate(invalid="ignore"):  # signalling NaNs
        np.copyto(wide, rows, casting="unsafe")
    return wide


def search_exactly(kind: Kind, queries: np.ndarray, rows: np.ndarray, number: int, best: Best) -> Best:
    """``best`` after ``rows`` (n, d), of which the first is number ``number``; ``queries`` (q, d) float64, finite.

    Rows that are not finite are nobody's neighbours.
    """
    width = queries.shape[1]
    row_step = max(1, min(_TILE, _ROWS // (8 * max(width, 1))))
    query_step = max(1, _TILE // min(row_step, max(len(rows), 1)))
    best = Best(best.keys.copy(), best.ids.copy())
    for start in range(0, len(rows), row_step):
        wide = widened(rows[start : start + row_step])
        numbers = np.flatnonzero(np.isfinite(wide).all(axis=1))
        if not len(numbers):
            continue
        wide = wide if len(numbers) == len(wide) else wide[numbers]
        for first in range(0, len(queries), query_step):
            some = slice(first, first + query_step)
            with np.errstate(all="ignore"):  # what overflows here is measured pair by pair
                near = _near(kind, queries[some], wide, best.last[some], best.keys.shape[1])
            which, place = np.nonzero(near)
            keys = evaluate(kind, queries[some], which, wide, place)
            best.put(some, best[some].with_pairs(which, keys, numbers[place] + (start + number)))
    return best


def _near(kind: Kind, q: np.ndarray, rows: np.ndarray, last: np.ndarray, k: int) -> np.ndarray:
    """Mask (q, n) of the pairs that may be among the k nearest; ``last``: the k-th keys so far."""
    width = q.shape[1]
    if kind == "squared":
        centre = rows.mean(axis=0)
        x, y = q - centre, rows - centre
        own, norms = dot(x, x), dot(y, y)
        keys = x @ y.T
        keys *= -2
        keys += norms
        keys += own[:, None]
        length = np.sqrt(own)
        reach = length + np.minimum(np.sqrt(norms.max()), 1.001 * (length + np.sqrt(last)))
        error = _TWICE * (width + 8) * reach**2 + width * _TINY
    elif kind == "product":
        keys = -(q @ rows.T)
        error = _TWICE * (width + 8) * np.sqrt(dot(q, q) * dot(rows, rows).max()) + width * _TINY
    else:
        keys = 1 - unit(q) @ unit(rows).T
        error = np.full(len(q), 2 * _TWICE * (width + 16))
    error = error[:, None]
    limit = last[:, None]
    if k <= len(rows):
        limit = np.minimum(limit, np.partition(keys + error, k - 1, axis=1)[:, k - 1 : k])
    # Written so that NaN and infinite errors count as near.
    near: np.ndarray = ~(keys - error > limit)
    return near
