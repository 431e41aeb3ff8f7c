"""JAX.

Measured with 0.10: it takes legacy capsules only (so no read-only mark can arrive), aliases host
memory only when that is aligned to 64 bytes and dense in some order of the axes, and turns 64-bit
types into 32 bits without a word unless x64 is on.  Its arrays never change, so read-only memory is
shared with it safely; writable memory that is shared must not be written while JAX uses it.
"""

from __future__ import annotations

from collections.abc import Callable
from ctypes import addressof, c_char
from functools import cache
from types import ModuleType
from typing import Any, Final, cast

import jax
import jax.dlpack
import jax.numpy
import numpy as np

from matrix_interop.devices import CPU, Device, as_device
from matrix_interop.dlpack import Capsule, capsule_of, header_of, row_strides
from matrix_interop.dtypes import DLPACK_OF_DTYPE, is_extension, require_plain
from matrix_interop.errors import DeviceUnavailableError, UnsupportedLayoutError, UnsupportedTensorError
from matrix_interop.frameworks.registry import Framework, Order, own_capsule
from matrix_interop.reasons import Obstacle, Reason
from matrix_interop.view import DeviceView, HostView, TensorView

_ALIGNMENT: Final = 64
LEGACY: Final = 1
#: Data that is there already is after no stream.
_NO_ORDER: Final = -1
#: Types that NumPy exports over DLPack by itself.
_EXPORTED: Final = frozenset(dtype for dtype in DLPACK_OF_DTYPE if not is_extension(dtype))
_OneDevice: Final = jax.sharding.SingleDeviceSharding
_from_dlpack: Final = jax.dlpack.from_dlpack
_NARROWED: Final = frozenset(np.dtype(kind) for kind in ("i8", "u8", "f8", "c16"))


class _Capsule:
    """What `jax.dlpack.from_dlpack` asks for: it names the stream of its own on which the data must be ready."""

    __slots__ = ("own", "view")

    def __init__(self, view: TensorView, *, own: bool = False) -> None:
        self.view = view
        #: Try the capsule of the view's own framework.
        self.own = own

    def __dlpack__(self, stream: Any = None, **_: Any) -> Any:
        view = self.view
        if not view.device.is_host:
            view.frameworks.make_ready(view, stream)
        own = own_capsule(view) if self.own else None
        return capsule_of(_as_jax_wants(view.header), view.device, max_version=None) if own is None else own

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.view.device.dlpack


class JaxFramework(Framework):
    """`jax.Array` on one device."""

    name = "jax"
    device_types = ("cpu", "cuda")
    orders_itself = True

    def owns(self, x: Any) -> bool:
        return isinstance(x, jax.Array)

    def view(self, x: Any, fill: Any = None) -> TensorView:
        try:  # an array on one device; traced and deleted ones and keys raise or are left over
            sharding = x.sharding
            if type(sharding) is _OneDevice:
                device = _device(*sharding.device_set)
                if device is not CPU:
                    if x.dtype in DLPACK_OF_DTYPE and not x.is_deleted():
                        return _device_view(x, device)
                elif (header := np.asarray(x)).dtype in DLPACK_OF_DTYPE:
                    view = HostView()
                    view.header, view.framework, view.native = header, "jax", x
                    return view
        except (AttributeError, RuntimeError, TypeError):
            pass
        return self._careful_view(x)

    def _careful_view(self, x: Any) -> TensorView:
        """Any other array: one of a mesh, or unreadable."""
        if isinstance(x, jax.core.Tracer):
            raise _unreadable(x, "it is traced (jit, grad or vmap); convert outside the transform")
        if x.is_deleted():
            raise _unreadable(x, "it was deleted or donated")
        if not isinstance(x.dtype, np.dtype):
            raise _unreadable(x, "it holds random keys; use jax.random.key_data(x)")
        devices = x.devices()
        if len(devices) != 1:
            raise _unreadable(x, f"it is spread over {len(devices)} devices; gather it with jax.device_put first")
        require_plain(x.dtype)
        (device,) = devices
        device = _device(device)
        return TensorView.of(np.asarray(x), "jax", x) if device is CPU else _device_view(x, device)

    def refusal(self, dtype: np.dtype[Any]) -> str | None:
        native = dtype.newbyteorder("=")
        if native not in DLPACK_OF_DTYPE:
            return f"jax has no {dtype}: ask for dtype='float32'"
        if _is_cut(native):
            narrow = native.str[1] + str(native.itemsize // 2)
            return (
                f"jax would cut {native} to 32 bits: ask for dtype='{np.dtype(narrow)}' if that is meant, "
                "or switch 64-bit types on with jax.config.update('jax_enable_x64', True)"
            )
        return None

    def obstacle(self, header: np.ndarray, *, share_readonly: bool = False) -> Obstacle | None:
        if not header.dtype.isnative:
            return Obstacle(Reason.BYTE_ORDER, f"jax has no {header.dtype.byteorder}-endian numbers")
        if not header.size:
            return None
        if not _is_dense(header):
            negative = any(step < 0 for n, step in zip(header.shape, header.strides, strict=True) if n > 1)
            reason = Reason.NEGATIVE_STRIDE if negative else Reason.STRIDES
            return Obstacle(reason, "jax takes memory without gaps, steps or repeats only")
        if int(header.__array_interface__["data"][0]) % _ALIGNMENT:
            return Obstacle(Reason.ALIGNMENT, f"jax shares memory only at multiples of {_ALIGNMENT} bytes")
        return None

    def wrap(self, header: np.ndarray) -> Any:
        importer = _importer(CPU) if header.size else _from_dlpack
        return importer(_Capsule(TensorView.of(header, "numpy")))

    def fits(self, view: TensorView, share_readonly: bool = False) -> bool:
        # What is plainly dense needs no look at strides one by one.
        if type(view) is DeviceView and view.dtype in _EXPORTED and not _is_cut(view.dtype):
            dense = view.strides == row_strides(view.shape, view.dtype.itemsize)
            if dense and 0 not in view.shape and not view.pointer % _ALIGNMENT:
                return True
        return super().fits(view, share_readonly)

    def wrap_device(self, view: TensorView) -> Any:
        importer = _importer(view.device)
        if 1 not in view.shape and view.strides == row_strides(view.shape, view.dtype.itemsize):
            try:
                return importer(_Capsule(view, own=True))
            except (RuntimeError, TypeError, ValueError):  # JAX takes managed memory only under another label
                pass
        return importer(_Capsule(view))

    def quick(self, header: np.ndarray, share_readonly: bool = False) -> Any:
        # What is plainly dense goes to JAX as it is, without looking at strides one by one.
        plain = header.flags.carray and header.size and 1 not in header.shape
        if plain and header.dtype in _EXPORTED and not _is_cut(header.dtype):
            # Four times as fast as asking the array interface; an ndarray is a buffer, whatever its stubs say.
            address = addressof(c_char.from_buffer(header))  # type: ignore[arg-type]
            if not address % _ALIGNMENT:
                return _importer(CPU)(header)
        return super().quick(header, share_readonly)

    def alias(self, native: Any) -> Any:
        if _is_cut(native.dtype):  # DLPack would cut it as well; this object ends with native.delete()
            return jax.make_array_from_single_device_arrays(native.shape, native.sharding, [native])
        return jax.dlpack.from_dlpack(native)

    def item(self, native: Any, key: Any) -> Any:
        return None  # indexing copies in JAX: the caller goes by memory, which shares where that is aligned

    def namespace(self) -> ModuleType:
        return jax.numpy

    def current_stream(self, device: Device) -> int:
        return LEGACY

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any], device: Device) -> Any:
        return jax.numpy.empty(shape, dtype, device=_jax_device(device)).block_until_ready()

    def written(self, native: Any, stream: int, device: Device) -> Any:
        # A second array over the same memory, which JAX's own stream reads after ``stream`` wrote it.
        address, strides = native.unsafe_buffer_pointer(), row_strides(native.shape, native.dtype.itemsize)
        view = DeviceView.of_tensor(native, "jax", device, address, native.shape, strides, native.dtype, stream=stream)
        return self.wrap_device(view)

    def copy(self, native: Any, dtype: np.dtype[Any], order: Order) -> Any:
        if order == "F" and native.ndim > 1:
            raise UnsupportedLayoutError("jax arrays have dense rows: leave out order='F', or name another framework")
        return jax.numpy.array(native, dtype=dtype, copy=True)

    def devices(self) -> tuple[Device, ...]:
        return tuple(dict.fromkeys([CPU, *(as_device(device) for device in jax.devices())]))


def _unreadable(x: Any, why: str) -> UnsupportedTensorError:
    return UnsupportedTensorError(f"jax {x.dtype} {tuple(x.shape)} cannot be read: {why}")


#: `as_device`, remembered for the few device objects of JAX.
_device: Final = cache(as_device)


def _device_view(x: Any, device: Device) -> TensorView:
    """The memory of an array on ``device`` that is not deleted: `is_ready` of a deleted one ends the process."""
    if x.is_ready():  # then it stays so, and nobody has to wait
        try:
            # The interface refuses layouts that are not dense rows.
            address = x.__cuda_array_interface__["data"][0]
        except (AttributeError, RuntimeError, TypeError):
            pass
        else:
            shape, dtype = x.shape, x.dtype
            dense = row_strides(shape, dtype.itemsize)
            return DeviceView.of_tensor(x, "jax", device, address, shape, dense, dtype, readonly=True, stream=_NO_ORDER)
    # JAX shows no streams. Its own export makes the array ready on one that is named: the legacy default stream.
    header = Capsule(x.__dlpack__(stream=LEGACY), f"jax {x.dtype} {x.shape}").header()
    return TensorView.of(header, "jax", x, device, stream=LEGACY)


@cache
def _importer(device: Device) -> Callable[[Any], jax.Array]:
    """`jax.dlpack.from_dlpack` for legacy capsules of memory on ``device``, by the C function behind it where possible.

    Called directly it takes a fraction of the time: the public one looks for the device, asks the host for a stream,
    which raises, and passes the array through `jax.numpy.asarray`.  It is no public name, so one array is tried first,
    and the public one returned where the function is missing or does other things than in JAX 0.10 and 0.11.
    """
    try:
        function = cast(Any, jax)._src.lib._jax.dlpack_managed_tensor_to_buffer
        there, code = _jax_device(device), device.dlpack[0]

        def to_host(x: Any) -> Any:
            return function(x.__dlpack__(), there, None, False, code)  # no stream; never a copy

        def to_device(x: Any) -> Any:
            stream = there.get_stream_for_external_ready_events()  # one of a few in turn, each time another
            return function(x.__dlpack__(stream=stream), there, stream, False, code)

        importer = to_host if device.is_host else to_device
        with jax.ensure_compile_time_eval(), jax.transfer_guard("allow"):  # whatever the first call comes from
            tried = jax.device_put(np.zeros(_ALIGNMENT, np.uint8), there)
        made, model = (_facts(make(tried)) for make in (importer, _from_dlpack))
    except (AttributeError, RuntimeError, TypeError, ValueError):
        return _from_dlpack
    return importer if made == model else _from_dlpack


def _facts(x: jax.Array) -> tuple[Any, ...]:
    """What must not depend on the way an array was imported."""
    return type(x), x.unsafe_buffer_pointer(), x.shape, x.dtype, x.weak_type, x.sharding, x.committed


def _jax_device(device: Device) -> Any:
    """JAX's object for it, by its number in the driver: JAX may have been shown some devices only."""
    there = jax.local_devices(backend="cpu" if device.is_host else device.type)
    for found in there:
        if _device(found) == device:
            return found
    raise DeviceUnavailableError(f"jax sees no {device}, only {', '.join(map(_device, there))}")


def _is_cut(dtype: np.dtype[Any]) -> bool:
    """True for 64-bit types while x64 is off: JAX makes 32 bits of them without a word."""
    return dtype in _NARROWED and not cast(Any, jax.config).jax_enable_x64


def _as_jax_wants(header: np.ndarray) -> np.ndarray:
    """The same memory as JAX takes it.

    It asks for a legacy capsule, which NumPy refuses for read-only memory, and wants the strides of a packed array on
    axes where no stride counts. JAX never writes, so the memory is described anew.
    """
    flags = header.flags
    if flags.carray and 1 not in header.shape and header.size:
        return header
    strides = _dense_strides(header)
    if flags.writeable and strides == header.strides:
        return header
    address = int(header.__array_interface__["data"][0])
    return header_of(address, header.shape, strides, header.dtype, readonly=False, owner=header)


def _axes_by_stride(header: np.ndarray) -> list[int]:
    """Axes from the slowest to the fastest; among axes without a stride that counts, in their own order."""
    counted = [axis for axis in range(header.ndim) if header.shape[axis] > 1]
    ranked = iter(sorted(counted, key=lambda axis: -header.strides[axis]))
    return [next(ranked) if header.shape[axis] > 1 else axis for axis in range(header.ndim)]


def _dense_strides(header: np.ndarray) -> tuple[int, ...]:
    """Strides of the same axes order, packed."""
    strides = [0] * header.ndim
    step = header.itemsize
    for axis in reversed(_axes_by_stride(header)):
        strides[axis] = step
        step *= max(header.shape[axis], 1)
    return tuple(strides)


def _is_dense(header: np.ndarray) -> bool:
    """True for memory without gaps or repeats, in any order of the axes."""
    packed = _dense_strides(header)
    return all(n < 2 or step == dense for n, step, dense in zip(header.shape, header.strides, packed, strict=True))
