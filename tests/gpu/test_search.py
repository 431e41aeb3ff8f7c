"""Exact search and cuVS on hardware: ground truths, every framework and dtype, streams, and the handed cases."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from matrix_interop import from_tensor
from matrix_interop.errors import CopyRequiredError, DeviceUnavailableError, UnsupportedDtypeError
from matrix_interop.runtime import get_runtime
from matrix_interop.search import KnnResult, build, knn
from matrix_interop.search.device import search as device_search
from search.reference import METRICS, recall

pytestmark = pytest.mark.gpu

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
torch = pytest.importorskip("torch")


@pytest.fixture(scope="module", autouse=True)
def device() -> Any:
    """The runtime, or skip with its own reason."""
    try:
        return get_runtime("cuda")
    except DeviceUnavailableError as error:
        pytest.skip(str(error))


def rows(n: int, d: int, seed: int = 0, dtype: Any = "f4") -> np.ndarray:
    """(n, d) reproducible values, of the size that suits ``dtype``."""
    drawn = np.random.default_rng(seed).normal(size=(n, d)) * (40 if np.dtype(dtype).kind in "iu" else 1)
    return drawn.clip(0 if np.dtype(dtype).kind == "u" else None).astype(dtype)


def on_host(result: KnnResult) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Ids, distances and counts as ndarrays."""
    parts = (from_tensor(part, as_row=True) for part in (result.ids, result.distances, result.valid))
    ids, distances, valid = (np.asarray(part.to_host()) for part in parts)
    return ids, distances, valid[0]


def same(found: KnnResult, expected: KnnResult) -> bool:
    """The same ids and counts, and distances but for the last bit."""
    ids, distances, valid = on_host(found)
    close = np.allclose(distances, expected.distances, rtol=3e-7, atol=0)
    return np.array_equal(ids, expected.ids) and np.array_equal(valid, expected.valid) and close


def framework_array(name: str, values: np.ndarray) -> Any:
    """The values in a framework, on the device; "numpy" leaves them on the host."""
    if name == "numpy":
        return values
    pytest.importorskip(name)
    return from_tensor(values).to_device("cuda:0", framework=name).array


# Ground truth ------------------------------------------------------------------------------------
@pytest.mark.parametrize(("metric", "key"), [("sqeuclidean", "l2"), ("cosine", "cos"), ("inner_product", "ip")])
@pytest.mark.parametrize("name", ["sift", "digits", "text", "fashion_mnist"])
def test_ground_truth_is_met(shared_data: Path, name: str, metric: str, key: str) -> None:
    """Recall 1.0, ties aside, on real data of four kinds; ids are those that the host finds."""
    from search.test_knn import real_set

    base, queries, truth = real_set(shared_data, name)
    found = knn(torch.from_numpy(queries).cuda(), torch.from_numpy(base).cuda(), 100, metric=metric)
    assert found.ids.is_cuda
    ids, distances, _ = on_host(found)
    assert recall(ids, queries, base, metric) == 1.0
    expected = truth["l2_sq" if key == "l2" else key]
    np.testing.assert_allclose(distances, 1 - expected if key == "cos" else expected, rtol=2e-7, atol=1e-9)
    assert same(found, knn(queries, base, 100, metric=metric, device="cpu"))


# Frameworks --------------------------------------------------------------------------------------
@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("base_in", ["torch", "cupy", "jax", "numpy"])
@pytest.mark.parametrize("queries_in", ["torch", "cupy", "jax", "numpy"])
def test_every_pair_of_frameworks(queries_in: str, base_in: str, metric: str) -> None:
    """Results live with the queries, in their framework, and are those of the host."""
    base, queries = rows(4000, 24), rows(50, 24, 1)
    given = framework_array(queries_in, queries), framework_array(base_in, base)
    found = knn(*given, 12, metric=metric, device="cuda:0")
    assert type(found.ids) is type(found.distances) is type(given[0])
    assert same(found, knn(queries, base, 12, metric=metric, device="cpu"))


def test_cupy_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without torch, CuPy searches by the array API alone."""
    monkeypatch.setattr(device_search, "_torch_serves", lambda device: False)
    base, queries = rows(20000, 24), rows(50, 24, 1)
    for metric in METRICS:
        found = knn(framework_array("cupy", queries), framework_array("cupy", base), 12, metric=metric)
        assert same(found, knn(queries, base, 12, metric=metric, device="cpu"))


DTYPES = ["f2", "f4", "f8", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "?", ml_dtypes.bfloat16]


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(np.dtype(dtype)))
def test_every_real_dtype(dtype: Any) -> None:
    """Values as stored, whatever holds them."""
    base, queries = rows(3000, 20, 0, dtype), rows(30, 20, 1, dtype)
    given = framework_array("torch", queries), framework_array("torch", base)
    for metric in METRICS:
        assert same(knn(*given, 5, metric=metric), knn(queries, base, 5, metric=metric, device="cpu"))


LAYOUTS: dict[str, Callable[[Any], Any]] = {
    "row-padded": lambda x: torch.nn.functional.pad(x, (0, 8))[:, : x.shape[1]],
    "row-strided": lambda x: x.repeat_interleave(2, 0)[::2],
    "Fortran": lambda x: x.T.contiguous().T,
    "column-strided": lambda x: x.repeat_interleave(2, 1)[:, ::2],
    "host": lambda x: x.cpu().numpy(),
    "bfloat16": lambda x: x.bfloat16(),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout(layout: str) -> None:
    """Strides, order and place change nothing."""
    base, queries = torch.from_numpy(rows(4000, 24)).cuda(), torch.from_numpy(rows(50, 24, 1)).cuda()
    found = knn(queries, LAYOUTS[layout](base), 7)
    stored = base.bfloat16().float() if layout == "bfloat16" else base
    assert same(found, knn(queries.cpu().numpy(), stored.cpu().numpy(), 7, device="cpu"))


# The promise -------------------------------------------------------------------------------------
def test_t52_integer_distances_are_exact() -> None:
    """The difference of two int8 does not fit int8."""
    a, b = (torch.tensor([[value, 0, 0, 0]], dtype=torch.int8, device="cuda") for value in (-128, 127))
    assert knn(a, b, 1).distances.tolist() == [[65025]]


def test_hard_values() -> None:
    """Offsets, duplicates, rows that are not finite and extreme sizes: as on the host, alone and in a batch."""
    plain, queries = rows(5000, 24), rows(20, 24, 1)
    odd = plain.copy()
    odd[[5, 700], [0, 3]], odd[[6, 2999], [1, 2]] = np.nan, (np.inf, -np.inf)
    duplicates = np.repeat(plain[:1], 5000, 0)
    for base, q in ((plain + 1000, queries + 1000), (odd, queries), (duplicates, queries), (plain * 1e18, queries)):
        base, q = base.astype("f4"), q.astype("f4")
        for metric in METRICS:
            there = torch.from_numpy(base).cuda()
            found = knn(torch.from_numpy(q).cuda(), there, 12, metric=metric)
            assert same(found, knn(q, base, 12, metric=metric, device="cpu"))
            alone = knn(torch.from_numpy(q[3:4]).cuda(), there, 12, metric=metric)
            assert torch.equal(alone.ids[0], found.ids[3])
            assert torch.equal(alone.distances[0], found.distances[3])


def test_large_searches_equal_float64() -> None:
    """300000 rows, 500 queries, 100 neighbours: as float64 brute force on the device finds them."""
    base = torch.randn(300_000, 96, device="cuda", generator=torch.Generator("cuda").manual_seed(0))
    queries = torch.randn(500, 96, device="cuda", generator=torch.Generator("cuda").manual_seed(1))
    found = knn(queries, base, 100)
    squares = torch.cdist(queries.double(), base.double(), compute_mode="donot_use_mm_for_euclid_dist") ** 2
    truth = squares.topk(100, largest=False)
    assert torch.equal(found.ids, truth.indices)
    torch.testing.assert_close(found.distances.double(), truth.values, rtol=2e-7, atol=0)
    streamed = knn(queries, base.cpu().numpy(), 100, block=40_000)
    assert torch.equal(streamed.ids, found.ids)
    assert torch.equal(streamed.distances, found.distances)


def test_tf32_is_off_while_searching() -> None:
    """A process that allows TF32 gets the same answer, and keeps its setting."""
    base, queries = torch.from_numpy(rows(20000, 64)).cuda(), torch.from_numpy(rows(50, 64, 1)).cuda()
    expected = knn(queries, base, 10)
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        found = knn(queries, base, 10)
        assert torch.backends.cuda.matmul.allow_tf32
    finally:
        torch.backends.cuda.matmul.allow_tf32 = False
    assert torch.equal(found.ids, expected.ids)


def test_one_query_knows_no_tf32() -> None:
    """A product with one vector has the same bits where TF32 is allowed, so nothing is switched for it."""
    base, query = torch.randn(20_000, 96, device="cuda"), torch.randn(96, device="cuda")
    norms, found = torch.randn(20_000, device="cuda"), []
    for allowed in (True, False):
        torch.backends.cuda.matmul.allow_tf32 = allowed
        found.append((torch.mv(base, query), torch.addmv(norms, base, query, alpha=-2.0)))
    for with_tf32, without in zip(*found, strict=True):
        assert torch.equal(with_tf32, without)


# Sources -----------------------------------------------------------------------------------------
def test_bases_on_host_and_disk(tmp_path: Path) -> None:
    """A mapped file, a row source, blocks and an iterator: streamed, and numbered through."""
    from matrix_interop.io import open_rows

    base, queries = rows(30_000, 32), torch.from_numpy(rows(40, 32, 1)).cuda()
    np.save(tmp_path / "base.npy", base)
    expected = knn(queries.cpu().numpy(), base, 9, device="cpu")
    with open_rows(tmp_path / "base.npy") as source:
        forms = [base, np.load(tmp_path / "base.npy", mmap_mode="r"), source, [base[:100], base[100:]]]
        for form in forms:
            for block in (None, 7001):
                assert same(knn(queries, form, 9, block=block), expected)
        assert same(knn(queries, iter([base[:5], base[5:]]), 9), expected)
    assert same(knn(queries.cpu().numpy(), base, 9, device="cuda:0"), expected)


# Streams -----------------------------------------------------------------------------------------
def late(stream: Any, target: Any, values: Any) -> None:
    """Fill ``target`` on ``stream`` after a long kernel."""
    with torch.cuda.stream(stream):
        target.zero_()
        torch.cuda._sleep(20_000_000)
        target.copy_(values)


@pytest.mark.filterwarnings("ignore:ExternalStream is deprecated:DeprecationWarning")
def test_t22_queries_written_late_on_a_side_stream() -> None:
    """The caller never synchronises: 100 searches right behind a long kernel, for torch and for CuPy queries."""
    cupy = pytest.importorskip("cupy")
    base, queries = rows(5000, 32), rows(64, 32, 1)
    expected = knn(queries, base, 5, device="cpu").ids
    there, source = torch.from_numpy(base).cuda(), torch.from_numpy(queries).cuda()
    side = torch.cuda.Stream()
    wrong = 0
    for turn in range(100):
        q = torch.zeros_like(source)
        side.wait_stream(torch.cuda.current_stream())
        late(side, q, source)
        with torch.cuda.stream(side), cupy.cuda.ExternalStream(side.cuda_stream):
            found = knn(q if turn % 2 else cupy.asarray(q), there, 5)
            wrong += not np.array_equal(on_host(found)[0], expected)
    assert wrong == 0


# cuVS --------------------------------------------------------------------------------------------
ALGORITHMS = ("brute_force", "cagra", "ivf_flat", "ivf_pq")


@pytest.fixture
def cuvs() -> Iterator[Any]:
    """The library, or skip."""
    return pytest.importorskip("cuvs", reason="cuVS is not installed: pip install cuvs-cu13")


#: What makes each look everywhere.
SEARCH = {"cagra": {"itopk_size": 256}, "ivf_flat": {"n_probes": 1000}, "ivf_pq": {"n_probes": 1000}}


def cuvs_index(base: Any, algorithm: str, **options: Any) -> Any:
    """An index that looks everywhere."""
    return build(base, "cuvs", algorithm=algorithm, search=SEARCH.get(algorithm), **options)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("layout", ["dense", *LAYOUTS])
def test_cuvs_takes_every_layout(cuvs: Any, algorithm: str, layout: str) -> None:
    """What cuVS misreads or refuses by itself gives the neighbours of a dense copy."""
    base, queries = torch.from_numpy(rows(4000, 64)).cuda(), torch.from_numpy(rows(50, 64, 1)).cuda()
    there = LAYOUTS.get(layout, lambda x: x)
    index = cuvs_index(there(base), algorithm)
    ids, distances, _ = on_host(index.search(there(queries), 10))
    stored = [(x.bfloat16().float() if layout == "bfloat16" else x).cpu().numpy() for x in (queries, base)]
    found = recall(ids, *stored, "sqeuclidean") if len(np.unique(ids[0])) == 10 else 0.0
    assert found >= {"brute_force": 1.0, "ivf_flat": 1.0, "cagra": 0.99, "ivf_pq": 0.6}[algorithm]
    assert (distances >= 0).all()
    assert (np.diff(distances, axis=1) >= 0).all()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("metric", METRICS)
def test_cuvs_metrics(cuvs: Any, algorithm: str, metric: str) -> None:
    """Distances by our definition of the metric."""
    base, queries = rows(4000, 64), rows(50, 64, 1)
    found = cuvs_index(base, algorithm, metric=metric).search(queries, 10)
    assert recall(found.ids, queries, base, metric) >= (0.5 if algorithm == "ivf_pq" else 0.98)
    if algorithm != "ivf_pq":
        nearest = knn(queries, base, 10, metric=metric, device="cpu").distances[:, 0]
        np.testing.assert_allclose(found.distances[:, 0], nearest, rtol=1e-3, atol=1e-4)


def test_cuvs_keeps_the_base_and_the_convention(cuvs: Any) -> None:
    """The base lives as long as the index; more neighbours than rows are -1; ids of the caller's own come back."""
    base = rows(300, 16)
    index = build(torch.from_numpy(base).cuda(), "cuvs")
    torch.full((300, 16), 7.0, device="cuda")  # what would be written over a base that nobody keeps
    found = index.search(torch.from_numpy(base[:5]).cuda(), 400)
    assert found.ids[:, 0].tolist() == [0, 1, 2, 3, 4]
    assert (found.ids[:, 300:] == -1).all()
    assert found.valid.tolist() == [300] * 5
    named = build(base[:0], "cuvs")
    named.add(base, ids=np.arange(300) * 3 + 2**40)
    assert named.search(base[:2], 1).ids.tolist() == [[2**40], [2**40 + 3]]
    assert np.array_equal(named.vectors(), base)


def test_t34_t46_host_rows_are_uploaded_or_refused(cuvs: Any) -> None:
    """Host matrices go up; copy=False refuses them, and the device stays usable."""
    with pytest.raises(CopyRequiredError):
        build(rows(1000, 3), "cuvs", copy=False)
    assert build(rows(1000, 3), "cuvs").search(rows(1000, 3)[:4], 1).ids.ravel().tolist() == [0, 1, 2, 3]
    found = build(rows(1000, 32), "cuvs", algorithm="ivf_pq").search(rows(7, 32, 1), 5)
    assert found.ids.shape == (7, 5)
    with pytest.raises(UnsupportedDtypeError):
        build(rows(10, 3).astype("c8"), "cuvs")


def test_t50_bad_rows_are_named(cuvs: Any) -> None:
    """Rows with NaN or infinity are refused by number, and nothing was added."""
    bad = rows(5, 4)
    bad[1, 0], bad[3, 2] = np.nan, np.inf
    index = build(rows(0, 4), "cuvs")
    with pytest.raises(ValueError, match="rows 1, 3"):
        index.add(bad)
    assert len(index) == 0


def test_t22_cuvs_orders_itself_after_the_queries(cuvs: Any) -> None:
    """100 searches right behind a long kernel on a side stream."""
    base, queries = rows(5000, 32), rows(64, 32, 1)
    expected = knn(queries, base, 5, device="cpu").ids
    index, source = build(torch.from_numpy(base).cuda(), "cuvs"), torch.from_numpy(queries).cuda()
    side = torch.cuda.Stream()
    wrong = 0
    for _ in range(100):
        q = torch.zeros_like(source)
        side.wait_stream(torch.cuda.current_stream())
        late(side, q, source)
        with torch.cuda.stream(side):
            wrong += not np.array_equal(index.search(q, 5).ids.cpu().numpy(), expected)
    assert wrong == 0


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_cuvs_on_a_device_that_is_not_current(cuvs: Any, algorithm: str) -> None:
    """The index lives where its rows are, also from a thread that never chose a device."""
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    base, queries = rows(4000, 64), rows(50, 64, 1)
    index = cuvs_index(torch.from_numpy(base).to("cuda:1"), algorithm)
    with ThreadPoolExecutor(1) as other:
        found = other.submit(index.search, torch.from_numpy(queries).to("cuda:1"), 10).result()
    assert str(found.ids.device) == "cuda:1"
    assert torch.cuda.current_device() == 0
    assert recall(on_host(found)[0], queries, base, "sqeuclidean") >= (0.6 if algorithm == "ivf_pq" else 0.98)
