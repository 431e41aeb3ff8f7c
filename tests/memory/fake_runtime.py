"""A device made of ordinary memory, whose events are done when the test says so and whose calls refuse on request."""

from __future__ import annotations

import ctypes

import numpy as np

from matrix_interop.errors import DeviceUnavailableError
from matrix_interop.memory.host import aligned_empty
from matrix_interop.memory.upstreams import OrdinaryPages
from matrix_interop.runtime import Pointer

__all__ = ["FakeRuntime"]


class FakeRuntime:
    """`Runtime`: ``calls`` counts by name, ``refuse`` decides by (name, how many calls of any name came before)."""

    device_type = "cuda"

    def __init__(self, *, refuse=None, ordinals=(0,), done=True, virtual=True):
        self.calls = []
        self.refuse = refuse or (lambda name, number: False)
        self.ordinals = ordinals
        #: Whether new events are done at once.
        self.done = done
        self.undone = set()
        self.events = set()
        self.registered = {}
        self.allocated = {}
        self._device = {}
        self._memory = FakeVirtualMemory(self) if virtual else None
        self._last_event = 0

    def call(self, name):
        """Note a call, or refuse it."""
        number = len(self.calls)
        self.calls.append(name)
        if self.refuse(name, number):
            msg = f"{name} refused"
            raise MemoryError(msg)

    def device_count(self):
        return len(self.ordinals)

    def active(self):
        return self.ordinals

    def pointer(self, address):
        return Pointer("pageable", None)

    def host_alloc(self, nbytes):
        self.call("host_alloc")
        array = aligned_empty((nbytes,), np.dtype(np.uint8))
        self.allocated[array.ctypes.data] = array
        return array.ctypes.data

    def host_free(self, address):
        self.call("host_free")
        del self.allocated[address]

    def host_register(self, address, nbytes):
        self.call("host_register")
        assert address not in self.registered
        self.registered[address] = nbytes

    def host_unregister(self, address):
        self.call("host_unregister")
        del self.registered[address]

    def device_alloc(self, nbytes, ordinal):
        self.call("device_alloc")
        array = aligned_empty((nbytes,), np.dtype(np.uint8))
        self._device[array.ctypes.data] = array
        return array.ctypes.data

    def device_free(self, address, ordinal):
        del self._device[address]

    def virtual_memory(self, ordinal):
        return self._memory

    def copy(self, dst, src, nbytes, *, ordinal, stream):
        self.call("copy")
        ctypes.memmove(dst, src, nbytes)

    def stream_create(self, ordinal):
        self.call("stream_create")
        return 5

    def stream_destroy(self, stream, ordinal):
        pass

    def stream_synchronize(self, stream, ordinal):
        self.call("stream_synchronize")

    def record_all(self, ordinal):
        self.call("record_all")
        return self.event()

    def event(self):
        """A new event, as a pipeline would record it."""
        self._last_event += 1
        self.events.add(self._last_event)
        if not self.done:
            self.undone.add(self._last_event)
        return self._last_event

    def query(self, event):
        assert event in self.events
        return event not in self.undone

    def synchronize(self, event):
        self.call("synchronize")
        assert event in self.events
        self.undone.discard(event)

    def release(self, event):
        self.events.remove(event)

    @property
    def held(self):
        """Everything taken from the runtime and not given back."""
        memory = self._memory
        pages = (memory.handles, memory.mapped, memory.ranges) if memory is not None else ()
        return [what for what in (self.registered, self.allocated, self._device, *pages) if what]


class FakeVirtualMemory:
    """`VirtualMemory` that checks what CUDA would refuse."""

    granularity = 1 << 16

    def __init__(self, runtime):
        self._call = runtime.call
        self._pages = OrdinaryPages()
        self._last = 0
        self.handles = {}
        self.mapped = {}
        self.ranges = {}

    def reserve(self, nbytes):
        self._call("reserve")
        address = self._pages.reserve(nbytes)
        self.ranges[address] = nbytes
        return address

    def unreserve(self, address, nbytes):
        self._call("unreserve")
        assert self.ranges.pop(address) == nbytes
        assert not [at for at in self.mapped if address <= at < address + nbytes]
        self._pages.unreserve(address, nbytes)

    def create(self, nbytes):
        self._call("create")
        self._last += 1
        self.handles[self._last] = nbytes
        return self._last

    def destroy(self, handle):
        self._call("destroy")
        assert handle not in self.mapped.values()
        del self.handles[handle]

    def map(self, address, nbytes, handle):
        self._call("map")
        if self.handles[handle] != nbytes or address in self.mapped or handle in self.mapped.values():
            msg = "mapped twice, or in part"
            raise DeviceUnavailableError(msg)
        self.mapped[address] = handle

    def unmap(self, address, nbytes):
        self._call("unmap")
        assert self.handles[self.mapped.pop(address)] == nbytes
        self._pages.unmap(address, nbytes)
