"""The search that runs on devices, run on the host: the proof, and every framework."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from matrix_interop.devices import CPU
from matrix_interop.errors import UnsupportedLayoutError
from matrix_interop.frameworks.registry import framework
from matrix_interop.matrix import from_tensor
from matrix_interop.search import KnnResult, knn
from matrix_interop.search.device import best, screen
from matrix_interop.search.device import search as device_search
from matrix_interop.search.device.arrays import Arrays, arrays_of
from matrix_interop.search.device.chain import Chain
from matrix_interop.search.device.torch import TorchArrays
from matrix_interop.search.metrics import kind_of
from search.reference import METRICS, neighbours
from search.test_knn import real_set, rows


def search(queries: Any, base: Any, k: int, name: str = "torch", metric: str = "sqeuclidean", **more: Any) -> KnnResult:
    """The device's search, on the host."""
    base = base if isinstance(base, list) else from_tensor(base)
    return device_search.search_on_device(
        from_tensor(queries), base, k, metric=metric, device=CPU, engine=name, block=more.get("block")
    )


def same(found: KnnResult, expected: KnnResult) -> bool:
    """The same ids and counts, and distances but for the last bit."""
    close = np.allclose(np.asarray(found.distances), expected.distances, rtol=3e-7, atol=0)
    return bool(np.array_equal(found.ids, expected.ids) and np.array_equal(found.valid, expected.valid) and close)


def hard_values() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Queries and base by what is hard about them."""
    base, queries = rows(3000, 24), rows(20, 24, 1)
    odd, asked = base.copy(), queries.copy()
    odd[[5, 700], [0, 3]], odd[[6, 2999], [1, 2]], asked[3, 4] = np.nan, (np.inf, -np.inf), np.nan
    return {
        "plain": (queries, base),
        "an offset": (queries + 1000, base + 1000),
        "not finite": (asked, odd),
        "duplicates": (queries, np.repeat(base[:1], 3000, 0)),
        "extreme": (queries * np.float32(1e18), base * np.float32(1e18)),
        "whole numbers": (rows(20, 5, 1, "i1") // 16, rows(3000, 5, 0, "i1") // 16),
        "few rows": (queries, base[:9]),
        "unsigned": (rows(20, 24, 1, "u2"), rows(3000, 24, 0, "u2")),
    }


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("what", hard_values())
def test_hard_values(what: str, metric: str) -> None:
    """As the search for the host finds them, alone, in a batch and in blocks."""
    queries, base = hard_values()[what]
    found = search(queries, base, 12, metric=metric)
    assert same(found, knn(queries, base, 12, metric=metric, engine="numpy"))
    for other in (search(queries[5:6], base, 12, metric=metric), search(queries, base, 12, metric=metric, block=700)):
        first = 5 if len(other.ids) == 1 else 0
        assert np.array_equal(other.ids, found.ids[first : first + len(other.ids)])
        assert np.array_equal(other.distances, found.distances[first : first + len(other.ids)])


@pytest.mark.filterwarnings("ignore:.*encountered:RuntimeWarning")
@pytest.mark.parametrize("name", ["numpy", "jax"])
def test_the_array_api_and_jax(name: str) -> None:
    """Other frameworks find the same, bit by bit."""
    for what in ("plain", "not finite"):
        queries, base = hard_values()[what]
        expected, found = search(queries, base, 12), search(queries, base, 12, name)
        assert np.array_equal(found.ids, expected.ids)
        assert np.array_equal(found.distances, expected.distances)


@pytest.mark.parametrize("metric", METRICS)
def test_rows_without_entries(metric: str) -> None:
    """All are alike, and the nearest are the first."""
    many = np.empty((5000, 0), np.float32)
    empty = many[:30]
    for queries, block in ((empty[:2], None), (empty, 4), (many, None)):
        assert same(search(queries, empty, 9, metric=metric, block=block), knn(queries, empty, 9, metric=metric))


@pytest.mark.parametrize("block", [None, 7])
def test_no_rows(block: int | None) -> None:
    """They have a dtype, which counts, and columns, which must be as many as the queries have."""
    found = search(rows(2, 8), np.empty((0, 8), np.int8), 3, block=block)
    assert (found.distances.dtype, found.valid.tolist()) == (np.float64, [0, 0])
    with pytest.raises(UnsupportedLayoutError, match="queries have 8 columns, base has 7"):
        search(rows(2, 8), np.empty((0, 7), np.float32), 3, block=block)


def test_few_queries_are_finished_on_the_host_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the last steps run changes no bit."""
    queries, base = rows(7, 48, 1), rows(4000, 48)
    for metric in METRICS:
        found = []
        for entries in (0, 1 << 40):
            monkeypatch.setattr(device_search, "_FINISHED", entries)
            found.append(search(queries, base, 9, metric=metric))
        assert np.array_equal(found[0].ids, found[1].ids)
        assert np.array_equal(found[0].distances, found[1].distances)


def test_few_queries_wait_for_the_device_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the host needs of a block is waited for at once, whatever the types and layouts are."""
    arrays, waits = arrays_of("torch", CPU), []
    monkeypatch.setattr(TorchArrays, "_marked", lambda _: waits.append("for the device"))
    base, queries = torch.from_numpy(rows(4000, 48)), torch.from_numpy(rows(2, 48, 1))
    for metric in METRICS:
        search(queries, base, 9, metric=metric)
    assert len(waits) == len(METRICS)
    parts = [torch.arange(7)[::3], torch.tensor(True), base[:3, ::5], base[:1, -1:], base[:2].bfloat16(), base[:0]]
    fetched = arrays.fetching(*parts)()
    assert len(waits) == len(METRICS) + 1
    for part, found in zip(parts, fetched, strict=True):
        assert np.array_equal(found, (part.float() if part.dtype is torch.bfloat16 else part).numpy())


def test_what_is_fetched_is_read_once_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """The copies are under way when `fetching` returns, and are waited for when the values are asked for."""
    started: list[tuple[torch.Tensor, torch.Tensor]] = []

    def start(x: torch.Tensor, where: str, *, non_blocking: bool) -> torch.Tensor:
        assert (where, non_blocking) == ("cpu", True)
        started.append((torch.zeros_like(x), x))
        return started[-1][0]

    class Event:
        def synchronize(self) -> None:
            for there, values in started:
                there.copy_(values)

    monkeypatch.setattr(torch.Tensor, "to", start)
    monkeypatch.setattr(TorchArrays, "_marked", lambda self: Event())
    fetched = arrays_of("torch", CPU).fetching(torch.arange(5), torch.tensor([True, False]))
    assert len(started) == 2
    assert [part.tolist() for part in fetched()] == [[0, 1, 2, 3, 4], [True, False]]


def test_results_go_up_in_one_copy() -> None:
    """Three arrays of their own types and shapes, over one memory."""
    ids, valid, distances = np.arange(6).reshape(2, 3), np.array([3, 1]), rows(2, 3)
    send = arrays_of("torch", CPU).sending(((2, 3), "int64"), ((2,), "int32"), ((2, 3), "float32"))
    sent = send(ids, valid, distances.astype(np.float64))
    assert [part.dtype for part in sent] == [torch.int64, torch.int32, torch.float32]
    for part, expected in zip(sent, (ids, valid, distances), strict=True):
        assert np.array_equal(part, expected)
    assert len({part.untyped_storage().data_ptr() for part in sent}) == 1
    send = arrays_of("torch", CPU).sending(((0, 3), "int64"), ((0,), "int64"), ((0, 3), "float32"))
    assert [tuple(part.shape) for part in send(ids[:0], valid[:0], distances[:0])] == [(0, 3), (0,), (0, 3)]


@pytest.mark.parametrize("entries", [0, 1 << 40])
@pytest.mark.parametrize("what", ["plain", "ties", "far"])
def test_a_block_that_is_proven_late(what: str, entries: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next block builds on an answer that is not proven yet, and builds again only where that was not the one."""
    monkeypatch.setattr(device_search, "_FINISHED", entries)
    joined: list[screen.Attempt] = []
    whole = screen.Attempt.build_on
    monkeypatch.setattr(screen.Attempt, "build_on", lambda self, best: joined.append(self) or whole(self, best))
    base, queries = rows(2800, 24), rows(20, 24, 1)
    if what == "ties":
        base[700:1400] = queries[3] + 0.1
    elif what == "far":
        base[700:1400] += 3000
        queries = queries + 3000
    found = search(queries, base, 12, block=700)
    assert same(found, knn(queries, base, 12, engine="numpy"))
    again = {attempt.screen.number for attempt in joined if joined.count(attempt) > 1}
    # What is finished on the host has the answer before when it joins.
    assert again == ({1400} if what != "plain" and not entries else set())


def test_blocks_of_many_kinds_are_numbered_through() -> None:
    """A list of blocks of several dtypes is one base."""
    base = rows(900, 8, 0, "i1")
    blocks = [base[:100], base[100:700].astype(np.float32), torch.from_numpy(base[700:]).double()]
    assert same(search(rows(9, 8, 1), blocks, 4), knn(rows(9, 8, 1), base.astype(np.float64), 4, engine="numpy"))


@pytest.mark.parametrize(("name", "k"), [("digits", 100), ("sift", 100)])
def test_ground_truth_is_met(shared_data: Path, name: str, k: int) -> None:
    """Real data, ids and distances as the host's."""
    base, queries, _ = real_set(shared_data, name)
    assert same(search(queries, base, k), knn(queries, base, k, engine="numpy"))


# The proof ---------------------------------------------------------------------------------------
class Rounder(Arrays):
    """Scores as far off as the promise allows, at random, under a coarse unit roundoff."""

    roundoff = 2.0**-12

    def __init__(self, seed: int) -> None:
        super().__init__(framework("numpy"), CPU)
        self.random = np.random.default_rng(seed)

    def scores(self, x: Any, y: Any, offset: Any, factor: float) -> Any:
        wide, rows_ = factor * x.astype(np.float64), y.astype(np.float64)
        lengths, norms = np.sqrt((wide * wide).sum(1))[:, None], np.sqrt((rows_ * rows_).sum(1))
        reach = x.shape[1] * self.roundoff * (lengths * norms if offset is None else (lengths / 2 + norms) ** 2)
        exact = wide @ rows_.T + (0 if offset is None else offset)
        return exact + reach * self.random.choice([-1, 1, 0.3], size=exact.shape)


@pytest.mark.parametrize("metric", METRICS)
def test_bad_scores_change_nothing(metric: str) -> None:
    """However the errors fall, the answer is that of brute force."""
    for seed in range(12):
        random = np.random.default_rng(seed)
        base = (random.normal(size=(200, 6)) * 10.0 ** random.uniform(-1, 1, size=(200, 1))).astype(np.float32)
        arrays = Rounder(seed)
        queries = screen.Queries(arrays, random.normal(size=(8, 6)).astype(np.float32), arrays)
        chain = Chain(lambda queries=queries: queries, 5)
        with np.errstate(all="ignore"):
            chain.add(screen.Screen(arrays, kind_of(metric), base, 0, 5))
            found = chain.answer().ids
        assert np.array_equal(found, neighbours(queries.native, base, 5, metric)[0])


def test_good_scores_need_no_second_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """Well separated neighbours are proven by float32 alone; far from the origin, once the rows are centred."""

    def never(*arguments: object) -> None:
        raise AssertionError("searched in float64")

    monkeypatch.setattr(screen, "search_exactly", never)
    base, queries = rows(5000, 64), rows(50, 64, 1)
    for metric in METRICS:
        search(queries, base, 10, metric=metric)
    search(queries + 1000, base + 1000, 10)


@pytest.mark.parametrize(("n", "k"), [(5000, 3), (4096, 10), (70_001, 18), (300, 18), (40, 40)])
def test_smallest(n: int, k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups first or not: the k smallest, and where they are."""
    monkeypatch.setattr(best, "_FEW", 0)
    scores = np.random.default_rng(n).permutation(4 * n).reshape(4, n).astype(np.float32)
    for name, made in (("torch", torch.from_numpy(scores)), ("numpy", scores)):
        found, places = best.smallest(arrays_of(name, CPU), made, k)
        assert np.array_equal(np.sort(places, axis=1), np.sort(np.argsort(scores, axis=1)[:, :k], axis=1))
        assert np.array_equal(found, np.take_along_axis(scores, np.asarray(places), axis=1))


def test_tf32_is_off_for_as_long_as_anybody_multiplies() -> None:
    """Searches that multiply at once restore the process's setting once the last one has."""
    from matrix_interop.search.device import torch as module

    matmul: Any = torch.backends.cuda.matmul
    before = matmul.fp32_precision
    matmul.fp32_precision = "tf32"
    try:
        first, second = module._FullPrecision(), module._FullPrecision()
        with contextlib.ExitStack() as stack:
            stack.enter_context(second)
            with first:
                assert matmul.fp32_precision == "ieee"
            assert matmul.fp32_precision == "ieee"
        assert matmul.fp32_precision == "tf32"
    finally:
        matmul.fp32_precision = before
