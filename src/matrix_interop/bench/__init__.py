"""Benchmarks that users run on their own machine: one file a suite, measured by one harness.

A suite is a module with a docstring, whose first line the listing shows, and a function
``cases() -> Iterable[Case]``.  Its name stands in `SUITES`.
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
}


def load_suite(name: str) -> ModuleType:
    """The module of a suite. Raises ValueError naming the suites there are."""
    if name not in SUITES:
        msg = f"no suite is called {name!r}: there are {', '.join(SUITES)}"
        raise ValueError(msg)
    return import_module(SUITES[name])
