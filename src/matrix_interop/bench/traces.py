"""Allocation traces: what arenas are compared on.

A trace is a list of steps: ``("a", key, nbytes)`` allocate, ``("f", key)`` free, ``("r", key, nbytes)`` a vector's
resize (allocate the new size, copy, free the old), ``("=", key, other)`` rename ``other`` to ``key``, and ``("m",)``
for the test point.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from typing import Any, Final

__all__ = ["TRACES", "Step", "analytic", "devtest", "staging", "warpx"]

Step = tuple[Any, ...]

_MIB: Final = 1 << 20


def analytic(n: int = 64, x: int = 64 * _MIB, y: int = _MIB) -> list[Step]:
    """R(n, x, y) of AMReX-Codes/amrex#4531: n vectors of x bytes, each resized to x + y, one by one."""
    steps: list[Step] = [("a", i, x) for i in range(n)]
    steps += [("r", i, x + y) for i in range(n)]
    steps.append(("m",))
    return [*steps, *(("f", i) for i in range(n))]


def devtest(vectors: int = 16, count: int = 1_000_000, rounds: int = 100, factor: float = 1.01) -> list[Step]:
    """The test of WeiqunZhang/amrex-devtests, defrag: 16 vectors of 1e6 doubles, 100 rounds of +1 %."""
    steps: list[Step] = [("a", i, 8 * count) for i in range(vectors)]
    sizes = [count] * vectors
    for _ in range(rounds):
        for i in range(vectors):
            sizes[i] = int(sizes[i] * factor)
            steps.append(("r", i, 8 * sizes[i]))
    return [*steps, ("m",)]


def warpx(
    seed: int = 0, boxes: int = 8, arrays: int = 8, particles: int = 75_000_000, rounds: int = 85, sort_every: int = 25
) -> list[Step]:
    """Particle buffers of a warm plasma: about 40 GB in 8 boxes x 8 arrays.

    Each round: flags and scans for each box, about 2 % of the particles sent and received (those buffers are live
    together), and arrays resized when they outgrew their capacity. Every ``sort_every`` rounds each array is
    rewritten through a fresh buffer of exact size. 85 rounds are as long as the runs of the AMReX thread.
    """
    pick, steps = random.Random(seed), list[Step]()  # noqa: S311 - a repeatable trace is the point
    held = [int(particles * pick.uniform(0.97, 1.03)) for _ in range(boxes)]
    capacity = {(box, array): held[box] for box in range(boxes) for array in range(arrays)}
    steps += [("a", ("p", *place), 8 * size) for place, size in capacity.items()]
    for number in range(rounds):
        out = [int(count * pick.uniform(0.015, 0.025)) for count in held]
        into = [max(1, int(count * pick.gauss(1.0, 0.08))) for count in out]
        for box in range(boxes):
            steps += [("a", ("flag", box), 4 * held[box]), ("a", ("scan", box), 4 * held[box])]
            steps += [("a", ("send", box), 8 * arrays * out[box]), ("f", ("flag", box)), ("f", ("scan", box))]
        steps += [("a", ("receive", box), 8 * arrays * into[box]) for box in range(boxes)]
        for box in range(boxes):
            held[box] += into[box] - out[box]
            for array in range(arrays):
                if held[box] > capacity[box, array]:
                    capacity[box, array] = held[box]
                    steps.append(("r", ("p", box, array), 8 * held[box]))
        steps += [("f", (kind, box)) for kind in ("send", "receive") for box in range(boxes)]
        if number % sort_every == sort_every - 1:
            for box in range(boxes):
                steps.append(("a", ("order", box), 4 * held[box]))
                for array in range(arrays):
                    place = ("p", box, array)
                    steps += [("a", "sorted", 8 * held[box]), ("f", place), ("=", place, "sorted")]
                    capacity[box, array] = held[box]
                steps.append(("f", ("order", box)))
    return [*steps, ("m",)]


def staging(seed: int = 0, streams: int = 4, phases: int = 12, copies: int = 250) -> list[Step]:
    """Staging of row blocks: several streams, three sizes a phase, each freed two to four copies late.

    A phase is one matrix shape for each stream (full, half and last block). Now and then a whole matrix is staged.
    """
    pick, steps = random.Random(seed), list[Step]()  # noqa: S311 - a repeatable trace is the point
    flying: list[deque[int]] = [deque() for _ in range(streams)]
    key = 0
    for phase in range(phases):
        full = [int(pick.choice((2, 4, 8, 16, 32)) * _MIB * pick.uniform(0.75, 1.5)) for _ in range(streams)]
        sizes = [(size, size // 2, max(4096, int(size * pick.random()))) for size in full]
        depth = [pick.randint(2, 4) for _ in range(streams)]
        for _ in range(copies):
            stream = pick.randrange(streams)
            nbytes = pick.choices(sizes[stream], (8, 2, 1))[0]
            if pick.random() < 0.004:
                nbytes = int(pick.uniform(96, 384) * _MIB)
            key += 1
            steps.append(("a", key, nbytes))
            flying[stream].append(key)
            while len(flying[stream]) > depth[stream]:
                steps.append(("f", flying[stream].popleft()))
        if phase == phases - 1:
            steps.append(("m",))
    return [*steps, *(("f", key) for queue in flying for key in queue)]


#: Name -> (a function from seed to steps, whether the seed matters).
TRACES: Final[dict[str, tuple[Callable[[int], list[Step]], bool]]] = {
    "R(64)": (lambda _seed: analytic(), False),
    "devtest": (lambda _seed: devtest(), False),
    "warpx": (warpx, True),
    "staging": (staging, True),
}
