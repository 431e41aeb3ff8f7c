"""NVIDIA cuVS on a device: brute force, CAGRA, IVF-Flat and IVF-PQ.

cuVS takes a row stride other than the row length for dense memory, without an error, knows no bfloat16, takes queries
on the device only, ignores the stream and the device an array names and keeps no reference to the base (26.10).  So
everything reaches it as dense float32 rows while their device is current, and the base is kept here.  Its
``Resources(stream=...)`` takes the address of the Python number for the stream and crashes (NVIDIA/cuvs#1863), so it
works on the default stream of the calling thread, between two waits.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import PackageNotFoundError, distribution
from typing import Any, Final

import numpy as np

from matrix_interop.builder import MatrixBuilder
from matrix_interop.devices import Device, as_device
from matrix_interop.errors import FrameworkNotInstalledError
from matrix_interop.frameworks.registry import device_framework
from matrix_interop.matrix import DeviceMatrix, Matrix, from_tensor
from matrix_interop.runtime import get_runtime
from matrix_interop.search.device.arrays import Arrays, arrays_of
from matrix_interop.search.device.best import Best, Blank
from matrix_interop.search.device.dense import dense_rows
from matrix_interop.search.device.search import native_of, result_of
from matrix_interop.search.index import Index, refuse_iterator
from matrix_interop.search.result import KnnResult
from matrix_interop.search.sources import is_source, require_columns, require_numbers

__all__ = ["CuvsIndex"]

_METRICS: Final = {"squared": "sqeuclidean", "cosine": "cosine", "product": "inner_product"}
_ALGORITHMS: Final = ("brute_force", "cagra", "ivf_flat", "ivf_pq")
#: Queries handed over at once, and rows looked at for NaN at once.
_QUERIES: Final = 1 << 14
_ROWS: Final = 1 << 20


def _load(name: str) -> Any:
    """A module of cuVS. It needs a newer libnvJitLink than the one that older builds of torch bring and load."""
    with contextlib.suppress(PackageNotFoundError, OSError):
        for file in distribution("nvidia-nvjitlink").files or ():
            if file.name.startswith("libnvJitLink.so"):
                ctypes.CDLL(str(file.locate()), ctypes.RTLD_GLOBAL)
    try:
        return import_module(name)
    except OSError as error:
        msg = f"cuVS does not load here ({error}): pip install -U 'nvidia-nvjitlink>=13.3', or import cuvs before torch"
        raise FrameworkNotInstalledError(msg) from error


_common = _load("cuvs.common")


class CuvsIndex(Index):
    """``algorithm``: "brute_force", "cagra", "ivf_flat" or "ivf_pq".  ``device``: None for where the first rows are.

    ``search``: options of the algorithm's SearchParams, such as ``{"n_probes": 50}``.  All other options are those of
    its IndexParams; ``n_lists`` is the root of the number of rows unless given.  ``copy=False``: rows that are not
    dense float32 on the device are refused.

    `add` keeps the vectors on the device, shared with the caller's if they are a single matrix that is dense float32
    there (do not write to it then), and builds the native index of all of them; adding again builds it anew.
    """

    library = "cuvs"

    def __init__(
        self,
        dim: int,
        metric: str,
        *,
        check: bool,
        algorithm: str = "brute_force",
        device: Any = None,
        copy: bool | None = None,
        search: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(dim, metric, check=check)
        if algorithm not in _ALGORITHMS:
            msg = f"unknown algorithm {algorithm!r}: write one of {', '.join(map(repr, _ALGORITHMS))}"
            raise ValueError(msg)
        self.algorithm = algorithm
        self.native: Any = None
        self._module = _load(f"cuvs.neighbors.{algorithm}")
        self._device: Device | None = None if device is None else as_device(device)
        self._copy = copy
        self._searching = search or {}
        self._options = options
        self._base: DeviceMatrix | None = None
        self._names: Any = None  # the ids (n,) on the device, where the caller gave them
        self._local = threading.local()  # cuVS wants a handle for each thread
        if options:
            self._parameters(1)  # so that an unknown option is refused here

    def __len__(self) -> int:
        return 0 if self._base is None else len(self._base)

    def add(self, rows: Any, ids: Any = None) -> None:
        refuse_iterator(rows)
        fresh = (
            self._gathered(rows) if is_source(rows) else dense_rows(self._checked(rows), self._device, copy=self._copy)
        )
        self._checked(fresh)
        arrays = arrays_of(fresh.framework if self._base is None else self._base.framework, fresh.device)
        with arrays.context():
            if self.check:
                self._refuse_rows(_not_finite(arrays, native_of(arrays, fresh)))
            numbers = self._numbers(ids, len(fresh))
            if not len(fresh):
                return
            base = fresh
            if self._base is not None:
                both = [native_of(arrays, self._base), native_of(arrays, fresh)]
                base = dense_rows(arrays.xp.concat(both, axis=0))
            self.native = self._build(arrays, base)
            self._base, self._device = base, base.device
            self._note(numbers, ids)
            self._names = None if self._ids is None else arrays.array(self._ids)

    def _checked(self, rows: Any) -> Matrix:
        m = from_tensor(rows)
        require_columns("rows", m.shape[1], f"the {self.library} index", self.dim)
        return m

    def _gathered(self, blocks: Any) -> DeviceMatrix:
        """The rows of a row source, or of a list of blocks, in memory of their own on the device."""
        if self._copy is False:
            return dense_rows(np.zeros((1, self.dim), np.float64), self._device, copy=False)  # which says why not
        device = self._device or device_framework("cuda").current_device()
        builder = MatrixBuilder(self.dim, dtype="float32", device=device)
        for block in blocks.blocks() if hasattr(blocks, "read") else blocks:
            builder.extend(self._checked(block).astype("float32"))
        return dense_rows(builder.finish())

    def _build(self, arrays: Arrays, base: DeviceMatrix) -> Any:
        with self._handle(arrays, base.device) as handle:
            if self.algorithm == "brute_force":
                return self._module.build(base, metric=_METRICS[self.kind], resources=handle)
            return self._module.build(self._parameters(len(base)), base, resources=handle)

    def _parameters(self, count: int) -> Any:
        """IndexParams for so many rows."""
        chosen: dict[str, Any] = {"metric": _METRICS[self.kind]}
        if self.algorithm.startswith("ivf"):
            chosen["n_lists"] = max(1, int(np.sqrt(count)))
        elif self.algorithm == "cagra":
            chosen |= {
                "intermediate_graph_degree": min(128, max(1, count - 1)),
                "graph_degree": min(64, max(1, count - 1)),
            }
        if self.algorithm == "brute_force":
            names = ", ".join(self._options)
            msg = f"brute_force has no option {names}: it takes algorithm, device, copy and check only"
            raise TypeError(msg)
        return self._module.IndexParams(**(chosen | self._options))

    @contextlib.contextmanager
    def _handle(self, arrays: Arrays, device: Device) -> Iterator[Any]:
        """cuVS's handle, with ``device`` current, once all that it will read is there; afterwards all is written."""
        runtime = get_runtime(device.type)
        ready = runtime.record(arrays.framework.current_stream(device), device.index)
        try:
            runtime.synchronize(ready)
        finally:
            runtime.release(ready)
        with runtime.current(device.index):
            handle = getattr(self._local, "handle", None)
            if handle is None:  # making it takes longer than a search
                handle = self._local.handle = _common.Resources()
            try:
                yield handle
            finally:  # after an error, too: what was queued still reads memory that is about to go
                handle.sync()

    def search(self, queries: Any, k: int) -> KnnResult:
        asked, k = self._asked(queries, k)
        where = dense_rows(np.empty((0, self.dim), np.float32), self._device) if self._base is None else self._base
        arrays = arrays_of(where.framework, where.device)
        with arrays.context():
            xp = arrays.xp
            require_numbers("queries", np.empty(0, asked.dtype))
            wide = asked.to_tensor(
                where.framework, device=where.device, dtype="float32", order="C", share_readonly=True
            )
            usable = xp.all(xp.isfinite(wide), axis=1)
            wide = xp.where(usable[:, None], wide, 0.0)
            best: Best = Blank(arrays, len(asked), k)
            found = min(k, len(self))
            if found and len(asked):
                steps = range(0, len(asked), _QUERIES)
                parts = [self._found(arrays, wide[start : start + _QUERIES, :], found) for start in steps]
                ids, keys = (xp.concat([part[turn] for part in parts], axis=0) for turn in (0, 1))
                order = arrays.order(ids)  # as `joined` wants them
                best = best.joined(arrays.along(keys, order), arrays.along(ids, order))
            with np.errstate(over="ignore", under="ignore"):
                return result_of(arrays, asked, usable, best, self.metric, short=True)

    def _found(self, arrays: Arrays, queries: Any, k: int) -> tuple[Any, Any]:
        """(ids, keys) of queries on the device, as the library gives them, in our terms."""
        assert self._base is not None  # noqa: S101 - for the type checker: there are rows to be found
        xp, device, shape = arrays.xp, self._base.device, (queries.shape[0], k)
        unsigned = self.algorithm == "cagra"
        places = arrays.framework.empty(shape, np.dtype("int32" if unsigned else "int64"), device)
        scores = arrays.framework.empty(shape, np.dtype("float32"), device)
        # Described before the wait: describing may order streams.
        neighbors = _Unsigned(places) if unsigned else from_tensor(places)
        distances = from_tensor(scores)
        arguments: tuple[Any, ...] = (self.native, from_tensor(queries), k)
        if self.algorithm != "brute_force":
            arguments = (self._module.SearchParams(**self._search_options(k)), *arguments)
        with self._handle(arrays, device) as handle:
            self._module.search(*arguments, neighbors=neighbors, distances=distances, resources=handle)
        places, keys = arrays.astype(places, "int64"), arrays.astype(scores, "float64")
        missing = (places < 0) | (places >= len(self)) | xp.isnan(keys)
        keys = -keys if self.kind == "product" else xp.where(keys > 0, keys, 0.0)
        ids = xp.where(missing, 0, places)
        if self._names is not None:
            ids = xp.reshape(arrays.rows(self._names, xp.reshape(ids, (-1,))), shape)
        return ids, xp.where(missing, xp.nan, keys)

    def _search_options(self, k: int) -> dict[str, Any]:
        """SearchParams: CAGRA keeps at least so many candidates."""
        wanted = {"itopk_size": max(64, -(-k // 32) * 32)} if self.algorithm == "cagra" else {}
        return wanted | self._searching

    def _vectors(self, ids: np.ndarray) -> np.ndarray:
        assert self._base is not None  # noqa: S101 - for the type checker: `vectors` asks only where there are some
        return np.asarray(self._base.to_host())

    def _save(self, path: str) -> None:
        if self._base is None:
            msg = "the cuvs index holds no rows: there is nothing to save yet"
            raise ValueError(msg)
        with self._handle(arrays_of(self._base.framework, self._base.device), self._base.device) as handle:
            self._module.save(path, self.native, resources=handle)


class _Unsigned:
    """The memory of an int32 tensor as unsigned numbers, which CAGRA writes and not all frameworks have."""

    def __init__(self, native: Any) -> None:
        made = from_tensor(native)
        assert isinstance(made, DeviceMatrix)  # noqa: S101 - for the type checker
        self.__cuda_array_interface__ = {**made.__cuda_array_interface__, "typestr": "<u4"}
        self._keep = native


def _not_finite(arrays: Arrays, rows: Any) -> list[int]:
    """Numbers of the rows with NaN or infinity."""
    found: list[int] = []
    for start in range(0, rows.shape[0], _ROWS):
        finite = arrays.xp.all(arrays.xp.isfinite(rows[start : start + _ROWS, :]), axis=1)
        found.extend((np.flatnonzero(~arrays.host(finite)) + start).tolist())
    return found
