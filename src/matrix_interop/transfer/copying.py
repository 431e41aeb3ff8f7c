"""Copying values between host arrays by as many threads as help: torch's own where torch is loaded, else ours.

Values are converted as NumPy's "unsafe" casting does it, whoever copies.
"""

from __future__ import annotations

import os
import sys
from functools import partial
from itertools import pairwise
from typing import Any, Final

import numpy as np

from matrix_interop.dlpack import header_of
from matrix_interop.transfer.crew import CREW
from matrix_interop.transfer.settings import processors

__all__ = ["copy_by_torch", "copy_values", "copy_values_in_pool", "pool_is_there", "pool_serves", "tensor_of"]

#: Below this many bytes one thread is done before others have begun.
_ALONE: Final = 1 << 20
#: The type under which torch copies any type of that size to itself.
_CARRIERS: Final = {1: np.uint8, 2: np.int16, 4: np.int32, 8: np.int64, 16: np.complex128}
_INTEGERS: Final = frozenset(np.dtype(name) for name in ("i1", "i2", "i4", "i8", "u1", "?"))
_FLOATS: Final = frozenset(np.dtype(name) for name in ("f4", "f8"))
#: Rows and columns of a tile of a transposed copy. Smaller ones fit into nearer caches, but take the interpreter lock
#: more often, which threads then wait for.
_TILE: Final = (256, 2048)
#: Items between the rows of the buffer and its columns, so that they do not all fall on the same cache lines.
_GAP: Final = 16

_forked = False


def copy_values(out: np.ndarray, values: np.ndarray) -> None:
    """``out[...] = values`` in one thread. The interpreter lock is free meanwhile."""
    if _runs_across(out, values):
        _transpose(out, values)
    else:
        np.copyto(out, values, casting="unsafe")


def copy_values_in_pool(out: np.ndarray, values: np.ndarray) -> None:
    """``out[...] = values``, of one shape, by all threads that help, at once."""
    if out.nbytes < _ALONE:
        copy_values(out, values)
    elif pool_serves(out, values):
        copy_by_torch(out, values)
    else:
        if out.flags.c_contiguous and values.flags.c_contiguous:
            out, values = out.reshape(-1), values.reshape(-1)
        count = min(processors(), -(-out.nbytes // _ALONE), len(out))
        edges = [len(out) * number // count for number in range(count + 1)]
        CREW.run([partial(copy_values, out[a:b], values[a:b]) for a, b in pairwise(edges)])


# torch ---------------------------------------------------------------------------------------------
def pool_is_there() -> bool:
    """True where torch is loaded with several threads. Not in a forked child, which has none of them."""
    torch: Any = None if _forked else sys.modules.get("torch")
    return torch is not None and hasattr(torch, "from_numpy") and torch.get_num_threads() > 1


def pool_serves(*arrays: np.ndarray) -> bool:
    """True where torch is loaded with several threads, can describe the arrays and converts between them as NumPy."""
    if not pool_is_there():
        return False
    first, second = arrays[0].dtype, arrays[-1].dtype
    return (
        (first == second and first.itemsize in _CARRIERS) or _converts(first, second) or _converts(second, first)
    ) and all(_plain(array) for array in arrays)


def _converts(narrow: np.dtype[Any], wide: np.dtype[Any]) -> bool:
    """True for pairs that torch and NumPy convert alike: not between floats and integers, which may overflow."""
    return (narrow in _INTEGERS and wide in _INTEGERS) or (narrow in _FLOATS and wide in _FLOATS)


def _plain(array: np.ndarray) -> bool:
    size = array.itemsize
    if not array.flags.aligned or any(step < 0 or step % size for step in array.strides):
        return False
    return not (array.ndim > 1 and array.strides[-1] > array.strides[0] > 0)  # torch transposes in one thread


def copy_by_torch(out: np.ndarray, values: np.ndarray) -> None:
    """``out[...] = values`` by torch's threads, where `pool_serves` both."""
    same = out.dtype == values.dtype
    target, source = tensor_of(out, as_bits=same), tensor_of(values, as_bits=same)
    if target is None or source is None:
        np.copyto(out, values, casting="unsafe")
    else:
        target.copy_(source)


def tensor_of(array: np.ndarray, *, as_bits: bool = True) -> Any:
    """A tensor of torch over an array that `pool_serves`; None where torch gives no memory now, as in a fake mode.

    ``as_bits``: of the type that carries items of that size; values are then only to be copied to their like.
    """
    torch: Any = sys.modules["torch"]
    if as_bits:
        array = array.view(_CARRIERS[array.itemsize])
    if not array.flags.writeable:  # torch warns about them; nobody writes here
        address = int(array.__array_interface__["data"][0])
        array = header_of(address, array.shape, array.strides, array.dtype, readonly=False, owner=array)
    tensor = torch.from_numpy(array)
    return tensor if type(tensor) is torch.Tensor else None


# Transposing ---------------------------------------------------------------------------------------
def _runs_across(out: np.ndarray, values: np.ndarray) -> bool:
    """True where dense rows are to be made of dense columns, or the other way round."""
    if out.ndim != 2 or min(out.shape) < 2 or 0 in values.strides:
        return False
    return (abs(out.strides[1]) < abs(out.strides[0])) != (abs(values.strides[1]) < abs(values.strides[0]))


def _transpose(out: np.ndarray, values: np.ndarray) -> None:
    """By tiles through a small buffer. NumPy's own loop, of strides that are powers of two, takes ten times as long."""
    tall, wide = _TILE
    buffer = np.empty((min(wide, out.shape[1]), tall + _GAP), values.dtype)
    for top in range(0, out.shape[0], tall):
        for left in range(0, out.shape[1], wide):
            target = out[top : top + tall, left : left + wide]
            tile = buffer[: target.shape[1], : target.shape[0]]
            np.copyto(tile, values[top : top + tall, left : left + wide].T)
            np.copyto(target, tile.T, casting="unsafe")


def _after_fork_in_child() -> None:
    global _forked  # noqa: PLW0603 - one process, one answer
    _forked = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
