"""Device memory that the host can hold an address of but cannot touch.

One file in memory is mapped twice: without any access rights at the address that is handed out, and
readable and writeable for the device alone. A host that dereferences a device pointer dies of
SIGSEGV, as it would on hardware.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from typing import Any, Literal

import numpy as np

NO_ACCESS = 0
OPEN = mmap.PROT_READ | mmap.PROT_WRITE
_FIXED = 0x10
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)


def map_pages(nbytes: int, rights: int, file: int | None = None, at: int | None = None) -> int:
    """Address of new pages, or of those of ``file``; at ``at`` they replace what is there.

    Python's own mmap keeps a descriptor a mapping, of which a process has few, and takes no address.
    """
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS if file is None else mmap.MAP_SHARED
    address = _libc.mmap(at, nbytes, rights, flags | (_FIXED if at else 0), -1 if file is None else file, 0)
    if address in {None, 2**64 - 1}:
        raise MemoryError(os.strerror(ctypes.get_errno()))
    return int(address)


def unmap_pages(address: int, nbytes: int) -> None:
    """Take pages away."""
    _libc.munmap(address, nbytes)


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
        length = -(-max(nbytes, 1) // mmap.PAGESIZE) * mmap.PAGESIZE
        file = os.memfd_create("simulated-device")
        try:
            os.ftruncate(file, length)
            self.address = map_pages(length, NO_ACCESS if kind == "device" else OPEN, file)
            private = map_pages(length, OPEN, file)
        finally:
            os.close(file)
        self.alias = host_bytes(private, nbytes)
        for address in (self.address, private):
            weakref.finalize(self, unmap_pages, address, length)

    def holds(self, address: int) -> bool:
        """True where the address lies inside."""
        return self.address <= address < self.address + self.nbytes

    def array(self, address: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
        """The device's view of an array of users; ValueError where it leads out of the allocation."""
        return np.ndarray(shape, dtype, self.alias, address - self.address, strides)
