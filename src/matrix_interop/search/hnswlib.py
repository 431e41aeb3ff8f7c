"""hnswlib: a graph index that trusts its caller; see `index.py` for what is checked before it sees anything."""

from __future__ import annotations

from typing import Any, Final

import hnswlib
import numpy as np

from matrix_interop.search.index import HostIndex

__all__ = ["HnswlibIndex"]

_SPACES: Final = {"squared": "l2", "cosine": "cosine", "product": "ip"}


class HnswlibIndex(HostIndex):
    """``M``, ``ef_construction``, ``seed``: as in hnswlib. ``ef``: the least number of candidates a search keeps.

    With cosine the index keeps unit vectors.  hnswlib gives products as 1 - q.b, so small ones lose digits.
    """

    library = "hnswlib"

    def __init__(
        self,
        dim: int,
        metric: str,
        *,
        check: bool,
        M: int = 16,  # noqa: N803 - the library's own name
        ef_construction: int = 200,
        ef: int = 64,
        seed: int = 100,
    ) -> None:
        super().__init__(dim, metric, check=check)
        if int(M) < 2:  # the library would divide by log(M) and crash
            msg = f"M={M}: a graph needs 2 links or more at each vector"
            raise ValueError(msg)
        if int(seed) < 0:
            msg = f"seed={seed}: a seed is 0 or more"
            raise ValueError(msg)
        self.ef = int(ef)
        self.native = hnswlib.Index(space=_SPACES[self.kind], dim=int(dim))
        self.native.init_index(max_elements=1, M=int(M), ef_construction=int(ef_construction), random_seed=int(seed))

    def __len__(self) -> int:
        return int(self.native.get_current_count())

    def _ready(self, rows: Any, ids: np.ndarray) -> None:
        del rows
        if len(self) + len(ids) > self.native.get_max_elements():
            self.native.resize_index(len(self) + len(ids))

    def _add(self, rows: np.ndarray, ids: np.ndarray) -> None:
        self.native.add_items(rows, ids)

    def _search(self, queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        try:
            ids, distances = self._query(queries, k, max(self.ef, k))
        except RuntimeError:  # the graph gave some query fewer than k
            ids, distances = self._one_by_one(queries, k)
        if self.kind == "product":
            return ids, distances - 1
        return ids, np.maximum(distances, 0)

    def _query(self, queries: np.ndarray, k: int, ef: int) -> tuple[np.ndarray, np.ndarray]:
        self.native.set_ef(ef)
        found: tuple[np.ndarray, np.ndarray] = self.native.knn_query(queries, k=k)
        return found

    def _one_by_one(self, queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Each query with the largest number of neighbours that hnswlib can give it; it says only whether it can."""
        ids = np.full((len(queries), k), -1, np.int64)
        distances = np.full((len(queries), k), np.inf, np.float32)
        for number in range(len(queries)):
            low, high = 0, k
            while low < high:
                middle = (low + high + 1) // 2
                try:
                    found = self._query(queries[number : number + 1], middle, len(self))
                except RuntimeError:
                    high = middle - 1
                else:
                    low = middle
                    ids[number, :low], distances[number, :low] = found[0][0], found[1][0]
        return ids, distances

    def _vectors(self, ids: np.ndarray) -> np.ndarray:
        found: np.ndarray = self.native.get_items(ids, return_type="numpy")
        return found

    def _save(self, path: str) -> None:
        self.native.save_index(path)
