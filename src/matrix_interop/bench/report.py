"""What a run of a suite says: as a table for reading, as JSON for keeping; and where it ran."""

from __future__ import annotations

import datetime as dt
import os
import platform
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from pathlib import Path
from typing import Any, Final

from matrix_interop.bench.harness import Outcome, Reading
from matrix_interop.errors import DeviceUnavailableError
from matrix_interop.runtime import get_runtime

__all__ = ["facts", "load", "machine", "record", "suite_table", "table", "versions"]

#: Packages whose versions change what is measured.
_PACKAGES: Final = (
    "numpy",
    "ml_dtypes",
    "torch",
    "jax",
    "cupy",
    "pyarrow",
    "numba_cuda",
    "faiss",
    "hnswlib",
    "usearch",
    "cuvs",
    "h5py",
    "safetensors",
)


def table(rows: Sequence[Sequence[str]], *, right: Iterable[int] = (), indent: str = "") -> str:
    """Lines of aligned columns; the first row is the heading. ``right``: columns that are set flush right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    flush = set(right)
    ruled = [rows[0], ["-" * width for width in widths], *rows[1:]]
    lines = (
        "  ".join(
            cell.rjust(width) if column in flush else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in ruled
    )
    return "\n".join(f"{indent}{line}".rstrip() for line in lines)


def suite_table(outcomes: Sequence[Outcome]) -> str:
    """Medians of every call, and below them each goal that was missed.

    "ratio": the first call over the bare one.  "spread": the largest distance between the quartiles
    in the row, as a share of the median.  "goals": met, of how many.
    """
    names = list(dict.fromkeys(name for outcome in outcomes for name in outcome.readings))
    rows = [["microseconds", *names, "ratio", "spread", "goals"]]
    for outcome in outcomes:
        ratio = "" if outcome.ratio is None else f"{outcome.ratio:.2f}"
        spread = f"{max(reading.spread for reading in outcome.readings.values()):.0%}"
        goals = len(outcome.case.goals)
        met = f"{goals - len(outcome.missed)}/{goals}" if goals else ""
        cells = [_microseconds(outcome.readings.get(name)) for name in names]
        rows.append([outcome.case.name, *cells, ratio, spread, met])
    missed = [f"missed: {outcome.case.name}: {goal}" for outcome in outcomes for goal in outcome.missed]
    return "\n".join([table(rows, right=range(1, len(names) + 4)), *missed])


def _microseconds(reading: Reading | None) -> str:
    return "" if reading is None else f"{reading.median * 1e6:,.2f}"


def record(suite: str, outcomes: Sequence[Outcome], *, clock: str, load_before: float | None) -> dict[str, Any]:
    """The run as plain data for JSON: times in seconds, machine, versions, date (UTC), load at start and end."""
    return {
        "suite": suite,
        "date": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "clock": clock,
        "machine": machine(),
        "load": [load_before, load()],
        "versions": versions(),
        "cases": [
            {
                "name": outcome.case.name,
                "nbytes": outcome.case.nbytes,
                "calls": {
                    name: {"text": outcome.case.calls[name].text, **asdict(reading)}
                    for name, reading in outcome.readings.items()
                },
                "goals": {str(goal): goal not in outcome.missed for goal in outcome.case.goals},
            }
            for outcome in outcomes
        ],
    }


def facts() -> str:
    """One line: processor, cores, memory, devices, system, Python."""
    here = machine()
    devices = "".join(f", {device}" for device in here["devices"])
    memory = f"{here['memory'] / 2**30:.0f} GiB"
    return f"{here['cpu']}, {here['cores']} cores, {memory}{devices}; {here['system']}; Python {here['python']}"


def machine() -> dict[str, Any]:
    """Processor, usable cores, memory in bytes, devices, system, Python. Nothing that names the machine."""
    return {
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "devices": _devices(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
    }


def load() -> float | None:
    """Processes that ran or waited for a processor, on average over the last minute; None where nobody counts."""
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None


def versions() -> dict[str, str]:
    """Versions of this library and of what is loaded of the libraries that it works with."""
    from matrix_interop._version import __version__

    distributions = packages_distributions()
    found = {"matrix_interop": __version__}
    for name in _PACKAGES:
        if name in sys.modules:
            try:
                found[name] = version(distributions.get(name, [name])[0])
            except PackageNotFoundError:
                found[name] = str(getattr(sys.modules[name], "__version__", "unknown"))
    return found


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _devices() -> list[str]:
    try:
        runtime = get_runtime("cuda")
        return [
            f"cuda:{index} with {runtime.memory_info(index)[1] / 2**30:.0f} GiB"
            for index in range(runtime.device_count())
        ]
    except DeviceUnavailableError:
        return []
