"""A small array framework on the simulated device, with the habits of CUDA frameworks.

Its operations are queued on the calling thread's current stream and run late. Its allocator recycles memory
in the order of the stream that it was allocated on, as torch's does: memory that an array gave back is
overwritten there, unless `record_stream` said that another stream still reads it. Export over DLPack
wants the array's device to be current and refuses otherwise, as torch does.

A runtime must be given first: ``lateframe.use(SimulatedRuntime(seed))``.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import numpy as np

from simulated.runtime import DEVICE_TYPE, LEGACY, SLOW, SimulatedRuntime

__version__ = "1.0"
#: DLPack's code of the device type.
KDL_EXT_DEV = 12
#: What memory holds after the allocator took it back.
POISON = 0xA5


class _State(threading.local):
    """The calling thread's current device, and its current stream on each."""

    def __init__(self) -> None:
        self.device = 0
        self.streams: dict[int, int] = {}


_runtime: SimulatedRuntime
_state = _State()


def use(runtime: SimulatedRuntime) -> SimulatedRuntime:
    """Compute on this runtime from now on, which matrix_interop finds too; the thread's current device becomes 0."""
    global _runtime  # noqa: PLW0603  a framework is one for the process
    _runtime = runtime.install()
    _Block.cache.clear()
    _state.__init__()  # type: ignore[misc]
    return runtime


def device_count() -> int:
    """Number of devices."""
    return _runtime.device_count()


def current_device() -> int:
    """The calling thread's device."""
    return _state.device


@contextlib.contextmanager
def device(index: int) -> Iterator[None]:
    """Make a device current."""
    before, _state.device = _state.device, index
    try:
        yield
    finally:
        _state.device = before


def new_stream(index: int | None = None) -> int:
    """A stream of the device (None: the current one)."""
    return _runtime.stream_create(_state.device if index is None else index)


def current_stream(index: int | None = None) -> int:
    """The calling thread's stream on the device (None: the current one)."""
    return _state.streams.get(_state.device if index is None else index, LEGACY)


@contextlib.contextmanager
def stream(number: int, index: int | None = None) -> Iterator[None]:
    """Make a stream current on its device."""
    index = _state.device if index is None else index
    before = current_stream(index)
    _state.streams[index] = number
    try:
        yield
    finally:
        _state.streams[index] = before


class _Block:
    """Memory from the allocator, given back when the last array over it dies."""

    #: (device, stream, size) -> addresses to hand out again.
    cache: ClassVar[defaultdict[tuple[int, int, int], list[int]]] = defaultdict(list)

    def __init__(self, nbytes: int, ordinal: int) -> None:
        self.runtime, self.ordinal, self.nbytes = _runtime, ordinal, nbytes
        self.home = current_stream(ordinal)
        self.readers: set[int] = set()
        cached = self.cache[ordinal, self.home, nbytes]
        self.address = cached.pop() if cached else _runtime.device_alloc(nbytes, ordinal)

    def __del__(self) -> None:
        if not hasattr(self, "address") or _runtime is not self.runtime:
            return
        for reader in self.readers:
            order(reader, self.home, self.ordinal)
        whole = Array(self.address, (self.nbytes,), (1,), np.uint8, self.ordinal, None)
        # What the next user of this memory, on the stream it was allocated on, would do to it.
        _runtime.launch(lambda: whole.values().fill(POISON), ordinal=self.ordinal, stream=self.home, ticks=1)
        self.cache[self.ordinal, self.home, self.nbytes].append(self.address)


class Array:
    """An array in device memory. ``strides`` in bytes; ``owner`` keeps the memory alive."""

    def __init__(
        self, pointer: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: Any, ordinal: int, owner: Any
    ) -> None:
        self.pointer = pointer
        self.shape = shape
        self.strides = strides
        self.dtype = np.dtype(dtype)
        self.ordinal = ordinal
        self.owner = owner

    @property
    def device(self) -> str:
        """For example "ext:0"."""
        return f"{DEVICE_TYPE}:{self.ordinal}"

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of entries."""
        return math.prod(self.shape)

    @property
    def T(self) -> Array:  # noqa: N802  the name every framework has
        """The transpose, a view."""
        return Array(self.pointer, self.shape[::-1], self.strides[::-1], self.dtype, self.ordinal, self.owner)

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        return f"lateframe.Array({self.shape}, {self.dtype}, {self.device})"

    def __getitem__(self, key: int | slice | tuple[int | slice, ...]) -> Array:
        header = self._header()[key]
        pointer = header.__array_interface__["data"][0] if header.size else self.pointer
        return Array(pointer, header.shape, header.strides, self.dtype, self.ordinal, self.owner)

    def __add__(self, other: Any) -> Array:
        return apply(np.add, self, other)

    def __gt__(self, other: Any) -> Array:
        return apply(np.greater, self, other)

    def __mul__(self, other: Any) -> Array:
        return apply(np.multiply, self, other)

    def __truediv__(self, other: Any) -> Array:
        return apply(np.divide, self, other)

    def __matmul__(self, other: Any) -> Array:
        return apply(np.matmul, self, other)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        raise TypeError("lateframe arrays do not turn into NumPy arrays by themselves: call .numpy()")

    def numpy(self) -> np.ndarray:
        """The values, copied to the host once the current stream is done."""
        out = np.empty(self.shape, self.dtype)
        bare, number = self.bare(), current_stream(self.ordinal)
        _runtime.launch(lambda: np.copyto(out, bare.values()), ordinal=self.ordinal, stream=number)
        _runtime.stream_synchronize(number, self.ordinal)
        return out

    def bare(self) -> Array:
        """The array without its owner: what a kernel gets, since a pointer keeps nothing alive."""
        return Array(self.pointer, self.shape, self.strides, self.dtype, self.ordinal, None)

    def values(self) -> np.ndarray:
        """The memory as the device sees it: for kernels only."""
        if not self.size:
            return np.empty(self.shape, self.dtype)
        return _runtime.array(self.pointer, self.shape, self.strides, self.dtype)

    def _header(self) -> np.ndarray:
        memory = _Memory(self.pointer, self.shape, self.strides, f"|u{self.dtype.itemsize}", self)
        if self.dtype.itemsize > 8:
            memory.__array_interface__["typestr"] = f"<c{self.dtype.itemsize}"
        return np.asarray(memory)

    # Protocols ---------------------------------------------------------------------------------
    def __dlpack_device__(self) -> tuple[int, int]:
        return KDL_EXT_DEV, self.ordinal

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        if self.ordinal != _state.device:
            raise BufferError(f"array on {self.device} while device {_state.device} is current")
        if copy or dl_device not in {None, self.__dlpack_device__()}:
            raise BufferError("lateframe exports its own memory, and no copies")
        if stream == 0 or not (stream is None or isinstance(stream, int)):
            raise BufferError(f"stream {stream!r} is ambiguous or no integer")
        if stream != -1:
            order(current_stream(self.ordinal), stream or LEGACY, self.ordinal)
        return _relabelled(self._header().__dlpack__(max_version=max_version), self)

    @property
    def __ext_array_interface__(self) -> dict[str, Any]:
        """Version 3 of the CUDA array interface, under a name of this device type."""
        return {
            "shape": self.shape,
            "strides": self.strides,
            "typestr": self.dtype.str,
            "data": (self.pointer, False),
            "version": 3,
            "stream": current_stream(self.ordinal),
        }


class _Memory:
    """Memory described to NumPy by address."""

    def __init__(self, address: int, shape: tuple[int, ...], strides: tuple[int, ...], code: str, owner: Any) -> None:
        self.__array_interface__ = {
            "shape": shape,
            "typestr": code,
            "data": (address, False),
            "strides": strides,
            "version": 3,
        }
        self.owner = owner


def order(producer: int, consumer: int, ordinal: int) -> None:
    """Make one stream of the device wait for all that is queued on another now."""
    if producer != consumer:
        event = _runtime.record(producer, ordinal)
        _runtime.wait(consumer, event, ordinal)
        _runtime.release(event)


def empty(shape: int | tuple[int, ...], dtype: Any = "float32", device: int | None = None) -> Array:
    """A new array, dense rows, whose memory belongs to the current stream of its device."""
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    ordinal = _state.device if device is None else device
    size = np.dtype(dtype).itemsize
    strides = tuple(size * math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
    block = _Block(max(size * math.prod(shape), 1), ordinal)
    return Array(block.address, shape, strides, dtype, ordinal, block)


def array(values: Any, device: int | None = None) -> Array:
    """A copy of host values, queued on the current stream; the values are taken at the call."""
    taken = np.array(values)
    out = empty(taken.shape, taken.dtype, device)
    bare = out.bare()
    return launch(out, lambda: np.copyto(bare.values(), taken))


def from_dlpack(x: Any) -> Array:
    """The memory of ``x``, shared, ready on the current stream."""
    code, ordinal = x.__dlpack_device__()
    if code != KDL_EXT_DEV:
        raise BufferError(f"lateframe cannot hold memory of device type {code}")
    return _from_capsule(x.__dlpack__(stream=current_stream(ordinal), max_version=(1, 3)))


def record_stream(x: Array, number: int) -> None:
    """Tell the allocator that another stream reads the memory of ``x``."""
    if isinstance(x.owner, _Block):
        x.owner.readers.add(number)


def fill_late(x: Array, value: Any) -> Array:
    """A slow kernel that fills ``x``."""
    bare = x.bare()
    return launch(x, lambda: bare.values().fill(value), ticks=SLOW)


def copy_late(out: Array, x: Array) -> Array:
    """A slow kernel that copies ``x`` into ``out``."""
    target, source = out.bare(), x.bare()
    return launch(out, lambda: np.copyto(target.values(), source.values(), casting="unsafe"), ticks=SLOW)


def launch(out: Array, run: Callable[[], None], ticks: int | None = None) -> Array:
    """Queue a kernel on the current stream of the device of ``out``, its result."""
    _runtime.launch(run, ordinal=out.ordinal, stream=current_stream(out.ordinal), ticks=ticks)
    return out


def _model(x: Array) -> np.ndarray:
    """Host values of that shape and type with which every function works: 0 as an index, 1 as a divisor."""
    return (np.zeros if x.dtype.kind in "iu" else np.ones)(x.shape, x.dtype)


def apply(function: Callable[..., Any], *operands: Any, **keywords: Any) -> Array:
    """A NumPy function of arrays (the first is one of ours), run late on the device."""
    model = function(*(_model(x) if isinstance(x, Array) else x for x in operands), **keywords)
    out = empty(model.shape, model.dtype, operands[0].ordinal)
    target, sources = out.bare(), [x.bare() if isinstance(x, Array) else x for x in operands]

    def run() -> None:
        inputs = (x.values() if isinstance(x, Array) else x for x in sources)
        with np.errstate(all="ignore"):
            np.copyto(target.values(), function(*inputs, **keywords))

    return launch(out, run)


# The part of the array API that the library computes with ------------------------------------------
def asarray(x: Any, *, dtype: Any = None, copy: bool | None = None, device: Any = None) -> Array:
    """The array itself, or a copy where one is asked for or needed."""
    if not isinstance(x, Array):
        x = array(x, device)
    same = dtype is None or np.dtype(dtype) == x.dtype
    return x if same and not copy else astype(x, dtype or x.dtype)


def astype(x: Array, dtype: Any, *, copy: bool = True) -> Array:
    """The values in another type."""
    if not copy and np.dtype(dtype) == x.dtype:
        return x
    return apply(lambda values: values.astype(dtype), x)


def take(x: Array, indices: Any, *, axis: int = 0) -> Array:
    """Entries along an axis."""
    return apply(np.take, x, indices, axis=axis)


def flip(x: Array, *, axis: int | tuple[int, ...]) -> Array:
    """Entries along axes in reverse."""
    return apply(np.flip, x, axis=axis)


def matmul(x: Array, y: Array) -> Array:
    """The matrix product."""
    return apply(np.matmul, x, y)


def sum(x: Array, *, axis: int | None = None, keepdims: bool = False) -> Array:  # noqa: A001  the name in the array API
    """The sum along an axis."""
    return apply(np.sum, x, axis=axis, keepdims=keepdims)


def sqrt(x: Array) -> Array:
    """The square root."""
    return apply(np.sqrt, x)


def where(condition: Array, x: Any, y: Any) -> Array:
    """Entries of ``x`` where the condition holds, else of ``y``."""
    return apply(np.where, condition, x, y)


# DLPack, read and written by hand: nothing of the library under test is used here ----------------------
class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


#: Bytes of version, context, deleter and flags before the tensor in the versioned form.
_VERSIONED_HEAD = 32
_CODES = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}
_KINDS = {code: kind for kind, code in _CODES.items()}
_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
_valid = ctypes.pythonapi.PyCapsule_IsValid
_valid.restype, _valid.argtypes = ctypes.c_int, (ctypes.py_object, ctypes.c_char_p)


def _tensor_in(capsule: Any) -> _Tensor:
    if _valid(capsule, b"dltensor_versioned"):
        return _Tensor.from_address((_pointer(capsule, b"dltensor_versioned") or 0) + _VERSIONED_HEAD)
    return _Tensor.from_address(_pointer(capsule, b"dltensor") or 0)


def _relabelled(capsule: Any, x: Array) -> Any:
    tensor = _tensor_in(capsule)
    tensor.device_type, tensor.device_id = x.__dlpack_device__()
    if x.dtype.name == "bfloat16":
        tensor.code = 4
    elif x.dtype.kind in _CODES:
        tensor.code = _CODES[x.dtype.kind]
    else:
        raise BufferError(f"lateframe exports no {x.dtype}")
    return capsule


def _from_capsule(capsule: Any) -> Array:
    tensor = _tensor_in(capsule)
    if tensor.code == 4:
        import ml_dtypes

        dtype = np.dtype(ml_dtypes.bfloat16)
    else:
        kind = _KINDS[tensor.code]
        dtype = np.dtype(np.bool_) if kind == "b" else np.dtype(f"{kind}{tensor.bits // 8}")
    shape = tuple(tensor.shape[: tensor.ndim])
    strides = tuple(step * dtype.itemsize for step in tensor.strides[: tensor.ndim])
    # The capsule keeps its unused name, so its own destructor gives the memory back when the array dies.
    return Array((tensor.data or 0) + tensor.byte_offset, shape, strides, dtype, tensor.device_id, capsule)
