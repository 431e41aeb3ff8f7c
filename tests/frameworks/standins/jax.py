"""JAX 0.10 on CUDA.

Facts copied (``tests/gpu`` proves them on the real one): work runs on a stream that JAX does not show; arrays never
change and have no gaps; an import asks the producer for a legacy capsule that is ready on a stream that JAX names, and
takes CUDA's label and strides without gaps only, in any order of the axes; its export makes the array ready on a
stream that is named; the CUDA array interface is for dense rows and names no stream; to ask a deleted array whether it
is ready ends the process; `empty` writes zeros; 64-bit types become 32 bits unless x64 is on.
Not copied: tracing, donation, what its functions compute (NumPy's do it).
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from frameworks.standins import late
from simulated import lateframe
from simulated.runtime import LEGACY

__version__ = "0.10.2"
_streams = late.Streams()
config = SimpleNamespace(jax_enable_x64=False)


class Tracer:
    """What stands for an array inside a transform."""


class SingleDeviceSharding:
    """All of an array on one device."""

    def __init__(self, device: Device) -> None:
        self.device_set = {device}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SingleDeviceSharding) and self.device_set == other.device_set

    __hash__ = None  # type: ignore[assignment]


class Device:
    """A device."""

    platform = "gpu"

    def __init__(self, index: int) -> None:
        self.id = self.local_hardware_id = index

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Device) and self.id == other.id

    def __hash__(self) -> int:
        return self.id

    def get_stream_for_external_ready_events(self) -> int:
        """A stream on which data from outside is to be ready; each time another."""
        return late.runtime().stream_create(self.id)


def devices(kind: str = "gpu") -> list[Device]:
    """The devices of a kind."""
    assert kind in {"gpu", "cuda"}
    return [Device(index) for index in range(lateframe.device_count())]


def local_devices(*, backend: str) -> list[Device]:
    """The same of this process."""
    return devices(backend)


def _own_stream(ordinal: int) -> int:
    """The stream that this framework works on, and shows to nobody."""
    if ordinal not in _streams.current:
        _streams.current[ordinal] = late.runtime().stream_create(ordinal)
    return _streams.of(ordinal)


class Array(late.CudaArray):
    """An array."""

    streams = _streams
    deleted = False
    committed = True
    weak_type = False

    def __init__(self, *facts: Any) -> None:
        super().__init__(*facts)
        self._done: list[bool] = []
        done = self._done
        late.runtime().launch(lambda: done.append(True), ordinal=self.ordinal, stream=_own_stream(self.ordinal))

    @classmethod
    def made(cls, shape: Any, dtype: Any, ordinal: int) -> Any:
        _own_stream(ordinal)
        return super().made(shape, dtype, ordinal)

    @classmethod
    def holding(cls, values: np.ndarray, ordinal: int) -> Any:
        _own_stream(ordinal)
        return super().holding(values, ordinal)

    @property
    def sharding(self) -> SingleDeviceSharding:
        """Where it lies."""
        return SingleDeviceSharding(Device(self.ordinal))

    def devices(self) -> set[Device]:
        """Where it lies."""
        return {Device(self.ordinal)}

    def is_deleted(self) -> bool:
        """True after `delete`."""
        return self.deleted

    def is_ready(self) -> bool:
        """True once its values are there."""
        assert not self.deleted, "the real one ends the process"
        return bool(self._done)

    def block_until_ready(self) -> Array:
        """Wait for its values."""
        late.runtime().stream_synchronize(_own_stream(self.ordinal), self.ordinal)
        return self

    @property
    def T(self) -> Array:  # noqa: N802  the name every framework has
        """The transpose, computed."""
        return self.apply(np.transpose)

    def reshape(self, shape: tuple[int, ...]) -> Array:
        """The same entries in another shape."""
        return self.apply(np.reshape, shape)

    def unsafe_buffer_pointer(self) -> int:
        """The address."""
        return self.pointer

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return self.host()

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        if self.dtype.name == "bfloat16":
            raise AttributeError("__cuda_array_interface__ is not supported for bfloat16 buffers.")
        if not self._header().flags.c_contiguous:
            raise AttributeError("__cuda_array_interface__ is only supported for row-major layouts.")
        data = {"shape": self.shape, "strides": None, "typestr": self.dtype.str, "version": 2}
        return {**data, "data": (self.pointer, False)}

    def __dlpack__(
        self, *, stream: Any = None, max_version: Any = None, dl_device: Any = None, copy: Any = None
    ) -> Any:
        lateframe.order(_own_stream(self.ordinal), stream or LEGACY, self.ordinal)
        return self.capsule()


def device_put(values: np.ndarray, device: Device) -> Array:
    """A copy of host values."""
    return _cut(values, device.id)


def make_array_from_single_device_arrays(shape: tuple[int, ...], _sharding: Any, arrays: list[Array]) -> Array:
    """An array of the memory of others; here of one."""
    (x,) = arrays
    return Array(x.pointer, shape, x.strides, x.dtype, x.ordinal, x.owner)


def _kind(dtype: Any) -> np.dtype[Any]:
    kind = np.dtype(dtype)
    narrow = {"i8": "i4", "u8": "u4", "f8": "f4", "c16": "c8"}
    return kind if config.jax_enable_x64 else np.dtype(narrow.get(kind.str[1:], kind))


def _cut(values: np.ndarray, ordinal: int) -> Array:
    return Array.holding(np.asarray(values).astype(_kind(np.asarray(values).dtype)), ordinal)


def _is_packed(shape: tuple[int, ...], strides: tuple[int, ...], step: int) -> bool:
    """True for memory without gaps in some order of the axes; axes of length 1 must have the strides of that, too."""
    if 0 in shape:
        return True
    for axis in sorted(range(len(shape)), key=lambda axis: (strides[axis], shape[axis] != 1)):
        if strides[axis] != step:
            return False
        step *= shape[axis]
    return True


def from_dlpack(x: Any) -> Array:
    """The memory of ``x``, shared, ready on a stream that JAX names."""
    code, ordinal = x.__dlpack_device__()
    if code != late.CUDA:
        raise TypeError(f"Array passed to from_dlpack is on unsupported device type (DLDeviceType: {code})")
    device = Device(ordinal)
    stream = device.get_stream_for_external_ready_events()
    found = _imported(x.__dlpack__(stream=stream), device, stream, None, code)
    if _kind(found.dtype) != found.dtype:
        return found.apply(lambda values: values.astype(_kind(values.dtype)))
    return found


def _imported(capsule: Any, device: Device, stream: int | None, copy: bool | None, code: int) -> Array:
    """The C function behind it: own work comes after what the stream holds now, and after nothing without one."""
    assert (copy, code) in {(None, late.CUDA), (False, late.CUDA)}
    if late.is_versioned(capsule):
        raise RuntimeError("Capsule must be a DLPack dltensor")
    found = late.imported(late.CudaArray, capsule, labels=(late.CUDA,), error=RuntimeError)
    if not _is_packed(found.shape, found.strides, found.dtype.itemsize):
        raise RuntimeError("Only DLPack tensors with trivial (compact) striding are supported")
    if stream is not None:
        lateframe.order(stream, _own_stream(device.id), device.id)
    return Array(found.pointer, found.shape, found.strides, found.dtype, device.id, found.owner)


_src = SimpleNamespace(lib=SimpleNamespace(_jax=SimpleNamespace(dlpack_managed_tensor_to_buffer=_imported)))


def ensure_compile_time_eval() -> AbstractContextManager[None]:
    """Nothing is traced here."""
    return nullcontext()


def transfer_guard(_level: str) -> AbstractContextManager[None]:
    """No transfer is guarded here."""
    return nullcontext()


class _Numpy(ModuleType):
    """jax.numpy: NumPy's functions of arrays, run late."""

    def __getattr__(self, name: str) -> Any:
        return lambda x, *operands, **keywords: x.apply(getattr(np, name), *operands, **keywords)


def _empty(shape: tuple[int, ...], dtype: Any, *, device: Device) -> Array:
    made = Array.made(shape, _kind(dtype), device.id)
    with _streams.here(device.id):
        lateframe.fill_late(made, 0)
    return made


def _array(x: Array, *, dtype: Any = None, copy: bool = True) -> Array:
    assert copy
    return x.apply(lambda values: values.astype(_kind(dtype)))


numpy = _Numpy("jax.numpy")
vars(numpy).update(empty=_empty, array=_array, ones=lambda shape: _cut(np.ones(shape), 0))
dlpack, core, sharding = (ModuleType(f"jax.{name}") for name in ("dlpack", "core", "sharding"))
vars(dlpack).update(from_dlpack=from_dlpack)
vars(core).update(Tracer=Tracer)
vars(sharding).update(SingleDeviceSharding=SingleDeviceSharding)
SUBMODULES = {module.__name__: module for module in (numpy, dlpack, core, sharding)}
