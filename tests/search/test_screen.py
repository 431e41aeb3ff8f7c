"""The proof of the candidate stage: an engine as bad as its promise allows must not change an answer."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from matrix_interop.search import exact, screen
from matrix_interop.search.engines import Form
from matrix_interop.search.merge import Best
from matrix_interop.search.metrics import METRICS, kind_of
from matrix_interop.search.prepared import PreparedBlock
from search.reference import neighbours


class Rounder:
    """Scores as far off as the promise allows, at random, under a coarse unit roundoff."""

    def __init__(self, roundoff: float, seed: int) -> None:
        self.roundoff = roundoff
        self.random = np.random.default_rng(seed)

    def candidates(self, queries: np.ndarray, block: np.ndarray, k: int, form: Form) -> tuple[np.ndarray, np.ndarray]:
        x, y = queries.astype(np.float64), block.astype(np.float64)
        d = x.shape[1]
        lengths, norms = np.sqrt((x * x).sum(1))[:, None], np.sqrt((y * y).sum(1))
        if form == "l2":
            scores = ((x[:, None] - y) ** 2).sum(2)
            reach = (d + 2) * self.roundoff * (lengths + norms) ** 2
        else:
            scores = -(x @ y.T)
            reach = d * self.roundoff * lengths * norms
        scores = scores + reach * self.random.choice([-1, 1, 0.3], size=scores.shape)
        ids = np.argsort(scores, axis=1, kind="stable")[:, :k]
        return ids, np.take_along_axis(scores, ids, axis=1)


@pytest.fixture
def seconds(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Small blocks go to the engine, too; collects how many queries took the second pass."""
    taken: list[int] = []

    def counted(kind: str, queries: np.ndarray, *rest: object) -> Best:
        taken.append(len(queries))
        return exact.search_exactly(kind, queries, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(screen, "_FEW", 0)
    monkeypatch.setattr(screen, "search_exactly", counted)
    return taken


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("roundoff", [2.0**-24, 2.0**-16, 2.0**-10])
def test_a_bad_engine_changes_nothing(metric: str, roundoff: float, seconds: list[int]) -> None:
    """However its errors fall, the answer is that of brute force."""
    for seed in range(12):
        random = np.random.default_rng(seed)
        base = random.normal(size=(200, 6)).astype(np.float32)
        base[:, :] *= 10.0 ** random.uniform(-1, 1, size=(200, 1))
        queries = random.normal(size=(8, 6)).astype(np.float32)
        block = screen.Screen(kind_of(metric), base, 0, Rounder(roundoff, seed))
        found = block.search(queries.astype(np.float64), Best.empty(8, 5))
        assert np.array_equal(found.ids, neighbours(queries, base, 5, metric)[0])


def test_good_scores_need_no_second_pass(seconds: list[int]) -> None:
    """Well separated neighbours are proven by float32 alone: the bound is of use, not only right."""
    random = np.random.default_rng(0)
    base, queries = random.normal(size=(5000, 64)).astype(np.float32), random.normal(size=(50, 64))
    for metric in METRICS:
        screen.Screen(kind_of(metric), base, 0, Rounder(2.0**-24, 0)).search(queries, Best.empty(50, 10))
    assert sum(seconds) == 0


def test_an_offset_needs_no_second_pass(seconds: list[int]) -> None:
    """Centring keeps float32 useful far from the origin."""
    random = np.random.default_rng(0)
    base = (random.normal(size=(5000, 64)) + 1000).astype(np.float32)
    queries = random.normal(size=(50, 64)) + 1000
    screen.Screen("squared", base, 0, Rounder(2.0**-24, 0)).search(queries, Best.empty(50, 10))
    assert sum(seconds) == 0


def test_a_useless_engine_is_not_asked(seconds: list[int]) -> None:
    """Where the bound says nothing, the float64 pass answers every query."""
    base = np.random.default_rng(0).normal(size=(300, 64)).astype(np.float32)
    screen.Screen("squared", base, 0, Rounder(2.0**-8, 0)).search(base[:7].astype(np.float64), Best.empty(7, 3))
    assert seconds == [7]


@given(seed=st.integers(0, 2**32), size=st.integers(-140, 140), offset=st.integers(-1, 8))
def test_prepared_rows_are_of_sane_size(seed: int, size: int, offset: int) -> None:
    """Float64 rows of any size come within reach of float32, and near the origin."""
    random = np.random.default_rng(seed)
    rows = (random.normal(size=(50, 8)) + (10.0**offset if offset >= 0 else 0)) * 10.0**size
    prepared = PreparedBlock("squared", rows)
    lengths = np.linalg.norm(prepared.y.astype(np.float64), axis=1)
    assert prepared.y.dtype == np.float32
    assert 2.0**-32 < np.median(lengths) < 2.0**32
    assert offset < 1 or np.median(lengths) * 3 < prepared.scale * 10.0 ** (size + offset)


def test_plain_rows_are_shared() -> None:
    """C-ordered float32 near the origin goes to the engine as it lies."""
    rows = np.random.default_rng(0).normal(size=(50, 8)).astype(np.float32)
    assert np.shares_memory(PreparedBlock("squared", rows).y, rows)
    assert np.shares_memory(PreparedBlock("product", rows).y, rows)


def test_rows_of_the_caller_are_never_written() -> None:
    """Rows that are not finite are marked in a copy."""
    rows = np.random.default_rng(0).normal(size=(50, 8)).astype(np.float32)
    rows[3, 2] = np.inf
    before = rows.copy()
    assert np.isnan(PreparedBlock("product", rows).y[3]).all()
    assert np.array_equal(rows, before)
