"""What `CudaRuntime` uses of ``cuda.bindings.driver``, in Python: devices, current contexts and a log of calls."""

from __future__ import annotations

import enum
import threading
from types import SimpleNamespace
from typing import Any


class CUresult(enum.IntEnum):
    """The driver's own numbers."""

    CUDA_SUCCESS = 0
    CUDA_ERROR_INVALID_VALUE = 1
    CUDA_ERROR_OUT_OF_MEMORY = 2
    CUDA_ERROR_NOT_INITIALIZED = 3
    CUDA_ERROR_NO_DEVICE = 100
    CUDA_ERROR_INVALID_CONTEXT = 201
    CUDA_ERROR_INVALID_HANDLE = 400
    CUDA_ERROR_NOT_READY = 600
    CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED = 704
    CUDA_ERROR_NOT_SUPPORTED = 801
    CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900


OK = CUresult.CUDA_SUCCESS


class _Handle:
    """A driver object: a number that is no int, as in cuda-bindings."""

    def __init__(self, number: int = 0) -> None:
        self.number = int(number)

    def __int__(self) -> int:
        return self.number


class CUstream(_Handle):
    """Stream."""


class CUevent(_Handle):
    """Event."""


class CUcontext(_Handle):
    """Context."""


class _Names:
    """An enumeration whose members are their own names."""

    def __getattr__(self, name: str) -> str:
        return name


class FakeDriver:
    """``calls`` holds (name, current context, arguments as numbers); ``errors`` makes calls fail by name.

    A named stream is that of the current context. ``event_context`` says where an event was made; recording it on a
    named stream of another context is an error, as in the driver.
    """

    CUDA_VERSION = 13000
    CU_MEMHOSTALLOC_PORTABLE = 1
    CU_MEMHOSTREGISTER_PORTABLE = 1
    CUpointer_attribute = CUdevice_attribute = CUevent_flags = CUstream_flags = CUmemorytype = _Names()
    CUmemAllocationType = CUmemLocationType = CUmemAccess_flags = CUmemAllocationGranularity_flags = _Names()
    CUstream, CUevent, CUcontext = CUstream, CUevent, CUcontext

    def __init__(self, devices: int = 2, version: int = 13000) -> None:
        self.devices, self.version = devices, version
        self.calls: list[tuple[str, int, tuple[Any, ...]]] = []
        self.errors: dict[str, CUresult] = {}
        self.pointers: dict[int, dict[str, int]] = {}
        self.attributes: dict[str, int] = {}
        self.event_context: dict[int, int] = {}
        self.busy: set[int] = set()
        self._numbers = iter(range(0x1000, 0x9000))
        self._local = threading.local()

    @property
    def stack(self) -> list[int]:
        """The calling thread's contexts, the current one last."""
        return self._local.__dict__.setdefault("stack", [])

    def names(self) -> list[str]:
        """The calls so far by name, questions about the current context left out; the log starts anew."""
        names = [name for name, _, _ in self.calls if name != "cuCtxGetCurrent"]
        self.calls.clear()
        return names

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("cu"):
            raise AttributeError(name)

        def call(*args: Any) -> tuple[Any, ...]:
            plain = tuple(int(arg) if isinstance(arg, _Handle) else arg for arg in args)
            self.calls.append((name, self.stack[-1] if self.stack else 0, plain))
            if name in self.errors:
                return self.errors[name], None
            answer = getattr(self, f"on_{name}", lambda *_: (OK,))(*plain)
            return answer if isinstance(answer, tuple) else (OK, answer)

        return call

    # Answers: a tuple is the whole answer, anything else the value of a success ---------------------
    def on_cuDriverGetVersion(self) -> int:  # noqa: N802
        return self.version

    def on_cuDeviceGetCount(self) -> int:  # noqa: N802
        return self.devices

    def on_cuGetErrorString(self, error: CUresult) -> bytes:  # noqa: N802
        return error.name.lower().encode()

    def on_cuDeviceGet(self, ordinal: int) -> int:  # noqa: N802
        return ordinal

    def on_cuDevicePrimaryCtxRetain(self, device: int) -> CUcontext:  # noqa: N802
        return CUcontext(0xC0 + device)

    def on_cuDevicePrimaryCtxGetState(self, _device: int) -> tuple[CUresult, int, int]:  # noqa: N802
        return OK, 0, 1

    def on_cuCtxGetCurrent(self) -> CUcontext:  # noqa: N802
        return CUcontext(self.stack[-1] if self.stack else 0)

    def on_cuCtxGetDevice(self) -> int:  # noqa: N802
        return self.stack[-1] % 16  # 0xC0 and 0xC1 are the primary contexts, 0xF0 and 0xF1 foreign ones

    def on_cuCtxPushCurrent(self, context: int) -> tuple[CUresult]:  # noqa: N802
        self.stack.append(context)
        return (OK,)

    def on_cuCtxPopCurrent(self) -> CUcontext:  # noqa: N802
        return CUcontext(self.stack.pop())

    def on_cuEventCreate(self, _flags: Any) -> CUevent:  # noqa: N802
        event = CUevent(next(self._numbers))
        self.event_context[int(event)] = self.stack[-1]
        return event

    def on_cuStreamCreate(self, _flags: Any) -> CUstream:  # noqa: N802
        return CUstream(next(self._numbers))

    def on_cuEventRecord(self, event: int, stream: int) -> tuple[CUresult]:  # noqa: N802
        if stream <= 2 and self.event_context[event] != (self.stack[-1] if self.stack else 0):
            return (CUresult.CUDA_ERROR_INVALID_HANDLE,)
        return (OK,)

    def on_cuEventQuery(self, event: int) -> tuple[CUresult]:  # noqa: N802
        return (CUresult.CUDA_ERROR_NOT_READY if event in self.busy else OK,)

    def on_cuPointerGetAttributes(self, count: int, names: list[str], address: int) -> list[int]:  # noqa: N802
        facts = self.pointers.get(address, {})
        return [facts.get(name.removeprefix("CU_POINTER_ATTRIBUTE_"), 0) for name in names[:count]]

    def on_cuDeviceGetAttribute(self, name: str, _device: int) -> tuple[CUresult, int]:  # noqa: N802
        return OK, self.attributes.get(name.removeprefix("CU_DEVICE_ATTRIBUTE_"), 0)

    def on_cuDeviceCanAccessPeer(self, _device: int, _peer: int) -> int:  # noqa: N802
        return 1

    def on_cuMemGetInfo(self) -> tuple[CUresult, int, int]:  # noqa: N802
        return OK, 10, 100

    def on_cuMemGetAllocationGranularity(self, _pages: Any, _option: Any) -> int:  # noqa: N802
        return 1 << 21

    def CUDA_MEMCPY2D(self) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace()

    def CUmemAllocationProp(self) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(location=SimpleNamespace())

    def CUmemAccessDesc(self) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(location=SimpleNamespace())
