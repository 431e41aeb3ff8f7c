"""`build` and `prepare`: each input right or refused, one convention for every library."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pyarrow as pa
import pytest
import torch

from matrix_interop.errors import (
    CopyRequiredError,
    DeviceUnavailableError,
    FrameworkNotInstalledError,
    UnsupportedDtypeError,
    UnsupportedLayoutError,
)
from matrix_interop.matrix import from_tensor
from matrix_interop.search import Index, build, knn, libraries, prepare
from matrix_interop.search.index import _sorted
from matrix_interop.tracking import forbid_copies
from search.reference import METRICS, recall
from search.test_knn import LAYOUTS, Source, rows

LIBRARIES = ("faiss", "hnswlib", "usearch")


@pytest.fixture(params=LIBRARIES)
def library(request: pytest.FixtureRequest) -> str:
    """Each library in turn, where it is installed."""
    pytest.importorskip(request.param)
    return str(request.param)


def data(dtype: Any = "f4") -> tuple[np.ndarray, np.ndarray]:
    """Base (500, 16) and queries (20, 16)."""
    return rows(500, 16, 0, dtype), rows(20, 16, 1, dtype)


INPUTS: dict[str, Callable[[np.ndarray], Any]] = {
    **LAYOUTS,
    "torch": torch.from_numpy,
    "torch float64": lambda x: torch.from_numpy(x).double(),
    "torch bfloat16": lambda x: torch.from_numpy(x).bfloat16(),
    "torch with grad": lambda x: torch.from_numpy(x).requires_grad_(),
    "jax": jnp.asarray,
    "arrow": lambda x: pa.FixedSizeListArray.from_arrays(pa.array(x.ravel()), x.shape[1]),
    "nested lists": np.ndarray.tolist,
    "list of rows": list,
    "Matrix": from_tensor,
    "blocks": lambda x: [x[: len(x) // 2], x[len(x) // 2 :]],
}


@pytest.mark.parametrize("form", INPUTS)
def test_every_form_of_input(library: str, form: str) -> None:
    """What the library refuses, misreads or crashes on by itself gives the neighbours of a packed copy."""
    base, queries = data()
    index = build(INPUTS[form](base), library)
    asked = queries if form == "blocks" else INPUTS[form](queries)
    found = index.search(asked, 5)
    tolerance = 0.9 if form == "torch bfloat16" else 1.0
    assert recall(np.asarray(found.ids), queries, base, "sqeuclidean") >= tolerance
    assert np.array_equal(index.vectors(), base) or form == "torch bfloat16"


@pytest.mark.parametrize("dtype", ["f2", "f8", "i1", "u1", "i2", "i4", "i8", ">f4", "?", ml_dtypes.bfloat16], ids=str)
def test_every_dtype(library: str, dtype: Any) -> None:
    """Both sides become float32 by value: no bits are reinterpreted, rows read back as given."""
    base, queries = data(dtype)
    index = build(base, library)
    assert np.array_equal(index.vectors(), base.astype(np.float32))
    found = index.search(queries, 5)
    assert recall(found.ids, queries.astype(np.float32), base.astype(np.float32), "sqeuclidean") >= 0.97


def test_a_mapped_base(library: str, tmp_path: Path) -> None:
    """A read-only mapping is added in batches."""
    base, queries = data()
    np.save(tmp_path / "base.npy", base)
    index = build(np.load(tmp_path / "base.npy", mmap_mode="r"), library)
    assert recall(index.search(queries, 5).ids, queries, base, "sqeuclidean") == 1.0
    assert np.array_equal(build(Source(base), library).vectors(), base)


@pytest.mark.parametrize("metric", METRICS)
def test_every_metric(library: str, metric: str) -> None:
    """Distances mean what they mean in `knn`: squared L2, its root, 1 - cos, the product itself."""
    base, queries = data()
    found, truth = build(base, library, metric=metric).search(queries, 5), knn(queries, base, 5, metric=metric)
    same = found.ids == truth.ids
    assert same.mean() > 0.9
    np.testing.assert_allclose(found.distances[same], truth.distances[same], rtol=1e-5, atol=2e-6)
    assert found.distances.dtype == np.float32


def test_t42_t43_layout(library: str) -> None:
    """Steps between columns and Fortran order are packed; the rows stored are the rows given."""
    base = np.random.default_rng(0).random((50, 16), np.float32)[:, ::2]
    assert np.array_equal(build(base, library).search(base, 3).ids[:, 0], np.arange(50))
    columns = np.asfortranarray(rows(100, 32, 0, "i1"))
    assert np.array_equal(build(columns, library).vectors(), columns)


def test_t44_ids_are_widened(library: str) -> None:
    """int32 ids through every way of adding come back as int64; ids of one's own are kept."""
    base = rows(10, 8)
    for ids in (None, np.arange(10, dtype=np.int32), torch.arange(10, dtype=torch.int32), list(range(10))):
        index = build(base[:0], library)
        index.add(base, ids)
        found = index.search(base, 1).ids
        assert (found.dtype, found.ravel().tolist()) == (np.dtype(np.int64), list(range(10)))
    index = build(base[:0], library)
    index.add(base[:5], np.array([7, 2**40, 3, 9, 1], np.uint64))
    index.add(base[5:], [11, 12, 13, 14, 15])
    assert index.search(base, 1).ids.ravel().tolist() == [7, 2**40, 3, 9, 1, 11, 12, 13, 14, 15]
    assert np.array_equal(index.vectors(), base)


def test_t45_results_live_with_the_queries(library: str) -> None:
    """torch and JAX queries give what NumPy queries give, in their own arrays."""
    base, queries = rows(100, 8), rows(4, 8, 1)
    index = build(base, library)
    expected = index.search(queries, 2).ids
    found = index.search(torch.from_numpy(queries), 2)
    assert (type(found.ids), found.ids.dtype) == (torch.Tensor, torch.int64)
    assert np.array_equal(found.ids.numpy(), expected)
    assert np.array_equal(np.asarray(index.search(jnp.asarray(queries), 2).ids), expected)


@pytest.mark.parametrize("queries", [1, 2])
def test_t47_more_neighbours_than_rows(library: str, queries: int) -> None:
    """No exception, no key 0, no NaN: id -1 at +inf, and a count."""
    index = build(rows(3, 4), library)
    found = index.search(rows(queries, 4, 1), 5)
    assert found.valid.tolist() == [3] * queries
    assert found.ids[:, 3:].tolist() == [[-1, -1]] * queries
    assert sorted(found.ids[0, :3].tolist()) == [0, 1, 2]
    assert np.isposinf(found.distances[:, 3:]).all()
    products = build(rows(3, 4), library, metric="inner_product").search(rows(queries, 4, 1), 5)
    assert np.isneginf(products.distances[:, 3:]).all()


def test_t48_ties_go_to_the_lowest_id(library: str) -> None:
    """Among what the library found, equal distances are in the order of ids."""
    base = rows(6, 4)
    base[5] = base[3]
    found = build(base, library).search(base[[3, 5]], 2)
    assert found.ids.tolist() == [[3, 5], [3, 5]]
    assert found.distances.tolist() == [[0, 0], [0, 0]]


def test_t49_filler_ids() -> None:
    """Whatever a library writes where it found nothing becomes -1 at +inf, behind what it found."""
    raw = np.array([[2**63 - 1, 0, -1], [2**63 - 1, 4, 2]])
    ids, keys = _sorted(raw, np.array([[3.4e38, 1, 2], [0, 5, 5]], np.float32))
    assert ids.tolist() == [[0, -1, -1], [2, 4, -1]]
    assert keys.tolist() == [[1, np.inf, np.inf], [5, 5, np.inf]]
    ids, _ = _sorted(np.array([[2**64 - 1, 2**63 - 1, 0, 8]], np.uint64), np.array([[1, 1, np.nan, 2]], np.float32))
    assert ids.tolist() == [[8, -1, -1, -1]]


def test_t50_bad_rows_are_named_and_nothing_is_added(library: str) -> None:
    """NaN and infinity are refused by row number across blocks, before the index changes; unchecked they go in."""
    base = rows(5, 4)
    base[1, 2], base[3, 0] = np.nan, np.inf
    index = build(base[:0], library)
    for form in (base, [base[:2], base[2:]]):
        with pytest.raises(ValueError, match="rows 1, 3 hold"):
            index.add(form)
        assert len(index) == 0
    with pytest.raises(ValueError, match="rows 0 hold"):
        index.add(np.full((1, 4), 1e300))  # finite, but not as float32
    unchecked = build(base[:0], library, check=False)
    unchecked.add(base)
    assert len(unchecked) == 5


def test_queries_that_are_not_finite_find_nothing(library: str) -> None:
    """The others are answered as usual."""
    base, queries = data()
    queries[3, 1], queries[5, 2] = np.nan, np.inf
    found = build(base, library).search(queries, 4)
    assert found.valid.tolist() == [0 if number in {3, 5} else 4 for number in range(20)]
    assert np.isposinf(found.distances[[3, 5]]).all()


def test_empty(library: str) -> None:
    """An index without vectors, no rows to add, no queries: nothing fails."""
    index = build(np.empty((0, 4), np.float32), library)
    assert (len(index), index.vectors().shape) == (0, (0, 4))
    assert index.search(rows(2, 4), 3).ids.tolist() == [[-1] * 3] * 2
    index.add(np.empty((0, 4)))
    index.add(rows(5, 4))
    assert index.search(np.empty((0, 4)), 3).ids.shape == (0, 3)
    assert len(index) == 5


@pytest.mark.parametrize(
    ("act", "error", "words"),
    [
        (lambda index: index.search(rows(2, 3), 1), UnsupportedLayoutError, "queries have 3 columns"),
        (lambda index: index.search(rows(2, 4)[0], 1), UnsupportedLayoutError, "as_row"),
        (lambda index: index.search(rows(2, 4), 0), ValueError, "k=0"),
        (lambda index: index.search(rows(2, 4), 2**62), ValueError, "fewer than"),
        (lambda index: build(iter([rows(2, 4)]), index.library), UnsupportedLayoutError, "iterator"),
        (lambda index: index.search(rows(2, 4).astype("c8"), 1), UnsupportedDtypeError, "complex"),
        (lambda index: index.add(rows(2, 5)), UnsupportedLayoutError, "rows have 5 columns"),
        (lambda index: index.add([rows(2, 4), rows(2, 5)]), UnsupportedLayoutError, "rows have 5 columns"),
        (lambda index: index.add(iter([rows(2, 4)])), UnsupportedLayoutError, "iterator"),
        (lambda index: index.add(rows(2, 4), [0, 9]), ValueError, "repeat 0"),
        (lambda index: index.add(rows(2, 4), [9, 9]), ValueError, "repeat 9"),
        (lambda index: index.add(rows(2, 4), [8, -1]), ValueError, "from -1 to 8"),
        (lambda index: index.add(rows(2, 4), [8, 2**63 - 1]), ValueError, "whole numbers"),
        (lambda index: index.add(rows(2, 4), [8.0, 9.0]), ValueError, "float64"),
        (lambda index: index.add(rows(2, 4), [8]), UnsupportedLayoutError, "2 rows"),
    ],
)
def test_refusals(library: str, act: Callable[[Index], Any], error: type[Exception], words: str) -> None:
    """Refused before the library sees it: the index is as it was."""
    index = build(rows(5, 4), library)
    with pytest.raises(error, match=words):
        act(index)
    assert len(index) == 5
    assert np.array_equal(index.vectors(), rows(5, 4))


def test_adding_continues_the_ids(library: str) -> None:
    """Rows added later are numbered on, and found."""
    base = rows(300, 8)
    index = build(base[:100], library)
    index.add(base[100:])
    assert np.array_equal(index.search(base, 1).ids.ravel(), np.arange(300))
    assert "300 x 8" in repr(index)


def test_save(library: str, tmp_path: Path) -> None:
    """The library's own file, complete or not there."""
    index = build(rows(50, 8), library)
    index.save(tmp_path / "index.bin")
    assert [path.name for path in tmp_path.iterdir()] == ["index.bin"]
    assert (tmp_path / "index.bin").stat().st_size > 50 * 8 * 4
    with pytest.raises(FileNotFoundError, match="none"):
        index.save(tmp_path / "none" / "index.bin")


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("hnswlib", {"M": 0}),
        ("hnswlib", {"M": 1}),
        ("faiss", {"factory": "HNSW0"}),
        ("faiss", {"factory": "IVF2_HNSW1,Flat"}),
        ("usearch", {"threads": 10**6}),
        ("usearch", {"threads": -1}),
        ("hnswlib", {"seed": -1}),
        ("faiss", {"factory": "Nope"}),
    ],
)
def test_options_that_make_no_index(name: str, options: dict[str, Any]) -> None:
    """Refused before the library crashes over them."""
    pytest.importorskip(name)
    with pytest.raises(ValueError, match=next(iter(options))):
        build(rows(5, 4), name, **options)


@pytest.mark.parametrize(
    ("name", "option", "known"),
    [("faiss", "nlist", "'factory'"), ("hnswlib", "dim", "'M'"), ("hnswlib", "m", "'M'"), ("usearch", "ef", "'dtype'")],
)
def test_an_unknown_option_is_answered_with_the_known_ones(name: str, option: str, known: str) -> None:
    """The error names the library, what was written, and what may be."""
    pytest.importorskip(name)
    with pytest.raises(TypeError, match=f"{name!r} has no option {option!r}: write one of .*{known}"):
        build(rows(5, 4), name, **{option: 1})


@pytest.mark.parametrize("factory", ["IDMap,Flat", "Flat,IDMap", "IDMap2,Flat"])
def test_faiss_indexes_that_map_ids_already(factory: str) -> None:
    """They are not mapped twice, with ids of the caller's own and without."""
    pytest.importorskip("faiss")
    base = rows(20, 4)
    for ids in (None, range(100, 120)):
        index = build(base[:0], "faiss", factory=factory)
        index.add(base, ids)
        assert index.search(base, 1).ids.ravel().tolist() == list(ids or range(20))
        assert np.array_equal(index.vectors(), base)


def test_nothing_of_the_base_is_kept(library: str) -> None:
    """The base may be overwritten after it was added."""
    base, queries = data()
    index = build(base, library)
    expected = index.search(queries, 5).ids
    base[:] = 0
    assert np.array_equal(index.search(queries, 5).ids, expected)


def test_faiss_factory_trains_and_keeps_ids() -> None:
    """An index that must be trained is, on rows spread over the base."""
    base = rows(2000, 8)
    index = build(base, "faiss", factory="IVF8,Flat", training=500)
    index.native.nprobe = 8
    assert np.array_equal(index.search(base, 1).ids.ravel(), np.arange(2000))
    assert np.array_equal(index.vectors(), base)
    with pytest.raises(ValueError, match="ids from the first add"):
        index.add(base[:2], [5000, 7000])


def test_faiss_beside_torch_utils() -> None:
    """`faiss.contrib.torch_utils` patches faiss for the whole process; nothing here changes."""
    code = """
import faiss, numpy as np, torch
import faiss.contrib.torch_utils
from matrix_interop.search import build, knn
base = np.random.default_rng(0).random((500, 16), np.float32)
for given in (base, np.asfortranarray(base), torch.from_numpy(base), torch.from_numpy(base).double()):
    index = build(given, "faiss")
    assert np.asarray(index.search(given, 1).ids).ravel().tolist() == list(range(500))
    assert np.array_equal(index.vectors(), base)
    assert np.asarray(knn(given, given, 1, engine="faiss").ids).ravel().tolist() == list(range(500))
index = build(base[:0], "faiss")
index.add(base, np.arange(500) + 7)
assert index.search(base[:3], 1).ids.ravel().tolist() == [7, 8, 9]
"""
    source = str(Path(libraries.__file__).parents[2])
    subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": source}, check=True)


def test_usearch_keeps_what_it_is_told() -> None:
    """Half precision on request; types that would change the values are refused."""
    pytest.importorskip("usearch")
    base, _ = data()
    half = build(base, "usearch", dtype="f16").vectors()
    assert np.array_equal(half, base.astype(np.float16).astype(np.float32))
    with pytest.raises(UnsupportedDtypeError, match="'f32'"):
        build(base, "usearch", dtype="i8")


# prepare -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["faiss", "hnswlib", "usearch", "sklearn", "pynndescent", "voyager", "scann"])
def test_prepare(name: str) -> None:
    """Dense float32 rows, shared where they are that already; the values of anything else."""
    base = rows(50, 8)
    assert np.shares_memory(prepare(base, name), base)
    assert np.shares_memory(prepare(torch.from_numpy(base), name), base)
    for form in (*LAYOUTS.values(), INPUTS["torch with grad"], INPUTS["arrow"]):
        made = prepare(form(base), name)
        assert type(made) is np.ndarray
        assert made.dtype == np.float32
        assert made.flags.c_contiguous or name == "sklearn"
        assert np.array_equal(made, base)
    for dtype in ("f2", "u1", ">f4", ml_dtypes.bfloat16):
        assert np.array_equal(prepare(base.astype(dtype), name), base.astype(dtype).astype(np.float32))


def test_prepare_for_particular_libraries(tmp_path: Path) -> None:
    """scikit-learn computes in float64 and takes any strides; voyager needs memory that it could write."""
    wide = np.asfortranarray(rows(50, 8, 0, "f8"))
    assert np.shares_memory(prepare(wide, "sklearn"), wide)
    assert prepare(rows(50, 8, 0, "i4"), "sklearn").dtype == np.float64
    np.save(tmp_path / "base.npy", rows(50, 8))
    mapped = np.load(tmp_path / "base.npy", mmap_mode="r")
    assert prepare(mapped, "voyager").flags.writeable
    assert np.shares_memory(prepare(mapped, "faiss"), mapped)


def test_prepare_copies_nothing_in_secret() -> None:
    """Under `forbid_copies` a needed copy is an error."""
    with forbid_copies():
        assert prepare(rows(5, 4), "faiss").shape == (5, 4)
        with pytest.raises(CopyRequiredError):
            prepare(rows(5, 4, 0, "f8"), "faiss")
        with pytest.raises(CopyRequiredError, match="voyager refuses read-only"):
            prepare(np.broadcast_to(rows(1, 4), (5, 4)), "voyager")


def test_prepare_for_a_device_that_is_not_there() -> None:
    """Without a CUDA device cuVS gets nothing, and the error says so."""
    if torch.cuda.is_available():
        pytest.skip("a CUDA device is here")
    with pytest.raises(DeviceUnavailableError, match="cannot go to a CUDA device"):
        prepare(rows(5, 4), "cuvs")


def test_unknown_and_missing_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    """The known names are listed, and a missing library names its package."""
    with pytest.raises(ValueError, match="'faiss', 'hnswlib', 'usearch', 'cuvs'; prepare"):
        build(rows(5, 4), "sklearn")
    with pytest.raises(ValueError, match="'scann'"):
        prepare(rows(5, 4), "annoy")
    monkeypatch.setitem(sys.modules, "hnswlib", None)
    monkeypatch.delitem(sys.modules, "matrix_interop.search.hnswlib", raising=False)
    with pytest.raises(FrameworkNotInstalledError, match="pip install hnswlib"):
        build(rows(5, 4), "hnswlib")
    with pytest.raises(TypeError, match="nlist"):
        build(rows(5, 4), "faiss", nlist=4)


@pytest.mark.parametrize("factory", ["Flat", "SQ8", "HNSW8", "IDMap,Flat", "IDMap2,Flat"])
def test_faiss_takes_room_for_all_vectors_at_once(factory: str) -> None:
    """Batches go into memory that stays where it is: nothing is held twice while the index grows."""
    faiss = pytest.importorskip("faiss")
    base = rows(1000, 8)
    index: Any = build(base[:0], "faiss", factory=factory)
    index._ready(base, np.arange(1000))
    inner = faiss.downcast_index(getattr(index.native, "index", None) or getattr(index.native, "storage", index.native))
    places = set()
    for start in range(0, 1000, 100):
        index._add(base[start : start + 100], np.arange(start, start + 100))
        places.add(int(inner.codes.data()))
    assert len(places) == 1
