"""FAISS indexes on the host: flat by default, anything that `faiss.index_factory` names."""

from __future__ import annotations

import re
from typing import Any

import faiss
import numpy as np

from matrix_interop.search.index import HostIndex
from matrix_interop.search.metrics import unit
from matrix_interop.search.sources import blocks_of

__all__ = ["FaissIndex"]

#: Training rows, evenly spread over the base, where the caller does not say. FAISS takes 256 a centroid at most.
_TRAINING = 65_536
#: Graphs that FAISS ends the process over.
_TOO_NARROW = re.compile(r"(HNSW|NSG)[01](?!\d)")


class FaissIndex(HostIndex):
    """``factory``: as in `faiss.index_factory` ("Flat", "IVF1024,Flat", "HNSW32"). ``training``: rows to train on.

    Cosine is the inner product of unit vectors, which is what the index keeps.  Ids of the caller's own wrap the
    index into an `IndexIDMap2`.  Works whether or not ``faiss.contrib.torch_utils`` was imported.
    """

    library = "faiss"

    def __init__(self, dim: int, metric: str, *, check: bool, factory: str = "Flat", training: int = _TRAINING) -> None:
        super().__init__(dim, metric, check=check)
        measure = faiss.METRIC_L2 if self.kind == "squared" else faiss.METRIC_INNER_PRODUCT
        if _TOO_NARROW.search(factory):
            msg = f"factory={factory!r}: a graph needs 2 links or more at each vector, as in 'HNSW32'"
            raise ValueError(msg)
        try:
            self.native = faiss.index_factory(int(dim), factory, measure)
        except RuntimeError as error:
            msg = f"factory={factory!r}: FAISS makes no index of that: {str(error).rpartition(': ')[2]}"
            raise ValueError(msg) from error
        self.training = int(training)

    def __len__(self) -> int:
        return int(self.native.ntotal)

    @property
    def _mapped(self) -> bool:
        return isinstance(self.native, faiss.IndexIDMap)  # of which IndexIDMap2 is one kind

    def _prepared(self, rows: np.ndarray) -> np.ndarray:
        return unit(rows.astype(np.float64)).astype(np.float32) if self.kind == "cosine" else rows

    def _ready(self, rows: Any, ids: np.ndarray) -> None:
        continued = not self._mapped and np.array_equal(ids, np.arange(len(self), len(self) + len(ids)))
        if not continued and not self._mapped:
            if len(self):
                msg = (
                    f"the faiss index numbers its {len(self)} vectors itself: give ids from the first add on, or never"
                )
                raise ValueError(msg)
            self.native = faiss.IndexIDMap2(self.native)
        if not self.native.is_trained:
            self.native.train(self._prepared(_spread(rows, len(ids), self.training)))
        _reserve(self.native, len(ids))

    def _add(self, rows: np.ndarray, ids: np.ndarray) -> None:
        if self._mapped:
            self.native.add_with_ids(self._prepared(rows), ids)
        else:
            self.native.add(self._prepared(rows))

    def _search(self, queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        scores, ids = self.native.search(self._prepared(queries), k)
        if self.kind == "cosine":
            return ids, np.maximum(1 - scores, 0)
        return ids, scores if self.kind == "squared" else -scores

    def _vectors(self, ids: np.ndarray) -> np.ndarray:
        inner = faiss.downcast_index(self.native.index) if self._mapped else self.native
        if isinstance(inner, faiss.IndexIVF):  # it finds vectors by list, until told to keep their places
            inner.make_direct_map()
        found: np.ndarray = inner.reconstruct_n(0, len(ids))
        return found

    def _save(self, path: str) -> None:
        faiss.write_index(self.native, path)


def _reserve(index: Any, count: int) -> None:
    """Make room for so many vectors at once: growing batch by batch, FAISS holds old and new memory side by side."""
    if isinstance(index, faiss.IndexIDMap):
        index = faiss.downcast_index(index.index)
    if isinstance(index, faiss.IndexHNSW):
        index = faiss.downcast_index(index.storage)
    if isinstance(index, faiss.IndexFlatCodes):
        held = index.codes.size()
        index.codes.resize(held + count * index.code_size)
        index.codes.resize(held)  # the capacity stays


def _spread(rows: Any, count: int, wanted: int) -> np.ndarray:
    """At least ``wanted`` (or all) of ``count`` rows, evenly spaced, float32."""
    step = max(1, count // max(wanted, 1))
    parts, passed = [], 0
    for block in blocks_of(rows):
        parts.append(np.array(block[-passed % step :: step], dtype=np.float32, order="C"))
        passed += len(block)
    return np.concatenate(parts)
