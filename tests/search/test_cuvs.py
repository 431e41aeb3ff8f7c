"""cuVS over a stub on devices that run late: a missing wait, a device that is not current or a padded row shows.

The stub takes what cuVS 26.10 takes (signatures, arrays, handles) and does its work where cuVS does it: on the
calling thread's default stream of the device that is current.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from matrix_interop.memory import PinnedArena, use_arena
from matrix_interop.search import KnnResult, build
from matrix_interop.search.device import arrays as device_arrays
from search.reference import METRICS, neighbours
from search.test_knn import rows
from simulated import lateframe
from simulated.adapter import as_cuda
from simulated.runtime import PER_THREAD, SimulatedRuntime

#: The stub never finds this row, and a filler of cuVS's own stands there.
LOST = 4


# The library --------------------------------------------------------------------------------------
class Cuvs:
    """What the stub knows of the device."""

    runtime: SimulatedRuntime
    handles = 0


class Resources:
    """A handle: for the device that was current and the thread that made it."""

    def __init__(self) -> None:
        self.made = lateframe.current_device(), threading.get_ident()
        Cuvs.handles += 1

    def ordinal(self) -> int:
        assert self.made == (lateframe.current_device(), threading.get_ident())
        return self.made[0]

    def sync(self) -> None:
        Cuvs.runtime.stream_synchronize(PER_THREAD, self.ordinal())


class Parameters:
    """IndexParams and SearchParams."""

    def __init__(self, *, metric: str = "sqeuclidean", n_lists: int = 1024, n_probes: int = 20, **options: Any) -> None:
        known = {"itopk_size", "graph_degree", "intermediate_graph_degree"}
        if unknown := options.keys() - known:
            raise TypeError(f"unexpected keyword argument {unknown}")
        self.metric, self.n_lists, self.n_probes, self.options = metric, n_lists, n_probes, options


def memory(x: Any, dtype: str) -> Any:
    """Where an array lies, by its CUDA array interface alone; read only once the device gets there."""
    interface = x.__cuda_array_interface__
    strides = interface["strides"]
    assert interface["typestr"] == dtype
    assert strides is None or strides[-1] == np.dtype(dtype).itemsize
    shape, (address, _) = interface["shape"], interface["data"]
    assert Cuvs.runtime.pointer(address).ordinal == lateframe.current_device()
    dense = (shape[1] * np.dtype(dtype).itemsize, np.dtype(dtype).itemsize)
    return lambda: Cuvs.runtime.array(address, shape, dense, np.dtype(dtype))


class Native:
    """An index: it keeps no reference to the base."""

    def __init__(self, metric: str, base: Any, resources: Resources, parameters: Parameters | None) -> None:
        self.metric, self.parameters = metric, parameters
        self.base: np.ndarray | None = None
        values = memory(base, "<f4")

        def keep() -> None:
            self.base = values().copy()

        Cuvs.runtime.launch(keep, ordinal=resources.ordinal(), stream=PER_THREAD)


def _find(native: Native, queries: Any, k: int, neighbors: Any, distances: Any, resources: Resources, ids: str) -> None:
    asked, places, scores = memory(queries, "<f4"), memory(neighbors, ids), memory(distances, "<f4")

    def find() -> None:
        assert native.base is not None
        found, measured = neighbours(asked(), native.base, k, native.metric)
        places()[...] = np.where(found == LOST, np.iinfo(ids).max, found)
        scores()[...] = np.where(found == LOST, 3.4e38, measured)

    Cuvs.runtime.launch(find, ordinal=resources.ordinal(), stream=PER_THREAD)


def _module(name: str) -> ModuleType:
    """One algorithm of the library."""
    module: Any = ModuleType(f"cuvs.neighbors.{name}")
    if name == "brute_force":

        def build(dataset: Any, metric: str = "sqeuclidean", metric_arg: float = 2.0, *, resources: Any) -> Native:
            return Native(metric, dataset, resources, None)

        def search(
            index: Native, queries: Any, k: int, neighbors: Any = None, distances: Any = None, *, resources: Any
        ) -> None:
            _find(index, queries, k, neighbors, distances, resources, "<i8")
    else:

        def build(index_params: Parameters, dataset: Any, *, resources: Any) -> Native:  # type: ignore[misc]
            return Native(index_params.metric, dataset, resources, index_params)

        def search(  # type: ignore[misc]
            search_params: Parameters,
            index: Native,
            queries: Any,
            k: int,
            neighbors: Any = None,
            distances: Any = None,
            *,
            resources: Any,
        ) -> None:
            _find(index, queries, k, neighbors, distances, resources, "<u4" if name == "cagra" else "<i8")

        module.IndexParams = module.SearchParams = Parameters

    def save(filename: str, index: Native, include_dataset: bool = True, *, resources: Resources) -> None:
        Path(filename).write_text(f"{index.metric} {resources.ordinal()}")

    module.build, module.search, module.save = build, search, save
    return module


# The device ---------------------------------------------------------------------------------------
class LateNamespace:
    """The array API over lateframe, as far as cuVS's results need it."""

    def __getattr__(self, name: str) -> Any:
        found = getattr(np, name)
        if isinstance(found, float | type):
            return found
        return lambda *operands, **keywords: lateframe.apply(found, *operands, **keywords)

    def concat(self, parts: list[Any], axis: int) -> Any:
        return lateframe.apply(lambda *parts: np.concatenate(parts, axis), *parts)


class LateArrays(device_arrays.Arrays):
    """What the search asks of lateframe."""

    def __init__(self, framework: Any, device: Any) -> None:
        super().__init__(framework, device)
        self.xp = LateNamespace()

    def astype(self, x: Any, dtype: str) -> Any:
        return lateframe.astype(x, dtype)

    def host(self, x: Any) -> np.ndarray:
        return np.asarray(x.numpy())


@pytest.fixture(params=range(4))
def cuvs(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[SimulatedRuntime]:
    """The stub in the place of cuVS, and two late devices in that of CUDA's; lateframe on side streams of both."""
    common: Any = ModuleType("cuvs.common")
    common.Resources = Resources
    modules = {"cuvs": ModuleType("cuvs"), "cuvs.common": common, "cuvs.neighbors": ModuleType("cuvs.neighbors")}
    modules |= {f"cuvs.neighbors.{name}": _module(name) for name in ("brute_force", "cagra", "ivf_flat", "ivf_pq")}
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, "matrix_interop.search.cuvs", raising=False)
    monkeypatch.setitem(device_arrays._TABLE, "lateframe", f"{__name__}:LateArrays")
    monkeypatch.setattr(SimulatedRuntime, "current", lambda _, ordinal: lateframe.device(ordinal), raising=False)
    for name in ("lt", "ge", "or", "neg"):
        function = getattr(np, {"lt": "less", "ge": "greater_equal", "or": "bitwise_or", "neg": "negative"}[name])
        operator = lambda *operands, function=function: lateframe.apply(function, *operands)  # noqa: E731
        monkeypatch.setattr(lateframe.Array, f"__{name}__", operator, raising=False)
    device_arrays.arrays_of.cache_clear()
    Cuvs.handles = 0
    with (
        as_cuda(request.param) as runtime,
        use_arena(PinnedArena(32 << 20, runtime=runtime)),
        lateframe.stream(lateframe.new_stream(0), 0),
        lateframe.stream(lateframe.new_stream(1), 1),
    ):
        Cuvs.runtime = runtime
        yield runtime
    device_arrays.arrays_of.cache_clear()
    sys.modules.pop("matrix_interop.search.cuvs", None)


def late(values: np.ndarray, ordinal: int = 1) -> lateframe.Array:
    """A device array that a slow kernel fills."""
    return lateframe.copy_late(lateframe.empty(values.shape, values.dtype, ordinal), lateframe.array(values, ordinal))


def on_host(found: KnnResult) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Ids, distances and counts."""
    return found.ids.numpy(), found.distances.numpy(), found.valid.numpy()


# What it does -------------------------------------------------------------------------------------
@pytest.mark.parametrize("algorithm", ["brute_force", "cagra", "ivf_flat", "ivf_pq"])
@pytest.mark.parametrize("metric", METRICS)
def test_results_follow_our_convention(cuvs: SimulatedRuntime, algorithm: str, metric: str) -> None:
    """T49: fillers become -1 and come last, products are largest first, ids are int64; all on the second device,
    which is not current, right behind the kernels that write base and queries.
    """
    base, queries = rows(30, 8), rows(6, 8, 1)
    index = build(late(base), "cuvs", algorithm=algorithm, metric=metric)
    found, measured, valid = on_host(index.search(late(queries), 40))
    ids, distances = neighbours(queries, base, 30, metric)
    kept = ids != LOST
    assert np.array_equal(found[:, :29], ids[kept].reshape(6, 29))
    np.testing.assert_allclose(measured[:, :29], distances[kept].reshape(6, 29), rtol=1e-5, atol=1e-6)
    assert (found[:, 29:] == -1).all()
    assert valid.tolist() == [29] * 6
    assert found.dtype == np.int64
    assert lateframe.current_device() == 0


def test_layouts_become_dense_rows(cuvs: SimulatedRuntime) -> None:
    """T42: what cuVS would misread, and other types, reach it as dense float32."""
    base, queries = rows(30, 8), rows(6, 8, 1)
    expected = on_host(build(late(base), "cuvs").search(late(queries), 3))[0]
    wide = np.zeros((60, 12), np.float32)
    wide[::2, :8] = base
    forms = [late(wide)[::2, :8], late(np.ascontiguousarray(base[::-1]))[::-1], late(base.T.copy()).T]
    for form in (*forms, late(base.astype(np.float64))):
        assert np.array_equal(on_host(build(form, "cuvs").search(late(queries), 3))[0], expected)
        assert np.array_equal(on_host(build(late(base), "cuvs").search(form[:6], 1))[0].ravel()[:LOST], range(LOST))


def test_rows_are_shared_and_kept(cuvs: SimulatedRuntime) -> None:
    """Dense float32 rows on the device stay where they are, for as long as the index lives."""
    base = late(rows(30, 8))
    index: Any = build(base, "cuvs", copy=False)
    assert index._base.array.pointer == base.pointer
    assert index._base.array.owner is not None


def test_adds_names_and_refuses(cuvs: SimulatedRuntime) -> None:
    """More rows, ids of the caller's own, rows that are not finite by number, options that do not exist."""
    base = rows(30, 8)
    index = build(late(base[:10]), "cuvs", algorithm="ivf_flat", search={"n_probes": 3})
    index.add(late(base[10:]), ids=np.arange(20) + 2**40)
    assert (len(index), index.native.parameters.n_lists) == (30, 5)
    assert on_host(index.search(late(base[[0, 12]]), 1))[0].tolist() == [[0], [2**40 + 2]]
    assert np.array_equal(index.vectors(), base)
    bad = rows(5, 8)
    bad[1, 0], bad[3, 2] = np.nan, np.inf
    with pytest.raises(ValueError, match="rows 1, 3"):
        index.add(late(bad))
    assert len(index) == 30
    queries = base[:2].copy()
    queries[0, 0] = np.nan
    assert on_host(index.search(late(queries), 2))[2].tolist() == [0, 2]
    with pytest.raises(TypeError, match="nlist"):
        build(late(base), "cuvs", algorithm="ivf_flat", nlist=3)
    with pytest.raises(TypeError, match="nlist"):
        build(late(base), "cuvs", nlist=3)
    with pytest.raises(ValueError, match="'cagra'"):
        build(late(base), "cuvs", algorithm="hnsw")


def test_each_thread_has_a_handle(cuvs: SimulatedRuntime) -> None:
    """A handle serves many calls of one thread, and none of another."""
    base, found = rows(30, 8), []
    index = build(late(base), "cuvs")

    def search() -> None:
        with lateframe.stream(lateframe.new_stream(1), 1):
            found.extend(on_host(index.search(late(base[:3]), 1))[0].ravel().tolist() for _ in range(2))

    search()
    assert Cuvs.handles == 1
    other = threading.Thread(target=search)
    other.start()
    other.join()
    assert Cuvs.handles == 2
    assert found == [[0, 1, 2]] * 4


def test_memory_outlives_a_failed_search(cuvs: SimulatedRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a call had queued before it failed has ended when the error arrives."""
    index: Any = build(late(rows(30, 8)), "cuvs")
    ended: list[bool] = []

    def fails(*_: Any, resources: Resources, **__: Any) -> None:
        Cuvs.runtime.launch(lambda: ended.append(True), ordinal=resources.ordinal(), stream=PER_THREAD)
        raise RuntimeError("cuVS says no")

    monkeypatch.setattr(index._module, "search", fails)
    with pytest.raises(RuntimeError, match="says no"):
        index.search(late(rows(6, 8, 1)), 3)
    assert ended == [True]
    assert lateframe.current_device() == 0


def test_saves_on_its_device(cuvs: SimulatedRuntime, tmp_path: Path) -> None:
    """The file is the library's own; an index without rows has none."""
    build(late(rows(30, 8)), "cuvs", metric="cosine").save(tmp_path / "index")
    assert (tmp_path / "index").read_text() == "cosine 1"
    with pytest.raises(ValueError, match="nothing to save"):
        build(late(rows(0, 8)), "cuvs").save(tmp_path / "empty")
