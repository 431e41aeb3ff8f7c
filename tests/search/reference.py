"""The slow, plain truth that searches are held against."""

from __future__ import annotations

from typing import Any

import numpy as np

METRICS = ("sqeuclidean", "euclidean", "cosine", "inner_product")


@np.errstate(all="ignore")  # NaN and infinity are asked about, too
def distances(queries: Any, base: Any, metric: str) -> np.ndarray:
    """(q, n) float64 distances by the definition of the metric, subtraction first."""
    q, b = np.asarray(queries).astype(np.float64), np.asarray(base).astype(np.float64)
    if metric == "inner_product":
        return np.stack([(row * b).sum(axis=1) for row in q]) if len(q) else np.empty((0, len(b)))
    if metric == "cosine":
        return np.stack([_cosine(row, b) for row in q]) if len(q) else np.empty((0, len(b)))
    squared = np.stack([((row - b) ** 2).sum(axis=1) for row in q]) if len(q) else np.empty((0, len(b)))
    return np.sqrt(squared) if metric == "euclidean" else squared


def _cosine(q: np.ndarray, b: np.ndarray) -> np.ndarray:
    norms = np.sqrt((q * q).sum()) * np.sqrt((b * b).sum(axis=1))
    return np.where(norms > 0, 1 - (b * q).sum(axis=1) / norms, 1.0)


def neighbours(queries: Any, base: Any, k: int, metric: str) -> tuple[np.ndarray, np.ndarray]:
    """(ids, distances) of the k nearest finite rows, ties by lowest id, filled with -1 and +-inf."""
    truth = distances(queries, base, metric)
    missing = -np.inf if metric == "inner_product" else np.inf
    ids = np.full((len(truth), k), -1)
    found = np.full((len(truth), k), missing)
    key = -truth if metric == "inner_product" else truth
    finite = np.isfinite(np.asarray(base).astype(np.float64)).all(axis=1)
    for number, row in enumerate(key):
        if not np.isfinite(np.asarray(queries).astype(np.float64)[number]).all():
            continue
        order = [i for i in np.argsort(row, kind="stable") if finite[i]][:k]
        ids[number, : len(order)] = order
        found[number, : len(order)] = truth[number, order]
    return ids, found


def recall(ids: np.ndarray, queries: Any, base: Any, metric: str) -> float:
    """Share of ``ids`` (q, k) whose true distance is no worse than that of the true k-th neighbour."""
    k = ids.shape[1]
    truth = distances(queries, base, metric)
    key = -truth if metric == "inner_product" else truth
    limit = np.partition(key, k - 1, axis=1)[:, k - 1 : k]
    distinct = all(len(set(row)) == k for row in ids.tolist())
    hits = np.take_along_axis(key, ids, axis=1) <= limit
    return float(hits.mean()) if distinct else 0.0
