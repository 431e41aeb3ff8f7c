"""What the suites that move data have in common: the bare bus, peers, and a table in bytes a second.

The bus is measured in the same run: a bare copy between page-locked memory and the device, in the same direction and
of the same size.  "Book" is what the slot's generation and width promise.
"""

from __future__ import annotations

import argparse
import json
import os
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import numpy as np

from matrix_interop.bench import report
from matrix_interop.bench.harness import Call, Case, Goal, Outcome, check, measure
from matrix_interop.errors import DeviceUnavailableError
from matrix_interop.matrix import from_tensor
from matrix_interop.memory import PinnedArena
from matrix_interop.runtime import Runtime, get_runtime

__all__ = ["ROUNDS", "Bus", "at_least", "case", "run_bus_suite", "times"]

#: Bursts of each call, and how long one lasts, in seconds. The median is that of single calls: threads that slept need
#: a few milliseconds to run at full speed again, which is the first call of a burst, and what a device does in a stream
#: of transfers is the question. Rows "after a rest" ask the other one.
ROUNDS: Final = 9
_BURST: Final = 0.05
_PEERS: Final = ("torch", "cupy", "jax")
_SAMPLED: Final = 509
#: Transfers a second and lane, by PCIe generation as the kernel writes it, and the share that is payload.
_ENCODING: Final = 128 / 130


@dataclass(frozen=True)
class Bus:
    """The device, the frameworks beside which to measure, and bare copies."""

    runtime: Runtime
    names: tuple[str, ...]
    ordinal: int = 0
    arena: PinnedArena = field(default_factory=lambda: PinnedArena(decay_s=None))
    modules: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, names: Iterable[str]) -> Bus:
        """The CUDA device and those of the frameworks that are installed. Raises `DeviceUnavailableError`."""
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # else JAX takes three quarters of the device
        runtime = get_runtime("cuda")
        modules = {name: import_module(name) for name in names if find_spec(name) is not None}
        if not modules:
            msg = "no framework holds device memory here: pip install 'matrix-interop[torch]' or [cupy-cuda13]"
            raise DeviceUnavailableError(msg)
        return cls(runtime, tuple(modules), modules=modules)

    @property
    def device(self) -> str:
        """Its text."""
        return f"{self.runtime.device_type}:{self.ordinal}"

    def wait(self) -> None:
        """Until everything on the device is done."""
        event = self.runtime.record_all(self.ordinal)
        self.runtime.synchronize(event)
        self.runtime.release(event)

    def waiting(self, call: Callable[[], Any]) -> Callable[[], Any]:
        """The call, and all that it started on the device."""

        def done() -> Any:
            result = call()
            self.wait()
            return result

        return done

    def bare(self, values: np.ndarray, *, to_device: bool) -> Call:
        """One copy between page-locked and device memory that are there: the bus."""
        host = self.arena.empty(values.shape, values.dtype)
        host[...] = values
        there = from_tensor(values).to_device(self.device)
        address, pinned = there._view.pointer, int(host.__array_interface__["data"][0])
        dst, src = (address, pinned) if to_device else (pinned, address)

        def copy() -> Any:
            self.runtime.copy(dst, src, values.nbytes, ordinal=self.ordinal, stream=1)
            self.wait()
            return there if to_device else host

        return Call("cuMemcpyAsync, page-locked", copy)

    def book(self) -> float | None:
        """GB/s by the book of the device's slot, or None where the system does not say."""
        with suppress(AttributeError, OSError, ValueError):
            parts = [self.runtime.attribute(self.ordinal, f"PCI_{name}_ID") for name in ("DOMAIN", "BUS", "DEVICE")]  # type: ignore[attr-defined]
            slot = Path(f"/sys/bus/pci/devices/{parts[0]:04x}:{parts[1]:02x}:{parts[2]:02x}.0")
            speed = float((slot / "max_link_speed").read_text().split()[0])
            width = int((slot / "max_link_width").read_text())
            return speed * width / 8 * _ENCODING if 0 < width <= 32 else None
        return None


def at_least(share: float) -> Goal:
    """Ours reaches this share of the bus."""
    return Goal("ours", "bus", factor=1 / share)


def times(factor: float, *peers: str) -> tuple[Goal, ...]:
    """Ours is so many times as fast as each of the peers."""
    return tuple(Goal("ours", peer, factor=1 / factor) for peer in peers)


def case(
    bus: Bus,
    name: str,
    calls: dict[str, tuple[str, Callable[[], Any]] | Call],
    nbytes: int,
    *goals: Goal,
) -> Case:
    """A case whose calls wait for the device; goals against peers that are absent are left out."""
    waiting = {
        key: call if isinstance(call, Call) else Call(call[0], bus.waiting(call[1])) for key, call in calls.items()
    }
    here = tuple(goal for goal in goals if goal.against in waiting)
    return Case(name, waiting, here, nbytes, value=_sample)


def _sample(result: Any) -> np.ndarray:
    """Some rows of the result, on the host."""
    if result is None:
        return np.zeros(0)
    return np.ascontiguousarray(np.asarray(from_tensor(result)[::_SAMPLED].to_host(pinned=False)))


def run_bus_suite(
    name: str, about: str, cases: Callable[[Bus, float], Iterable[Case]], arguments: Sequence[str] | None
) -> None:
    """Measure what ``cases(bus, scale)`` gives, print GB/s and shares of the bus, and keep them by ``--json FILE``."""
    parser = argparse.ArgumentParser(
        prog=f"matrix-interop bench {name}", description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"calls of each way (default {ROUNDS})")
    parser.add_argument(
        "--frameworks", nargs="+", choices=_PEERS, default=list(_PEERS), help="peers; the first has ours"
    )
    parser.add_argument("--scale", type=float, default=1.0, help="share of the sizes, for a short look")
    parser.add_argument("--only", default="", metavar="TEXT", help="cases whose name holds this text")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write times, machine and versions there")
    options = parser.parse_args(arguments)
    if options.rounds < 1 or options.scale <= 0:
        parser.error("--rounds: at least one; --scale: more than 0")
    try:
        bus = Bus.of(options.frameworks)
    except DeviceUnavailableError as error:
        print(f"bench {name} needs a device: {error}")
        return
    before = report.load()
    outcomes = []
    print(report.facts())
    book = bus.book()
    print(f"GB/s of payload, medians of {options.rounds}; bus by the book: {f'{book:.0f}' if book else 'unknown'} GB/s")
    for found in cases(bus, options.scale):
        if options.only in found.name:
            outcomes.append(_measured(found, options.rounds))
            print(_lines(outcomes[-1], book), flush=True)
    if options.json is not None:
        kept = {**report.record(name, outcomes, clock="wall", load_before=before), "bus_book_gb_s": book}
        options.json.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


def _measured(found: Case, rounds: int) -> Outcome:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what other libraries say about the bare calls is not the reader's concern
        check(found)
        calls = {name: call.run for name, call in found.calls.items()}
        return Outcome(found, measure(calls, rounds=rounds, burst=_BURST, singly=True))


def _lines(outcome: Outcome, book: float | None) -> str:
    nbytes, readings = outcome.case.nbytes, outcome.readings
    ours = readings["ours"].median
    words = [f"{outcome.case.name}: {nbytes / ours / 1e9:.1f}"]
    if "bus" in readings:
        words.append(f"{readings['bus'].median / ours:.2f} of the bus ({nbytes / readings['bus'].median / 1e9:.1f})")
    if book:
        words.append(f"{nbytes / ours / 1e9 / book:.2f} of the book")
    words.append(f"spread {readings['ours'].spread:.0%}")
    lines = [", ".join(words)]
    lines += [
        f"    {name:<10} {nbytes / reading.median / 1e9:7.2f}  ours {reading.median / ours:6.2f} x  "
        f"{outcome.case.calls[name].text}"
        for name, reading in readings.items()
        if name not in ("ours", "bus")
    ]
    lines += [f"    {'missed' if goal in outcome.missed else 'met'}: {_goal_text(goal)}" for goal in outcome.case.goals]
    return "\n".join(lines)


def _goal_text(goal: Goal) -> str:
    if goal.factor >= 1:
        return f"at least {1 / goal.factor:.2f} of {goal.against}"
    return f"at least {1 / goal.factor:.2f} x {goal.against}"
