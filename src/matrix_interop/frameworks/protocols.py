"""Objects of frameworks nobody registered: read by the protocol they offer, in this order.

DLPack, CUDA array interface, array interface, buffer, Arrow capsules, ``__array__``, nested lists.
On the host they come in as NumPy arrays over the same memory, Arrow's as pyarrow arrays.  Every
field is checked that can be checked without reading the memory; a wrong host address or a length
beyond the allocation cannot be.  Each attribute is asked for once, since an answer may change.
Whatever the object raises becomes `UnsupportedTensorError`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from matrix_interop.devices import CPU, HOST_CODES, Device, device_of_dlpack
from matrix_interop.dlpack import MAX_NDIM, Capsule, check_extent, header_of
from matrix_interop.dtypes import require_plain, require_unrounded
from matrix_interop.errors import (
    FrameworkNotInstalledError,
    MatrixInteropError,
    UnknownFrameworkError,
    UnsupportedLayoutError,
    UnsupportedTensorError,
)
from matrix_interop.frameworks.registry import NOBODY, Framework, device_framework, framework
from matrix_interop.reasons import Obstacle
from matrix_interop.view import Pending, TensorView

_MAX_VERSION: Final = (1, 1)
_LEGACY_STREAM: Final = 1
_LATEST_CUDA_INTERFACE: Final = 3


class ProtocolFramework(Framework):
    """Not a framework: the reader of last resort. Nothing is ever wrapped into it."""

    name = NOBODY
    computes = False

    def owns(self, x: Any) -> bool:
        return True

    def view(self, x: Any, fill: Any = None) -> TensorView:
        for reader in _READERS:
            view = reader(x, fill)
            if view is not None:
                return view
        msg = (
            f"cannot read {_name(x)}: it offers none of DLPack, CUDA array interface, array interface, buffer, Arrow "
            "capsules or __array__; pass a tensor, or register its framework with register_framework"
        )
        raise UnknownFrameworkError(msg)

    def refusal(self, dtype: np.dtype[Any]) -> str | None:
        return "objects known by protocol only cannot be made here: name a framework"

    def obstacle(self, header: np.ndarray, *, share_readonly: bool = False) -> Obstacle | None:
        raise NotImplementedError

    def wrap(self, header: np.ndarray) -> Any:
        raise NotImplementedError

    def alias(self, native: Any) -> Any:
        raise NotImplementedError


def _name(x: Any) -> str:
    return f"a {type(x).__module__}.{type(x).__qualname__}"


def _attribute(x: Any, name: str) -> Any:
    """``x.name``; None where it is not there. A class offers nothing: its attributes describe its instances."""
    if isinstance(x, type):
        return None
    try:
        return getattr(x, name, None)
    except Exception as error:
        raise _failed(f"{name} of {_name(x)}", error) from error


def _failed(what: str, error: Exception) -> UnsupportedTensorError:
    return UnsupportedTensorError(f"{what} cannot be read: {type(error).__name__}: {error}")


def read_dlpack(x: Any, _: Any = None) -> TensorView | None:
    """An object with ``__dlpack__`` and ``__dlpack_device__``, on any device."""
    kind = type(x)  # asking the type keeps classes and wildcard __getattr__ out
    if not (hasattr(kind, "__dlpack__") and hasattr(kind, "__dlpack_device__")):
        return None
    what = _name(x)
    try:
        code, index = (int(n) for n in x.__dlpack_device__())
        device = CPU if code in HOST_CODES else device_of_dlpack(code, index)
        request: dict[str, Any] = {"stream": _LEGACY_STREAM} if device.type == "cuda" else {}
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
    if capsule.device != device:
        msg = f"{what} cannot be read over DLPack: it says {device}, and its capsule says {capsule.device}"
        raise UnsupportedTensorError(msg)
    note = "the producer made a copy" if capsule.copied else ""
    return _view(capsule.header(), device, note=note, stream=request.get("stream"))


def read_cuda_array_interface(x: Any, _: Any = None) -> TensorView | None:
    """An object with ``__cuda_array_interface__``, version 2 or 3; the device is found from the pointer."""
    interface = _attribute(x, "__cuda_array_interface__")
    if interface is None:
        return None
    from matrix_interop.runtime import get_runtime

    what = f"__cuda_array_interface__ of {_name(x)}"
    shape, strides, dtype = _described(interface, what)
    address, readonly = _located(interface, what, shape, strides, dtype)
    version, stream = interface.get("version"), interface.get("stream")
    if not _is_whole(version) or not 0 <= version <= _LATEST_CUDA_INTERFACE:
        raise UnsupportedTensorError(f"{what} has version {version!r}: 0 to {_LATEST_CUDA_INTERFACE} can be read")
    if stream is not None and (not _is_whole(stream) or stream < 1):
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
    return _view(header, Device("cuda", ordinal), stream=_LEGACY_STREAM if stream is None else int(stream))


def read_array_interface(x: Any, _: Any = None) -> TensorView | None:
    """An object with ``__array_interface__`` over host memory: an address, or a buffer."""
    interface = _attribute(x, "__array_interface__")
    if interface is None:
        return None
    what = f"__array_interface__ of {_name(x)}"
    shape, strides, dtype = _described(interface, what)
    data = interface.get("data")
    if isinstance(data, tuple):
        address, readonly = _located(interface, what, shape, strides, dtype)
        return _view(header_of(address, shape, strides, dtype, readonly=readonly, owner=x))
    try:
        buffer, offset = memoryview(x if data is None else data), _integer(interface.get("offset", 0))
        if offset < 0:
            raise ValueError(f"offset {offset} lies before the buffer")
        # The constructor checks the rest against the size of the buffer; np.asarray of such an interface does not.
        return _view(np.ndarray(shape, dtype, buffer, offset, strides))
    except Exception as error:
        raise _failed(what, error) from error


def _described(interface: Any, what: str) -> tuple[tuple[int, ...], tuple[int, ...] | None, np.dtype[Any]]:
    """Shape, strides and dtype, the fields that both array interfaces share, checked one by one."""
    try:
        shape = tuple(_integer(n) for n in interface["shape"])
        typestr = interface["typestr"]
        if not isinstance(typestr, str):  # NumPy reads None as float64
            raise TypeError(f"typestr {typestr!r} is no text")
        dtype = require_plain(np.dtype(typestr))
        strides = interface.get("strides")
        if strides is not None:
            strides = tuple(_integer(step) for step in strides)
            if len(strides) != len(shape) or any(not -(2**63) <= step < 2**63 for step in strides):
                raise ValueError(f"strides {strides} for {len(shape)} axes")
        if len(shape) > MAX_NDIM:
            raise ValueError(f"{len(shape)} axes; up to {MAX_NDIM} can be described")
        masked = interface.get("mask") is not None
    except MatrixInteropError:
        raise
    except Exception as error:
        raise _failed(what, error) from error
    if masked:
        raise UnsupportedLayoutError(f"{what} has a mask: fill it first")
    return shape, strides, dtype


def _located(
    interface: Any, what: str, shape: tuple[int, ...], strides: tuple[int, ...] | None, dtype: np.dtype[Any]
) -> tuple[int, bool]:
    """The address and the read-only flag, checked against the other fields."""
    try:
        address, readonly = interface["data"]
        address, readonly = _integer(0 if address is None else address), bool(readonly)
        if not 0 <= address < 2**64:
            raise ValueError(f"address {address:#x} of more than 64 bits")
        check_extent(address, shape, strides, dtype.itemsize)
    except Exception as error:
        raise _failed(what, error) from error
    return address, readonly


def _is_whole(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _integer(value: Any) -> int:
    if not _is_whole(value):
        raise TypeError(f"{value!r} is not a length, stride or address")
    return int(value)


def read_buffer(x: Any, _: Any = None) -> TensorView | None:
    """An object with the buffer protocol: bytes, array.array, memoryview, mmap."""
    try:
        buffer = memoryview(x)
    except TypeError:  # what an object without the protocol gives
        return None
    except Exception as error:
        raise _failed(f"the buffer of {_name(x)}", error) from error
    try:
        header = np.asarray(buffer)
    except Exception as error:
        raise _failed(f"the buffer of {_name(x)}", error) from error
    return _view(header)


def read_arrow(x: Any, fill: Any = None) -> TensorView | None:
    """An object with Arrow's capsule interface that is one column: a Polars series, say. Tables go by ``__array__``.

    pyarrow takes the capsule, so that nulls are seen: ``__array__`` of such objects turns them into NaN.
    """
    kind = type(x)
    one_piece = hasattr(kind, "__arrow_c_array__")
    if not one_piece and not hasattr(kind, "__arrow_c_stream__"):
        return None
    adapter = framework("pyarrow")
    import pyarrow as pa

    try:
        column = pa.array(x) if one_piece else pa.chunked_array(x)
    except Exception as error:
        raise _failed(f"the Arrow capsule of {_name(x)}", error) from error
    return None if pa.types.is_struct(column.type) else adapter.view(column, fill)


def read_array_method(x: Any, fill: Any = None) -> TensorView | None:
    """An object with ``__array__``: shared where that is offered, else the copy that it makes, announced as one."""
    if not hasattr(type(x), "__array__"):
        return None
    what = f"__array__ of {_name(x)}"
    note, copied = "", False
    try:
        try:
            array = x.__array__(copy=False)
        except TypeError:  # older than the keyword
            array = x.__array__()
            note = f"{what} cannot say whether it made a copy"
        except Exception:  # noqa: BLE001 - ValueError by the protocol; Polars raises RuntimeError
            array = x.__array__()
            copied = True
    except Exception as error:
        raise _failed(what, error) from error
    if not isinstance(array, np.ndarray):
        raise UnsupportedTensorError(f"{what} gave {_name(array)}, not an ndarray")
    view = framework("numpy").view(array, fill)  # subclasses, masks among them, are its business
    header, pending = view.header, view.pending
    if copied and pending is None:
        pending = Pending(f"{what} copies", lambda out: np.copyto(out, header, casting="unsafe"))
    native = view.native if pending is None else None
    return TensorView.of(header, view.framework, native, pending=pending, note=view.note or note)


def read_lists(x: Any, _: Any = None) -> TensorView | None:
    """Nested lists or tuples of numbers: always written into new memory."""
    if not isinstance(x, list | tuple):
        return None
    if any(isinstance(row, np.ma.MaskedArray) for row in x):  # NumPy would show what the masks hide
        raise UnsupportedLayoutError("nested lists hold masked arrays: fill them, or join them with np.ma.stack")
    try:
        array = np.array(x)
    except Exception as error:
        raise UnsupportedLayoutError(f"nested lists must be rectangular and hold numbers: {error}") from error
    require_plain(array.dtype)
    require_unrounded(x, array)
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


_READERS: Final[tuple[Callable[[Any, Any], TensorView | None], ...]] = (
    read_dlpack,
    read_cuda_array_interface,
    read_array_interface,
    read_buffer,
    read_arrow,
    read_array_method,
    read_lists,
)

PROTOCOLS: Final = ProtocolFramework()
