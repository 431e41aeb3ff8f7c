"""``bench``: the suites, and running one."""

from __future__ import annotations

import argparse

from matrix_interop.bench import SUITES, load_suite

__all__ = ["bench"]


def bench(options: argparse.Namespace) -> None:
    """Run the suite with the arguments after its name; without one, list them all."""
    if options.suite is not None:
        load_suite(options.suite).main(options.arguments)
        return
    width = max(map(len, SUITES))
    for name in SUITES:
        about = (load_suite(name).__doc__ or "").partition("\n")[0]
        print(f"{name:<{width}}  {about}")
