"""Ordinary host memory of our own, aligned to 256 bytes."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from typing import Any, Literal

import numpy as np

__all__ = ["ALIGNMENT", "aligned_empty"]

#: Bytes. Enough for every vector unit, for cuVS and for XLA, which shares CPU memory only when it is aligned.
ALIGNMENT = 256

_BYTE = np.dtype(np.uint8)
_address_of = ctypes.addressof
_first_byte: Callable[[Any], ctypes.c_char] = ctypes.c_char.from_buffer


def aligned_empty(
    shape: tuple[int, ...], dtype: np.dtype[Any], order: Literal["C", "F"] = "C"
) -> np.ndarray[Any, np.dtype[Any]]:
    """An uninitialised, writeable array of ordinary memory whose first element lies at a multiple of 256 bytes.

    ``shape`` holds non-negative Python integers. Any dtype without Python objects works, those of ml_dtypes
    included, and so do sizes of zero. The memory is freed with the last view.
    """
    raw = np.empty(math.prod(shape) * dtype.itemsize + ALIGNMENT, _BYTE)
    # ctypes reads the address four times faster than raw.ctypes.data or the array interface.
    return np.ndarray(shape, dtype, raw, -_address_of(_first_byte(raw)) & (ALIGNMENT - 1), None, order)
