"""A block of the base and its queries as an engine wants them: float32, C order, near the origin, of sane size."""

from __future__ import annotations

from typing import Final

import numpy as np

from matrix_interop.search.exact import widened
from matrix_interop.search.metrics import Kind, dot, unit

__all__ = ["LARGE", "SAMPLE", "PreparedBlock", "placement"]

#: Rows sampled for centre and size; their median is not led astray by a few wild rows.
SAMPLE: Final = 128
#: The rows are centred where the squared norm of their centre is this many times their squared spread.
_FAR: Final = 4.0
#: They are scaled where their size is beyond two to this power, up or down.
_EXTREME: Final = 30
#: Above this length, sums of squares could overflow float32.
LARGE: Final = 2.0**58
#: Entries converted at once: few enough to stay in a core's own cache.
_STEP: Final = 1 << 16


class PreparedBlock:
    """``y`` (n, d) = scale (b - centre), or b / |b| - centre for cosine; float32, C order. See screen.py.

    ``centre`` (d,) float64 or None; ``scale`` a power of two; ``radius``: no finite row of ``y`` has a larger
    norm (+inf where that is unknown; 0 for squared L2, which needs none).  Rows that need no change are
    shared.  For products and cosine, rows that are not finite become NaN, which no engine returns.
    """

    def __init__(self, kind: Kind, rows: np.ndarray) -> None:
        self.kind = kind
        with np.errstate(all="ignore"):
            self.centre, self.scale = placement(kind, rows)
            if kind != "cosine" and self.centre is None and self.scale == 1.0:
                self.y = np.require(rows, np.float32, ["C", "A"])
            else:
                self.y = self._moved(rows)
            self.radius = 0.0 if kind == "squared" else self._radius(rows)

    def queries(self, q: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(x, lengths): ``q`` (q, d) float64 as float32 (q, d), moved as the rows are, or of unit length for products.

        A query too large for sums in float32 is replaced by zeros, and its length is +inf.
        """
        with np.errstate(all="ignore"):
            if self.kind != "squared":
                wide = unit(q)
            else:
                wide = (q if self.centre is None else q - self.centre) * self.scale
            lengths = np.sqrt(dot(wide, wide))
            large = ~(lengths < LARGE)
            wide[large] = 0.0
            lengths[large] = np.inf
            return wide.astype(np.float32), lengths

    def _moved(self, rows: np.ndarray) -> np.ndarray:
        y = np.empty(rows.shape, np.float32)
        step = max(1, _STEP // rows.shape[1])
        for start in range(0, len(rows), step):
            part, out = rows[start : start + step], y[start : start + step]
            if self.kind == "cosine" and self.centre is None and _unit_float32(part, out):
                continue
            wide = widened(part)
            if self.kind == "cosine":
                wide = unit(wide)
            if self.centre is not None:
                wide -= self.centre
            np.multiply(wide, self.scale, out=out, casting="same_kind")
        return y

    def _radius(self, rows: np.ndarray) -> float:
        step = max(1, _STEP // rows.shape[1])
        norms = np.empty(len(rows), np.float32)
        for start in range(0, len(rows), step):
            part = self.y[start : start + step]
            np.einsum("ij,ij->i", part, part, out=norms[start : start + step])
        odd = np.flatnonzero(~np.isfinite(norms))
        if len(odd):
            if np.isfinite(widened(rows[odd])).all(axis=1).any():
                return np.inf  # finite, but too large for sums in float32
            self.y = self.y.copy()
            self.y[odd] = np.nan
            norms[odd] = 0
        # The sum of squares is itself rounded, by at most d 2**-24 of its value.
        return float(np.sqrt(float(norms.max()) * (1 + rows.shape[1] * 2.0**-23)))


def placement(kind: Kind, rows: np.ndarray) -> tuple[np.ndarray | None, float]:
    """Centre and scale of a block, from a sample; any choice is right, a good one makes float32 go further."""
    sample = widened(rows[np.linspace(0, len(rows) - 1, min(len(rows), SAMPLE)).astype(np.intp)])
    sample = sample[np.isfinite(sample).all(axis=1)]
    if not len(sample):
        return None, 1.0
    if kind == "cosine":
        sample = unit(sample)
    middle = np.median(sample, axis=0)
    if rows.dtype.kind in "iub" and kind != "cosine":
        middle = np.rint(middle)  # integers stay integers
    around = sample - middle
    spread = float(np.median(dot(around, around)))
    far = float(middle @ middle) > _FAR * spread
    centre = middle if far else None
    if not far:
        spread = float(np.median(dot(sample, sample)))
    exponent = int(np.frexp(np.sqrt(spread))[1]) if np.isfinite(spread) else 0
    return centre, 2.0**-exponent if abs(exponent) > _EXTREME and kind != "cosine" else 1.0


def _unit_float32(rows: np.ndarray, out: np.ndarray) -> bool:
    """Unit rows computed in float32 alone; False where some row is too large or too small for that."""
    if rows.dtype != np.float32:
        return False
    norms = np.einsum("ij,ij->i", rows, rows)
    if not ((norms > 2.0**-80) & (norms < 2.0**80)).all():
        return False
    np.multiply(rows, (1 / np.sqrt(norms))[:, None], out=out)
    return True
