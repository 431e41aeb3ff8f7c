"""The suites that move data, at a thousandth of their size on the simulated device: every way of theirs works."""

from __future__ import annotations

import pytest

from matrix_interop.bench import builder, bus, pinned, rows, transfer
from matrix_interop.bench.harness import check
from matrix_interop.memory import PinnedArena, use_arena
from simulated.adapter import install


@pytest.mark.parametrize("suite", [transfer, rows, builder, pinned], ids=["transfer", "rows", "builder", "pinned"])
def test_ways_agree(suite: object) -> None:
    """Each case's ways give equal results."""
    runtime = install(0)
    with use_arena(PinnedArena(1 << 26, runtime=runtime, upstream="host_alloc", decay_s=None)) as arena:
        seen = []
        for case in suite.cases(bus.Bus(runtime, ("lateframe",), arena=arena), 0.001):  # type: ignore[attr-defined]
            check(case)
            seen.append(case.name)
    assert len(set(seen)) == len(seen) > 0
