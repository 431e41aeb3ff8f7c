"""What an exchange allocates: nothing that grows with the data when it shares, one result when it copies."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
import torch

from frameworks.table import TARGETS, aligned
from matrix_interop import convert, from_tensor

MB = 1 << 20
#: What Python objects of one exchange may take.
SMALL = 4096
A_FEW_NUMBERS = 256


def peak(work: Callable[[], Any]) -> int:
    """Bytes that ``work`` held at most, by Python's and NumPy's own accounts; its second run, caches warm."""
    work()
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        kept = work()
        _, most = tracemalloc.get_traced_memory()
        del kept
    finally:
        tracemalloc.stop()
    return most - before


def of_jax(target: str) -> int:
    """What JAX takes for the bare call: it alone comes near 4 kB."""
    x = aligned(np.zeros((2, 2), np.float32))
    return peak(lambda: jax.dlpack.from_dlpack(x)) if target == "jax" else 0


@pytest.mark.parametrize("target", [kind.name for kind in TARGETS])
def test_sharing_allocates_the_same_small_amount_for_any_size(target: str) -> None:
    """At most 4 kB traced, the same for 1 MB and for 1 GB (larger numbers aside) of memory that nobody touches."""

    def exchange(rows: int) -> int:
        raw = np.empty(rows * 1024 + 256, np.uint8)  # pages come when they are touched: none is
        x = raw[-raw.ctypes.data % 256 :][: rows * 1024].view(np.float32).reshape(rows, 256)
        return peak(lambda: from_tensor(x).to_tensor(target, copy=False))

    small, large = exchange(1024), exchange(1024 * 1024)
    assert abs(small - large) <= A_FEW_NUMBERS
    assert small <= SMALL + of_jax(target)


@pytest.mark.parametrize("target", ["numpy", "jax"])
def test_sharing_from_torch(target: str) -> None:
    """So it is from torch."""

    def exchange(nbytes: int) -> int:
        t = torch.empty(nbytes // 4 // 256, 256)
        return peak(lambda: from_tensor(t).to_tensor(target, copy=False))

    small, large = exchange(MB), exchange(1024 * MB)
    assert abs(small - large) <= A_FEW_NUMBERS
    assert small <= SMALL + of_jax(target)


WIDE = np.ones((4096, 256), np.float32)  # 4 MB

COPIES: dict[str, tuple[Callable[[], Any], int]] = {
    "copy": (lambda: from_tensor(WIDE).to_tensor("torch", copy=True), WIDE.nbytes),
    "dtype": (lambda: from_tensor(WIDE).to_tensor("torch", dtype="float64"), 2 * WIDE.nbytes),
    "byte order": (lambda: convert(WIDE.view(">f4"), "jax"), WIDE.nbytes),
    "negative": (lambda: convert(WIDE[::-1], "torch"), WIDE.nbytes),
    "order": (lambda: from_tensor(WIDE).contiguous("F"), WIDE.nbytes),
    "astype": (lambda: from_tensor(WIDE).astype("float16"), WIDE.nbytes // 2),
    "to_host": (lambda: from_tensor(WIDE).to_host(copy=True), WIDE.nbytes),
    "take": (lambda: from_tensor(WIDE).take(range(1024)), WIDE.nbytes // 4),
    "take of columns": (lambda: from_tensor(WIDE.reshape(256, 4096).T).take(range(16)), 16 * 1024),
    "conjugate": (lambda: convert(torch.ones(1024, 256, dtype=torch.complex64).conj(), "numpy"), 2 * MB),
    "a mask that hides nothing": (lambda: from_tensor(np.ma.array(WIDE), fill=0).array, 0),
}


@pytest.mark.parametrize("name", COPIES)
def test_a_copy_makes_exactly_one_result(name: str) -> None:
    """The peak is the result and some kilobytes (take also holds its indices, 8 bytes each, a few times)."""
    work, nbytes = COPIES[name]
    assert nbytes <= peak(work) <= nbytes + 10 * SMALL


def test_filling_a_mask_makes_one_result() -> None:
    """Filled values are written into the result; besides it there is only the mask."""
    x = np.ma.array(WIDE, mask=WIDE > 2)
    x[0, 0] = np.ma.masked
    assert peak(lambda: from_tensor(x, fill=0)) <= WIDE.nbytes + x.size + 2 * SMALL


def test_normalising_works_in_blocks() -> None:
    """Beside the result and the norms, normalized holds a few blocks of 2**20 float64, however many rows there are."""
    x = np.ones((65536, 256), np.float32)
    assert peak(lambda: from_tensor(x).normalized()) <= x.nbytes + 4 * 8 * MB + MB
