"""Ordinary memory of our own."""

from __future__ import annotations

import tracemalloc

import ml_dtypes
import numpy as np
import pytest

from matrix_interop.memory.host import aligned_empty


@pytest.mark.parametrize(
    "dtype", [np.uint8, np.float32, np.complex128, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ">f4"]
)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (1,), (7, 5), (2, 3, 4)])
@pytest.mark.parametrize("order", ["C", "F"])
def test_shape_dtype_order_and_alignment_are_as_asked(dtype, shape, order):
    """Every dtype and shape, zero sizes included, comes out aligned, writeable and in the order asked for."""
    array = aligned_empty(shape, np.dtype(dtype), order)
    assert (array.shape, array.dtype, array.flags.writeable) == (shape, np.dtype(dtype), True)
    assert array.flags.c_contiguous if order == "C" else array.flags.f_contiguous
    assert array.ctypes.data % 256 == 0


def test_elements_are_independent_and_kept():
    """What is written is read back, first and last element included."""
    array = aligned_empty((100, 3), np.dtype(np.float32))
    array[...] = np.arange(300).reshape(100, 3)
    assert array.ravel().tolist() == list(range(300))


def test_costs_little_more_than_its_size():
    """A 4 KB array takes its size and at most 256 bytes for the alignment, plus the array headers."""
    aligned_empty((1024,), np.dtype(np.float32))
    tracemalloc.start()
    try:
        array = aligned_empty((1024,), np.dtype(np.float32))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert array.nbytes <= peak <= array.nbytes + 256 + 1024
