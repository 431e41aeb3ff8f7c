"""CUDA through the driver API of cuda-bindings, the only place that speaks to a CUDA driver.

Every call goes to the *primary* context of a device, the one that torch, CuPy, JAX and the CUDA
runtime library use, so their streams and ours are the same streams.  The driver API keeps no "last
error": a call that fails here leaves nothing behind that the next caller would be blamed for.

Streams are driver handles; 0 and 1 are the legacy default stream, 2 is the per-thread one, as in
DLPack.  A driver handle as Python sees it is an object of cuda-bindings; passing that object instead
of its number saves 150 to 300 ns a call, so both are kept side by side.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from matrix_interop.errors import DeviceUnavailableError
from matrix_interop.runtime.base import Pointer
from matrix_interop.runtime.cuda_virtual import CudaVirtualMemory

__all__ = ["CudaRuntime", "load"]

_OUT_OF_MEMORY: Final = 2
_NOT_READY: Final = 600
_PEER_ALREADY_ENABLED: Final = 704
_NOT_SUPPORTED: Final = 801

_LEGACY_STREAM: Final = 1
#: Streams up to this one are names ("legacy", "per thread") that the driver resolves in the current context.
_LAST_NAMED_STREAM: Final = 2
_MAX_STREAMS_KEPT: Final = 1024

#: CUDA 12.0, the oldest that any extra serves.
_OLDEST_DRIVER: Final = 12000

_PAGEABLE: Final = Pointer("pageable", None)
_MEMORY_DEVICE: Final = 2

#: What to make of the reasons for which a driver does not start.
_START_HINTS: Final = {
    3: "CUDA was in use before this process was forked, and does not survive a fork: start workers with 'spawn'",
    34: "the library found is the stub of the toolkit: put the driver's own libcuda.so.1 first on the library path",
    100: "the driver sees no GPU: is CUDA_VISIBLE_DEVICES empty, or the container started without GPUs?",
    803: "the kernel module and the driver library have different versions: restart the machine or the container",
}


def load() -> CudaRuntime:
    """Start CUDA in this process. Raises `DeviceUnavailableError` with the reason when it cannot."""
    try:
        from cuda.bindings import driver
    except ImportError as error:
        msg = (
            "CUDA is used through cuda-bindings, which cannot be imported "
            f"({error}): pip install 'matrix-interop[cuda13]', or [cuda12] for a driver of CUDA 12"
        )
        raise DeviceUnavailableError(msg) from error
    runtime = CudaRuntime(driver)
    os.register_at_fork(after_in_child=runtime.abandon)
    return runtime


class _Forked:
    """Takes the driver's place in a forked child, where every CUDA call is undefined."""

    def __getattr__(self, name: str) -> Any:
        msg = (
            "this process was forked from one that uses CUDA, and CUDA does not survive a fork: "
            "start workers with the 'spawn' or 'forkserver' method, or keep to host memory here"
        )
        raise DeviceUnavailableError(msg)


class CudaRuntime:
    """`Runtime` over ``api``, which is ``cuda.bindings.driver`` or has its functions."""

    device_type = "cuda"
    #: The driver reads ordinary memory at once, whatever the size; up to this one it is also as fast as a pinned copy.
    captured_bytes = 64 << 10

    def __init__(self, api: Any) -> None:
        self._count = _start(api)
        self._api = api
        #: Ordinal -> (primary context, its number). Retained once and kept as long as the process.
        self._contexts: dict[int, tuple[Any, int]] = {}
        #: Ordinal -> events free for use. deque.pop and deque.append are atomic: no lock is needed.
        self._pools: dict[int, deque[int]] = {ordinal: deque() for ordinal in range(self._count)}
        #: Event -> (its object, the pool it came from). Events are never destroyed, so this only grows to the peak.
        self._events: dict[int, tuple[Any, deque[int]]] = {}
        self._streams: dict[int, Any] = {}
        self._linked: set[tuple[int, int]] = set()
        #: Ordinal -> whether it reads pageable memory as it lies: asked at each move.
        self._coherent: dict[int, bool] = {}
        names = api.CUpointer_attribute
        self._facts = [
            names.CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
            names.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
            names.CU_POINTER_ATTRIBUTE_IS_MANAGED,
        ]
        if self._count > 1:
            self._facts.append(names.CU_POINTER_ATTRIBUTE_CONTEXT)

    def abandon(self) -> None:
        """Make no further call into the driver: for the child of a fork."""
        self._api = _Forked()

    def device_count(self) -> int:
        return self._count

    def active(self) -> tuple[int, ...]:
        state = "cuDevicePrimaryCtxGetState"
        return tuple(ordinal for ordinal in range(self._count) if self.call(state, self._device(ordinal))[1])

    def pointer(self, address: int) -> Pointer:
        # One plural question: unlike the single ones it is no error for memory that CUDA does not know (type 0).
        error, facts = self._api.cuPointerGetAttributes(len(self._facts), self._facts, address)
        if error:
            raise self.failure("cuPointerGetAttributes", error)
        memory, ordinal, managed, *context = facts
        if not memory:
            return _PAGEABLE
        if context and not ordinal:
            ordinal = self._ordinal_of(address, int(context[0]))
        if managed:
            return Pointer("managed", ordinal)
        if memory == _MEMORY_DEVICE:
            return Pointer("device", ordinal)
        # Host memory made by cuMemCreate belongs to no device, which the driver says by a negative number.
        return Pointer("pinned", ordinal if ordinal >= 0 else None)

    # Host memory -------------------------------------------------------------------------------
    def host_alloc(self, nbytes: int) -> int:
        return int(self.call_on(self._any_device(), "cuMemHostAlloc", nbytes, self._api.CU_MEMHOSTALLOC_PORTABLE))

    def host_free(self, address: int) -> None:
        self.call_on(self._any_device(), "cuMemFreeHost", address)

    def host_register(self, address: int, nbytes: int) -> None:
        self.call_on(self._any_device(), "cuMemHostRegister", address, nbytes, self._api.CU_MEMHOSTREGISTER_PORTABLE)

    def host_unregister(self, address: int) -> None:
        self.call_on(self._any_device(), "cuMemHostUnregister", address)

    # Device memory -----------------------------------------------------------------------------
    def device_alloc(self, nbytes: int, ordinal: int) -> int:
        return int(self.call_on(ordinal, "cuMemAlloc", nbytes))

    def device_free(self, address: int, ordinal: int) -> None:
        self.call_on(ordinal, "cuMemFree", address)

    def memory_info(self, ordinal: int) -> tuple[int, int]:
        free, total = self.call_on(ordinal, "cuMemGetInfo")
        return int(free), int(total)

    def reads_pageable(self, ordinal: int) -> bool:
        known = self._coherent.get(ordinal)
        if known is None:
            known = self.attribute(ordinal, "PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES") == 1
            self._coherent[ordinal] = known
        return known

    def virtual_memory(self, ordinal: int) -> CudaVirtualMemory | None:
        supported = self.attribute(ordinal, "HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED") == 1
        node = self.attribute(ordinal, "HOST_NUMA_ID")
        return CudaVirtualMemory(self, self._api, ordinal, node) if supported and node >= 0 else None

    # Moving bytes ------------------------------------------------------------------------------
    def copy(self, dst: int, src: int, nbytes: int, *, ordinal: int, stream: int) -> None:
        if not nbytes:
            return
        handle = self._streams.get(stream) or self._stream(stream)  # as in `_enqueue`, without the call
        if stream <= _LAST_NAMED_STREAM or self._api.cuMemcpyAsync(dst, src, nbytes, handle)[0]:
            self.call_on(ordinal, "cuMemcpyAsync", dst, src, nbytes, handle)

    def copy_rows(
        self, dst: int, dst_pitch: int, src: int, src_pitch: int, width: int, rows: int, *, ordinal: int, stream: int
    ) -> None:
        if not width or not rows:
            return
        copy = self._api.CUDA_MEMCPY2D()
        # "Unified" leaves it to the driver to see from the addresses where either side lies.
        copy.srcMemoryType = copy.dstMemoryType = self._api.CUmemorytype.CU_MEMORYTYPE_UNIFIED
        copy.srcDevice, copy.srcPitch = src, src_pitch
        copy.dstDevice, copy.dstPitch = dst, dst_pitch
        copy.WidthInBytes, copy.Height = width, rows
        self._enqueue("cuMemcpy2DAsync", copy, ordinal=ordinal, stream=stream)

    def copy_peer(self, dst: int, dst_ordinal: int, src: int, src_ordinal: int, nbytes: int, *, stream: int) -> None:
        if not nbytes:
            return
        if (dst_ordinal, src_ordinal) not in self._linked:
            self._link(dst_ordinal, src_ordinal)
        there, here = self._context(dst_ordinal)[0], self._context(src_ordinal)[0]
        self._enqueue("cuMemcpyPeerAsync", dst, there, src, here, nbytes, ordinal=src_ordinal, stream=stream)

    # Order -------------------------------------------------------------------------------------
    def stream_create(self, ordinal: int) -> int:
        return int(self.call_on(ordinal, "cuStreamCreate", self._api.CUstream_flags.CU_STREAM_NON_BLOCKING))

    def stream_destroy(self, stream: int, ordinal: int) -> None:
        self.call_on(ordinal, "cuStreamDestroy", self._stream(stream))
        self._streams.pop(stream, None)

    def stream_synchronize(self, stream: int, ordinal: int) -> None:
        self.call_on(ordinal, "cuStreamSynchronize", self._stream(stream))

    def record(self, stream: int, ordinal: int) -> int:
        event, handle = self._take_event(ordinal)
        # The driver compares the event's context with the stream's, so the call is tried as it is: only where the
        # stream has a name and another device is current must the context be changed, and the driver says so.
        if self._api.cuEventRecord(handle, self._streams.get(stream) or self._stream(stream))[0]:
            try:
                self.call_on(ordinal, "cuEventRecord", handle, self._stream(stream))
            except BaseException:
                self.release(event)
                raise
        return event

    def record_all(self, ordinal: int) -> int:
        event, handle = self._take_event(ordinal)
        try:
            if not self._record_context(ordinal, handle):
                self.call_on(ordinal, "cuCtxSynchronize")
                self.call_on(ordinal, "cuEventRecord", handle, self._stream(_LEGACY_STREAM))
        except BaseException:
            self.release(event)
            raise
        return event

    def wait(self, stream: int, event: int, ordinal: int) -> None:
        # Unlike recording, waiting for another device's event is allowed: the driver would not notice that a named
        # stream was resolved in the wrong context.
        handle = self._events[event][0]
        if stream <= _LAST_NAMED_STREAM or self._api.cuStreamWaitEvent(self._stream(stream), handle, 0)[0]:
            self.call_on(ordinal, "cuStreamWaitEvent", self._stream(stream), handle, 0)

    def query(self, event: int) -> bool:
        error = self._api.cuEventQuery(self._events[event][0])[0]
        if not error:
            return True
        if error == _NOT_READY:
            return False
        raise self.failure("cuEventQuery", error)

    def synchronize(self, event: int) -> None:
        error = self._api.cuEventSynchronize(self._events[event][0])[0]
        if error:
            raise self.failure("cuEventSynchronize", error)

    def release(self, event: int) -> None:
        self._events[event][1].append(event)

    # For this file and cuda_virtual.py ---------------------------------------------------------
    def call(self, name: str, *args: Any, ignore: int = 0) -> Any:
        """Call the driver; its result, a tuple where it has several. Raises what `failure` makes of an error."""
        result = getattr(self._api, name)(*args)
        if result[0] and result[0] != ignore:
            raise self.failure(name, result[0])
        return result[1] if len(result) == 2 else result[1:]

    def call_on(self, ordinal: int, name: str, *args: Any, ignore: int = 0) -> Any:
        """`call` while the primary context of the device is current; the thread's own is current again afterwards."""
        context, number = self._contexts.get(ordinal) or self._context(ordinal)
        if int(self._api.cuCtxGetCurrent()[1]) == number:
            return self.call(name, *args, ignore=ignore)
        self.call("cuCtxPushCurrent", context)
        try:
            return self.call(name, *args, ignore=ignore)
        finally:
            self.call("cuCtxPopCurrent")

    @contextmanager
    def current(self, ordinal: int) -> Iterator[None]:
        self.call("cuCtxPushCurrent", self._context(ordinal)[0])
        try:
            yield
        finally:
            self.call("cuCtxPopCurrent")

    def attribute(self, ordinal: int, name: str) -> int:
        """A device attribute; -1 where the driver or the bindings do not know it."""
        key = getattr(self._api.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}", None)
        if key is None:
            return -1
        error, value = self._api.cuDeviceGetAttribute(key, self._device(ordinal))
        return -1 if error else int(value)

    def failure(self, name: str, error: Any) -> Exception:
        """The exception that says which call failed and why."""
        msg = f"CUDA: {name} failed with {_describe(self._api, error)}"
        return MemoryError(msg) if error == _OUT_OF_MEMORY else DeviceUnavailableError(msg)

    # -------------------------------------------------------------------------------------------
    def _enqueue(self, name: str, *args: Any, ordinal: int, stream: int) -> None:
        """Call what ends with a stream. A stream with a handle of its own brings its context along."""
        handle = self._streams.get(stream) or self._stream(stream)
        if stream <= _LAST_NAMED_STREAM or getattr(self._api, name)(*args, handle)[0]:
            self.call_on(ordinal, name, *args, handle)

    def _any_device(self) -> int:
        """A device for what needs a context but cares not which: one in use here, else the thread's, else the first."""
        used = list(self._contexts)
        if used:
            return used[0]
        return int(self.call("cuCtxGetDevice")) if int(self.call("cuCtxGetCurrent")) else 0

    def _ordinal_of(self, address: int, context: int) -> int:
        """The device of memory for which the driver's own answer is 0, as cuda-bindings 13.3 has it for every device.

        Told by the primary context that the memory belongs to; memory of pools belongs to none, and the CUDA runtime
        library, which made those pools, knows.
        """
        for ordinal in self.active() if context else ():
            if self._context(ordinal)[1] == context:
                return ordinal
        from cuda.bindings import runtime

        error, facts = runtime.cudaPointerGetAttributes(address)
        return 0 if error else int(facts.device)

    def _device(self, ordinal: int) -> Any:
        if not 0 <= ordinal < self._count:
            msg = (
                f"there is no device cuda:{ordinal}: this process sees {self._count}, cuda:0 to cuda:{self._count - 1}"
            )
            raise DeviceUnavailableError(msg)
        return self.call("cuDeviceGet", ordinal)

    def _context(self, ordinal: int) -> tuple[Any, int]:
        known = self._contexts.get(ordinal)
        if known is None:
            context = self.call("cuDevicePrimaryCtxRetain", self._device(ordinal))
            known = self._contexts.setdefault(ordinal, (context, int(context)))
        return known

    def _stream(self, stream: int) -> Any:
        handle = self._streams.get(stream)
        if handle is None:
            if len(self._streams) >= _MAX_STREAMS_KEPT:
                self._streams.clear()
            # 0 means "per thread" where CUDA_PYTHON_CUDA_PER_THREAD_DEFAULT_STREAM is set; here it is always legacy.
            handle = self._streams[stream] = self._api.CUstream(stream or _LEGACY_STREAM)
        return handle

    def _take_event(self, ordinal: int) -> tuple[int, Any]:
        try:
            event = self._pools[ordinal].pop()
        except LookupError:  # an empty pool, or no such device, which call_on says
            handle = self.call_on(ordinal, "cuEventCreate", self._api.CUevent_flags.CU_EVENT_DISABLE_TIMING)
            event = int(handle)
            self._events[event] = handle, self._pools[ordinal]
            return event, handle
        return event, self._events[event][0]

    def _record_context(self, ordinal: int, handle: Any) -> bool:
        """Record all work of the context; False where the driver or the bindings are older than the call (12.5)."""
        context = self._context(ordinal)[0]
        try:
            error = self._api.cuCtxRecordEvent(context, handle)[0]
        except DeviceUnavailableError:  # this process was forked
            raise
        except (AttributeError, RuntimeError):
            return False
        if error and error != _NOT_SUPPORTED:
            raise self.failure("cuCtxRecordEvent", error)
        return not error

    def _link(self, first: int, second: int) -> None:
        """Let two devices reach each other's memory where they can; where not, the driver copies through the host."""
        for here, there in ((first, second), (second, first)):
            if here != there and self.call("cuDeviceCanAccessPeer", self._device(here), self._device(there)):
                peer = self._context(there)[0]
                self.call_on(here, "cuCtxEnablePeerAccess", peer, 0, ignore=_PEER_ALREADY_ENABLED)
        self._linked |= {(first, second), (second, first)}


def _describe(api: Any, error: Any) -> str:
    _, text = api.cuGetErrorString(error)
    name = getattr(error, "name", str(error))
    return f"{name} ({text.decode()})" if text else name


def _start(api: Any) -> int:
    """Initialise the driver; the number of devices."""
    try:
        error = api.cuInit(0)[0]
        version = 0 if error else api.cuDriverGetVersion()[1]
    except (RuntimeError, OSError, ImportError) as reason:
        msg = f"no CUDA driver on this machine: {reason}"
        raise DeviceUnavailableError(msg) from reason
    if error:
        hint = _START_HINTS.get(int(error), "run nvidia-smi to see whether the driver works at all")
        msg = f"CUDA does not start: {_describe(api, error)}; {hint}"
        raise DeviceUnavailableError(msg)
    if version // 1000 < api.CUDA_VERSION // 1000:
        other = " or pip install 'matrix-interop[cuda12]'" if version >= _OLDEST_DRIVER else ""
        msg = (
            f"the CUDA driver is too old: it serves CUDA {_version(version)}, and the installed cuda-bindings are for "
            f"CUDA {_version(api.CUDA_VERSION)}: update the driver{other}"
        )
        raise DeviceUnavailableError(msg)
    count = int(api.cuDeviceGetCount()[1] or 0)
    if not count:
        msg = f"no CUDA device: {_START_HINTS[100]}"
        raise DeviceUnavailableError(msg)
    return count


def _version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"
