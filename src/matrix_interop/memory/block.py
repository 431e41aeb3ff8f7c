"""A block: the object that owns a piece of an arena for as long as an array over it lives."""

from __future__ import annotations

import ctypes
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matrix_interop.memory.arena import PinnedArena
    from matrix_interop.memory.policies import Store

__all__ = ["Block", "Live", "is_pinned"]

_BYTE = np.dtype(np.uint8)


# NumPy makes an array of any dtype over a ctypes object in half the time that the array interface takes, and keeps the
# object as the array's base. The length is only an upper bound for NumPy's own check: one class serves every size, and
# `nbytes` tells the true one.
class Block(ctypes.c_char * (1 << 46)):  # type: ignore[misc]
    """Memory of an arena at a fixed address. Every array over it holds it; the last one takes it along.

    Make arrays over it by ``np.ndarray(shape, dtype, block)`` with at most ``nbytes`` bytes, or use ``array``.
    """

    __slots__ = ("arena", "nbytes", "pinned")

    #: The arena stays alive while its blocks do.
    arena: PinnedArena
    nbytes: int
    pinned: bool

    @property
    def address(self) -> int:
        """Where the memory starts, a multiple of 256."""
        return ctypes.addressof(self)

    @property
    def array(self) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """All bytes of the block, as a new array that holds it."""
        return np.ndarray((self.nbytes,), _BYTE, self)

    def __repr__(self) -> str:
        return f"<Block of {self.nbytes} bytes at {self.address:#x}>"


class Live(weakref.ref[Block]):
    """What the arena keeps of a block: a weak reference, and what is needed once the block is dead.

    Its callback is ``deque.append``: written in C, atomic, and it takes no lock, because it may run anywhere.
    """

    __slots__ = ("address", "nbytes", "staging", "store")

    address: int
    #: The size in the books, which is rounded up.
    nbytes: int
    staging: bool
    store: Store


def is_pinned(array: np.ndarray[Any, Any]) -> bool:
    """Whether an array lies in a pinned block of an arena. Asks no driver: the flag was stored with the block."""
    base: object = array
    while isinstance(base, np.ndarray):
        base = base.base
    return isinstance(base, Block) and base.pinned
