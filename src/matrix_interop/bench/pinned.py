"""The classic experiment with page-locked memory: 10 MB there and back, 100 times.

Ours goes from ordinary memory to ordinary memory, as "pageable" does; "pinned" is what page-locked memory gives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np

from matrix_interop.bench.bus import Bus, case, run_bus_suite, times
from matrix_interop.bench.harness import Case
from matrix_interop.matrix import from_tensor

__all__ = ["cases", "main"]

_BYTES: Final = 10_000_000
_TRIPS: Final = 100


def cases(bus: Bus, scale: float = 1.0) -> Iterator[Case]:
    """One case: a hundred round trips."""
    values = np.random.default_rng(0).random((max(1, int(_BYTES * scale) // 4000), 1000), dtype=np.float32)
    nbytes = values.nbytes
    pinned = bus.arena.empty(values.shape, values.dtype)
    pinned[...] = values
    there = from_tensor(values).to_device(bus.device, framework=bus.names[0])
    address = there._view.pointer
    m, out = from_tensor(values), np.empty_like(values)
    runtime, ordinal = bus.runtime, bus.ordinal

    def bare(array: np.ndarray) -> Callable[[], np.ndarray]:
        host = int(array.__array_interface__["data"][0])

        def trips() -> np.ndarray:
            for _ in range(_TRIPS):
                runtime.copy(address, host, nbytes, ordinal=ordinal, stream=1)
                runtime.copy(host, address, nbytes, ordinal=ordinal, stream=1)
                runtime.stream_synchronize(1, ordinal)
            return array

        return trips

    def ours() -> np.ndarray:
        for _ in range(_TRIPS):
            m.to_device(bus.device, framework=bus.names[0]).to_host(out=out)
        return out

    ways: dict[str, Any] = {
        "ours": ("from_tensor(a).to_device().to_host(out=out)", ours),
        "pinned": ("cuMemcpyAsync there and back, page-locked", bare(pinned)),
        "pageable": ("cuMemcpyAsync there and back, ordinary memory", bare(values.copy())),
    }
    name = f"{_TRIPS} round trips of {nbytes / 1e6:.0f} MB"
    yield case(bus, name, ways, 2 * _TRIPS * nbytes, *times(1, "pageable"))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the suite as the command line says."""
    run_bus_suite("pinned", __doc__, cases, arguments)


if __name__ == "__main__":
    main()
