"""Eight threads exchange tensors over one registry, from cold caches on.

    python threads.py 100000

Each round reads a tensor of a random framework, or of a class made for this round, converts it to
another framework and checks the values.  The exit code is 0 if all were right.  A thread that hangs
ends the process with all stacks on stderr.
"""

from __future__ import annotations

import faulthandler
import random
import sys
import threading
from typing import Any

import numpy as np
import torch

from matrix_interop import convert, from_tensor

THREADS = 8
SECONDS = 540


class Exporter:
    """An object known by protocol only."""

    def __init__(self, a: np.ndarray) -> None:
        self.a = a


class ByDLPack(Exporter):
    """It speaks DLPack."""

    def __dlpack__(self, **keywords: Any) -> Any:
        return self.a.__dlpack__(**keywords)

    def __dlpack_device__(self) -> Any:
        return self.a.__dlpack_device__()


class ByInterface(Exporter):
    """It speaks the array interface."""

    @property
    def __array_interface__(self) -> Any:
        return self.a.__array_interface__


def source(a: np.ndarray, draw: random.Random) -> Any:
    """``a`` as a tensor of something."""
    kind = draw.randrange(6)
    if kind == 0:
        return a
    if kind == 1:
        return torch.from_numpy(a)
    if kind == 2:
        return from_tensor(a)
    if kind == 3:
        return memoryview(a)
    parent = ByDLPack if kind == 4 else ByInterface
    return type("Fresh", (parent,), {})(a) if draw.random() < 0.1 else parent(a)


def work(number: int, rounds: int, start: threading.Barrier, wrong: list[str]) -> None:
    """One thread."""
    draw = random.Random(number)
    start.wait()
    for step in range(rounds):
        a = np.full((2, 3), number * rounds + step, np.float64)
        target = draw.choice(("numpy", "torch", "pyarrow"))
        x = source(a, draw)
        got = from_tensor(x).to_tensor(target) if draw.random() < 0.5 else convert(x, target)
        values = np.asarray(from_tensor(got))
        if values.shape != (2, 3) or not (values == number * rounds + step).all():
            wrong.append(f"thread {number}, round {step}: {type(x)} to {target} gave {values}")
            return


def main(rounds: int) -> int:
    """Run ``rounds`` in all; the number of threads that failed."""
    faulthandler.dump_traceback_later(SECONDS, exit=True)
    wrong: list[str] = []
    start = threading.Barrier(THREADS)
    share = rounds // THREADS

    def guarded(number: int) -> None:
        try:
            work(number, share, start, wrong)
        except BaseException as error:  # noqa: BLE001 - a thread must report whatever ended it
            wrong.append(f"thread {number}: {error!r}")

    threads = [threading.Thread(target=guarded, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    faulthandler.cancel_dump_traceback_later()
    sys.stderr.write("\n".join(wrong))
    return len(wrong)


if __name__ == "__main__":
    sys.setswitchinterval(1e-5)
    sys.exit(main(int(sys.argv[1])))
