"""`knn`: ground truths, the handed cases, every kind of input, and what is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from matrix_interop.errors import (
    DeviceUnavailableError,
    FrameworkNotInstalledError,
    UnsupportedDtypeError,
    UnsupportedLayoutError,
)
from matrix_interop.matrix import Matrix, from_tensor
from matrix_interop.search import KnnResult, knn
from matrix_interop.tracking import forbid_copies
from search.reference import METRICS, distances, neighbours, recall
from simulated.adapter import exchange_on

TRUTHS = {
    "sift": ("sift/bigann_base.u8bin", "sift/bigann_query.u8bin", "sift/bigann_gt.npz"),
    "digits": ("digits/digits_base.npy", "digits/digits_query.npy", "digits/digits_gt.npz"),
    "text": ("text/minilm_base.npy", "text/minilm_query.npy", "text/minilm_gt.npz"),
}


def rows(n: int, d: int, seed: int = 0, dtype: Any = "f4") -> np.ndarray:
    """(n, d) reproducible values, of the size that suits ``dtype``."""
    drawn = np.random.default_rng(seed).normal(size=(n, d))
    return (
        (drawn * (40 if np.dtype(dtype).kind in "iu" else 1))
        .clip(0 if np.dtype(dtype).kind == "u" else None)
        .astype(dtype)
    )


def read(path: Path) -> np.ndarray:
    """A matrix of the shared data, read without the library."""
    if path.suffix == ".npy":
        return np.load(path)
    n, d = np.fromfile(path, "<u4", 2).tolist()
    return np.fromfile(path, np.uint8, offset=8).reshape(n, d)


def real_set(shared_data: Path, name: str) -> tuple[np.ndarray, np.ndarray, Any]:
    """(base, queries, truth) of a set in `TRUTHS`, or of fashion_mnist."""
    if name == "fashion_mnist":
        h5py = pytest.importorskip("h5py")
        with h5py.File(shared_data / name / "fashion-mnist-784-euclidean.hdf5") as file:
            return file["train"][:], file["test"][:], np.load(shared_data / name / "fashion_mnist_gt.npz")
    base, queries, truth = TRUTHS[name]
    return read(shared_data / base), read(shared_data / queries), np.load(shared_data / truth)


def same(result: KnnResult, ids: np.ndarray) -> bool:
    """The ids are these, and as many are valid as are not -1."""
    return np.array_equal(result.ids, ids) and np.array_equal(result.valid, (np.asarray(ids) >= 0).sum(axis=1))


# Ground truth ------------------------------------------------------------------------------------
@pytest.mark.parametrize("engine", ["faiss", "numpy"])
@pytest.mark.parametrize(("metric", "key"), [("sqeuclidean", "l2"), ("cosine", "cos"), ("inner_product", "ip")])
@pytest.mark.parametrize("name", [*TRUTHS, "fashion_mnist"])
def test_ground_truth_is_met(shared_data: Path, name: str, metric: str, key: str, engine: str) -> None:
    """Recall 1.0, ties aside, on real data of four kinds; the distances are those of the truth."""
    base, queries, truth = real_set(shared_data, name)
    found = knn(queries, base, 100, metric=metric, engine=engine)
    assert recall(found.ids, queries, base, metric) == 1.0
    expected = truth["l2_sq" if key == "l2" else key]
    np.testing.assert_allclose(found.distances, 1 - expected if key == "cos" else expected, rtol=2e-7, atol=1e-9)
    if key != "cos":  # nothing is rounded there before the order is settled: ties go to the lowest id as well
        assert np.array_equal(found.ids, truth[f"{key}_ids"]) or name == "text"


# The handed cases --------------------------------------------------------------------------------
def test_t47_more_neighbours_than_rows() -> None:
    """Missing entries are id -1 at +inf, and `valid` counts the others."""
    found = knn(rows(2, 4), rows(3, 4, 1), 5)
    assert found.valid.tolist() == [3, 3]
    assert found.ids[:, 3:].tolist() == [[-1, -1]] * 2
    assert np.isposinf(found.distances[:, 3:]).all()
    assert np.isneginf(knn(rows(2, 4), rows(3, 4, 1), 5, metric="inner_product").distances[:, 3:]).all()


def test_t48_ties_go_to_the_lowest_id() -> None:
    """Two equal rows are both at distance 0, the lower id first."""
    base = rows(6, 4)
    base[5] = base[3]
    found = knn(base[[3, 5]], base, 2)
    assert found.ids.tolist() == [[3, 5], [3, 5]]
    assert found.distances.tolist() == [[0, 0], [0, 0]]


def test_t52_integer_distances_are_exact() -> None:
    """The difference of two int8 does not fit int8; sums beyond 2**24 do not fit float32."""
    a, b = np.array([[-128, 0, 0, 0]], np.int8), np.array([[127, 0, 0, 0]], np.int8)
    assert knn(a, b, 1).distances.tolist() == [[65025]]
    wide = np.zeros((2, 1001), np.uint8)
    wide[1] = 255
    wide[1, 0] = 254
    assert knn(wide[:1], wide, 2).distances.tolist() == [[0, 1000 * 255**2 + 254**2]]


@pytest.mark.parametrize("engine", ["faiss", "numpy", "torch"])
def test_t53_large_offsets(engine: str) -> None:
    """Far from the origin nothing cancels, alone or in a batch."""
    base = (1e4 + np.random.default_rng(0).random((5000, 64))).astype(np.float32)
    query = base[7:8] + np.float32(0.001)
    alone, batch = knn(query, base, 3, engine=engine), knn(np.repeat(query, 32, 0), base, 3, engine=engine)
    assert alone.ids[0, 0] == 7
    assert (alone.distances >= 0).all()
    assert np.array_equal(batch.ids, np.repeat(alone.ids, 32, 0))
    assert np.array_equal(batch.distances, np.repeat(alone.distances, 32, 0))


# The promise -------------------------------------------------------------------------------------
@pytest.mark.parametrize("metric", METRICS)
@given(data=st.data())
def test_integers_equal_brute_force(metric: str, data: st.DataObject) -> None:
    """Small integers are full of ties: ids and distances are those of exact arithmetic, for any block size."""
    dtype = data.draw(st.sampled_from(["i1", "u1", "i2", "i4", "i8", "f2", "f4", "f8"]))
    d = data.draw(st.integers(1, 6))
    numbers = st.integers(0 if dtype == "u1" else -3, 3)
    base = data.draw(hnp.arrays(dtype, (data.draw(st.integers(0, 40)), d), elements=numbers))
    queries = data.draw(hnp.arrays(dtype, (data.draw(st.integers(0, 4)), d), elements=numbers))
    k, block = data.draw(st.integers(1, 8)), data.draw(st.none() | st.integers(1, 50))
    found = knn(queries, base, k, metric=metric, block=block)
    ids, expected = neighbours(queries, base, k, metric)
    np.testing.assert_allclose(found.distances, expected, rtol=1e-6, atol=1e-15)
    if metric == "cosine":  # the reference rounds; sin and cos of small integers do not, so check by exact squares
        ids = _exact_cosine(queries, base, k)
    assert same(found, ids)


def _exact_cosine(queries: np.ndarray, base: np.ndarray, k: int) -> np.ndarray:
    """Neighbours by cosine in integer arithmetic: q.b |q.b| / |b|**2 orders as the cosine does."""
    from fractions import Fraction

    ids = np.full((len(queries), k), -1)
    for number, q in enumerate(queries.astype(int).tolist()):
        keys = []
        for place, b in enumerate(base.astype(int).tolist()):
            p, m = sum(x * y for x, y in zip(q, b, strict=True)), sum(y * y for y in b)
            keys.append((-Fraction(p * abs(p), m or 1), place))
        best = [place for _, place in sorted(keys)][:k]
        ids[number, : len(best)] = best
    return ids


@pytest.mark.parametrize("metric", METRICS)
@given(seed=st.integers(0, 2**32), shape=st.tuples(st.integers(1, 300), st.integers(1, 30)), size=st.integers(-30, 15))
def test_floats_equal_brute_force(metric: str, seed: int, shape: tuple[int, int], size: int) -> None:
    """Values of any size, a row repeated many times: as float64 brute force finds them, alone and in a batch."""
    n, d = shape
    random = np.random.default_rng(seed)
    base = (random.normal(size=(n, d)) * 10.0**size).astype(np.float32)
    base[random.integers(n, size=n // 3)] = base[0]
    queries = np.concatenate([base[:1], (random.normal(size=(3, d)) * 10.0**size).astype(np.float32)])
    found = knn(queries, base, 7, metric=metric, block=max(1, n // 2))
    ids, expected = neighbours(queries, base, 7, metric)
    wide = found.distances.astype(np.float64)
    scale = np.abs(expected[np.isfinite(expected)]).max(initial=0)
    near = np.isclose(wide, expected, rtol=1e-6, atol=1e-12 * scale + 1e-38)
    assert (near | (np.isinf(wide) & (np.abs(expected) > 3e38))).all()
    assert (metric == "inner_product") or (wide >= 0).all()
    assert np.array_equal(found.valid, (ids >= 0).sum(axis=1))
    for number in range(len(queries)):
        alone = knn(queries[number : number + 1], base, 7, metric=metric)
        assert np.array_equal(alone.ids[0], found.ids[number])
        assert np.array_equal(alone.distances[0], found.distances[number])


def test_near_duplicates_are_told_apart() -> None:
    """Rows that differ in one last bit have the right order and the right distances, for L2 and for cosine."""
    base = np.repeat(rows(1, 300), 3000, axis=0)
    steps = np.random.default_rng(1).permutation(3000)
    base[np.arange(3000), 0] += np.float32(2.0**-20) * steps
    query = base[steps == 0]
    for metric in ("sqeuclidean", "cosine"):
        found = knn(query, base, 5, metric=metric)
        assert steps[found.ids[0]].tolist() == [0, 1, 2, 3, 4]
        np.testing.assert_allclose(found.distances[0, 1:] / found.distances[0, 1], [1, 4, 9, 16], rtol=1e-3)


def test_parallel_rows_are_cosine_ties() -> None:
    """Multiples of one row have one direction: distance exactly 0 to each other, lowest id first."""
    base = rows(1, 33).astype(np.float64) * np.array([[3.0], [0.1], [7e5], [1e-200]])
    found = knn(base[:1] * 5, base, 4, metric="cosine")
    assert found.ids.tolist() == [[0, 1, 2, 3]]
    assert found.distances.tolist() == [[0, 0, 0, 0]]


def test_zero_rows_in_cosine() -> None:
    """A zero vector is at distance 1 from everything, itself included."""
    base = np.array([[1, 0], [0, 0], [-1, 0]], np.float32)
    found = knn(np.array([[2, 0], [0, 0]], np.float32), base, 3, metric="cosine")
    assert found.distances.tolist() == [[0, 1, 2], [1, 1, 1]]
    assert found.ids.tolist() == [[0, 1, 2], [0, 1, 2]]


@pytest.mark.parametrize("engine", ["faiss", "numpy", "torch", "jax"])
@pytest.mark.parametrize("metric", METRICS)
def test_rows_that_are_not_finite_have_no_neighbours(metric: str, engine: str) -> None:
    """They are never found, their own queries find nothing, and all others find what they would without them."""
    base, queries = rows(3000, 20), rows(40, 20, 1)
    base[[5, 700], [0, 3]] = np.nan
    base[[6, 2999], [1, 2]] = np.inf, -np.inf
    queries[3, 4], queries[8, 9] = np.nan, np.inf
    found = knn(queries, base, 10, metric=metric, engine=engine)
    assert same(found, neighbours(queries, base, 10, metric)[0])
    assert found.valid[[3, 8]].tolist() == [0, 0]


@pytest.mark.parametrize("metric", METRICS)
def test_engines_agree(metric: str) -> None:
    """Ids and distances are the same to the last bit, whichever engine looked for candidates."""
    base, queries = rows(4000, 24), rows(50, 24, 1)
    first, *others = (knn(queries, base, 12, metric=metric, engine=name) for name in ("faiss", "numpy", "torch", "jax"))
    assert same(first, neighbours(queries, base, 12, metric)[0])
    for other in others:
        assert np.array_equal(first.ids, other.ids)
        assert np.array_equal(first.distances, other.distances)


# Inputs ------------------------------------------------------------------------------------------
DTYPES = ["f2", "f4", "f8", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "?", ml_dtypes.bfloat16, ">f4", ">i2"]


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(np.dtype(dtype)))
def test_every_real_dtype(dtype: Any) -> None:
    """Neighbours of the values as stored; distances are float32 for short floats on both sides, else float64."""
    base, queries = rows(3000, 20, 0, dtype), rows(30, 20, 1, dtype)
    for metric in METRICS:
        found = knn(queries, base, 5, metric=metric)
        truth = distances(queries, base, metric)
        np.testing.assert_allclose(found.distances, np.take_along_axis(truth, found.ids, 1), rtol=1e-6, atol=1e-12)
        assert recall(found.ids, queries, base, metric) == 1.0 or metric == "cosine"
        short = np.dtype(dtype) in {np.dtype("f2"), np.dtype("f4"), np.dtype(">f4"), np.dtype(ml_dtypes.bfloat16)}
        assert found.distances.dtype == (np.float32 if short else np.float64)
        assert found.ids.dtype == found.valid.dtype == np.int64


LAYOUTS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "Fortran": np.asfortranarray,
    "column step": lambda x: np.repeat(x, 2, axis=1)[:, ::2],
    "row step": lambda x: np.repeat(x, 2, axis=0)[::2],
    "padded rows": lambda x: np.pad(x, ((0, 0), (0, 3)))[:, :-3],
    "reversed": lambda x: x[::-1].copy()[::-1],
    "misaligned": lambda x: np.frombuffer(b"x" + x.tobytes(), np.uint8)[1:].view(x.dtype).reshape(x.shape),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout(layout: str) -> None:
    """Memory order, steps, padding, alignment and write protection change nothing."""
    base, queries = rows(2000, 16), rows(40, 16, 1)
    expected = knn(queries, base, 5).ids
    found = knn(LAYOUTS[layout](queries), LAYOUTS[layout](base), 5)
    assert np.array_equal(found.ids, expected)


class Source:
    """A row source by its methods alone."""

    def __init__(self, array: np.ndarray) -> None:
        self.array, self.shape, self.dtype = array, array.shape, array.dtype

    def __len__(self) -> int:
        return len(self.array)

    def read(self, start: int, stop: int) -> np.ndarray:
        """Rows ``start`` to ``stop``."""
        return self.array[start:stop]

    def blocks(self, block: int) -> Iterator[Matrix]:
        """All rows, in blocks."""
        return (from_tensor(self.read(start, start + block)) for start in range(0, len(self), block))


@pytest.mark.parametrize(
    "form",
    [
        from_tensor,
        Source,
        lambda base: [base[:100], torch.from_numpy(base[100:101]), base[101:]],
        lambda base: iter([base[:100], base[100:]]),
        lambda base: base.tolist(),
        list,
    ],
    ids=["Matrix", "row source", "list of blocks", "iterator of blocks", "nested lists", "list of rows"],
)
def test_every_form_of_base(form: Callable[[np.ndarray], Any]) -> None:
    """Whatever holds the rows, and however they are cut, the ids count through."""
    base, queries = rows(900, 8), rows(20, 8, 1)
    expected = knn(queries, base, 4).ids
    for block in (None, 1000, 77):
        assert np.array_equal(knn(queries, form(base), 4, block=block).ids, expected)


def test_a_mapped_file(tmp_path: Path) -> None:
    """A read-only mapping is searched block by block."""
    np.save(tmp_path / "base.npy", rows(3000, 16))
    mapped = np.load(tmp_path / "base.npy", mmap_mode="r")
    assert np.array_equal(knn(rows(9, 16, 1), mapped, 4, block=500).ids, knn(rows(9, 16, 1), rows(3000, 16), 4).ids)


def test_results_live_with_the_queries() -> None:
    """torch in, torch out; NumPy for NumPy, lists and Arrow; JAX in the widths that it has."""
    base, queries = rows(50, 4), rows(3, 4, 1)
    expected = knn(queries, base, 2)
    column = pa.FixedSizeListArray.from_arrays(pa.array(queries.ravel()), 4)
    for other in (queries.tolist(), column, from_tensor(queries)):
        found = knn(other, torch.from_numpy(base), 2)
        assert type(found.ids) is type(found.distances) is type(found.valid) is np.ndarray
        assert np.array_equal(found.ids, expected.ids)
    found = knn(torch.from_numpy(queries).to(torch.bfloat16), base, 2)
    assert (found.ids.dtype, found.distances.dtype, found.valid.dtype) == (torch.int64, torch.float32, torch.int64)
    found = knn(jnp.asarray(queries), base, 2)
    assert isinstance(found.ids, type(jnp.zeros(1)))
    assert np.array_equal(np.asarray(found.ids), expected.ids)


def test_results_go_to_the_device_of_the_queries() -> None:
    """Also from a search on the host, and to a device that is not the current one; that is no hidden copy."""
    base, queries = rows(50, 4), rows(3, 4, 1)
    expected = knn(queries, base, 2)
    with exchange_on(0), forbid_copies():
        found = knn(from_tensor(queries).to_device("ext:1"), base, 2, device="cpu")
        for part, values in ((found.ids, expected.ids), (found.distances, expected.distances)):
            there = from_tensor(part)
            assert (there.framework, there.device) == ("lateframe", "ext:1")
            assert np.array_equal(there.to_host(), values)
        assert (found.valid.device, found.valid.numpy().tolist()) == ("ext:1", [2, 2, 2])
        del found, there, part


def test_nothing_to_search() -> None:
    """No rows, no queries, no columns: shapes stay, nothing is valid that is not there."""
    assert knn(rows(2, 4), np.empty((0, 4), "f4"), 3).ids.tolist() == [[-1] * 3] * 2
    empty = knn(np.empty((0, 4), "f4"), rows(5, 4), 3)
    assert (empty.ids.shape, empty.distances.shape, empty.valid.shape) == ((0, 3), (0, 3), (0,))
    assert knn(np.empty((1, 0), "f4"), np.empty((4, 0), "f4"), 3).ids.tolist() == [[0, 1, 2]]


# Refusals ----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("arguments", "options", "error", "words"),
    [
        ((rows(2, 4), rows(5, 8), 1), {}, UnsupportedLayoutError, "queries have 4 columns, base has 8"),
        ((rows(2, 4), np.empty((0, 8), "f4"), 1), {}, UnsupportedLayoutError, "queries have 4 columns, base has 8"),
        ((rows(2, 4), Source(np.empty((0, 8), "f4")), 1), {}, UnsupportedLayoutError, "base has 8"),
        ((rows(2, 4), [rows(5, 4), rows(5, 8)], 1), {}, UnsupportedLayoutError, "base has 8"),
        ((rows(2, 4)[0], rows(5, 4), 1), {}, UnsupportedLayoutError, "2"),
        ((rows(2, 4), rows(5, 4), 0), {}, ValueError, "k=0"),
        ((rows(2, 4), rows(5, 4), 1.5), {}, TypeError, "float"),
        ((rows(2, 4), rows(5, 4), 1), {"metric": "l2"}, ValueError, "'sqeuclidean'"),
        ((rows(2, 4), rows(5, 4), 1), {"engine": "annoy"}, ValueError, "'faiss'"),
        ((rows(2, 4), rows(5, 4), 1), {"block": 0}, ValueError, "block=0"),
        ((rows(2, 4), rows(5, 4), 1), {"device": "cuda:99"}, DeviceUnavailableError, "(?i)cuda"),
        ((rows(2, 4), rows(5, 4), 1), {"device": "cuda:0", "engine": "faiss"}, ValueError, "on the host"),
        ((rows(2, 4).astype("c8"), rows(5, 4), 1), {}, UnsupportedDtypeError, "complex64"),
        ((rows(2, 4), np.full((5, 4), 2**60), 1), {}, UnsupportedDtypeError, "2\\*\\*53"),
    ],
)
def test_refusals(arguments: Any, options: Any, error: type[Exception], words: str) -> None:
    """Bad input is named."""
    with pytest.raises(error, match=words):
        knn(*arguments, **options)


def test_a_missing_engine_names_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked for by name, an engine that is not installed gives the command that installs it."""
    import sys

    from matrix_interop.search import engines

    monkeypatch.setitem(sys.modules, "faiss", None)
    monkeypatch.delitem(sys.modules, "matrix_interop.search.engines.faiss", raising=False)
    engines._load.cache_clear()
    with pytest.raises(FrameworkNotInstalledError, match="pip install faiss-cpu"):
        knn(rows(2, 4), rows(5, 4), 1, engine="faiss")
