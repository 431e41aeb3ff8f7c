"""Exact search over anything that holds vectors, and one way into every index library."""

from __future__ import annotations

from matrix_interop.search.index import Index
from matrix_interop.search.knn import knn
from matrix_interop.search.libraries import build, prepare
from matrix_interop.search.result import KnnResult

__all__ = ["Index", "KnnResult", "build", "knn", "prepare"]
