"""Candidates in float32 on a device, and the proof of `matrix_interop.search.screen` that nothing nearer was left out.

What is proven there holds here, with these differences.  All candidates are measured in float64, not only those near
the k-th.  The rows are searched as they lie first; only where that proves too little, or where rows are not finite,
are they centred and cleaned (`careful`), which later blocks then begin with.  There is no scale: what is extreme is
left to the float64 pass.  The norms of rows come from a root that is squared again, 3 roundings more: d + 12 for d + 8,
and 2 d + 20 for 2 d + 16.  Scores of squared L2 leave |x|**2 out, which is added in float64.  With e the relative part
of the bound and v the part for underflow, e S**2 + v (1 + S) is at most e (S + sqrt(v / e))**2.  Norms are demanded
to be below 2**56.5; in a careful search a row of squared L2 beyond that is left out if |x| + sqrt(t) < 2**55.

Queries and answers live where the rows do, or on the host if they are few (``home``).
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np

from matrix_interop.search.device.arrays import Arrays
from matrix_interop.search.device.best import Best, smallest
from matrix_interop.search.device.exact import search_exactly
from matrix_interop.search.device.measure import candidate_keys, unit
from matrix_interop.search.exact import widened
from matrix_interop.search.metrics import Kind
from matrix_interop.search.prepared import SAMPLE, placement

__all__ = ["Attempt", "Queries", "Screen", "candidates_for"]

_SLACK: Final = 1.01
_U64: Final = 2.0**-53
_UNDERFLOW: Final = 2.0**-120
#: Squared norms below this leave room for all sums in float32; rows beyond it are further than this from near queries.
_LARGE: Final = 2.0**113
_NEAR: Final = 2.0**55
#: Entries of float64 rows worked on at once.
_ENTRIES: Final = 1 << 25


def candidates_for(k: int) -> int:
    """How many candidates are measured for k neighbours."""
    return k + max(8, k // 4)


class Queries:
    """``wide`` (q, d) float64, those that are not finite replaced by zeros; ``usable`` (q,): the others.

    ``native`` (q, d): the queries as they came, on the device ``source``.  What is worked out of them lives on
    ``arrays`` and is made when it is first asked for, so that a device that searches by ``native`` need not wait.
    """

    def __init__(self, arrays: Arrays, native: Any, source: Arrays) -> None:
        self.arrays = arrays
        self.native = native
        self.source = source

    @cached_property
    def _both(self) -> tuple[Any, Any]:
        xp = self.arrays.xp
        if self.arrays is self.source:
            wide = self.arrays.astype(self.native, "float64")
        else:
            wide = widened(self.source.host(self.native))
        usable = xp.all(xp.isfinite(wide), axis=1)
        return xp.where(usable[:, None], wide, 0.0), usable

    @property
    def wide(self) -> Any:
        """See above."""
        return self._both[0]

    @property
    def usable(self) -> Any:
        """See above."""
        return self._both[1]

    def __len__(self) -> int:
        return int(self.native.shape[0])

    def rows(self, numbers: Any) -> Queries:
        """Some of them, on the device."""
        return Queries(self.source, self.source.rows(self.native, numbers), self.source)

    def on(self, arrays: Arrays) -> Queries:
        """The same queries, worked with on another device."""
        return self if arrays is self.arrays else Queries(arrays, self.native, self.source)


class _Prepared(NamedTuple):
    """``y`` (n, d) float32; ``offset`` (n,) float32 to add to products, or None.

    ``radius``: no finite row of y has a larger norm, a float64 array.  ``sound``: a boolean array, False where the
    scores say nothing.
    """

    y: Any
    offset: Any
    radius: Any
    sound: Any


class Attempt(NamedTuple):
    """A search that was started. ``flags``: for which queries it is proven, and last whether for any; None for all.

    ``plain``: it was not a careful one.
    """

    screen: Screen
    queries: Queries
    best: Best
    found: Best
    flags: Any = None
    plain: bool = False

    def settled(self) -> Best:
        """The answer, once it is proven, or found by other means."""
        if self.flags is None:
            return self.found
        flags = self.queries.arrays.host(self.flags)
        return self.found if flags.all() else self.screen.mended(self, flags)


class Screen:
    """One block of the base: ``rows`` (n, d), any exact type of the framework; the first is row ``number``.

    ``bounded``: neither rows nor queries are float64, so that no key leaves its range.
    """

    def __init__(
        self, arrays: Arrays, kind: Kind, rows: Any, number: int, *, careful: bool = False, bounded: bool = False
    ) -> None:
        self.arrays = arrays
        self.kind = kind
        self.rows = rows
        self.number = number
        self.careful = careful
        self.bounded = bounded
        self._made: _Prepared | None = None

    @property
    def relative(self) -> float:
        """g of the bound, with its slack; +inf where float32 proves nothing for this many columns."""
        width = self.rows.shape[1]
        terms = (2 * width + 20 if self.kind == "cosine" else width + 12) * self.arrays.roundoff
        return _SLACK * terms / (1 - terms) if terms < 0.1 else np.inf

    def begin(self, queries: Queries, best: Best) -> Attempt:
        """Start to search: `Attempt.settled` gives ``best`` after this block."""
        count, width = self.rows.shape
        wanted = candidates_for(best.keys.shape[1])
        screened = count > wanted and width and np.isfinite(self.relative)
        if best.arrays is not self.arrays and (self.careful or not screened):
            return Attempt(self, queries, best, self._there(queries, best))
        if screened:
            with np.errstate(all="ignore"):  # what overflows here leaves a query unproven
                return Attempt(self, queries, best, *self._screened(queries, best, wanted), plain=not self.careful)
        found = self._exactly if count > wanted or not width else self._all
        return Attempt(self, queries, best, found(queries, best))

    def mended(self, attempt: Attempt, flags: np.ndarray) -> Best:
        """The answer of an attempt where it is proven, and what a better way finds for the other queries."""
        queries, best, found = attempt.queries, attempt.best, attempt.found
        if best.arrays is not self.arrays:
            return self._there(queries, best)
        plain = attempt.plain
        if plain and not self.careful and (not flags[-1] or self.far is not None):
            self.careful, self._made = True, None
        again = self._again if plain and self.careful else self._exactly
        if not flags[-1]:
            return again(queries, best)
        rest = np.flatnonzero(~flags[:-1])
        numbers = self.arrays.array(rest)
        better = again(queries.rows(numbers), best.rows(numbers))
        place = np.arange(len(flags) - 1)
        place[rest] = len(place) + np.arange(len(rest))
        return found.below(better).rows(self.arrays.array(place))

    def _again(self, queries: Queries, best: Best) -> Best:
        return self.begin(queries, best).settled()

    def _there(self, queries: Queries, best: Best) -> Best:
        """With queries from the host on the device."""
        return self._again(queries.on(self.arrays), best.on(self.arrays)).on(best.arrays)

    def _exactly(self, queries: Queries, best: Best) -> Best:
        return search_exactly(self.arrays, self.kind, queries.wide, self.rows, self.number, best)

    def _all(self, queries: Queries, best: Best) -> Best:
        """Every row is a candidate."""
        places = self.arrays.arange(0, self.rows.shape[0])[None, :]
        places = self.arrays.xp.broadcast_to(places, (queries.wide.shape[0], places.shape[1]))
        return self._measured(queries, best, places)

    def _measured(self, queries: Queries, best: Best, places: Any) -> Best:
        """``best`` after the candidates ``places`` (q, K), ascending in each row."""
        arrays, home, (count, wanted) = self.arrays, best.arrays, places.shape
        step = max(1, _ENTRIES // max(wanted * self.rows.shape[1], 1))
        keys, missing = [], []
        for start in range(0, count, step):
            some = places if step >= count else places[start : start + step, :]
            wide = queries.wide if step >= count else queries.wide[start : start + step, :]
            rows = self._brought(home, arrays.rows(self.rows, arrays.xp.reshape(some, (-1,))))
            rows = home.xp.reshape(home.astype(rows, "float64"), (*some.shape, self.rows.shape[1]))
            key, none = candidate_keys(home, self.kind, wide, rows, bounded=self.bounded)
            keys.append(key)
            missing.append(none)
        ids = self._brought(home, places) + self.number
        if len(keys) > 1:
            return best.joined(home.xp.concat(keys, axis=0), home.xp.where(home.xp.concat(missing, axis=0), -1, ids))
        return best.joined(keys[0], home.xp.where(missing[0], -1, ids))

    def _screened(self, queries: Queries, best: Best, wanted: int) -> tuple[Best, Any]:
        """The answer from ``wanted`` candidates, and the flags of the attempt."""
        arrays, home = self.arrays, best.arrays
        bound = (_SquaredBound if self.kind == "squared" else _ProductBound)(self, queries)
        made = self._made = self._made or (self._carefully() if self.careful else self._plainly())
        scores, places = smallest(arrays, arrays.scores(bound.x, made.y, made.offset), wanted)
        scores, places = scores[:, -1], arrays.xp.sort(places, axis=1)
        found = self._measured(queries, best, places)
        left_out = bound.key(home.astype(self._brought(home, scores), "float64"))
        radius = made.radius if self.kind == "squared" else self._brought(home, made.radius)
        proven = bound.proves(left_out, found.keys[:, -1], radius) | ~queries.usable
        sound = home.xp.reshape(self._brought(home, made.sound), (1,))
        return found, home.xp.concat([proven, sound], axis=0)

    def _brought(self, home: Arrays, x: Any) -> Any:
        return x if home is self.arrays else self.arrays.host(x)

    @property
    def centre(self) -> Any:
        """What is taken away from the rows in a careful search, (d,) float64 on the device, or None."""
        return self.arrays.array(self.far) if self.careful and self.far is not None else None

    def _plainly(self) -> _Prepared:
        """The rows as they lie, in float32."""
        arrays, xp = self.arrays, self.arrays.xp
        y = arrays.astype(self.rows, "float32")
        norms = arrays.squared_norms(y)
        if self.kind == "cosine":
            sane = xp.all((norms > 2.0**-80) & (norms < 2.0**80))
            return _Prepared(y / xp.sqrt(norms)[:, None], None, arrays.full((), 1.05, "float64"), sane)
        largest = xp.max(norms)
        if self.kind == "squared":
            return _Prepared(y, norms, None, largest < _LARGE)
        return _Prepared(y, None, self._radius(largest), largest < _LARGE)

    def _carefully(self) -> _Prepared:
        """Centred if they lie far from the origin; rows that are not finite never score."""
        arrays, xp = self.arrays, self.arrays.xp
        wide = arrays.astype(self.rows, "float64")
        finite = xp.all(xp.isfinite(wide), axis=1)
        wide = xp.where(finite[:, None], wide, 0.0)
        if self.kind == "cosine":
            wide = unit(xp, wide)
        if self.centre is not None:
            wide = wide - self.centre
        y = arrays.astype(wide, "float32")
        norms = arrays.squared_norms(y)
        fits = norms < _LARGE
        y = xp.where(fits[:, None], y, 0.0)
        norms = xp.where(fits, norms, 0.0)
        offset = xp.where(finite & fits, norms if self.kind == "squared" else 0.0 * norms, xp.inf)
        sound = arrays.full((), True, "bool") if self.kind == "squared" else xp.all(fits)
        return _Prepared(y, offset, self._radius(xp.max(norms)), sound)

    def _radius(self, largest: Any) -> Any:
        """The largest norm, from squares that are themselves rounded by at most (d + 3) 2**-24 of their value."""
        wide = self.arrays.astype(largest, "float64")
        return self.arrays.xp.sqrt(wide * (1 + (self.rows.shape[1] + 8) * 2.0**-23))

    @cached_property
    def far(self) -> np.ndarray | None:
        """The centre (d,) of rows that lie far from the origin, or None where they lie around it; from a sample."""
        arrays, count = self.arrays, self.rows.shape[0]
        numbers = np.linspace(0, count - 1, min(count, SAMPLE)).astype(np.int64)
        sample = arrays.host(arrays.astype(arrays.rows(self.rows, arrays.array(numbers)), "float64"))
        with np.errstate(all="ignore"):
            return placement(self.kind, sample)[0]


class _SquaredBound:
    """Scores of squared L2 as keys, and their error, each (q,). ``x`` (q, d) float32: what is multiplied with rows."""

    def __init__(self, screen: Screen, queries: Queries) -> None:
        self.xp = queries.arrays.xp
        self.careful = screen.careful
        self.relative = screen.relative
        self.queries = queries
        self.centre = screen.centre
        if queries.arrays is queries.source:
            self.x = queries.arrays.astype(self._moved(), "float32") * -2.0
        else:  # few queries: those that are not finite may find anything
            self.x = queries.source.astype(queries.native, "float32") * -2.0

    def _moved(self) -> Any:
        return self.queries.wide if self.centre is None else self.queries.wide - self.centre

    @cached_property
    def own(self) -> Any:
        """|x|**2."""
        moved = self._moved()
        return self.xp.sum(moved * moved, axis=1)

    def key(self, scores: Any) -> Any:
        return scores + self.own

    def proves(self, left_out: Any, last: Any, radius: Any) -> Any:
        """Whether no row whose score says ``left_out`` or more can be as near as ``last``."""
        del radius
        under = float(np.sqrt(self.x.shape[1] * _UNDERFLOW / self.relative))
        reach = 2.002 * self.xp.sqrt(self.own) + 1.001 * self.xp.sqrt(last)
        proven = left_out - self.relative * (reach + under) ** 2 > last
        return proven & (reach < _NEAR if self.careful else self.own < _LARGE)


class _ProductBound:
    """The same for products and cosine."""

    def __init__(self, screen: Screen, queries: Queries) -> None:
        arrays, xp = queries.arrays, queries.arrays.xp
        wide, cosine = queries.wide, screen.kind == "cosine"
        directions = unit(xp, wide)
        self.cosine = cosine
        self.relative = screen.relative
        x = -arrays.astype(directions, "float32")
        self.x = x if arrays is queries.source else queries.source.array(x)
        length = xp.sqrt(xp.sum(wide * wide, axis=1))
        self.weight = arrays.astype(length > 0, "float64") if cosine else length
        self.shift: Any = 1.0 if cosine else 0.0
        self.far: Any = 0.0
        if screen.centre is not None:
            self.far = xp.sqrt(xp.sum(screen.centre * screen.centre))
            self.shift = self.shift - xp.sum((directions if cosine else wide) * screen.centre, axis=1)

    def key(self, scores: Any) -> Any:
        return scores * self.weight + self.shift

    def proves(self, left_out: Any, last: Any, radius: Any) -> Any:
        """As above; no norm is larger than ``radius``."""
        width = self.x.shape[1]
        error = self.weight * (
            self.relative * radius
            + 8 * (width + 8) * _U64 * (radius + self.far + (1.0 if self.cosine else 0.0))
            + width * _UNDERFLOW * (2 + radius)
        )
        return left_out - error > last
