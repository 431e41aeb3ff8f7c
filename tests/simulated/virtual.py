"""`VirtualMemory` of the simulated device: pages are files in memory, mapped wherever they are wanted."""

from __future__ import annotations

import ctypes
import mmap
import os

from simulated.memory import address_of

_FIXED = 0x10
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)


class SimulatedVirtualMemory:
    """Pieces of 64 KiB. ``mapped`` and ``handles`` show a test what is in use."""

    granularity = 1 << 16

    def __init__(self) -> None:
        self._ranges: dict[int, mmap.mmap] = {}
        self.mapped: dict[int, int] = {}
        self.handles: dict[int, int] = {}

    def holds(self, address: int) -> bool:
        """True where pages lie behind the address."""
        return any(start <= address < start + nbytes for start, nbytes in list(self.mapped.items()))

    def reserve(self, nbytes: int) -> int:
        addresses = mmap.mmap(-1, self._whole(nbytes), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=0)
        start = address_of(addresses)
        self._ranges[start] = addresses
        return start

    def unreserve(self, address: int, nbytes: int) -> None:
        assert not any(address <= start < address + nbytes for start in self.mapped), "something is still mapped there"
        assert len(self._ranges[address]) == nbytes, "a range is given back as a whole"
        self._ranges.pop(address).close()

    def create(self, nbytes: int) -> int:
        file = os.memfd_create("simulated-pages")
        os.ftruncate(file, self._whole(nbytes))
        self.handles[file] = nbytes
        return file

    def destroy(self, handle: int) -> None:
        del self.handles[handle]
        os.close(handle)

    def map(self, address: int, nbytes: int, handle: int) -> None:
        assert self.handles[handle] == nbytes, "a handle is mapped as a whole"
        assert self._inside(address, nbytes), "not in a reserved range"
        self._replace(address, nbytes, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, handle)
        self.mapped[address] = nbytes

    def unmap(self, address: int, nbytes: int) -> None:
        assert self.mapped.pop(address) == nbytes, "what was mapped is unmapped as a whole"
        self._replace(address, nbytes, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1)

    def _whole(self, nbytes: int) -> int:
        assert nbytes > 0, "no bytes"
        assert nbytes % self.granularity == 0, "not a multiple of the granularity"
        return nbytes

    def _inside(self, address: int, nbytes: int) -> bool:
        return any(start <= address and address + nbytes <= start + len(r) for start, r in self._ranges.items())

    def _replace(self, address: int, nbytes: int, rights: int, flags: int, file: int) -> None:
        placed = _libc.mmap(address, nbytes, rights, flags | _FIXED, file, 0)
        assert placed == address, os.strerror(ctypes.get_errno())
