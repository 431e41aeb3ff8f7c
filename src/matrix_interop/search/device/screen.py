"""Candidates in float32 on a device, and the proof of `matrix_interop.search.screen` that nothing nearer was left out.

What is proven there holds here, with these differences.  All candidates are measured in float64, not only those near
the k-th.  The rows are searched as they lie first; only where that proves too little, or where rows are not finite,
are they centred and cleaned (`careful`), which later blocks then begin with.  There is no scale: what is extreme is
left to the float64 pass.  The norms of rows come from a root that is squared again, 3 roundings more: d + 12 for d + 8,
and 2 d + 20 for 2 d + 16.  Scores of squared L2 leave |x|**2 out, which is added in float64.  With e the relative part
of the bound and v the part for underflow, e S**2 + v (1 + S) is at most e (S + sqrt(v / e))**2.  Norms are demanded
to be below 2**56.5, and 2 |x| + sqrt(t) of squared L2 below 2**55; in a careful search a row of squared L2 whose norm
is beyond that is left out.

Queries and answers live where the rows do, or on the host if they are few (``home``).  Then all that the host needs
comes there at once when the device has found the candidates; nothing before waits for it.

Candidates do not depend on the answer that they join.  So the device can look for them in one block while the block
before is still to be proven: see `matrix_interop.search.device.chain`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np

from matrix_interop.search.device.arrays import Arrays
from matrix_interop.search.device.best import Best, smallest
from matrix_interop.search.device.exact import search_exactly
from matrix_interop.search.device.measure import candidate_keys, unit
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
    """``wide`` (q, d) float64, those that are not finite replaced by zeros; ``usable`` (q,): the others, None for all.

    ``squares`` (q,): the squared norms of ``wide``, a number where one query lives on the host.

    ``native`` (q, d): the queries as they came, on the device ``source``.  What is worked out of them lives on
    ``arrays`` and is made when it is first asked for, so that a device that searches by ``native`` need not wait.
    ``brought``: ``native`` on the host, once somebody has fetched it.
    """

    def __init__(self, arrays: Arrays, native: Any, source: Arrays) -> None:
        self.arrays = arrays
        self.native = native
        self.source = source
        self.brought: np.ndarray | None = None

    @cached_property
    def worked(self) -> tuple[Any, Any, Any]:
        """``wide``, ``squares`` and ``usable``."""
        arrays, xp, given = self.arrays, self.arrays.xp, self.native
        if arrays is not self.source:
            given = self.source.host(given) if self.brought is None else self.brought
        wide = arrays.astype(given, "float64")
        squares = xp.vecdot(wide, wide)
        if arrays.finite(squares):
            return wide, squares[0] if len(squares) == 1 else squares, None
        usable = xp.all(xp.isfinite(wide), axis=1)
        return xp.where(usable[:, None], wide, 0.0), xp.where(usable, squares, 0.0), usable

    @property
    def wide(self) -> Any:
        """See above."""
        return self.worked[0]

    def __len__(self) -> int:
        return int(self.native.shape[0])

    def rows(self, numbers: Any) -> Queries:
        """Some of them, on the device."""
        return Queries(self.source, self.source.rows(self.native, numbers), self.source)

    def on(self, arrays: Arrays) -> Queries:
        """The same queries, worked with on another device."""
        return self if arrays is self.arrays else Queries(arrays, self.native, self.source)


#: Says for which queries something is proven, once that is on the host: a mask (q,).
Proof = Callable[[], np.ndarray]
Joining = Callable[[Best], tuple[Best, Proof | None]]


class _Prepared(NamedTuple):
    """``y`` (n, d) float32; ``offset`` (n,) float32 to add to products, or None.

    ``largest``: no finite row of y has a larger squared norm, an array of one float32; above 2**113 or NaN where the
    scores say nothing.
    """

    y: Any
    offset: Any
    largest: Any


class Attempt:
    """The candidates of a block, which the device was told to find, and the answer that they make of the one before.

    ``joining`` gives for an answer what it becomes, and how to learn where that is proven; None: it is, everywhere.
    ``early``: that needs no values on the host, so the device can be told of it before it has found the candidates.
    ``plain``: it was not a careful one.
    """

    def __init__(
        self, screen: Screen, queries: Queries, joining: Joining, *, early: bool = False, plain: bool = False
    ) -> None:
        self.screen = screen
        self.queries = queries
        self.early = early
        self.plain = plain
        self._joining = joining
        self.best: Best | None = None

    def build_on(self, best: Best) -> None:
        """``found``: what the answer ``best`` becomes with the candidates, proven or not."""
        self.best = best
        self.found, self._proof = self._joining(best)

    def settled(self, best: Best) -> Best:
        """The answer after this block, where ``best`` is the one before; once proven, or found by other means."""
        if self.best is not best:  # it has not built yet, or on an answer that was not proven then
            self.build_on(best)
        if self._proof is None:
            return self.found
        proven = self._proof()
        return self.found if proven.all() else self.screen.mended(self, best, np.atleast_1d(proven))


class Screen:
    """One block of the base: ``rows`` (n, d), any exact type of the framework; the first is row ``number``.

    Looked through for ``k`` neighbours; what overflows meanwhile leaves a query unproven.
    ``bounded``: neither rows nor queries are float64, so that no key leaves its range.
    """

    def __init__(
        self,
        arrays: Arrays,
        kind: Kind,
        rows: Any,
        number: int,
        k: int,
        *,
        careful: bool = False,
        bounded: bool = False,
    ) -> None:
        self.arrays = arrays
        self.kind = kind
        self.rows = rows
        self.number = number
        self.careful = careful
        self.bounded = bounded
        count, width = rows.shape
        terms = (2 * width + 20 if kind == "cosine" else width + 12) * arrays.roundoff
        #: g of the bound, with its slack; +inf where float32 proves nothing for this many columns.
        self.relative = _SLACK * terms / (1 - terms) if terms < 0.1 else np.inf
        self.wanted = candidates_for(k)
        self.all = count <= self.wanted and width > 0
        self.screened = count > self.wanted and width > 0 and self.relative < np.inf
        self._made: _Prepared | None = None

    def prepare(self) -> None:
        """Tell the device to do what needs no queries."""
        if self.screened and not self.careful:
            self._made = self._plainly()

    def begin(self, queries: Queries) -> Attempt:
        """Tell the device to look for candidates."""
        at_home = queries.arrays is self.arrays
        if self.screened and (at_home or not self.careful):
            return Attempt(self, queries, self._screened(queries), early=at_home, plain=not self.careful)
        if not at_home:
            return Attempt(self, queries, lambda best: (self._there(queries, best), None))
        if self.all:
            places = self.arrays.arange(0, self.rows.shape[0])[None, :]
            places = self.arrays.xp.broadcast_to(places, (queries.wide.shape[0], places.shape[1]))
            found = self._measured(queries, places)
            return Attempt(self, queries, lambda best: (best.joined(*found), None), early=True)
        return Attempt(self, queries, lambda best: (self._exactly(queries, best), None))

    def mended(self, attempt: Attempt, best: Best, proven: np.ndarray) -> Best:
        """What ``attempt`` found where that is proven, and what a better way finds for the other queries."""
        queries = attempt.queries
        if best.arrays is not self.arrays:
            return self._there(queries, best)
        if attempt.plain and not self.careful and (not self._sound() or self.far is not None):
            self.careful, self._made = True, None
        again = self._again if attempt.plain and self.careful else self._exactly
        if not proven.any():
            return again(queries, best)
        rest = np.flatnonzero(~proven)
        numbers = self.arrays.array(rest)
        better = again(queries.rows(numbers), best.rows(numbers))
        place = np.arange(len(proven))
        place[rest] = len(place) + np.arange(len(rest))
        return attempt.found.below(better).rows(self.arrays.array(place))

    def _sound(self) -> bool:
        """False where the scores of the block say nothing."""
        return self._made is not None and bool(self.arrays.host(self._made.largest < _LARGE))

    def _again(self, queries: Queries, best: Best) -> Best:
        return self.begin(queries).settled(best)

    def _there(self, queries: Queries, best: Best) -> Best:
        """With queries from the host on the device."""
        return self._again(queries.on(self.arrays), best.on(self.arrays)).on(best.arrays)

    def _exactly(self, queries: Queries, best: Best) -> Best:
        return search_exactly(self.arrays, self.kind, queries.wide, self.rows, self.number, best)

    def _measured(self, queries: Queries, places: Any) -> tuple[Any, Any]:
        """Keys and ids (q, K) of the candidates ``places`` (q, K), ascending in each row."""
        concat, (count, wanted) = self.arrays.xp.concat, places.shape
        step = max(1, _ENTRIES // max(wanted * self.rows.shape[1], 1))
        if step >= count:
            return self._found(self.arrays, queries.wide, places, self._rows(places))
        parts = []
        for start in range(0, count, step):
            some = places[start : start + step, :]
            parts.append(self._found(self.arrays, queries.wide[start : start + step, :], some, self._rows(some)))
        keys, ids = (concat(found, axis=0) for found in zip(*parts, strict=True))
        return keys, ids

    def _rows(self, places: Any) -> Any:
        """The rows (q * K, d) at ``places`` (q, K)."""
        return self.arrays.rows(self.rows, self.arrays.xp.reshape(places, (-1,)))

    def _found(self, home: Arrays, wide: Any, places: Any, rows: Any) -> tuple[Any, Any]:
        """Keys and ids (q, K) of ``rows`` (q * K, d) at ``places`` (q, K), for queries ``wide`` (q, d)."""
        return candidate_keys(home, self.kind, wide, rows, bounded=self.bounded), places + self.number

    def _screened(self, queries: Queries) -> Joining:
        """Start to find the candidates with the best scores."""
        arrays, home = self.arrays, queries.arrays
        made = self._made = self._made or (self._carefully() if self.careful else self._plainly())
        bound = (_SquaredBound if self.kind == "squared" else _ProductBound)(self, queries)
        scores, places = smallest(arrays, arrays.scores(bound.x, made.y, made.offset, bound.factor), self.wanted)
        if home is arrays:
            keys, ids = self._measured(queries, arrays.xp.sort(places, axis=1))

            def joining(best: Best) -> tuple[Best, Proof]:
                found = best.joined(keys, ids)
                proven = arrays.fetching(bound.proven(scores, found, made.largest))
                return found, lambda: proven()[0]

            return joining
        fetched = arrays.fetching(places, scores, made.largest, queries.native, self._rows(places))

        def joining_here(best: Best) -> tuple[Best, Proof]:
            places, scores, largest, queries.brought, rows = fetched()
            found = best.joined(*self._found(home, queries.wide, places, rows))
            proven = bound.proven(scores, found, largest)
            return found, lambda: proven

        return joining_here

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
            sane = (xp.min(norms) > 2.0**-80) & (xp.max(norms) < 2.0**80)
            return _Prepared(
                y / xp.sqrt(norms)[:, None], None, xp.where(sane, arrays.full((), 1.11, "float32"), xp.nan)
            )
        return _Prepared(y, norms if self.kind == "squared" else None, xp.max(norms))

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
        if self.kind == "squared":
            norms = xp.where(fits, norms, 0.0)
            return _Prepared(y, xp.where(finite & fits, norms, xp.inf), xp.max(norms))
        return _Prepared(y, xp.where(finite & fits, 0.0 * norms, xp.inf), xp.max(norms))

    @cached_property
    def far(self) -> np.ndarray | None:
        """The centre (d,) of rows that lie far from the origin, or None where they lie around it; from a sample."""
        arrays, count = self.arrays, self.rows.shape[0]
        numbers = np.linspace(0, count - 1, min(count, SAMPLE)).astype(np.int64)
        sample = arrays.host(arrays.astype(arrays.rows(self.rows, arrays.array(numbers)), "float64"))
        with np.errstate(all="ignore"):
            return placement(self.kind, sample)[0]


class _SquaredBound:
    """Says of squared L2 what scores prove.

    ``x`` (q, d) float32, on the device: what is multiplied with the rows, and with ``factor``.
    """

    factor = -2.0

    def __init__(self, screen: Screen, queries: Queries) -> None:
        self.relative = screen.relative
        self.queries = queries
        self.centre = screen.centre
        # Queries that are not finite may find anything.
        moved = queries.native if self.centre is None else queries.wide - self.centre
        self.x = queries.source.astype(moved, "float32")
        self.under = math.sqrt(self.x.shape[1] * _UNDERFLOW / self.relative)

    def proven(self, scores: Any, found: Best, largest: Any) -> Any:
        """Mask (q,): no row whose score is the largest of ``scores`` (q, K) or more can be as near as the last found.

        ``largest``: the largest squared norm of a row.  Queries that are not finite need no proof.
        """
        home, sqrt = found.arrays, found.arrays.xp.sqrt
        last, (wide, own, usable) = home.last(found.keys), self.queries.worked
        if self.centre is not None:
            moved = wide - self.centre
            own = home.xp.sum(moved * moved, axis=1)
        left_out = home.largest(scores) + own
        reach = 2.002 * sqrt(own) + 1.001 * sqrt(last)
        proven = left_out - self.relative * (reach + self.under) ** 2 > last
        proven = proven & (reach < _NEAR) & (largest < _LARGE)
        return proven if usable is None else proven | ~usable


class _ProductBound:
    """The same for products and cosine."""

    factor = -1.0

    def __init__(self, screen: Screen, queries: Queries) -> None:
        source = queries.source
        self.cosine = screen.kind == "cosine"
        self.relative = screen.relative
        self.queries = queries
        self.centre = screen.centre
        self.directions = unit(source.xp, queries.on(source).wide)
        self.x = source.astype(self.directions, "float32")

    def proven(self, scores: Any, found: Best, largest: Any) -> Any:
        """As above."""
        home, xp, width, one, far = found.arrays, found.arrays.xp, self.x.shape[1], float(self.cosine), 0.0
        last, (wide, own, usable) = home.last(found.keys), self.queries.worked
        weight = xp.sqrt(own)
        if self.cosine:
            weight = xp.where(own > 0, 1.0, 0.0 * own)
        left_out = home.largest(scores) * weight + one
        if self.centre is not None:
            far = xp.sqrt(xp.sum(self.centre * self.centre))
            left_out = left_out - xp.sum((self.directions if self.cosine else wide) * self.centre, axis=1)
        # The norm comes from a square that is itself rounded, by at most (d + 3) 2**-24 of its value.
        radius = xp.sqrt(home.astype(largest, "float64") * (1 + (width + 8) * 2.0**-23))
        error = weight * (
            self.relative * radius + 8 * (width + 8) * _U64 * (radius + far + one) + width * _UNDERFLOW * (2 + radius)
        )
        proven = (left_out - error > last) & (largest < _LARGE)
        return proven if usable is None else proven | ~usable
