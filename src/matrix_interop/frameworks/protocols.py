"""Objects of frameworks nobody registered: read by the protocol they offer, in this order.

DLPack, CUDA array interface, array interface, buffer, ``__array__``, nested lists.  On the host
they come in as NumPy arrays over the same memory.  Every field is checked that can be checked
without reading the memory; a wrong host address or a length beyond the allocation cannot be.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from matrix_interop.devices import CPU, Device, device_of_dlpack
from matrix_interop.dlpack import Capsule, header_of
from matrix_interop.dtypes import require_plain
from matrix_interop.errors import (
    FrameworkNotInstalledError,
    MatrixInteropError,
    UnknownFrameworkError,
    UnsupportedLayoutError,
    UnsupportedTensorError,
)
from matrix_interop.frameworks.registry import Framework, device_framework
from matrix_interop.reasons import Obstacle
from matrix_interop.view import Pending, TensorView

_MAX_VERSION: Final = (1, 1)
_LEGACY_STREAM: Final = 1
_INT64_MAX: Final = 2**63 - 1


class ProtocolFramework(Framework):
    """Not a framework: the reader of last resort. Nothing is ever wrapped into it."""

    name = "protocols"
    computes = False

    def owns(self, x: Any) -> bool:
        return True

    def view(self, x: Any, fill: Any = None) -> TensorView:
        for offers, reader in _READERS:
            if offers(x):
                return reader(x)
        msg = (
            f"cannot read a {type(x).__module__}.{type(x).__qualname__}: it offers none of DLPack, CUDA array "
            "interface, array interface, buffer or __array__; pass a tensor, or register its framework with register_framework"
        )
        raise UnknownFrameworkError(msg)

    def refusal(self, dtype: np.dtype[Any]) -> str | None:
        return "objects known by protocol only cannot be made here: name a framework"

    def obstacle(self, header: np.ndarray, *, share_readonly: bool = False) -> Obstacle | None:
        raise NotImplementedError

    def wrap(self, header: np.ndarray, device: Device = CPU, owner: TensorView | None = None) -> Any:
        raise NotImplementedError

    def alias(self, native: Any) -> Any:
        raise NotImplementedError


def _on_type(name: str) -> Callable[[Any], bool]:
    """Does the object's type define ``name``? Asking the type keeps classes and wildcard ``__getattr__`` out."""
    return lambda x: hasattr(type(x), name)


def _has(name: str) -> Callable[[Any], bool]:
    return lambda x: not isinstance(x, type) and hasattr(x, name)


def read_dlpack(x: Any) -> TensorView:
    """An object with ``__dlpack__`` and ``__dlpack_device__``, on any device."""
    what = f"a {type(x).__module__}.{type(x).__qualname__}"
    try:
        code, index = x.__dlpack_device__()
        device = device_of_dlpack(int(code), int(index))
        request: dict[str, Any] = {} if device.is_host else {"stream": _LEGACY_STREAM}
        try:
            offered = x.__dlpack__(max_version=_MAX_VERSION, **request)
        except TypeError:  # a producer older than the keyword; one that fails for its own reasons fails again
            offered = x.__dlpack__(**request)
    except MatrixInteropError:
        raise
    except Exception as error:  # whatever the producer raises, and they all differ
        msg = f"{what} refuses to export over DLPack: {type(error).__name__}: {error}"
        raise UnsupportedTensorError(msg) from error
    capsule = Capsule(offered, what)
    note = "the producer made a copy" if capsule.copied else ""
    return _view(capsule.header(), capsule.device, note=note, stream=None if capsule.device.is_host else _LEGACY_STREAM)


def read_cuda_array_interface(x: Any) -> TensorView:
    """An object with ``__cuda_array_interface__``, version 2 or 3; the device is found from the pointer."""
    from matrix_interop.runtime import get_runtime

    what = f"__cuda_array_interface__ of a {type(x).__module__}.{type(x).__qualname__}"
    interface = x.__cuda_array_interface__
    address, readonly, shape, strides, dtype = _checked(interface, what)
    if interface.get("mask") is not None:
        raise UnsupportedLayoutError(f"{what} has a mask: fill it first")
    stream = interface.get("stream")
    if stream is not None and (isinstance(stream, bool) or not isinstance(stream, int) or stream == 0 or stream < -1):
        raise UnsupportedTensorError(f"{what} names stream {stream!r}: 1, 2 or a handle are meant, 0 is forbidden")
    ordinal = 0
    if address:
        found = get_runtime("cuda").pointer(address)
        if found.kind not in ("device", "managed") or found.ordinal is None:
            raise UnsupportedTensorError(
                f"{what} names address {address:#x}, which is {found.kind} memory to CUDA, not a device's"
            )
        ordinal = found.ordinal
    header = header_of(address, shape, strides, dtype, readonly=readonly, owner=x)
    return _view(header, Device("cuda", ordinal), stream=_LEGACY_STREAM if stream is None else stream)


def read_array_interface(x: Any) -> TensorView:
    """An object with ``__array_interface__`` over host memory."""
    what = f"__array_interface__ of a {type(x).__module__}.{type(x).__qualname__}"
    interface = x.__array_interface__
    if isinstance(interface, dict) and interface.get("data") is None:  # the object itself is the buffer
        try:
            return _view(np.asarray(x))
        except (TypeError, ValueError, AttributeError) as error:
            raise UnsupportedTensorError(f"{what} cannot be read: {error}") from error
    address, readonly, shape, strides, dtype = _checked(interface, what)
    return _view(header_of(address, shape, strides, dtype, readonly=readonly, owner=x))


def _checked(interface: Any, what: str) -> tuple[int, bool, tuple[int, ...], tuple[int, ...] | None, np.dtype[Any]]:
    """The fields that both array interfaces share: (address, readonly, shape, strides, dtype), checked."""
    try:
        shape = tuple(_integer(n) for n in interface["shape"])
        dtype = require_plain(np.dtype(interface["typestr"]))
        address, readonly = interface["data"]
        address = _integer(address or 0)
        strides = interface.get("strides")
        if strides is not None:
            strides = tuple(_integer(step) for step in strides)
            if len(strides) != len(shape):
                raise ValueError(f"{len(strides)} strides for {len(shape)} axes")
    except MatrixInteropError:
        raise
    except Exception as error:
        raise UnsupportedTensorError(f"{what} cannot be read: {type(error).__name__}: {error}") from error
    if any(n < 0 for n in shape) or len(shape) > 64:
        raise UnsupportedTensorError(f"{what} has shape {shape}: up to 64 lengths of 0 or more are meant")
    elements = 1
    for n in shape:
        elements *= n
    if elements:
        steps = strides or (0,) * len(shape)
        above = sum(step * (n - 1) for n, step in zip(shape, steps, strict=True) if step > 0)
        below = sum(step * (n - 1) for n, step in zip(shape, steps, strict=True) if step < 0)
        extent = max(elements * dtype.itemsize, above - below + dtype.itemsize)
        if extent > _INT64_MAX or not 0 < address + below <= address + above + dtype.itemsize < 2**64:
            raise UnsupportedTensorError(
                f"{what} names address {address:#x} for shape {shape}, strides {strides}: no such memory"
            )
    return address, bool(readonly), shape, strides, dtype


def _integer(value: Any) -> int:
    if isinstance(value, bool):
        raise TypeError(f"{value!r} is not a length, stride or address")
    return int(value.__index__())


def read_buffer(x: Any) -> TensorView:
    """An object with the buffer protocol: bytes, array.array, memoryview, mmap."""
    try:
        header = np.asarray(memoryview(x))
    except (TypeError, ValueError, BufferError, NotImplementedError) as error:
        raise UnsupportedTensorError(f"the buffer of a {type(x).__qualname__} cannot be read: {error}") from error
    return _view(header)


def _has_buffer(x: Any) -> bool:
    try:
        memoryview(x).release()
    except (TypeError, BufferError, ValueError, NotImplementedError):
        return False
    return True


def read_array_method(x: Any) -> TensorView:
    """An object with ``__array__``: shared where it says that no copy is needed, else copied by it."""
    what = f"__array__ of a {type(x).__module__}.{type(x).__qualname__}"
    try:
        try:
            return _view(np.asarray(x.__array__(copy=False)))
        except (ValueError, TypeError):
            array = np.asarray(x.__array__())
    except Exception as error:
        raise UnsupportedTensorError(f"{what} failed: {type(error).__name__}: {error}") from error
    return _view(array, note=f"{what} cannot say whether it made a copy")


def read_lists(x: Any) -> TensorView:
    """Nested lists or tuples of numbers: always written into new memory."""
    try:
        array = np.array(x)
    except (ValueError, TypeError, OverflowError) as error:
        raise UnsupportedLayoutError(f"nested lists must be rectangular and hold numbers: {error}") from error
    require_plain(array.dtype)
    pending = Pending("nested lists of Python numbers", lambda out: np.copyto(out, array, casting="unsafe"))
    return TensorView.of(array, "numpy", pending=pending)


def _view(header: np.ndarray, device: Device = CPU, *, note: str = "", stream: int | None = None) -> TensorView:
    require_plain(header.dtype)
    if not device.is_host:
        try:
            owner = device_framework(device.type).name
        except FrameworkNotInstalledError:  # it can still be moved to the host
            owner = PROTOCOLS.name
        return TensorView.of(header, owner, None, device, note=note, stream=stream)
    if type(header) is not np.ndarray:
        header = header.view(np.ndarray)
    return TensorView.of(header, "numpy", header, note=note)


def _has_dlpack(x: Any) -> bool:
    return hasattr(type(x), "__dlpack__") and hasattr(type(x), "__dlpack_device__")


_READERS: Final[tuple[tuple[Callable[[Any], bool], Callable[[Any], TensorView]], ...]] = (
    (_has_dlpack, read_dlpack),
    (_has("__cuda_array_interface__"), read_cuda_array_interface),
    (_has("__array_interface__"), read_array_interface),
    (_has_buffer, read_buffer),
    (_on_type("__array__"), read_array_method),
    (lambda x: isinstance(x, list | tuple), read_lists),
)

PROTOCOLS: Final = ProtocolFramework()
