"""`knn`: exact nearest neighbours of every query, by blocks of the base."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from matrix_interop.matrix import from_tensor
from matrix_interop.search.device.search import device_of_search, search_on_device
from matrix_interop.search.engines import engine_for
from matrix_interop.search.exact import widened
from matrix_interop.search.merge import Best
from matrix_interop.search.metrics import distances_of, kind_of
from matrix_interop.search.result import KnnResult, in_framework_of
from matrix_interop.search.screen import Screen
from matrix_interop.search.sources import (
    blocks_of,
    host_array,
    is_short_float,
    is_source,
    neighbours,
    require_columns,
    require_numbers,
)

__all__ = ["knn"]

#: Queries searched at once.
_QUERIES: Final = 4096


def knn(
    queries: Any,
    base: Any,
    k: int,
    *,
    metric: str = "sqeuclidean",
    block: int | None = None,
    device: Any = None,
    engine: str | None = None,
) -> KnnResult:
    """The ``k`` rows of ``base`` nearest to each row of ``queries``, exactly.

    ``queries`` (q, d): anything `from_tensor` takes.  ``base`` (n, d): the same, or a row source such as
    `open_rows` gives, or a list, tuple or iterator of blocks (b, d).  It is read once, in order, ``block``
    rows at a time (None: 64 MiB of float32; on a device all that is there, and from the host 256 to 512 MiB, each sent
    while the device searches the one before), so it may be larger than memory.

    ``metric``: "sqeuclidean" (sum of squared differences), "euclidean" (its root), "cosine" (1 - cos, in
    [0, 2]; a zero vector is at distance 1 from everything), "inner_product" (largest first).

    The neighbours are those of exact search in float64: sorted by distance, equal distances by lowest
    id, each query answered as if it were alone, no distance but a product below 0.  Integers are
    exact while sums stay below 2**53.  ``distances`` are float32 where queries and base are both floats of
    at most 32 bits, else float64; a distance beyond float32 is +inf there, its id is still right.
    ``k`` larger than n leaves the last places empty: id -1, distance +inf (products: -inf).  A row or query
    with NaN or infinity has no neighbours and is none.

    ``device``: where to search; None: where the queries are, else where the base is.  Results live with the queries,
    on a device in its stream order, in their framework.

    ``engine``: on the host "faiss", "numpy", "torch" or "jax" finds the candidates; None: FAISS where it is installed,
    else NumPy.  On a device "torch" or "jax"; None: torch for its own memory, CuPy's and what comes from the host, JAX
    for its own, else the array API of who owns the memory.  It changes how long a search takes, not what it finds.
    While torch multiplies for a search on a device, the process does so at full precision, without TF32.

    Raises ValueError for ``k`` < 1, an unknown metric or engine; `UnsupportedLayoutError` where the
    numbers of columns differ; `UnsupportedDtypeError` for complex numbers and integers beyond 2**53;
    `DeviceUnavailableError`.
    """
    kind = kind_of(metric)
    k = neighbours(k)
    asked = from_tensor(queries)
    base = base if is_source(base) else from_tensor(base)
    place = device_of_search(asked, base, device, engine)
    if place is not None:
        return search_on_device(asked, base, k, metric=metric, block=block, device=place, engine=engine)
    chosen = engine_for(engine)
    rows = host_array(asked)
    require_numbers("queries", rows)
    usable = _finite(rows)
    best = Best.empty(len(rows), k)
    short = is_short_float(rows.dtype)
    number = 0
    for part in blocks_of(base, block):
        require_columns("queries", rows.shape[1], "base", part.shape[1])
        require_numbers("rows of the base", part)
        short = short and is_short_float(part.dtype)
        screen = Screen(kind, part, number, chosen)
        for start in range(0, len(usable), _QUERIES):
            some = usable[start : start + _QUERIES]
            best.put(some, screen.search(widened(rows[some]), best[some]))
        number += len(part)
    dtype = np.dtype(np.float32 if short else np.float64)
    return in_framework_of(asked, best.ids, distances_of(metric, best.keys, dtype))


def _finite(rows: np.ndarray) -> np.ndarray:
    """Numbers of the rows without NaN or infinity."""
    if rows.dtype.kind in "iub":
        return np.arange(len(rows))
    step = max(1, (1 << 20) // max(rows.shape[1], 1))
    parts = [np.isfinite(widened(rows[start : start + step])).all(axis=1) for start in range(0, len(rows), step)]
    return np.flatnonzero(np.concatenate(parts)) if parts else np.arange(0)
