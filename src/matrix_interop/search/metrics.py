"""The four metrics: how a pair of vectors is measured, in float64, and how results are told.

Inside the search every metric is a *key*: smaller is nearer.  A key is computed from one query and
one row alone, always by the same operations in the same order, whatever else is searched at once.
The order of neighbours is by definition that of (key, id).  So a batch answers as single queries
do, and rows with equal keys come lowest id first.

squared L2    ``sum((q - b)**2)``.  Never negative.  Exact for integers while it is below 2**53.
inner product ``-sum(q * b)``.  Exact for integers while all sums are below 2**53.
cosine        ``1 - cos(q, b)``, in [0, 2].  Near cos = 1 that difference would cancel, so it is computed
              as ``sin**2 / (1 + cos)`` with ``sin**2 = |n b - p q|**2 / (n**2 m)``, where p = q.b,
              n = |q|**2, m = |b|**2 (n b - p q is n times the part of b at right angles to q).
              For small integers all terms but one quotient are exact, so parallel rows tie exactly.
              Angles too small for float64 to tell from rounding count as 0.  A zero vector has no
              direction: its distance to everything is 1.
"""

from __future__ import annotations

from typing import Any, Final, Literal

import numpy as np

__all__ = ["METRICS", "Kind", "distances_of", "dot", "evaluate", "kind_of", "unit"]

#: What a metric asks for -> the key it is searched by.
Kind = Literal["squared", "cosine", "product"]
METRICS: Final[dict[str, Kind]] = {
    "sqeuclidean": "squared",
    "euclidean": "squared",
    "cosine": "cosine",
    "inner_product": "product",
}
_U64: Final = 2.0**-53
#: Bytes of float64 rows worked on at once: small enough to stay in a core's own cache.
_SLICE: Final = 1 << 19


def kind_of(metric: str) -> Kind:
    """The key that ``metric`` is searched by. Raises ValueError for an unknown name."""
    if metric not in METRICS:
        msg = f"unknown metric {metric!r}: write one of {', '.join(map(repr, METRICS))}"
        raise ValueError(msg)
    return METRICS[metric]


def distances_of(metric: str, keys: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
    """Keys (q, k) as the distances that ``metric`` promises; missing ones are +inf, products -inf."""
    if metric == "euclidean":
        keys = np.sqrt(keys)
    elif metric == "inner_product":
        keys = -keys
    with np.errstate(over="ignore", under="ignore"):
        distances: np.ndarray = keys.astype(dtype)
    return distances


def evaluate(kind: Kind, queries: np.ndarray, which: np.ndarray, rows: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """Keys of the pairs (``queries[which[i]]``, ``rows[numbers[i]]``), float64.

    ``queries`` (q, d) float64; ``rows`` (n, d) in any dtype and layout; both finite where named.
    """
    width = queries.shape[1]
    keys = np.empty(len(which))
    step = max(1, _SLICE // (8 * max(width, 1)))
    for start in range(0, len(which), step):
        part = slice(start, start + step)
        q = queries[which[part]]
        b = np.empty(q.shape)
        np.copyto(b, rows[numbers[part]], casting="unsafe")
        with np.errstate(all="ignore"):
            keys[part] = _measure(kind, q, b)
    return keys


def _measure(kind: Kind, q: np.ndarray, b: np.ndarray) -> np.ndarray:
    if kind == "squared":
        np.subtract(q, b, out=b)
        return dot(b, b)
    if kind == "product":
        products = dot(q, b)
        np.negative(products, out=products)
        return products
    # Powers of two change no mantissa and keep every term below in range.
    _rescale(q)
    _rescale(b)
    p, n, m = dot(q, b), dot(q, q), dot(b, b)
    cos = np.sqrt(np.minimum(p * p / (n * m), 1.0))
    b *= n[:, None]
    q *= p[:, None]
    b -= q
    sin2 = dot(b, b) / (n * n * m)
    sin2[sin2 < ((q.shape[1] + 8) * _U64) ** 2] = 0.0
    key: np.ndarray = np.where(p > 0, sin2 / (1 + cos), 1 + cos)
    key[(n == 0) | (m == 0)] = 1.0
    return key


def dot(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Row by row ``sum(a * b)`` of C-ordered arrays; each row is summed alone, in the same order."""
    sums: np.ndarray = np.einsum("ij,ij->i", a, b)
    return sums


def _rescale(rows: np.ndarray) -> None:
    """Multiply each row, in place, by the power of two that brings its largest entry into [1/2, 1)."""
    largest = np.abs(rows).max(axis=1, initial=0.0, keepdims=True)
    np.ldexp(rows, -np.frexp(largest)[1], out=rows)


def unit(rows: np.ndarray) -> np.ndarray:
    """Float64 ``rows`` divided by their norms, in new memory; zero rows stay zero."""
    made = rows.copy()
    _rescale(made)
    norms = np.sqrt(dot(made, made))[:, None]
    norms[norms == 0] = 1.0
    made /= norms
    return made
