"""The command line that suites of cases share: how long to measure, by which clock, and where to keep the result."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from matrix_interop.bench import report
from matrix_interop.bench.harness import CLOCKS, ROUNDS, Case, run

__all__ = ["run_suite"]


def run_suite(name: str, about: str, cases: Iterable[Case], arguments: Sequence[str] | None) -> None:
    """Measure ``cases`` as ``arguments`` say, print the table and, with ``--json FILE``, write the record.

    ``about``: the docstring of the suite, which ``--help`` shows.
    """
    parser = argparse.ArgumentParser(
        prog=f"matrix-interop bench {name}", description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"bursts of each call (default {ROUNDS})")
    parser.add_argument("--clock", choices=list(CLOCKS), default="wall", help="cpu: for a machine that is shared")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write times, machine and versions there")
    options = parser.parse_args(arguments)
    if options.rounds < 1:
        parser.error(f"--rounds {options.rounds}: at least one")
    before = report.load()
    outcomes = list(run(cases, rounds=options.rounds, clock=options.clock))
    print(report.facts())
    print(report.suite_table(outcomes))
    if options.json is not None:
        kept = report.record(name, outcomes, clock=options.clock, load_before=before)
        options.json.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
