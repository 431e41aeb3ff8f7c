"""The exchange suite and the table of pairs: every call gives the same, over the same memory."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from matrix_interop import frameworks, from_tensor
from matrix_interop.bench.exchange import cases
from matrix_interop.bench.harness import Case, check
from matrix_interop.bench.pairs import Pair, pair_table, pairs, targets
from matrix_interop.frameworks.registry import FrameworkInfo
from matrix_interop.view import TensorView

CASES = list(cases())


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_all_calls_of_a_case_give_the_same(case: Case) -> None:
    """Ours, the bare and the naive call agree, and ours give the source's memory."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch, of the bare call that takes read-only memory
        check(case)
    ours = {TensorView(case.calls[name].run()).pointer for name in ("matrix", "convert", "second")}
    assert len(ours) == 1


def test_the_goals_cover_every_case() -> None:
    """A second target is held against the bare call, and both of ours against from_dlpack where there is one."""
    for case in CASES:
        assert "second <= bare + 0.5 us" in map(str, case.goals)
        held = [goal.call for goal in case.goals if goal.against == "naive"]
        assert held == (["matrix", "convert"] if "naive" in case.calls else [])


def test_pairs_tell_shared_from_copied() -> None:
    """NumPy shares with itself; read-only JAX memory goes into torch by a copy, with the reason."""
    found = {(pair.source, pair.target): pair for pair in pairs(frameworks(load=True))}
    same = found["numpy", "numpy"]
    assert (same.shared, same.seconds > 0, same.why) == (True, True, "")
    into_torch = found["jax", "torch"]
    assert (into_torch.shared, into_torch.why.startswith("torch cannot keep memory read-only")) == (False, True)


def test_a_place_that_fails_is_reported() -> None:
    """A device that nothing serves gives the error in place of a time; the other pairs stay."""
    from matrix_interop.devices import CPU, Device

    there = FrameworkInfo("numpy", "2", True, True, (CPU, Device("hexagon", 0)), None)
    broken = FrameworkInfo("torch", "2", True, True, (CPU,), "OSError: gone")
    found = {(pair.source, pair.target): pair for pair in pairs([there, broken])}
    assert set(found) == {(a, b) for a in ("numpy", "numpy hexagon:0") for b in ("numpy", "numpy hexagon:0")}
    assert found["numpy", "numpy"].shared is True
    assert found["numpy", "numpy hexagon:0"].shared is None
    assert "hexagon:0" in found["numpy", "numpy hexagon:0"].why


def test_targets_convert_one_matrix() -> None:
    """One row: the matrix into each framework on the host."""
    found = targets(from_tensor(np.zeros((2, 3), np.float32)), frameworks())
    assert {pair.source for pair in found} == {"Matrix"}
    assert [pair.shared for pair in found if pair.target == "numpy"] == [True]


def test_the_pair_table_numbers_its_notes() -> None:
    """Each reason stands once below the table; a pair that is refused says so."""
    table = pair_table(
        [
            Pair("a", "a", True, 1e-6, ""),
            Pair("a", "b", False, 2.25e-6, "why"),
            Pair("b", "a", None, 0.0, "error"),
            Pair("b", "b", False, 3e-6, "why"),
        ]
    )
    assert [line.split() for line in table.splitlines()] == [
        ["from", "\\", "to", "a", "b"],
        ["---------", "-------------", "-----------------"],
        ["a", "shared", "1.0", "us", "copied", "2.2", "us", "(1)"],
        ["b", "refused", "(2)", "copied", "3.0", "us", "(1)"],
        ["(1)", "why"],
        ["(2)", "error"],
    ]
