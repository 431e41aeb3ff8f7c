"""CuPy 14 on CUDA.

Facts copied (``tests/gpu`` proves them on the real one): arrays are made of a pointer, its device and an owner; the
null stream is handle 0; a stream is current as a context manager; values do not turn into NumPy arrays by themselves;
an array is worked on where its device is current. Over DLPack it takes CUDA and managed memory only, ignores READ_ONLY,
labels managed memory 13, orders an export after its own current stream and takes None and 0 for the legacy stream.
Of an object with the CUDA array interface it waits for the stream that is named. Over given memory it makes an array of
any NumPy type, whether it computes with it or not.
Not copied: what its functions compute (NumPy's do it), its memory pool, its speed.
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from types import ModuleType
from typing import Any, Self

import numpy as np

from frameworks.standins import late
from simulated import lateframe
from simulated.runtime import LEGACY

__version__ = "14.2.0"
dtype = np.dtype
_streams = late.Streams()


class UnownedMemory:
    """Memory by address, which keeps its owner."""

    def __init__(self, ptr: int, size: int, owner: Any, device_id: int = -1) -> None:
        self.ptr, self.size, self.owner, self.device_id = ptr, size, owner, device_id


class MemoryPointer:
    """A place in memory."""

    def __init__(self, mem: UnownedMemory, offset: int) -> None:
        self.mem, self.ptr, self.device_id = mem, mem.ptr + offset, mem.device_id


class Stream:
    """A stream of the current device; current inside a with statement."""

    def __init__(self, *, non_blocking: bool = False, ptr: int | None = None) -> None:
        self.ordinal = lateframe.current_device()
        self.ptr = late.runtime().stream_create(self.ordinal) if ptr is None else ptr

    def __enter__(self) -> Self:
        self.stack = ExitStack()
        self.stack.enter_context(_streams.use(self.ptr, self.ordinal))
        return self

    def __exit__(self, *_: object) -> None:
        self.stack.close()


class Device:
    """A device; current inside a with statement."""

    def __init__(self, index: Any = None) -> None:
        self.id = lateframe.current_device() if index is None else int(getattr(index, "id", index))

    def __enter__(self) -> Self:
        self.stack = ExitStack()
        self.stack.enter_context(lateframe.device(self.id))
        return self

    def __exit__(self, *_: object) -> None:
        self.stack.close()

    def synchronize(self) -> None:
        """Wait for all that is queued."""
        late.runtime().quiesce()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Device) and self.id == other.id

    def __hash__(self) -> int:
        return hash(self.id)


def get_current_stream(device_id: int = -1) -> Stream:
    """The current stream of a device; its ``ptr`` is 0 for the legacy default stream."""
    handle = _streams.of(lateframe.current_device() if device_id < 0 else device_id)
    return Stream(ptr=0 if handle == LEGACY else handle)


def malloc_managed(nbytes: int) -> MemoryPointer:
    """Memory that host and device address."""
    here = lateframe.current_device()
    return MemoryPointer(UnownedMemory(late.runtime().managed_alloc(nbytes, here), nbytes, None, here), 0)


class ndarray(late.CudaArray):  # noqa: N801  CuPy's name
    """An array."""

    streams = _streams

    def __init__(self, shape: Any, dtype: Any = float, memptr: Any = None, strides: Any = None) -> None:
        kind = np.dtype(dtype)
        if strides is None:
            strides = late.dense(tuple(shape), kind)
        super().__init__(memptr.ptr, tuple(shape), tuple(strides), kind, memptr.device_id, memptr.mem.owner)
        self.data = memptr

    @classmethod
    def over(cls, x: lateframe.Array) -> ndarray:
        memory = UnownedMemory(x.pointer, 1, x.owner, x.ordinal)
        return cls(x.shape, x.dtype, MemoryPointer(memory, 0), x.strides)

    def apply(self, function: Any, *operands: Any, **keywords: Any) -> Any:
        self._require_here()
        return super().apply(function, *operands, **keywords)

    def _require_here(self) -> None:
        if self.ordinal != lateframe.current_device():
            raise ValueError(f"Array device must be same as the current device: array device = {self.ordinal}")

    @property
    def device(self) -> Any:
        """Where the memory is."""
        return Device(self.ordinal)

    def get(self) -> np.ndarray:
        """The values on the host."""
        return self.host()

    def view(self) -> ndarray:
        """A second array over the same memory."""
        return self.over(self)

    def astype(self, dtype: Any, *, copy: bool = True) -> ndarray:
        """The values in another type."""
        return self if not copy and np.dtype(dtype) == self.dtype else self.apply(lambda x: x.astype(dtype))

    def fill(self, value: Any) -> None:
        """Write the same value everywhere, late."""
        with _streams.here(self.ordinal):
            lateframe.fill_late(self, value)

    def sum(self) -> Any:
        """The sum, on the host."""
        return self.get().sum()

    def reshape(self, *shape: int) -> ndarray:
        """Dense rows, in another shape."""
        shaped = np.empty(self.shape, np.int8).reshape(*shape).shape
        return ndarray(shaped, self.dtype, self.data)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        stream = _streams.of(self.ordinal)
        data = {"shape": self.shape, "strides": self.strides, "typestr": self.dtype.str, "version": 3}
        return {**data, "data": (self.pointer, False), "stream": stream}

    def __dlpack__(
        self, *, stream: Any = None, max_version: Any = None, dl_device: Any = None, copy: Any = None
    ) -> Any:
        if copy or dl_device not in {None, self.__dlpack_device__()}:
            raise BufferError("no copies, and no other device")
        if isinstance(stream, int) and stream < -1:
            raise ValueError("On CUDA, the valid stream for the DLPack protocol is -1, 1, 2, or any larger value")
        if stream is None or (isinstance(stream, int) and stream != -1):
            lateframe.order(_streams.of(self.ordinal), stream or LEGACY, self.ordinal)
        return self.capsule(max_version)


def empty(shape: Any, dtype: Any = float) -> ndarray:
    """New memory on the current device."""
    return ndarray.made((shape,) if isinstance(shape, int) else shape, dtype, lateframe.current_device())


def array(x: Any, dtype: Any = None, order: str = "K", copy: bool = True) -> ndarray:
    """A copy on the current device."""
    if not isinstance(x, ndarray):
        return ndarray.holding(np.array(x, dtype), lateframe.current_device())
    x._require_here()
    flip = order == "F"
    out = empty(x.shape[::-1] if flip else x.shape, dtype or x.dtype)
    out = out.T if flip else out
    with _streams.here(x.ordinal):
        lateframe.copy_late(out, x)
    return out


def asarray(x: Any, dtype: Any = None) -> ndarray:
    """The array itself, or one over the memory that the CUDA array interface names, once its stream is done."""
    if isinstance(x, ndarray):
        return x if dtype is None else x.astype(dtype)
    interface = getattr(x, "__cuda_array_interface__", None)
    if interface is None:
        return array(x, dtype)
    ordinal = late.runtime().pointer(interface["data"][0]).ordinal
    assert ordinal is not None
    if interface.get("stream") is not None:
        late.runtime().stream_synchronize(interface["stream"], ordinal)
    memory = UnownedMemory(interface["data"][0], 1, x, ordinal)
    return ndarray(interface["shape"], interface["typestr"], MemoryPointer(memory, 0), interface["strides"])


def from_dlpack(x: Any) -> ndarray:
    """The memory of ``x``, shared, ready on the current stream."""
    code, ordinal = x.__dlpack_device__()
    if code not in {late.CUDA, late.MANAGED}:
        raise TypeError("CPU arrays cannot be directly imported to CuPy. Use `cupy.array(numpy.from_dlpack(input))`.")
    capsule = x.__dlpack__(stream=_streams.of(ordinal), max_version=(1, 0))
    return late.imported(ndarray, capsule, labels=(late.CUDA, late.MANAGED), error=BufferError)


def _filled(value: Any, shape: Any, dtype: Any = float) -> ndarray:
    return array(np.full(shape, value, dtype))


zeros, ones = partial(_filled, 0), partial(_filled, 1)


def arange(stop: int, dtype: Any = None) -> ndarray:
    """Whole numbers from 0."""
    return array(np.arange(stop, dtype=dtype))


def take(x: ndarray, indices: Any, axis: int = 0) -> ndarray:
    """Entries along an axis; indices lie on the device."""
    if not isinstance(indices, ndarray):
        raise TypeError(f"Unsupported type {type(indices)}")
    return x.apply(np.take, indices, axis=axis)


_LATE = ("abs", "flip", "max", "min", "round", "sqrt", "sum", "where")
__all__ = ["arange", "array", "asarray", "dtype", "empty", "from_dlpack", "ndarray", "take", *_LATE]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    """NumPy's functions of arrays, run late; its constants and types as they are."""
    function = getattr(np, name)
    if isinstance(function, type) or not callable(function):
        return function
    return lambda x, *operands, **keywords: x.apply(function, *operands, **keywords)


cuda, _device, _runtime, linalg, fft = (
    ModuleType(f"cupy.{name}") for name in ("cuda", "cuda.device", "cuda.runtime", "linalg", "fft")
)
vars(_device).update(Device=Device)
vars(_runtime).update(getDevice=lateframe.current_device)
vars(cuda).update(
    Device=Device,
    MemoryPointer=MemoryPointer,
    Stream=Stream,
    UnownedMemory=UnownedMemory,
    get_current_stream=get_current_stream,
    malloc_managed=malloc_managed,
    runtime=_runtime,
)
for _module, _names in ((linalg, np.linalg), (fft, np.fft)):
    vars(_module).update({name: getattr(_names, name) for name in _names.__all__}, __all__=list(_names.__all__))
SUBMODULES = {module.__name__: module for module in (cuda, _device, linalg, fft)}
