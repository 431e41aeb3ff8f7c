r"""From fast, rounded candidates to the exact answer.

An engine works in float32 on *prepared* rows and gives the K = k + margin best rows of a block by
its own scores.  This module says how far such a score can be from the truth, and with that decides
for each query whether the K rows provably hold the block's true neighbours.  If not, the block is
searched again for that query in float64 (`matrix_interop.search.exact`).  Nothing here is a
heuristic: margin and centring change how often the second pass runs, never what comes out.

Preparation
    x = s (q - c), y = s (b - c) for squared L2; x = q / |q|, y = s (b - c) for products;
    x = q / |q|, y = b / |b| - c for cosine.  c is one vector a block (0 unless the rows lie far from
    the origin compared with their spread, where float32 would cancel), s a power of two (1 unless
    their size is extreme).  x', y' are x, y rounded to float32.

Bound.  Let u be the engine's unit roundoff (2**-24 for float32), g(m) = m u / (1 - m u), and |.| the 2-norm.
    1. Rounding the input: |x' - x| <= u |x|, |y' - y| <= u |y|, coordinate by coordinate, whatever
       the source type (float64 steps before add 2**-53 terms, see 5).  For cosine, the float32 norm
       adds at most g(d + 4) |y|.
    2. A sum of d products in any order, fused or not, errs by at most g(d) |x'| |y'| (Higham,
       Accuracy and Stability of Numerical Algorithms, 2nd ed., section 3.1: |x|.|y| <= |x| |y|).
    3. Squared L2 as |x'|**2 + |y'|**2 - 2 x'.y': three such sums and two more additions err by at most
       g(d + 2) (|x'| + |y'|)**2.  As a sum of squared differences: g(d + 2) |x' - y'|**2, which is less.
       With 1: | |x' - y'|**2 - |x - y|**2 | <= (2u + u**2) (|x| + |y|)**2.  Together
           |score - s**2 D| <= g(d + 8) S**2,  S = |x| + |y|,  D = |q - b|**2.
    4. Products: |score + x.y| <= g(d + 8) |x| R, with R = the largest |y| of the block; cosine:
       g(2 d + 16) |x| R.
    5. Slack for what is tiny: the factor `_SLACK` = 1.01 covers norms that are themselves rounded and, for
       squared L2, the float64 rounding of the keys (relative, below d 2**-50 << u).  For products and cosine
       8 (d + 8) 2**-53 (R / s + |c|) |q| is added (cosine: |q| = 1, and 1 more for the key itself).
       Underflow, flushed or gradual, moves a product or a coordinate by at most 2**-126: d 2**-120 (1 + S) is added.

Squared L2 without the norms of the rows.  Let t be an upper bound of the k-th key.  A row with
    |y| > |x| + s sqrt(t) has D > t and is no neighbour.  For all others S <= 2 |x| + s sqrt(t), so
    E = g(d + 8) (2 |x| + s sqrt(t))**2 (plus 5) bounds the error of every row that could matter.
    A first t comes from the k-th score z: every row satisfies S <= 2 |x| + sqrt(s**2 D), hence
    s**2 D <= z + g S**2 <= z + g (8 |x|**2 + 2 s**2 D), that is s**2 D <= (z + 8 g |x|**2) / (1 - 2 g).

Decision.  With z_K the last score that was returned, every row left out has a score >= z_K, so its key
    is at least z_K - E.  If that is above the k-th key found, no row left out is a neighbour, not even
    by a tie.  A row left out because its score was not finite is not finite itself, or its float32
    terms overflowed: then |x| + |y| > 2**61, and for |x|, s sqrt(t) < 2**58 (demanded) again
    |y| > |x| + s sqrt(t).  For products all |y| are known to be finite and below 2**61 (demanded).
    Within the list no score is used: candidates whose score is within E of the k-th are measured
    again in float64 (`metrics.evaluate`), and only those keys are compared.
"""

from __future__ import annotations

from functools import cached_property
from typing import Final

import numpy as np

from matrix_interop.search.engines import Engine
from matrix_interop.search.exact import search_exactly
from matrix_interop.search.merge import Best
from matrix_interop.search.metrics import Kind, dot, evaluate, unit
from matrix_interop.search.prepared import LARGE, PreparedBlock

__all__ = ["Screen"]

_SLACK: Final = 1.01
_U64: Final = 2.0**-53
_UNDERFLOW: Final = 2.0**-120
#: Below this many multiplications the float64 pass costs less than an engine's start.
_FEW: Final = 1 << 18


class Screen:
    """One block of the base: ``rows`` (n, d), any dtype and layout; the first is row ``number`` of the base."""

    def __init__(self, kind: Kind, rows: np.ndarray, number: int, engine: Engine) -> None:
        self.kind = kind
        self.rows = rows
        self.number = number
        self.engine = engine

    @cached_property
    def block(self) -> PreparedBlock:
        """Made when the first query needs an engine."""
        return PreparedBlock(self.kind, self.rows)

    @property
    def relative(self) -> float:
        """g of the bound, with its slack; +inf where the engine's arithmetic proves nothing for this many columns."""
        width = self.rows.shape[1]
        terms = (2 * width + 16 if self.kind == "cosine" else width + 8) * self.engine.roundoff
        return _SLACK * terms / (1 - terms) if terms < 0.1 else np.inf

    def search(self, queries: np.ndarray, best: Best) -> Best:
        """``best`` after this block. ``queries`` (q, d) float64, finite."""
        n, width = self.rows.shape
        k = best.keys.shape[1]
        wanted = k + max(8, k // 4)
        few = n <= 2 * wanted or len(queries) * n * width < _FEW
        if few or not np.isfinite(self.relative) or not self.block.radius < LARGE:
            return search_exactly(self.kind, queries, self.rows, self.number, best)
        found, proven = self._screened(queries, best, wanted)
        if not proven.all():
            rest = np.flatnonzero(~proven)
            found.put(rest, search_exactly(self.kind, queries[rest], self.rows, self.number, best[rest]))
        return found

    def _screened(self, queries: np.ndarray, best: Best, wanted: int) -> tuple[Best, np.ndarray]:
        """The answer from the engine's ``wanted`` candidates, and for which queries it is proven."""
        k = best.keys.shape[1]
        x, lengths = self.block.queries(queries)
        ids, scores = self.engine.candidates(x, self.block.y, wanted, "l2" if self.kind == "squared" else "ip")
        bound = (_SquaredBound if self.kind == "squared" else _ProductBound)(self, queries, lengths)
        with np.errstate(all="ignore"):  # what overflows here leaves a query unproven
            keys = bound.keys(scores.astype(np.float64))
            limit = np.minimum(best.last, bound.upper(keys[:, k - 1]))
            near = (ids >= 0) & (keys <= (limit + bound.error(limit))[:, None])
        which, place = np.nonzero(near)
        numbers = ids[which, place]
        found = best.with_pairs(which, evaluate(self.kind, queries, which, self.rows, numbers), numbers + self.number)
        with np.errstate(all="ignore"):
            proven = keys[:, -1] - bound.error(found.last) > found.last
        return found, proven


class _SquaredBound:
    """Scores of squared L2 as keys, and their error. All results (q,) or (q, K), in units of the keys."""

    def __init__(self, screen: Screen, queries: np.ndarray, lengths: np.ndarray) -> None:
        self.relative = screen.relative
        self.under = queries.shape[1] * _UNDERFLOW
        self.scale = screen.block.scale
        self.length = 1.001 * lengths

    def keys(self, scores: np.ndarray) -> np.ndarray:
        keys: np.ndarray = scores / self.scale**2
        return keys

    def upper(self, keys: np.ndarray) -> np.ndarray:
        """No smaller than the true key of a row whose score says ``keys``."""
        extra = 8 * self.relative * self.length**2 + self.under * (2 + 2 * self.length)
        upper: np.ndarray = np.maximum(keys, 0) + extra / self.scale**2
        upper *= (1 + 2.0**-20) / (1 - 2 * self.relative - self.under)
        return upper

    def error(self, limit: np.ndarray) -> np.ndarray:
        """Of every row whose true key is at most ``limit``, and below the true key of all others by construction."""
        reach = 2 * self.length + 1.001 * self.scale * np.sqrt(limit)
        error: np.ndarray = (self.relative * reach**2 + self.under * (1 + reach)) / self.scale**2
        error[~(reach < LARGE)] = np.inf
        return error


class _ProductBound:
    """The same for products and cosine."""

    def __init__(self, screen: Screen, queries: np.ndarray, lengths: np.ndarray) -> None:
        del lengths
        block = screen.block
        self.scale = block.scale
        cosine = screen.kind == "cosine"
        with np.errstate(all="ignore"):
            length = np.sqrt(dot(queries, queries))
            self.weight = np.where(length > 0, 1.0, 0.0) if cosine else length
            self.shift = np.full(len(queries), 1.0 if cosine else 0.0)
            far = 0.0
            if block.centre is not None:
                far = float(np.sqrt(block.centre @ block.centre))
                self.shift -= (unit(queries) if cosine else queries) @ block.centre
            reach = block.radius / block.scale
            width = queries.shape[1]
            self._error: np.ndarray = self.weight * (
                screen.relative * reach
                + 8 * (width + 8) * _U64 * (reach + far + (1.0 if cosine else 0.0))
                + width * _UNDERFLOW * (2 + block.radius) / block.scale
            )

    def keys(self, scores: np.ndarray) -> np.ndarray:
        keys: np.ndarray = scores * (self.weight / self.scale)[:, None] + self.shift[:, None]
        return keys

    def upper(self, keys: np.ndarray) -> np.ndarray:
        upper: np.ndarray = keys + self._error
        return upper

    def error(self, limit: np.ndarray) -> np.ndarray:
        del limit
        return self._error
