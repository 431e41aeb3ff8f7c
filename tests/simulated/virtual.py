"""`VirtualMemory` of the simulated device: pages are files in memory, mapped wherever they are wanted."""

from __future__ import annotations

import os

from simulated.memory import NO_ACCESS, OPEN, map_pages, unmap_pages


class SimulatedVirtualMemory:
    """Pieces of 64 KiB. ``mapped`` and ``handles`` show a test what is in use, ``ranges`` what is reserved."""

    granularity = 1 << 16

    def __init__(self) -> None:
        self.ranges: dict[int, int] = {}
        self.mapped: dict[int, int] = {}
        self.handles: dict[int, int] = {}

    def holds(self, address: int) -> bool:
        """True where pages lie behind the address."""
        return any(start <= address < start + nbytes for start, nbytes in list(self.mapped.items()))

    def reserve(self, nbytes: int) -> int:
        start = map_pages(self._whole(nbytes), NO_ACCESS)
        self.ranges[start] = nbytes
        return start

    def unreserve(self, address: int, nbytes: int) -> None:
        assert not any(address <= start < address + nbytes for start in self.mapped), "something is still mapped there"
        assert self.ranges.pop(address) == nbytes, "a range is given back as a whole"
        unmap_pages(address, nbytes)

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
        inside = any(start <= address and address + nbytes <= start + size for start, size in self.ranges.items())
        assert inside, "not in a reserved range"
        map_pages(nbytes, OPEN, handle, at=address)
        self.mapped[address] = nbytes

    def unmap(self, address: int, nbytes: int) -> None:
        assert self.mapped.pop(address) == nbytes, "what was mapped is unmapped as a whole"
        map_pages(nbytes, NO_ACCESS, at=address)

    def _whole(self, nbytes: int) -> int:
        assert nbytes > 0, "no bytes"
        assert nbytes % self.granularity == 0, "not a multiple of the granularity"
        return nbytes
