"""JAX: `jax.lax.top_k`, products at full precision, and 64-bit types for as long as a search runs."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import jax
import jax.numpy as jnp

from matrix_interop.search.device.arrays import Arrays

__all__ = ["JaxArrays"]


class JaxArrays(Arrays):
    """Operation by operation: compiled together, products and sums would fuse and round otherwise."""

    def context(self) -> AbstractContextManager[object]:
        made: AbstractContextManager[object] = jax.enable_x64(True)
        return made

    def full(self, shape: tuple[int, ...], value: float, dtype: str) -> Any:
        return jnp.full(shape, value, dtype, device=self._where)

    def arange(self, start: int, stop: int) -> Any:
        return jnp.arange(start, stop, device=self._where)

    def scores(self, x: Any, y: Any, offset: Any, factor: float) -> Any:
        products = jnp.matmul(x * factor, y.T, precision=jax.lax.Precision.HIGHEST)
        return products if offset is None else products + offset

    def top(self, scores: Any, k: int) -> tuple[Any, Any]:
        found, places = jax.lax.top_k(-scores, k)
        return -found, places.astype(jnp.int64)

    @property
    def _where(self) -> Any:
        return jax.devices("cpu" if self.device.is_host else self.device.type)[self.device.index]
