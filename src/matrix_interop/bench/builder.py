"""Building a device matrix from rows on the host: one by one, and in bulk.

16384 x 2048 float32, and under cuVS's name 2048 x 16384.  "loop" is a bare ``block[i] = row`` into page-locked memory
that is there; "bus" one bare copy of the whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np

from matrix_interop.bench.bus import Bus, at_least, case, run_bus_suite, times
from matrix_interop.bench.harness import Case, Goal
from matrix_interop.bench.transfer import _values
from matrix_interop.builder import MatrixBuilder
from matrix_interop.matrix import Matrix, from_tensor

__all__ = ["cases", "main"]

_SHAPES: Final = (("", 16384, 2048), (" (cuVS's device builder)", 2048, 16384))


def cases(bus: Bus, scale: float = 1.0) -> Iterator[Case]:
    """Row by row and in bulk, for both shapes; and row by row on the host."""
    for name, rows, columns in _SHAPES:
        a = _values(max(1, int(rows * scale)), columns)
        yield _one_by_one(bus, name, a)
        yield _in_bulk(bus, name, a)
    a = _values(max(1, int(_SHAPES[0][1] * scale)))
    yield _on_host(bus, a)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the suite as the command line says."""
    run_bus_suite("builder", __doc__, cases, arguments)


def _append(a: Sequence[np.ndarray], **where: Any) -> Matrix:
    builder = MatrixBuilder(len(a[0]), **where)
    append = builder.append
    for row in a:
        append(row)
    return builder.finish()


def _extend(a: np.ndarray, **where: Any) -> Matrix:
    builder = MatrixBuilder(a.shape[1], **where)
    builder.extend(a)
    return builder.finish()


def _write(block: np.ndarray, rows: Sequence[np.ndarray]) -> np.ndarray:
    for number, row in enumerate(rows):
        block[number] = row
    return block


def _one_by_one(bus: Bus, name: str, a: np.ndarray) -> Case:
    rows, count = list(a), len(a)
    block = bus.arena.empty(a.shape, a.dtype)
    torch = bus.modules.get("torch")
    where = {"device": bus.device, "framework": bus.names[0], "capacity": count}
    ways: dict[str, Any] = {
        "ours": ("builder.append(row)", lambda: _append(rows, **where)),
        "bus": bus.bare(a, to_device=True),
        "loop": ("block[i] = row", lambda: _write(block, rows)),
        "unknown": (
            "builder.append(row), no capacity",
            lambda: _append(rows, device=bus.device, framework=bus.names[0]),
        ),
    }
    if torch is not None:
        t = torch.empty(a.shape, device="cuda")
        host = [torch.from_numpy(row) for row in rows]
        ways["torch"] = "t[i].copy_(row)", lambda: [t[i].copy_(host[i]) for i in range(count)] and t
        ways["torch 2"] = "torch.from_numpy(np.stack(rows)).cuda()", lambda: torch.from_numpy(np.stack(rows)).cuda()
    goals = Goal("ours", "loop", factor=1 / 0.65), *times(1, "torch", "torch 2")
    return case(bus, f"append row by row{name}, {count} x {a.shape[1]}", ways, a.nbytes, *goals)


def _in_bulk(bus: Bus, name: str, a: np.ndarray) -> Case:
    where = {"device": bus.device, "framework": bus.names[0]}
    ways: dict[str, Any] = {
        "ours": ("builder.extend(a)", lambda: _extend(a, capacity=len(a), **where)),
        "bus": bus.bare(a, to_device=True),
        "unknown": ("builder.extend(a), no capacity", lambda: _extend(a, **where)),
    }
    return case(bus, f"extend in bulk{name}, {a.shape[0]} x {a.shape[1]}", ways, a.nbytes, at_least(0.85))


def _on_host(bus: Bus, a: np.ndarray) -> Case:
    rows = list(a)
    block = from_tensor(a.copy())
    ways: dict[str, Any] = {
        "ours": ("builder.append(row), on the host", lambda: _append(rows)),
        "loop": ("block[i] = row", lambda: _write(np.asarray(block), rows)),
        "new": ("np.empty, then block[i] = row", lambda: _write(np.empty(a.shape, a.dtype), rows)),
        "stack": ("np.stack(rows)", lambda: np.stack(rows)),
        "bulk": ("builder.extend(a), on the host", lambda: _extend(a)),
    }
    return case(bus, f"append row by row on the host, {a.shape[0]} x {a.shape[1]}", ways, a.nbytes)


if __name__ == "__main__":
    main()
