"""The harness: results are checked before anything is timed, and what is said of the times follows from them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from matrix_interop.bench import SUITES, load_suite, report
from matrix_interop.bench.command import run_suite
from matrix_interop.bench.harness import CLOCKS, Call, Case, Goal, Outcome, Reading, measure, run


def reading(median: float, spread: float = 0.0) -> Reading:
    """A reading with this median, in seconds, and distance between quartiles."""
    return Reading(median, median - spread / 2, median + spread / 2, median, rounds=3, loops=1)


def case(*texts: str, goals: tuple[Goal, ...] = ()) -> Case:
    """A case whose calls are expressions: "ours", "bare", "naive" in this order."""
    names = ("ours", "bare", "naive")
    calls = {name: Call.of(text, {"np": np}) for name, text in zip(names, texts, strict=False)}
    return Case("test", calls, goals)


def test_calls_alternate_and_the_first_burst_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each round bursts every call once, starting with another one; times come from the clock that was named."""
    now, order = [0.0], []

    def taking(name: str, seconds: float) -> Callable[[], None]:
        def call() -> None:
            order.append(name)
            now[0] += seconds

        return call

    monkeypatch.setitem(CLOCKS, "test", lambda: now[0])
    found = measure({"a": taking("a", 3.0), "b": taking("b", 5.0)}, rounds=2, clock="test", burst=1.0)
    assert order == ["a", "a", "b", "b", "a", "b", "b", "a"]  # one to warm up, one to find out how many make a burst
    assert (found["a"], found["b"]) == (Reading(3, 3, 3, 3, 2, 1), Reading(5, 5, 5, 5, 2, 1))


def test_quick_calls_are_repeated_within_a_burst(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call of 1 ms is called ten times in a burst of 10 ms; the reading is that of one call."""
    now = [0.0]

    def call() -> None:
        now[0] += 0.001

    monkeypatch.setitem(CLOCKS, "test", lambda: now[0])
    found = measure({"a": call}, rounds=3, clock="test", burst=0.01)["a"]
    assert found.loops == 10
    assert found.median == pytest.approx(0.001)


@pytest.mark.parametrize("other", ["np.zeros(4)", "np.ones(3)", "np.zeros(3, np.float32)", "-np.zeros(3)"])
def test_different_results_are_never_timed(other: str) -> None:
    """Another shape, value, dtype or sign of zero is an error that names both calls."""
    with pytest.raises(AssertionError, match="gives another result") as error:
        next(run([case("np.zeros(3)", other)], rounds=1))
    assert f"test: {other} gives" in str(error.value)
    assert "np.zeros(3)" in str(error.value)


@pytest.mark.parametrize(
    ("ours", "bare", "goal", "met"),
    [
        (2.0e-6, 1.0e-6, Goal("ours", "bare", 1.5, 1e-6), True),
        (2.6e-6, 1.0e-6, Goal("ours", "bare", 1.5, 1e-6), False),
        (1.0e-6, 1.0e-6, Goal("ours", "bare"), True),
        (1.1e-6, 1.0e-6, Goal("ours", "bare"), False),
    ],
)
def test_goals_compare_medians(ours: float, bare: float, goal: Goal, met: bool) -> None:
    """A goal is a factor and a constant over another call's median."""
    outcome = Outcome(case("0", "0", goals=(goal,)), {"ours": reading(ours), "bare": reading(bare)})
    assert outcome.missed == (() if met else (goal,))


def test_goals_read_as_they_are_written() -> None:
    """Factor 1 and constant 0 are left out."""
    assert [str(Goal("a", "b")), str(Goal("a", "b", 1.5, 1e-6))] == ["a <= b", "a <= 1.5 x b + 1 us"]


def test_the_table_shows_ratio_spread_and_missed_goals() -> None:
    """Microseconds by call, an empty cell where a case lacks one, and a line for each goal that was missed."""
    goal = Goal("ours", "bare")
    first = Outcome(case("0", "0", "0", goals=(goal,)), {"ours": reading(3e-6), "bare": reading(2e-6, 1e-6)})
    second = Outcome(case("0", "0"), {"ours": reading(1e-6), "naive": reading(1e-3)})
    heading, _, *rows, missed = report.suite_table([first, second]).splitlines()
    assert heading.split() == ["microseconds", "ours", "bare", "naive", "ratio", "spread", "goals"]
    assert rows[0].split() == ["test", "3.00", "2.00", "1.50", "50%", "0/1"]
    assert rows[1].split() == ["test", "1.00", "1,000.00", "0%"]
    assert missed == "missed: test: ours <= bare"


def test_columns_line_up() -> None:
    """Cells are padded to the widest of their column, on the left where numbers stand."""
    assert report.table([["a", "b"], ["x", "10"], ["long", "9"]], right=[1]).splitlines() == [
        "a      b",
        "----  --",
        "x     10",
        "long   9",
    ]


def test_a_suite_prints_a_table_and_keeps_a_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The record holds every reading with its call, the goals, machine, versions and date."""
    kept = tmp_path / "kept.json"
    cases = [case("np.zeros(3)", "np.zeros(3)", goals=(Goal("ours", "bare", 1000.0, 1.0),))]
    run_suite("name", "What it is.", cases, ["--rounds", "2", "--clock", "cpu", "--json", str(kept)])
    assert capsys.readouterr().out.splitlines()[-1].startswith("test ")
    record = json.loads(kept.read_text("utf-8"))
    assert (record["suite"], record["clock"]) == ("name", "cpu")
    assert set(record["machine"]) == {"cpu", "cores", "memory", "devices", "system", "python"}
    assert record["versions"]["numpy"] == np.__version__
    (one,) = record["cases"]
    assert (one["name"], one["goals"]) == ("test", {"ours <= 1000 x bare + 1e+06 us": True})
    assert one["calls"]["bare"]["text"] == "np.zeros(3)"
    assert (one["calls"]["ours"]["rounds"], one["calls"]["ours"]["median"] > 0) == (2, True)


@pytest.mark.parametrize("name", list(SUITES))
def test_suites_are_what_the_table_promises(name: str) -> None:
    """Each has a first line that says what it measures, and a main function."""
    suite = load_suite(name)
    assert (suite.__doc__ or "").splitlines()[0].endswith(".")
    assert callable(suite.main)
