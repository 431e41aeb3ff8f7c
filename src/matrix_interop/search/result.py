"""`KnnResult`: what every search gives back, here and from every library."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from matrix_interop.errors import UnsupportedDtypeError
from matrix_interop.exchange.convert import carry_out, convert, plan_for
from matrix_interop.frameworks.registry import framework as framework_of
from matrix_interop.matrix import Matrix
from matrix_interop.memory.host import aligned_empty
from matrix_interop.view import TensorView

__all__ = ["KnnResult", "in_framework_of"]


@dataclass(frozen=True, slots=True, eq=False)
class KnnResult:
    """The ``k`` nearest rows of each of ``q`` queries, nearest first.

    ``ids`` (q, k) int64: row numbers of the base, or the ids given to an index; -1 where there is no
    neighbour.  ``distances`` (q, k), float32 or float64: +inf where there is no neighbour.  For
    "inner_product" they are the products, largest first, and -inf where there is none.
    ``valid`` (q,) int64: how many neighbours each query has; they stand first.

    All three are tensors of the queries' framework: torch tensors for torch queries, NumPy arrays
    for NumPy, lists, Arrow and other objects without arithmetic of their own.  JAX has 64-bit types
    only where ``jax_enable_x64`` is on; elsewhere its ids and counts are int32, its distances float32.

    It is no tuple, because libraries disagree about which of the two comes first.
    """

    ids: Any
    distances: Any
    valid: Any


def in_framework_of(queries: Matrix, ids: np.ndarray, distances: np.ndarray) -> KnnResult:
    """The result as tensors of the framework of ``queries``, where those are; missing entries have id -1."""
    parts = (ids, distances, np.count_nonzero(ids >= 0, axis=1))
    if framework_of(queries.framework).namespace() is np:
        return KnnResult(*parts)
    return KnnResult(*(_placed(_held(part, queries.framework), queries) for part in parts))


def _placed(part: np.ndarray, queries: Matrix) -> Any:
    if queries.device.is_host:
        return convert(part, queries.framework)
    view, target = TensorView.of(part, "numpy", part), framework_of(queries.framework)
    return carry_out(view, target, plan_for(view, target, device=queries.device))  # asked for


def _held(part: np.ndarray, name: str) -> np.ndarray:
    """``part`` in the widest type of its kind that the framework has, aligned so that all of them can share it."""
    narrow = framework_of(name).refusal(part.dtype) is not None
    held = aligned_empty(part.shape, np.dtype(f"{part.dtype.kind}4") if narrow else part.dtype)
    np.copyto(held, part, casting="same_kind")
    if held.dtype.kind == "i" and not np.array_equal(held, part):
        msg = f"{name} without 64-bit types cannot hold id {int(part.max())}: switch them on, or pass NumPy queries"
        raise UnsupportedDtypeError(msg)
    return held
