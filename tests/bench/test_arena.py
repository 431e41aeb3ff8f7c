"""The arena against the strategies of the AMReX thread, on that thread's traces."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from matrix_interop.bench.arena import live_bytes, main, replay, traces
from matrix_interop.bench.strategies import STRATEGIES, SimulatedPages
from matrix_interop.bench.traces import analytic, staging, warpx
from matrix_interop.memory import PinnedArena

MIB = 1 << 20
X, Y = 64 * MIB, MIB


def brackets(n):
    """The hunks that the thread says each strategy holds at the test point of R(n, x, y), n even."""
    return {
        "no defragmentation": {X: n, X + Y: n},
        "combine what is freed (#4451)": {X: 1, X + Y: 1, 2 * X + Y: n - 1},
        "combine if enough (#4531)": {X: 2, 2 * X: n // 2 - 1, X + Y: n // 2 + 1},
        "at least what was freed": {X: 1, X + Y: n},
        "release threshold 0": {X: 1, X + Y: n},
    }


@pytest.mark.parametrize("real", [False, True])
@pytest.mark.parametrize("n", [16, 64])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_strategies_hold_what_the_thread_says(strategy, n, real):
    """Each strategy holds exactly the hunks in the thread's brackets, in simulated and in ordinary memory."""
    upstream = "ordinary" if real else SimulatedPages()
    arena = PinnedArena(1 << 40, policy=STRATEGIES[strategy](), upstream=upstream, decay_s=None)
    steps = analytic(n, X, Y)
    blocks = {}
    for step in steps[: steps.index(("m",))]:
        new = arena.block(step[2])
        if step[0] == "r":
            arena.release(blocks[step[1]])
        blocks[step[1]] = new
    (store,) = arena._stores
    assert Counter(hunk.nbytes for hunk in store.hunks) == brackets(n)[strategy]


def row(trace, policy, seeds=1):
    """The one row of a trace on a policy, simulated."""
    (only,) = traces([trace], [policy], seeds=seeds)
    return only


@pytest.mark.parametrize(("strategy", "calls"), [("combine if enough (#4531)", 85), ("at least what was freed", 1553)])
def test_the_devtest_needs_the_calls_that_were_told(strategy, calls):
    """The upstream author's own test: 85 calls for #4531, "about 1500" for the one-line patch."""
    assert row("devtest", strategy).calls == calls


@pytest.mark.parametrize(
    ("trace", "policy", "stalls", "peak"),
    [
        ("R(64)", "bounded", 66, 1.12),
        ("R(64)", "remap", 72, 1.02),
        ("devtest", "bounded", 143, 1.25),
        ("devtest", "remap", 125, 1.06),
        ("warpx", "bounded", 115, 1.21),
        ("warpx", "remap", 135, 1.05),
        ("staging", "bounded", 22, 1.45),
        ("staging", "remap", 45, 1.05),
    ],
)
@pytest.mark.parametrize("seeds", [1, pytest.param(5, marks=pytest.mark.slow)])
def test_our_policies_stay_within_their_bounds(trace, policy, stalls, peak, seeds):
    """Stalls, and peak reserved over peak live, the worst of the seeds."""
    found = row(trace, policy, seeds)
    assert found.stalls <= stalls
    assert round(found.peak, 2) <= peak


@pytest.mark.parametrize("steps", [warpx(7, boxes=2, rounds=30), staging(3, phases=2)], ids=["warpx", "staging"])
def test_a_trace_gives_back_all_that_it_takes(steps):
    """After a replay nothing is live, and the most that was live is what the trace says."""
    arena = PinnedArena(1 << 40, policy="remap", upstream=SimulatedPages(), decay_s=None)

    class Pool:
        take, give = arena.block, arena.release

    replay(steps, Pool)
    stats = arena.stats()
    assert (stats.live, stats.peak_reserved >= live_bytes(steps)) == (0, True)
    assert arena.trim() == stats.reserved


def test_the_suite_prints_and_keeps_a_row_for_each_policy(capsys, tmp_path):
    """The command line prints what was asked for, one line a policy under one head, and writes the same rows."""
    main(["--traces", "devtest", "--policies", "bounded", "torch", "--json", str(tmp_path / "arena.json")])
    lines = capsys.readouterr().out.strip().splitlines()[2:]
    assert [line.split()[:2] for line in lines] == [["trace", "policy"], ["devtest", "bounded"], ["devtest", "torch"]]
    kept = json.loads((tmp_path / "arena.json").read_text())
    assert [(line["kind"], line["policy"]) for line in kept["rows"]] == [("TraceRow", "bounded"), ("TraceRow", "torch")]
