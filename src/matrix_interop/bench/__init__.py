"""Benchmarks that users run on their own machine: one file a suite.

A suite is a module whose docstring's first line says what it measures, with a function
``main(arguments)`` that takes its command line.  Its name stands in `SUITES`.  Suites that compare
ways of doing one thing list them as `harness.Case` and leave the rest to `command.run_suite`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from types import ModuleType

__all__ = ["SUITES", "load_suite"]

#: The suites by the name that the command line takes, each with its module.
SUITES: Final[dict[str, str]] = {
    "exchange": "matrix_interop.bench.exchange",
    "device_exchange": "matrix_interop.bench.device_exchange",
    "arena": "matrix_interop.bench.arena",
    "transfer": "matrix_interop.bench.transfer",
    "rows": "matrix_interop.bench.rows",
    "builder": "matrix_interop.bench.builder",
    "pinned": "matrix_interop.bench.pinned",
    "search": "matrix_interop.bench.search",
    "search_memory": "matrix_interop.bench.search_memory",
}


def load_suite(name: str) -> ModuleType:
    """The module of the suite ``name``, a key of `SUITES`."""
    return import_module(SUITES[name])
