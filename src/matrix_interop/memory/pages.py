"""Private anonymous mappings: huge pages, touching by several threads, giving pages back."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
import sys
import threading
from typing import Any, Final

__all__ = ["HUGE_PAGE", "Mapping", "available_memory", "populate"]

#: Bytes of a huge page. Mappings are aligned to it; the kernel can only use huge pages at its multiples.
HUGE_PAGE: Final = 2 << 20

#: Linux's numbers; the standard library lacks them before 3.12 and 3.14.
_MAP_NORESERVE: Final = 0x4000
_MADV_POPULATE_WRITE: Final = 23
#: MREMAP_MAYMOVE, MREMAP_FIXED and MREMAP_DONTUNMAP: the old addresses stay this process's own.
_MOVE: Final = 1 | 2 | 4

#: Bytes one thread touches at least: below, starting the thread costs more than it saves.
_TOUCH_SLICE: Final = 8 << 20
_TOUCH_THREADS: Final = 16


class Mapping:
    """``nbytes`` of address space with zeroes behind it, given by the kernel page by page when first touched.

    ``address`` is a multiple of 2 MiB. No memory is set aside at creation, so a mapping may be larger than the
    machine's memory. Raises MemoryError when the process may not have so much address space.
    """

    def __init__(self, nbytes: int) -> None:
        try:
            self._map = _map(nbytes + HUGE_PAGE)
        except (OSError, ValueError, OverflowError) as error:
            msg = f"cannot map {nbytes} bytes of ordinary memory: {error}"
            raise MemoryError(msg) from error
        start = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        self._offset = -start % HUGE_PAGE
        self.address = start + self._offset
        self.nbytes = nbytes
        if sys.platform == "linux":
            with contextlib.suppress(OSError):  # a kernel without huge pages serves small ones
                self._map.madvise(mmap.MADV_HUGEPAGE, *self._pages(0, nbytes))

    @property
    def buffer(self) -> memoryview:
        """The bytes. An array over them keeps the mapping."""
        return memoryview(self._map)[self._offset : self._offset + self.nbytes]

    def discard(self, offset: int, nbytes: int) -> None:
        """Give the memory of whole pages back; they read as zeroes afterwards. Elsewhere than on Linux, nothing."""
        if sys.platform == "linux":
            self._map.madvise(mmap.MADV_DONTNEED, *self._pages(offset, nbytes))

    def moved(self, nbytes: int) -> Mapping:
        """The first ``nbytes`` in a mapping that is no larger; no byte is copied, as the kernel moves pages.

        Arrays over this one read as zeroes from then on.  Itself where the kernel cannot do it (Linux before 5.7).
        """
        pages = -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
        try:
            fresh = Mapping(nbytes)
        except MemoryError:
            return self
        if pages and (_mremap is None or _mremap(self.address, pages, pages, _MOVE, fresh.address) != fresh.address):
            return self
        return fresh

    def close(self) -> None:
        """Unmap. No array over the mapping may be used afterwards."""
        self._map.close()

    def _pages(self, offset: int, nbytes: int) -> tuple[int, int]:
        return self._offset + offset, -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE


def _map(nbytes: int) -> mmap.mmap:
    if sys.platform != "linux":
        return mmap.mmap(-1, nbytes)
    return mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE)


def populate(address: int, nbytes: int, *, fresh: bool = False) -> None:
    """Have the kernel put pages behind ``[address, address + nbytes)`` now, by up to 16 threads.

    ``fresh``: nothing was written there yet, which allows the faster way.  Raises MemoryError when the kernel has no
    pages to give.
    """
    threads = min(_TOUCH_THREADS, _processors(), max(1, nbytes // _TOUCH_SLICE))
    share = -(-nbytes // (threads * HUGE_PAGE)) * HUGE_PAGE
    parts = [(address + at, min(share, nbytes - at)) for at in range(0, nbytes, share)]
    errors: list[int] = []
    others = [threading.Thread(target=_touch, args=(*part, errors, fresh)) for part in parts[1:]]
    for other in others:
        other.start()
    if parts:
        _touch(*parts[0], errors, fresh)
    for other in others:
        other.join()
    if errors:
        msg = f"the kernel gives no pages for {nbytes} bytes: {os.strerror(errors[0])}"
        raise MemoryError(msg)


def _touch(address: int, nbytes: int, errors: list[int], fresh: bool) -> None:
    """Populate one slice, without the interpreter lock.

    Where memory is fresh, one write to each huge page first: on an H200's host sixteen threads need 21 ms a GB for
    that, while MADV_POPULATE_WRITE takes 160 with any number of threads (and so does a read before the write).  The
    call then fills in what is left where the kernel had no huge pages, and says so where it has no pages at all.
    """
    if fresh:
        for offset in range(0, nbytes, HUGE_PAGE):
            ctypes.memset(address + offset, 0, 1)
    pages = -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
    if _madvise is not None:
        if _madvise(ctypes.c_void_p(address), ctypes.c_size_t(pages), _MADV_POPULATE_WRITE) == 0:
            return
        if ctypes.get_errno() != errno.EINVAL:
            errors.append(ctypes.get_errno())
            return
    ctypes.memset(address, 0, nbytes)  # kernels before 5.14, and other systems


_madvise = ctypes.CDLL(None, use_errno=True).madvise if sys.platform == "linux" else None
_mremap: Any = ctypes.CDLL(None).mremap if sys.platform == "linux" else None
if _mremap is not None:
    _mremap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)
    _mremap.restype = ctypes.c_void_p


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def available_memory() -> int:
    """Bytes of memory this process may use: the machine's, or its control group's limit where that is lower."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 8 << 30
    for name in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            with open(name, encoding="ascii") as file:  # noqa: PTH123 - pathlib costs more than the read
                total = min(total, int(file.read()))
        except (OSError, ValueError):
            continue  # no such file, or "max"
    return total
