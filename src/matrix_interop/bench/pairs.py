"""Every pair of frameworks on this machine: is memory shared between them, and what does a conversion cost?

Found out by doing it: addresses are compared and calls timed; no plan is asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from matrix_interop.bench.harness import measure
from matrix_interop.bench.report import table
from matrix_interop.devices import Device
from matrix_interop.errors import MatrixInteropError
from matrix_interop.exchange.convert import convert, plan
from matrix_interop.frameworks.registry import FrameworkInfo
from matrix_interop.memory.host import aligned_empty
from matrix_interop.view import TensorView

__all__ = ["SHAPE", "Pair", "pair_table", "pairs", "targets"]

#: The matrix that is converted: float32, which every framework holds.
SHAPE: Final = (1000, 128)
_ROUNDS: Final = 5
_BURST: Final = 5e-4


@dataclass(frozen=True, slots=True)
class Pair:
    """One conversion, by the names of source and target ("torch", "torch cuda:0").

    ``shared``: both tensors start at the same address of the same device; None where the conversion
    was refused.  ``seconds``: median of one call.  ``why``: the reason of a copy, or the error.
    """

    source: str
    target: str
    shared: bool | None
    seconds: float
    why: str


def pairs(found: Sequence[FrameworkInfo]) -> list[Pair]:
    """Convert between every two places that ``found`` (from `frameworks(load=True)`) offers."""
    base = aligned_empty(SHAPE, np.dtype(np.float32))
    base[...] = 1.0
    places = _places(found)
    made: list[Pair] = []
    for name, device in places:
        try:
            x = convert(base, name, device=device, copy=True)
        except MatrixInteropError as error:
            made += [Pair(_label(name, device), _label(*place), None, 0.0, str(error)) for place in places]
            continue
        made += [_pair(x, (name, device), place) for place in places]
    return made


def targets(m: Any, found: Sequence[FrameworkInfo]) -> list[Pair]:
    """The conversions of the one matrix ``m`` into every host framework that ``found`` offers."""
    return [_pair(m, ("Matrix", m.device), place) for place in _places(found) if place[1].is_host]


def pair_table(found: Sequence[Pair]) -> str:
    """Sources down, targets across; below, once each, why something is copied or refused."""
    across = list(dict.fromkeys(pair.target for pair in found))
    cells = {(pair.source, pair.target): pair for pair in found}
    notes = list(dict.fromkeys(pair.why for pair in found if pair.why))
    rows = [["from \\ to", *across]]
    down = dict.fromkeys(pair.source for pair in found)
    rows += [[source, *(_cell(cells[source, target], notes) for target in across)] for source in down]
    return "\n".join([table(rows), *(f"({number}) {note}" for number, note in enumerate(notes, start=1))])


def _cell(pair: Pair, notes: list[str]) -> str:
    mark = f" ({notes.index(pair.why) + 1})" if pair.why else ""
    if pair.shared is None:
        return f"refused{mark}"
    return f"{'shared' if pair.shared else 'copied'} {pair.seconds * 1e6:,.1f} us{mark}"


def _places(found: Sequence[FrameworkInfo]) -> list[tuple[str, Device]]:
    """(framework, device) of everything that can hold a tensor here."""
    return [(info.name, device) for info in found if info.installed and info.problem is None for device in info.devices]


def _label(name: str, device: Device) -> str:
    return name if device.is_host else f"{name} {device}"


def _pair(x: Any, source: tuple[str, Device], target: tuple[str, Device]) -> Pair:
    name, device = target
    view, labels = TensorView(x), (_label(*source), _label(*target))
    try:
        result = TensorView(convert(x, name, device=device))
        shared = (result.device, result.pointer) == (view.device, view.pointer)
        why = "" if shared else _why(x, name, device)
    except MatrixInteropError as error:
        return Pair(*labels, None, 0.0, str(error))
    reading = measure({"": lambda: convert(x, name, device=device)}, rounds=_ROUNDS, burst=_BURST)[""]
    return Pair(*labels, shared, reading.median, why)


def _why(x: Any, name: str, device: Device) -> str:
    """The reason that the plan gives for a copy."""
    return "; ".join(step.text for step in plan(x, name, device=device).steps)
