"""Keys of pairs on a device, in float64, as `matrix_interop.search.metrics` defines them.

A sum over the columns adds halves to halves, by operations that treat every entry alike.  So a key depends on its
query and row only: not on the framework, nor on how many pairs are measured at once.  The columns are the first axis
here, of which halves are cut fastest.
"""

from __future__ import annotations

from typing import Any, Final

from matrix_interop.search.device.arrays import Arrays
from matrix_interop.search.metrics import Kind

__all__ = ["candidate_keys", "measure", "pair_keys", "total", "unit"]

_U64: Final = 2.0**-53
#: Entries of float64 rows worked on at once.
_ENTRIES: Final = 1 << 25


def total(xp: Any, x: Any) -> Any:
    """The sum over the first axis, which is not empty."""
    while (width := x.shape[0]) > 1:
        half = width // 2
        sums = x[:half, ...] + x[half : 2 * half, ...]
        x = sums if width == 2 * half else xp.concat([sums, x[2 * half :, ...]], axis=0)
    return x[0, ...]


def measure(xp: Any, kind: Kind, q: Any, b: Any) -> Any:
    """Keys (...) of float64 queries and rows (d, ...) that broadcast against each other."""
    if kind == "squared":
        difference = q - b
        return total(xp, difference * difference)
    if kind == "product":
        return -total(xp, q * b)
    q, b = _rescaled(xp, q, 0), _rescaled(xp, b, 0)
    p, n, m = total(xp, q * b), total(xp, q * q), total(xp, b * b)
    cos = xp.sqrt(p * p / (n * m))
    cos = xp.where(cos > 1, 1.0, cos)
    across = b * n - q * p
    sin2 = total(xp, across * across) / (n * n * m)
    sin2 = xp.where(sin2 < ((b.shape[0] + 8) * _U64) ** 2, 0.0, sin2)
    key = xp.where(p > 0, sin2 / (1 + cos), 1 + cos)
    return xp.where((n * m) == 0, 1.0, key)


def _rescaled(xp: Any, x: Any, axis: int) -> Any:
    """Vectors along an axis times the power of two that brings the largest entry into [1/2, 1): no mantissa changes."""
    largest = xp.max(xp.abs(x), axis=axis, keepdims=True)
    lift = xp.where(largest < 2.0**-500, largest * 0.0 + 2.0**500, 1.0)
    largest = largest * lift
    safe = xp.where(largest > 0, largest, 1.0)
    return x * lift * (xp.frexp(safe)[0] / safe)


def unit(xp: Any, rows: Any) -> Any:
    """Float64 rows (n, d) divided by their norms; zero rows stay zero."""
    made = _rescaled(xp, rows, -1)
    norms = xp.sqrt(xp.sum(made * made, axis=-1, keepdims=True))
    return made / xp.where(norms > 0, norms, 1.0)


def candidate_keys(arrays: Arrays, kind: Kind, queries: Any, rows: Any, *, bounded: bool) -> Any:
    """Keys (q, K) of ``rows`` (q * K, d), K for each of the float64 ``queries`` (q, d).

    NaN for those that are no neighbours because they are not finite.  ``bounded``: no key of others can leave the range
    of float64.
    """
    xp, (count, width) = arrays.xp, queries.shape
    columns = xp.reshape(arrays.columns(rows), (width, count, rows.shape[0] // count))
    keys = measure(xp, kind, queries.T[:, :, None], columns)
    if arrays.finite(keys):
        return keys
    finite = xp.abs(keys) < xp.inf if bounded else xp.all(xp.isfinite(columns), axis=0)
    return xp.where(finite, keys, xp.nan)


def pair_keys(arrays: Arrays, kind: Kind, queries: Any, which: Any, rows: Any, place: Any) -> Any:
    """Keys (p,) of the pairs (``queries[which[i]]``, ``rows[place[i]]``), both float64."""
    step = max(1, _ENTRIES // max(rows.shape[1], 1))
    parts = [
        measure(
            arrays.xp,
            kind,
            arrays.rows(queries, which[start : start + step]).T,
            arrays.rows(rows, place[start : start + step]).T,
        )
        for start in range(0, which.shape[0], step)
    ]
    return parts[0] if len(parts) == 1 else arrays.xp.concat(parts, axis=0)
