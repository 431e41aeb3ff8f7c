"""usearch: its dtype is always named, because it keeps bfloat16 by default and reads uint8 as bits."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from usearch.index import BatchMatches
from usearch.index import Index as NativeIndex

from matrix_interop.errors import UnsupportedDtypeError
from matrix_interop.search.index import HostIndex

__all__ = ["UsearchIndex"]

_METRICS: Final = {"squared": "l2sq", "cosine": "cos", "product": "ip"}
#: What it can keep a float32 vector as. "i8" would rescale it, "b1" keep its sign.
_KEPT: Final = ("f32", "f16", "bf16", "f64")
#: More of them than processors help nobody.
_MOST_THREADS: Final = 1024


class UsearchIndex(HostIndex):
    """``dtype``: how vectors are kept ("f32", "f16", "bf16", "f64"); the other options as in usearch.

    ``threads``: that add vectors at once; 0 means every core.  More than one is faster and loses some: of 8000
    vectors added by eight threads about 30 did not find themselves (usearch 2.26), by one thread all did.
    usearch gives products as 1 - q.b, so small ones lose digits.
    """

    library = "usearch"

    def __init__(
        self,
        dim: int,
        metric: str,
        *,
        check: bool,
        dtype: str = "f32",
        connectivity: int | None = None,
        expansion_add: int | None = None,
        expansion_search: int | None = None,
        threads: int = 1,
    ) -> None:
        super().__init__(dim, metric, check=check)
        if dtype not in _KEPT:
            msg = f"dtype={dtype!r}: write one of {', '.join(map(repr, _KEPT))}; 8-bit integers are exact in 'f32'"
            raise UnsupportedDtypeError(msg)
        if not 0 <= int(threads) <= _MOST_THREADS:  # the library starts as many as it is told to
            msg = f"threads={threads}: write 0 for every core, or a number up to {_MOST_THREADS}"
            raise ValueError(msg)
        self.threads = int(threads)
        self.native = NativeIndex(
            ndim=int(dim),
            metric=_METRICS[self.kind],
            dtype=dtype,
            connectivity=connectivity,
            expansion_add=expansion_add,
            expansion_search=expansion_search,
        )

    def __len__(self) -> int:
        return len(self.native)

    def _ready(self, rows: Any, ids: np.ndarray) -> None:
        """Nothing: it grows as it needs."""

    def _add(self, rows: np.ndarray, ids: np.ndarray) -> None:
        self.native.add(ids, rows, copy=True, threads=self.threads)

    def _search(self, queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        found = self.native.search(queries, k)
        ids = np.full((len(queries), k), -1, np.int64)
        keys = np.full((len(queries), k), np.inf, np.float32)
        if isinstance(found, BatchMatches):
            # Beyond its count a row holds key 0 and NaN.
            held = np.arange(found.keys.shape[1]) < np.asarray(found.counts)[:, None]
            width = held.shape[1]
            ids[:, :width][held] = found.keys[held]
            keys[:, :width][held] = found.distances[held]
        else:  # one query comes back as a flat row of what was found
            ids[0, : len(found.keys)] = found.keys
            keys[0, : len(found.keys)] = found.distances
        if self.kind == "product":
            return ids, keys - 1
        return ids, np.maximum(keys, 0)

    def _vectors(self, ids: np.ndarray) -> np.ndarray:
        return np.stack(self.native.get(ids, dtype="f32"))

    def _save(self, path: str) -> None:
        self.native.save(path)
