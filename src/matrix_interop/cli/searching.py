"""``search``: the nearest rows of one file for each row of another."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np

from matrix_interop.bench.report import table
from matrix_interop.cli.files import matrix_in, rows_in
from matrix_interop.cli.progress import Counted, Progress
from matrix_interop.io import save_matrix
from matrix_interop.search import knn

__all__ = ["search"]


def search(options: argparse.Namespace) -> None:
    """Search exactly, block by block of the base; print the first queries' neighbours, write all of them."""
    queries = matrix_in(options.queries)
    began = time.perf_counter()
    with rows_in(options.base) as base, Progress("search", len(base)) as progress:
        size = base.shape
        rows = Counted(base, progress)
        found = knn(queries, rows, options.k, metric=options.metric, engine=options.engine, device=options.device)
    seconds = time.perf_counter() - began
    ids, distances = np.asarray(found.ids), np.asarray(found.distances)
    print(f"{len(ids):,} queries in {size[0]:,} rows of {size[1]} values, {options.metric}: {seconds:.3f} s")
    shown = range(min(options.show, len(ids)))
    hits = [[str(query), _hits(ids[query], distances[query])] for query in shown]
    if hits:
        print(table([["query", "row (distance), nearest first"], *hits]))
    if len(ids) > len(shown):
        print(f"... and {len(ids) - len(shown):,} more")
    for path, values in ((options.out, _narrow(ids, options.out)), (options.distances, distances)):
        if path is not None:
            save_matrix(path, values)
            print(f"{path}: {values.shape[0]:,} x {values.shape[1]} {values.dtype}")


def _hits(ids: np.ndarray, distances: np.ndarray) -> str:
    return "  ".join(f"{i} ({d:.4g})" for i, d in zip(ids.tolist(), distances.tolist(), strict=True) if i >= 0)


def _narrow(ids: np.ndarray, path: Path | None) -> np.ndarray:
    """Row numbers in the 32 bits that .ivecs and .ibin hold, where they fit."""
    if path is None or path.suffix not in (".ivecs", ".ibin") or ids.max(initial=0) >= 2**31:
        return ids
    return ids.astype(np.int32)
