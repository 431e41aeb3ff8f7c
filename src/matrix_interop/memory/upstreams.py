"""Where an arena gets memory: one small object for each way, and the round trip that proves it works here.

`RegisteredPages` is the fastest way to pinned memory (43 to 56 ms a GB on an H200's host, cudaHostAlloc 407), and
the default. `HostAlloc` asks the driver. `VirtualPages` is CUDA virtual memory at a host location, whose pages can
move, so the policy "remap" wants it. `OrdinaryPages` serves where there is no device; it can do all the others can.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Final, Protocol, TypeGuard

from matrix_interop.errors import DeviceUnavailableError
from matrix_interop.memory.pages import Mapping, populate
from matrix_interop.runtime import Runtime, VirtualMemory

__all__ = [
    "REFUSALS",
    "HostAlloc",
    "OrdinaryPages",
    "PagedUpstream",
    "RegisteredPages",
    "Upstream",
    "VirtualPages",
    "first_device",
    "is_paged",
    "make_upstream",
    "probe",
]

#: What an upstream may raise when it refuses: no memory, no device, or a system call that failed.
REFUSALS: Final = (MemoryError, OSError, DeviceUnavailableError)

_PAGE: Final = 4096
_PROBE_BYTES: Final = 1 << 20


class Upstream(Protocol):
    """Gives memory in one piece. A refusal is one of `REFUSALS` and leaves nothing behind."""

    name: str
    #: Whether the device copies from and to this memory at full speed and asynchronously.
    pinned: bool
    #: Sizes are rounded up to a multiple of this many bytes.
    granularity: int

    def allocate(self, nbytes: int) -> int:
        """``nbytes``, a multiple of the granularity; the address, a multiple of 256."""

    def free(self, address: int, nbytes: int) -> None:
        """Give back a whole piece."""


class PagedUpstream(Upstream, VirtualMemory, Protocol):
    """An upstream whose pages can also move behind fixed addresses."""


def is_paged(upstream: Upstream) -> TypeGuard[PagedUpstream]:
    """Whether the pages of an upstream can move."""
    return hasattr(upstream, "map")


class OrdinaryPages:
    """Private mappings with huge pages. Pages that "move" are dropped here and faulted in there by the kernel."""

    name = "ordinary"
    pinned = False
    granularity = _PAGE

    def __init__(self) -> None:
        self._mappings: dict[int, Mapping] = {}
        self._handles = 0

    def allocate(self, nbytes: int) -> int:
        mapping = Mapping(nbytes)
        self._mappings[mapping.address] = mapping
        return mapping.address

    def free(self, address: int, nbytes: int) -> None:
        self._mappings.pop(address).close()

    reserve = allocate
    unreserve = free

    def create(self, nbytes: int) -> int:
        self._handles += 1
        return self._handles

    def destroy(self, handle: int) -> None:
        """Nothing: `unmap` gave the memory back already."""

    def map(self, address: int, nbytes: int, handle: int) -> None:
        """Nothing: the mapping's pages come at the first touch."""

    def unmap(self, address: int, nbytes: int) -> None:
        for start, mapping in self._mappings.items():
            if start <= address < start + mapping.nbytes:
                mapping.discard(address - start, nbytes)
                return


class RegisteredPages:
    """Private mappings with huge pages, touched by several threads, then page-locked as they are.

    A piece is one registration however large it is, because one copy may not cross two.
    """

    name = "registered"
    pinned = True
    granularity = _PAGE

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._mappings: dict[int, Mapping] = {}

    def allocate(self, nbytes: int) -> int:
        mapping = Mapping(nbytes)
        try:
            populate(mapping.address, nbytes, fresh=True)
            self._runtime.host_register(mapping.address, nbytes)
        except BaseException:
            mapping.close()
            raise
        self._mappings[mapping.address] = mapping
        return mapping.address

    def free(self, address: int, nbytes: int) -> None:
        # Unregister first: pages unmapped under a registration would leave the device with its own, other view.
        self._runtime.host_unregister(address)
        self._mappings.pop(address).close()


class HostAlloc:
    """cudaHostAlloc: slow, but the one way that works everywhere."""

    name = "host_alloc"
    pinned = True
    granularity = _PAGE

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def allocate(self, nbytes: int) -> int:
        return self._runtime.host_alloc(nbytes)

    def free(self, address: int, nbytes: int) -> None:
        self._runtime.host_free(address)


class VirtualPages:
    """CUDA virtual memory at a host location: pages that can be put behind any reserved address."""

    name = "virtual"
    pinned = True

    def __init__(self, memory: VirtualMemory) -> None:
        self.granularity = memory.granularity
        self.reserve = memory.reserve
        self.unreserve = memory.unreserve
        self.create = memory.create
        self.destroy = memory.destroy
        self.map = memory.map
        self.unmap = memory.unmap
        self._handles: dict[int, int] = {}

    def allocate(self, nbytes: int) -> int:
        address = self.reserve(nbytes)
        try:
            handle = self.create(nbytes)
            try:
                self.map(address, nbytes, handle)
            except BaseException:
                self.destroy(handle)
                raise
        except BaseException:
            self.unreserve(address, nbytes)
            raise
        self._handles[address] = handle
        return address

    def free(self, address: int, nbytes: int) -> None:
        self.unmap(address, nbytes)
        self.destroy(self._handles.pop(address))
        self.unreserve(address, nbytes)


def make_upstream(name: str, runtime: Runtime | None) -> Upstream:
    """The upstream of that name, proved by `probe`. Raises one of `REFUSALS` with the reason when it does not work."""
    if name == "ordinary":
        upstream: Upstream = OrdinaryPages()
        probe(upstream, None)
        return upstream
    if runtime is None:
        msg = f"the upstream {name!r} needs a device, and none is there"
        raise DeviceUnavailableError(msg)
    upstream = _MAKERS[name](runtime)
    probe(upstream, runtime)
    return upstream


def _virtual(runtime: Runtime) -> VirtualPages:
    memory = runtime.virtual_memory(first_device(runtime))
    if memory is None:
        msg = "the device offers no virtual memory at a host location"
        raise DeviceUnavailableError(msg)
    return VirtualPages(memory)


_MAKERS: Final[dict[str, Callable[[Runtime], Upstream]]] = {
    "registered": RegisteredPages,
    "host_alloc": HostAlloc,
    "virtual": _virtual,
}


def first_device(runtime: Runtime) -> int:
    """A device that is in use already, so that no other gets a context for our sake; else the first."""
    return next(iter(runtime.active()), 0)


def probe(upstream: Upstream, runtime: Runtime | None) -> None:
    """Take memory, write it, send it to the device and back, compare and give it back.

    Support flags promise what containers then refuse, so only a round trip counts. Raises one of `REFUSALS`.
    """
    nbytes = -(-_PROBE_BYTES // upstream.granularity) * upstream.granularity
    address = upstream.allocate(nbytes)
    try:
        half = nbytes // 2
        pattern = bytes(range(256)) * (half // 256)
        ctypes.memmove(address, pattern, half)
        if runtime is None:
            ctypes.memmove(address + half, address, half)
        else:
            _there_and_back(runtime, address, half)
        if ctypes.string_at(address + half, half) != pattern:
            msg = f"memory from the upstream {upstream.name!r} comes back from the device with other contents"
            raise DeviceUnavailableError(msg)
    finally:
        upstream.free(address, nbytes)


def _there_and_back(runtime: Runtime, address: int, nbytes: int) -> None:
    ordinal = first_device(runtime)
    stream = runtime.stream_create(ordinal)
    try:
        device = runtime.device_alloc(nbytes, ordinal)
        try:
            runtime.copy(device, address, nbytes, ordinal=ordinal, stream=stream)
            runtime.copy(address + nbytes, device, nbytes, ordinal=ordinal, stream=stream)
            runtime.stream_synchronize(stream, ordinal)
        finally:
            runtime.device_free(device, ordinal)
    finally:
        runtime.stream_destroy(stream, ordinal)
