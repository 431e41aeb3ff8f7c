"""Device memory that the host can hold an address of but cannot touch.

One file in memory is mapped twice: without any access rights at the address that is handed out, and
readable and writeable for the device alone. A host that dereferences a device pointer dies of
SIGSEGV, as it would on hardware.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from typing import Any, Literal

import numpy as np

_NO_ACCESS = 0
_PAGE = mmap.PAGESIZE


def address_of(mapping: mmap.mmap) -> int:
    """Where a mapping starts; nothing is read."""
    return int(np.frombuffer(mapping, np.uint8).ctypes.data)


def host_bytes(address: int, nbytes: int) -> np.ndarray:
    """``nbytes`` of host memory, shared."""
    return np.frombuffer((ctypes.c_ubyte * nbytes).from_address(address), np.uint8)


class Allocation:
    """Memory of one device; ``managed`` memory is open to the host too.

    ``address`` is what users see, ``alias`` the same bytes as the device sees them.
    """

    def __init__(self, nbytes: int, ordinal: int, kind: Literal["device", "managed"] = "device") -> None:
        self.nbytes = nbytes
        self.ordinal = ordinal
        self.kind = kind
        length = -(-max(nbytes, 1) // _PAGE) * _PAGE
        file = os.memfd_create("simulated-device")
        try:
            os.ftruncate(file, length)
            rights = _NO_ACCESS if kind == "device" else mmap.PROT_READ | mmap.PROT_WRITE
            self._public = mmap.mmap(file, length, flags=mmap.MAP_SHARED, prot=rights)
            self.alias = np.frombuffer(mmap.mmap(file, length), np.uint8)[:nbytes]
        finally:
            os.close(file)
        self.address = address_of(self._public)

    def holds(self, address: int, nbytes: int = 1) -> bool:
        """True where all the bytes lie inside."""
        return self.address <= address and address + nbytes <= self.address + self.nbytes

    def array(self, address: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
        """The device's view of an array of users; ValueError where it leads out of the allocation."""
        return np.ndarray(shape, dtype, self.alias, address - self.address, strides)
