"""Candidates in float32 on a device, and the proof of `matrix_interop.search.screen` that nothing nearer was left out.

What is proven there holds here, with these differences.  All candidates are measured in float64, not only those near
the k-th.  The rows are searched as they lie first; only where that proves too little, or where rows are not finite,
are they centred and cleaned (`careful`), which later blocks then begin with.  There is no scale: what is extreme is
left to the float64 pass.  The norms of rows come from a root that is squared again, 3 roundings more: d + 12 for d + 8,
and 2 d + 20 for 2 d + 16.  Scores of squared L2 leave |x|**2 out, which is added in float64.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np

from matrix_interop.search.device.arrays import Arrays
from matrix_interop.search.device.best import Best, smallest
from matrix_interop.search.device.exact import search_exactly
from matrix_interop.search.device.measure import candidate_keys, unit
from matrix_interop.search.metrics import Kind
from matrix_interop.search.prepared import LARGE, SAMPLE, placement

__all__ = ["Queries", "Screen"]

_SLACK: Final = 1.01
_U64: Final = 2.0**-53
_UNDERFLOW: Final = 2.0**-120


class Queries(NamedTuple):
    """``wide`` (q, d) float64, those that are not finite replaced by zeros; ``usable`` (q,): the others."""

    wide: Any
    usable: Any

    def rows(self, arrays: Arrays, numbers: Any) -> Queries:
        """Some of them."""
        return Queries(arrays.rows(self.wide, numbers), arrays.rows(self.usable, numbers))


class _Prepared(NamedTuple):
    """``y`` (n, d) float32; ``offset`` (n,) float32 to add to products, or None; ``centre`` (d,) float64, or None.

    ``radius``: no finite row of y has a larger norm, as a float64 array.  ``sound``: a boolean array, False where the
    scores say nothing.
    """

    y: Any
    offset: Any
    centre: Any
    radius: Any
    sound: Any


class Screen:
    """One block of the base: ``rows`` (n, d), any exact type of the framework; the first is row ``number``."""

    def __init__(self, arrays: Arrays, kind: Kind, rows: Any, number: int, *, careful: bool = False) -> None:
        self.arrays = arrays
        self.kind = kind
        self.rows = rows
        self.number = number
        self.careful = careful
        self._made: _Prepared | None = None

    @property
    def relative(self) -> float:
        """g of the bound, with its slack; +inf where float32 proves nothing for this many columns."""
        width = self.rows.shape[1]
        terms = (2 * width + 20 if self.kind == "cosine" else width + 12) * self.arrays.roundoff
        return _SLACK * terms / (1 - terms) if terms < 0.1 else np.inf

    def search(self, queries: Queries, best: Best) -> Best:
        """``best`` after this block."""
        count, k = self.rows.shape[0], best.keys.shape[1]
        wanted = k + max(8, k // 4)
        if not self.rows.shape[1]:
            return self._exactly(queries, best)
        if count <= wanted:
            return self._all(queries, best)
        if not np.isfinite(self.relative):
            return self._exactly(queries, best)
        found, flags = self._screened(queries, best, wanted)
        if flags.all():
            return found
        if not self.careful and (not flags[-1] or self.far is not None):
            self.careful, self._made = True, None
            again = self.search
        else:
            again = self._exactly
        if not flags[-1]:
            return again(queries, best)
        return self._mended(queries, best, found, flags[:-1], again)

    def _mended(self, queries: Queries, best: Best, found: Best, proven: np.ndarray, again: Any) -> Best:
        """``found`` where it is proven, and the answer of ``again`` for the other queries."""
        arrays = self.arrays
        rest = np.flatnonzero(~proven)
        numbers = arrays.array(rest)
        mended = again(queries.rows(arrays, numbers), best.rows(numbers))
        place = np.arange(len(proven))
        place[rest] = len(proven) + np.arange(len(rest))
        return found.below(mended).rows(arrays.array(place))

    def _exactly(self, queries: Queries, best: Best) -> Best:
        return search_exactly(self.arrays, self.kind, queries.wide, self.rows, self.number, best)

    def _all(self, queries: Queries, best: Best) -> Best:
        """Every row is a candidate."""
        places = self.arrays.arange(0, self.rows.shape[0])[None, :]
        places = self.arrays.xp.broadcast_to(places, (queries.wide.shape[0], places.shape[1]))
        return self._measured(queries, best, places)

    def _measured(self, queries: Queries, best: Best, places: Any) -> Best:
        keys, missing = candidate_keys(self.arrays, self.kind, queries.wide, self.rows, places)
        return best.joined(keys, self.arrays.xp.where(missing, -1, places + self.number))

    def _screened(self, queries: Queries, best: Best, wanted: int) -> tuple[Best, np.ndarray]:
        """The answer from ``wanted`` candidates; on the host for which queries it is proven, last whether for any."""
        arrays, xp = self.arrays, self.arrays.xp
        made = self._made = self._made or (self._carefully() if self.careful else self._plainly())
        bound = (_SquaredBound if self.kind == "squared" else _ProductBound)(self, made, queries)
        scores, places = smallest(arrays, arrays.scores(bound.x, made.y, made.offset), wanted)
        found = self._measured(queries, best, places)
        last = found.keys[:, -1]
        left_out = bound.key(arrays.astype(scores[:, -1], "float64"))
        proven = (left_out - bound.error(last) > last) | ~queries.usable
        return found, arrays.host(xp.concat([proven, xp.reshape(made.sound, (1,))], axis=0))

    def _plainly(self) -> _Prepared:
        """The rows as they lie, in float32."""
        arrays, xp = self.arrays, self.arrays.xp
        y = arrays.astype(self.rows, "float32")
        norms = arrays.squared_norms(y)
        if self.kind == "cosine":
            sane = xp.all((norms > 2.0**-80) & (norms < 2.0**80))
            return _Prepared(y / xp.sqrt(norms)[:, None], None, None, arrays.full((), 1.05, "float64"), sane)
        offset = norms if self.kind == "squared" else None
        return _Prepared(y, offset, None, self._radius(norms), xp.all(xp.isfinite(norms)))

    def _carefully(self) -> _Prepared:
        """Centred if they lie far from the origin; rows that are not finite never score."""
        arrays, xp = self.arrays, self.arrays.xp
        wide = arrays.astype(self.rows, "float64")
        finite = xp.all(xp.isfinite(wide), axis=1)
        wide = xp.where(finite[:, None], wide, 0.0)
        if self.kind == "cosine":
            wide = unit(xp, wide)
        centre = None if self.far is None else arrays.array(self.far)
        if centre is not None:
            wide = wide - centre
        y = arrays.astype(wide, "float32")
        norms = arrays.squared_norms(y)
        fits = xp.isfinite(norms)
        y = xp.where(fits[:, None], y, 0.0)
        sound = arrays.full((), True, "bool") if self.kind == "squared" else xp.all(fits)
        offset = norms if self.kind == "squared" else norms * 0.0
        offset = xp.where(finite & fits, offset, xp.inf)
        return _Prepared(y, offset, centre, self._radius(xp.where(fits, norms, 0.0)), sound)

    def _radius(self, norms: Any) -> Any:
        """The largest norm, from squares that are themselves rounded by at most d 2**-24 of their value."""
        largest = self.arrays.astype(self.arrays.xp.max(norms), "float64")
        return self.arrays.xp.sqrt(largest * (1 + (self.rows.shape[1] + 8) * 2.0**-23))

    @cached_property
    def far(self) -> np.ndarray | None:
        """The centre (d,) to take away from the rows, or None where they lie around the origin; from a sample."""
        count = self.rows.shape[0]
        numbers = np.linspace(0, count - 1, min(count, SAMPLE)).astype(np.int64)
        sample = self.arrays.host(
            self.arrays.astype(self.arrays.rows(self.rows, self.arrays.array(numbers)), "float64")
        )
        with np.errstate(all="ignore"):
            return placement(self.kind, self.arrays.host(self.arrays.astype(sample, "float64")))[0]


class _SquaredBound:
    """Scores of squared L2 as keys, and their error, each (q,). ``x`` (q, d) float32: what is multiplied with rows."""

    def __init__(self, screen: Screen, made: _Prepared, queries: Queries) -> None:
        arrays, self.xp = screen.arrays, screen.arrays.xp
        wide = queries.wide if made.centre is None else queries.wide - made.centre
        self.relative = screen.relative
        self.under = wide.shape[1] * _UNDERFLOW
        self.own = self.xp.sum(wide * wide, axis=1)
        self.x = arrays.astype(wide, "float32") * -2.0

    def key(self, scores: Any) -> Any:
        return scores + self.own

    def error(self, last: Any) -> Any:
        """Of every row whose true key is at most ``last``, and below the true key of all others by construction."""
        reach = 2.002 * self.xp.sqrt(self.own) + 1.001 * self.xp.sqrt(last)
        error = self.relative * (reach * reach) + self.under * (1 + reach)
        return self.xp.where(reach < LARGE, error, self.xp.inf)


class _ProductBound:
    """The same for products and cosine."""

    def __init__(self, screen: Screen, made: _Prepared, queries: Queries) -> None:
        arrays, xp = screen.arrays, screen.arrays.xp
        wide, cosine, width = queries.wide, screen.kind == "cosine", queries.wide.shape[1]
        directions = unit(xp, wide)
        self.x = -arrays.astype(directions, "float32")
        length = xp.sqrt(xp.sum(wide * wide, axis=1))
        self.weight = xp.where(length > 0, 1.0, 0.0) if cosine else length
        self.shift: Any = 1.0 if cosine else 0.0
        far: Any = 0.0
        if made.centre is not None:
            far = xp.sqrt(xp.sum(made.centre * made.centre))
            self.shift = self.shift - xp.sum((directions if cosine else wide) * made.centre, axis=1)
        reach = made.radius
        self._error = self.weight * (
            screen.relative * reach
            + 8 * (width + 8) * _U64 * (reach + far + (1.0 if cosine else 0.0))
            + width * _UNDERFLOW * (2 + reach)
        )
        self._error = xp.where(reach < LARGE, self._error, xp.inf)

    def key(self, scores: Any) -> Any:
        return scores * self.weight + self.shift

    def error(self, last: Any) -> Any:
        del last
        return self._error
