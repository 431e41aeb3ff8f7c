"""Reading all rows of a device matrix on the host, one after the other. No element of a row is read.

16384 x 2048 float32, and under cuVS's name 2048 x 16384.  "bus" is one bare copy of the whole into page-locked memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np

from matrix_interop.bench.bus import Bus, at_least, case, run_bus_suite, times
from matrix_interop.bench.harness import Case
from matrix_interop.bench.transfer import _values
from matrix_interop.matrix import Matrix, from_tensor

__all__ = ["cases", "main"]

_SHAPES: Final = (("rows() over a device matrix", 16384, 2048), ("read rows from device (cuVS)", 2048, 16384))


def cases(bus: Bus, scale: float = 1.0) -> Iterator[Case]:
    """Both shapes, and the rows of one kept."""
    for name, rows, columns in _SHAPES:
        yield _passes(bus, name, _values(max(1, int(rows * scale)), columns))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the suite as the command line says."""
    run_bus_suite("rows", __doc__, cases, arguments)


def _passes(bus: Bus, name: str, a: np.ndarray) -> Case:
    there = from_tensor(a).to_device(bus.device)
    torch, cupy = bus.modules.get("torch"), bus.modules.get("cupy")
    count = len(a)
    ways: dict[str, Any] = {
        "ours": ("for row in m.rows(): pass", lambda: _last(there)),
        "bus": bus.bare(a, to_device=False),
    }
    if torch is not None:
        t = there.to_tensor("torch")
        pinned = torch.empty(a.shape[1], pin_memory=True)
        ways["torch"] = "t[i].cpu()", lambda: [t[i].cpu() for i in range(count)][:0]
        ways["torch pin"] = "pinned.copy_(t[i])", lambda: [pinned.copy_(t[i]) for i in range(count)][:0]
    if cupy is not None:
        c = there.to_tensor("cupy")
        ways["cupy"] = "c[i].get()", lambda: [c[i].get() for i in range(count)][:0]
    made = case(bus, f"{name}, {a.shape[0]} x {a.shape[1]}", ways, a.nbytes, at_least(0.93), *times(5, "torch", "cupy"))
    return Case(made.name, made.calls, made.goals, made.nbytes, value=lambda _: np.zeros(0))


def _last(there: Matrix) -> None:
    deque(there.rows(), maxlen=0)


if __name__ == "__main__":
    main()
