"""FAISS on the host: GEMM tiles with a heap a query, in threads of its own."""

from __future__ import annotations

import faiss
import numpy as np

from matrix_interop.search.engines import Form

__all__ = ["FaissEngine"]


class FaissEngine:
    """`faiss.knn_L2sqr` and `knn_inner_product` by pointer.

    The pointer form is the same whether or not ``faiss.contrib.torch_utils`` replaced `faiss.knn`.
    Rows whose score is NaN or above the largest float32 never enter the heaps.
    """

    roundoff = 2.0**-24

    def candidates(self, queries: np.ndarray, block: np.ndarray, k: int, form: Form) -> tuple[np.ndarray, np.ndarray]:
        count, width = queries.shape
        ids = np.empty((count, k), np.int64)
        scores = np.empty((count, k), np.float32)
        search = faiss.knn_L2sqr if form == "l2" else faiss.knn_inner_product
        search(
            faiss.swig_ptr(queries),
            faiss.swig_ptr(block),
            width,
            count,
            len(block),
            k,
            faiss.swig_ptr(scores),
            faiss.swig_ptr(ids),
        )
        if form == "ip":
            np.negative(scores, out=scores)
        missing = (ids < 0) | ~np.isfinite(scores)
        ids[missing] = -1
        scores[missing] = np.inf
        return ids, scores
