"""``search``: the nearest rows of one file for each row of another."""

from __future__ import annotations

import argparse
import errno
import os
import time
from pathlib import Path
from typing import Any

import numpy as np

from matrix_interop.bench.report import table
from matrix_interop.cli.files import matrix_in, rows_in
from matrix_interop.cli.progress import Counted, Progress
from matrix_interop.io import save_matrix
from matrix_interop.io.registry import find
from matrix_interop.search import knn
from matrix_interop.search.sources import is_short_float

__all__ = ["search"]


def search(options: argparse.Namespace) -> None:
    """Search exactly, block by block of the base; print the first queries' neighbours, write all of them."""
    queries = matrix_in(options.queries)
    began = time.perf_counter()
    with rows_in(options.base) as base, Progress("search", len(base)) as progress:
        size = base.shape
        short = is_short_float(queries.dtype) and is_short_float(base.dtype)
        outputs = [
            (options.out, _id_type(options.out, len(base))),
            (options.distances, np.dtype("f4" if short else "f8")),
        ]
        _require_places(outputs, (len(queries), options.k))
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
    for (path, dtype), values in zip(outputs, (ids, distances), strict=True):
        if path is not None:
            save_matrix(path, values.astype(dtype, copy=False))
            print(f"{path}: {values.shape[0]:,} x {values.shape[1]} {dtype}")


def _hits(ids: np.ndarray, distances: np.ndarray) -> str:
    return "  ".join(f"{i} ({d:.4g})" for i, d in zip(ids.tolist(), distances.tolist(), strict=True) if i >= 0)


def _id_type(path: Path | None, rows: int) -> np.dtype[np.signedinteger]:
    """The 32 bits that .ivecs and .ibin hold, where row numbers fit, else 64."""
    narrow = path is not None and path.suffix.lower() in (".ivecs", ".ibin") and rows <= 2**31
    return np.dtype(np.int32 if narrow else np.int64)


def _require_places(outputs: list[tuple[Path | None, np.dtype[Any]]], shape: tuple[int, int]) -> None:
    """Refuse before the search what could not be written after it."""
    taken: set[Path] = set()
    for path, dtype in outputs:
        if path is None:
            continue
        find(path, None, reading=False).storage(shape, dtype)
        if not path.absolute().parent.is_dir():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path.parent))
        if path.resolve() in taken:
            raise FileExistsError(f"{path} is both --out and --distances: name two files")
        taken.add(path.resolve())
