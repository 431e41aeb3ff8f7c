"""CuPy: CUDA memory only.

Its own DLPack import takes 30 us and refuses pinned memory; a raw pointer with an owner takes 2.
It has no read-only arrays and no 8-bit floats; bfloat16 comes from ml_dtypes.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, Final

import cupy
import numpy as np

from matrix_interop.devices import CUDA_DEVICES, Device
from matrix_interop.dtypes import DLPACK_OF_DTYPE, is_extension, require_plain
from matrix_interop.errors import DeviceUnavailableError
from matrix_interop.frameworks.registry import Framework, Order
from matrix_interop.reasons import Obstacle, Reason
from matrix_interop.runtime import get_runtime
from matrix_interop.view import DeviceView, TensorView

_LEGACY: Final = 1
_NO_ORDER: Final = -1
_device_view: Final = DeviceView.of_tensor
#: Types that every CuPy has.
_PLAIN: Final = frozenset(dtype for dtype in DLPACK_OF_DTYPE if dtype.isnative and not is_extension(dtype))
_UnownedMemory: Final = cupy.cuda.UnownedMemory
_MemoryPointer: Final = cupy.cuda.MemoryPointer
_ndarray: Final = cupy.ndarray
_current_stream: Final = cupy.cuda.get_current_stream


class CupyFramework(Framework):
    """`cupy.ndarray`."""

    name = "cupy"
    device_types = ("cuda",)

    def owns(self, x: Any) -> bool:
        return isinstance(x, cupy.ndarray)

    def view(self, x: cupy.ndarray, fill: Any = None) -> TensorView:
        data, dtype = x.data, x.dtype
        if dtype not in DLPACK_OF_DTYPE:
            require_plain(dtype)
        return _device_view(x, "cupy", CUDA_DEVICES[data.device_id], data.ptr, x.shape, x.strides, dtype)

    def refusal(self, dtype: np.dtype[Any]) -> str | None:
        native = dtype.newbyteorder("=")
        if native not in DLPACK_OF_DTYPE or (is_extension(native) and native.name != "bfloat16"):
            return f"cupy {cupy.__version__} has no {dtype}: ask for dtype='float32' or 'float16'"
        if native.name == "bfloat16" and not _has_bfloat16():
            return f"cupy {cupy.__version__} has no bfloat16: ask for dtype='float32', or install cupy 14"
        return None

    def obstacle(self, header: np.ndarray, *, share_readonly: bool = False) -> Obstacle | None:
        if not header.dtype.isnative:
            return Obstacle(Reason.BYTE_ORDER, f"cupy has no {header.dtype.byteorder}-endian numbers")
        if not header.flags.aligned:
            return Obstacle(Reason.ALIGNMENT, f"the address or a stride is no multiple of what {header.dtype} needs")
        if not header.flags.writeable and not share_readonly:
            return Obstacle(
                Reason.READONLY,
                "cupy cannot keep memory read-only; share_readonly=True shares it and you promise not to write",
            )
        return None

    def wrap(self, header: np.ndarray) -> cupy.ndarray:
        raise DeviceUnavailableError("cupy has no arrays on the host")

    def fits(self, view: TensorView, share_readonly: bool = False) -> bool:
        # What other frameworks hand over is aligned; objects known by protocol only may bring anything.
        if type(view) is DeviceView and view.dtype in _PLAIN and (share_readonly or not view.readonly):
            return True
        return super().fits(view, share_readonly)

    def capsule(self, native: cupy.ndarray) -> Any:
        return native.__dlpack__(stream=_NO_ORDER)

    def wrap_device(self, view: TensorView) -> cupy.ndarray:
        # CuPy asks for the size of the memory and checks nothing by it.
        memory = _UnownedMemory(view.pointer, 1, view, view.device.index)
        return _ndarray(view.shape, view.dtype, _MemoryPointer(memory, 0), view.strides)

    def alias(self, native: cupy.ndarray) -> cupy.ndarray:
        return native.view()

    def namespace(self) -> ModuleType:
        import array_api_compat.cupy

        return array_api_compat.cupy

    def devices(self) -> tuple[Device, ...]:
        return tuple(Device("cuda", index) for index in range(get_runtime("cuda").device_count()))

    def current_device(self) -> Device:
        get_runtime("cuda")  # which says why there is none
        return Device("cuda", cupy.cuda.runtime.getDevice())

    def current_stream(self, device: Device) -> int:
        return _current_stream(device.index).ptr or _LEGACY

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any], device: Device) -> cupy.ndarray:
        with cupy.cuda.Device(device.index):
            return cupy.empty(shape, dtype)

    def copy(self, native: cupy.ndarray, dtype: np.dtype[Any], order: Order) -> cupy.ndarray:
        with native.device:
            return cupy.array(native, dtype=dtype, order=order, copy=True)


def _has_bfloat16() -> bool:
    import ml_dtypes

    try:
        cupy.dtype(ml_dtypes.bfloat16)
        return int(cupy.__version__.split(".")[0]) >= 14
    except TypeError:
        return False
