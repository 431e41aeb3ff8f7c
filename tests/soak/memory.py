"""Exchange the same tensors over and over; write how the resident memory grew, in bytes, after a warm-up.

    python memory.py 1000000

The exit code is 0 if the reference counts of all sources are back where they were.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import torch

from matrix_interop import TensorView, convert, from_tensor
from matrix_interop.errors import CopyRequiredError

PAGE = os.sysconf("SC_PAGE_SIZE")


class ByDLPack:
    """An object known by DLPack only."""

    def __init__(self, a: np.ndarray) -> None:
        self.a = a

    def __dlpack__(self, **keywords: Any) -> Any:
        return self.a.__dlpack__(**keywords)

    def __dlpack_device__(self) -> Any:
        return self.a.__dlpack_device__()


def resident() -> int:
    """Resident bytes of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


def exchanges() -> tuple[list[Any], list[Callable[[], Any]]]:
    """The sources, and one call for each way through."""
    a, b = np.ones((4, 8), np.float32), np.ones((4, 8), ml_dtypes.bfloat16)
    t, x = torch.ones(4, 8), ByDLPack(np.ones((4, 8)))
    frozen, backwards = np.ones((4, 8)), np.ones((4, 8))[::-1]
    frozen.flags.writeable = False

    def refused() -> None:
        try:
            convert(backwards, "torch", copy=False)
        except CopyRequiredError:
            return
        raise AssertionError("a copy was not refused")

    calls: list[Callable[[], Any]] = [
        lambda: from_tensor(a).to_tensor("torch"),
        lambda: from_tensor(t).to_tensor("numpy"),
        lambda: convert(b, "torch"),
        lambda: from_tensor(x),
        lambda: convert(frozen, "torch"),
        lambda: np.from_dlpack(TensorView(t)),
        lambda: torch.from_dlpack(from_tensor(b)),
        lambda: TensorView(a).__dlpack__(),
        lambda: from_tensor(a)[1:].T.to_tensor("torch"),
        refused,
    ]
    return [a, b, t, x, x.a, frozen, backwards], calls


def main(rounds: int) -> int:
    """Run ``rounds`` exchanges; 1 if a reference count differs afterwards."""
    sources, calls = exchanges()
    before = [sys.getrefcount(source) for source in sources]
    for call in calls:
        for _ in range(2000):
            call()
    gc.collect()
    start = resident()
    for _ in range(rounds // len(calls)):
        for call in calls:
            call()
    gc.collect()
    sys.stdout.write(f"{resident() - start}\n")
    return int([sys.getrefcount(source) for source in sources] != before)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
