"""``info``: what is installed and works, and which pairs of frameworks share memory, tried out."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from importlib.util import find_spec
from typing import Final

from matrix_interop._version import __version__
from matrix_interop.bench.pairs import SHAPE, pair_table, pairs
from matrix_interop.bench.report import facts, table
from matrix_interop.errors import FrameworkNotInstalledError
from matrix_interop.frameworks.registry import FrameworkInfo, framework, frameworks
from matrix_interop.io.registry import known

__all__ = ["info", "state_of"]

#: Optional libraries: import name -> extra, and what needs it.
_LIBRARIES: Final = {
    "faiss": ("faiss", "search"),
    "hnswlib": ("hnswlib", "search"),
    "usearch": ("usearch", "search"),
    "cuvs": ("cuvs-cu13", "search on a GPU"),
    "h5py": ("h5py", "hdf5 and h5 files"),
    "pyarrow": ("pyarrow", "parquet, arrow, arrows and feather files"),
    "safetensors": ("safetensors", "safetensors files"),
}
_NEEDY: Final = frozenset({"hdf5", "h5", "parquet", "arrow", "arrows", "feather", "safetensors"})


def info(_: argparse.Namespace) -> None:
    """Print versions, frameworks, libraries, formats and the table of pairs."""
    found = frameworks(load=True)
    print(f"matrix-interop {__version__} on {facts()}\n")
    print(table([["framework", "version", "devices", "state"], *map(_framework_row, found)]))
    print()
    distributions = packages_distributions()
    libraries = [_library_row(name, distributions) for name in _LIBRARIES]
    print(table([["library", "version", "for", "state"], *libraries]))
    print(f"\nfiles that need none: {', '.join(name for name in known() if name not in _NEEDY)}\n")
    rows, columns = SHAPE
    print(f"{rows} x {columns} float32 from one framework to another: shared or copied (by address), median of a call")
    print(pair_table(pairs(found)))


def _framework_row(one: FrameworkInfo) -> list[str]:
    return [one.name, one.version or "", ", ".join(one.devices), state_of(one)]


def state_of(one: FrameworkInfo) -> str:
    """The word "works", or on one line why not and what to do."""
    if one.installed:
        return "works" if one.problem is None else f"broken: {_line(one.problem)}"
    try:
        framework(one.name)
    except FrameworkNotInstalledError as error:  # which holds the command that installs it
        return _line(str(error))
    return "works"


def _library_row(name: str, distributions: Mapping[str, list[str]]) -> list[str]:
    extra, use = _LIBRARIES[name]
    try:
        number = version(distributions.get(name, [name])[0])
    except PackageNotFoundError:
        number = ""
    if find_spec(name) is None:
        return [name, "", use, f"not installed: pip install 'matrix-interop[{extra}]'"]
    try:
        import_module(name)
    except Exception as error:  # noqa: BLE001 - a broken install raises anything
        return [name, number, use, f"broken: {_line(f'{type(error).__name__}: {error}')}"]
    return [name, number, use, "works"]


def _line(text: str) -> str:
    return " ".join(text.split())
