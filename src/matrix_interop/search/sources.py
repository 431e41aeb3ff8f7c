"""What can be searched: a matrix, a row source, or blocks; seen as NumPy blocks on the host."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from matrix_interop.devices import CPU
from matrix_interop.dtypes import is_extension
from matrix_interop.errors import UnsupportedDtypeError, UnsupportedLayoutError
from matrix_interop.matrix import HostMatrix, Matrix, from_tensor
from matrix_interop.transfer.files import require_whole

__all__ = ["blocks_of", "host_array", "is_short_float", "is_source", "neighbours", "require_columns", "require_numbers"]

#: Bytes of one block, counted as float32, where the caller does not say.
_BLOCK_BYTES: Final = 64 << 20
_EXACT: Final = 2**53


def host_array(m: Matrix) -> np.ndarray:
    """The rows as an ndarray, shared where the matrix lies on the host, else copied there."""
    return np.asarray(m if isinstance(m, HostMatrix) else m.to_host())


def blocks_of(base: Any, block: int | None = None) -> Iterator[np.ndarray]:
    """Blocks (b, d) of at most ``block`` rows, in order; None: as many as make 64 MiB of float32.

    ``base``: anything `from_tensor` takes; a row source (it has ``read`` and ``blocks``); or a list, tuple
    or iterator of 2-D blocks.  One block at a time is held.
    """
    if block is not None and operator.index(block) < 1:
        msg = f"block={block} rows: write 1 or more, or None"
        raise ValueError(msg)
    if isinstance(base, Matrix):
        yield from _cut(base, block)
    elif _reads(base):
        for part in base.blocks(block or _rows_of(base.shape[1])):
            yield from _cut(from_tensor(part), block)
        if not len(base):
            yield np.empty(base.shape, base.dtype)
    elif _are_blocks(base):
        for part in base:
            yield from _cut(from_tensor(part), block)
    else:
        yield from _cut(from_tensor(base), block)


def is_source(base: Any) -> bool:
    """True for what gives its rows block by block and is no tensor: a row source, or blocks."""
    return not isinstance(base, Matrix) and (_reads(base) or _are_blocks(base))


def _reads(base: Any) -> bool:
    return hasattr(base, "read") and hasattr(base, "blocks") and hasattr(base, "shape")


def _are_blocks(base: Any) -> bool:
    """True for an iterator, and for a list or tuple whose first entry is 2-D by its own word."""
    if isinstance(base, list | tuple):
        return bool(base) and getattr(base[0], "ndim", 0) == 2
    return hasattr(base, "__next__") and hasattr(base, "__iter__")


def _rows_of(width: int) -> int:
    return max(1, _BLOCK_BYTES // (4 * max(width, 1)))


def _cut(m: Matrix, block: int | None) -> Iterator[np.ndarray]:
    step = block or _rows_of(m.shape[1])
    for start in range(0, max(len(m), 1), step):  # an empty matrix is one empty block: it has columns to check
        if m.device is CPU:
            require_whole(m._view.header)
        yield host_array(m[start : start + step])


def neighbours(k: Any) -> int:
    """``k`` as the number of neighbours to find: TypeError, or ValueError for one that nobody can answer."""
    count = operator.index(k)
    if count < 1:
        msg = f"k={k}: ask for at least one neighbour"
        raise ValueError(msg)
    if count >= 2**31:
        msg = f"k={k}: ask for fewer than 2**31 neighbours"
        raise ValueError(msg)
    return count


def require_columns(what: str, width: int, of: str, expected: int) -> None:
    """Raise `UnsupportedLayoutError` unless both have the same number of columns."""
    if width != expected:
        msg = f"{what} have {width} columns, {of} has {expected}: both must hold vectors of one length"
        raise UnsupportedLayoutError(msg)


def require_numbers(what: str, rows: np.ndarray) -> None:
    """Raise `UnsupportedDtypeError` for values that no distance can be computed of exactly: complex, huge integers."""
    if rows.dtype.kind == "c":
        msg = f"{what} are {rows.dtype}: distances are defined for real numbers; pass the real and imaginary parts"
        raise UnsupportedDtypeError(msg)
    if rows.dtype.kind in "iu" and rows.dtype.itemsize == 8 and rows.size:
        low, high = int(rows.min()), int(rows.max())
        if low < -_EXACT or high > _EXACT:
            msg = f"{what} are {rows.dtype} from {low} to {high}: float64 rounds beyond 2**53; subtract an offset"
            raise UnsupportedDtypeError(msg)


def is_short_float(dtype: np.dtype[Any]) -> bool:
    """True for floating-point types of at most 32 bits."""
    return is_extension(dtype) or (dtype.kind == "f" and dtype.itemsize <= 4)
