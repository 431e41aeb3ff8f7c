"""JAX on the host: GEMM and top-k of one tile at a time, compiled once for each tile shape."""

from __future__ import annotations

from functools import partial
from typing import Final

import jax
import jax.numpy as jnp
import numpy as np

from matrix_interop.search.engines import Form
from matrix_interop.search.merge import Best

__all__ = ["JaxEngine"]

#: Scores in one tile.
_TILE: Final = 1 << 22


class JaxEngine:
    """`jax.lax.dot_general` at full precision and `jax.lax.top_k`."""

    roundoff = 2.0**-24

    def candidates(self, queries: np.ndarray, block: np.ndarray, k: int, form: Form) -> tuple[np.ndarray, np.ndarray]:
        q = jnp.asarray(queries)
        step = max(2 * k, _TILE // max(len(queries), 1))
        best = Best.empty(len(queries), k)
        for start in range(0, len(block), step):
            part = block[start : start + step]
            scores, ids = (np.asarray(found) for found in _tile(q, jnp.asarray(part), min(k, len(part)), form))
            which = np.repeat(np.arange(len(queries)), scores.shape[1])
            best = best.with_pairs(which, scores.ravel().astype(np.float64), ids.ravel().astype(np.int64) + start)
        best.ids[np.isinf(best.keys)] = -1
        return best.ids, best.keys


@partial(jax.jit, static_argnames=("k", "form"))
def _tile(q: jax.Array, rows: jax.Array, k: int, form: Form) -> tuple[jax.Array, jax.Array]:
    scores = -jnp.matmul(q, rows.T, precision=jax.lax.Precision.HIGHEST)
    if form == "l2":
        scores = 2 * scores + (rows * rows).sum(1) + (q * q).sum(1, keepdims=True)
    scores = jnp.where(jnp.isfinite(scores), scores, jnp.inf)
    found, ids = jax.lax.top_k(-scores, k)
    return -found, ids
