"""Numba's CUDA arrays, known as ``numba.cuda``.

They are memory for kernels: Numba neither converts nor computes with them outside of one.  Their own ``stream`` is
the producer's; without one it is Numba's default stream.
"""

from __future__ import annotations

from typing import Any, Final

import numba.cuda
import numpy as np
from numba.cuda.cudadrv.devicearray import DeviceNDArray

from matrix_interop.devices import CUDA_DEVICES, Device
from matrix_interop.dtypes import DLPACK_OF_DTYPE, is_extension, require_plain
from matrix_interop.errors import DeviceUnavailableError
from matrix_interop.frameworks.registry import Framework
from matrix_interop.reasons import Obstacle, Reason
from matrix_interop.runtime import get_runtime
from matrix_interop.view import DeviceView, TensorView

_LEGACY: Final = 1


class NumbaFramework(Framework):
    """`numba.cuda` device arrays."""

    name = "numba.cuda"
    device_types = ("cuda",)
    computes = False

    def owns(self, x: Any) -> bool:
        return isinstance(x, DeviceNDArray)

    def view(self, x: Any, fill: Any = None) -> TensorView:
        require_plain(x.dtype)
        address = int(x.device_ctypes_pointer.value or 0)
        ordinal = get_runtime("cuda").pointer(address).ordinal if address else self.current_device().index
        stream = _handle(x.stream) if x.stream else None
        device = CUDA_DEVICES[ordinal or 0]
        return DeviceView.of_tensor(x, self.name, device, address, x.shape, x.strides, x.dtype, stream=stream)

    def refusal(self, dtype: np.dtype[Any]) -> str | None:
        native = dtype.newbyteorder("=")
        if native not in DLPACK_OF_DTYPE or is_extension(native):
            return f"numba {numba.__version__} has no {dtype}: ask for dtype='float32' or 'float16'"
        return None

    def obstacle(self, header: np.ndarray, *, share_readonly: bool = False) -> Obstacle | None:
        if not header.dtype.isnative:
            return Obstacle(Reason.BYTE_ORDER, f"numba has no {header.dtype.byteorder}-endian numbers")
        if min(header.strides, default=0) < 0:
            return Obstacle(Reason.NEGATIVE_STRIDE, "numba measures device memory forwards only")
        if not header.flags.aligned:
            return Obstacle(Reason.ALIGNMENT, f"the address or a stride is no multiple of what {header.dtype} needs")
        if not header.flags.writeable and not share_readonly:
            return Obstacle(
                Reason.READONLY,
                "numba cannot keep memory read-only; share_readonly=True shares it and you promise not to write",
            )
        return None

    def wrap(self, header: np.ndarray) -> Any:
        raise DeviceUnavailableError("numba.cuda has no arrays on the host")

    def wrap_device(self, view: TensorView) -> Any:
        interface = {
            "shape": view.shape,
            "strides": view.strides,
            "typestr": view.dtype.str,
            "data": (view.pointer, False),
            "version": 2,  # without a stream: order is made before
        }
        with numba.cuda.gpus[view.device.index]:
            return numba.cuda.from_cuda_array_interface(interface, owner=view, sync=False)

    def alias(self, native: Any) -> Any:
        return self.wrap_device(self.view(native))

    def item(self, native: Any, key: Any) -> Any:
        return None  # by memory, which takes any step

    def devices(self) -> tuple[Device, ...]:
        return tuple(Device("cuda", index) for index in range(get_runtime("cuda").device_count()))

    def current_device(self) -> Device:
        get_runtime("cuda")  # which says why there is none
        return Device("cuda", numba.cuda.get_current_device().id)

    def current_stream(self, device: Device) -> int:
        return _handle(numba.cuda.default_stream())

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any], device: Device) -> Any:
        with numba.cuda.gpus[device.index]:
            return numba.cuda.device_array(shape, dtype)


def _handle(stream: Any) -> int:
    """The driver handle: an object of cuda-bindings or of ctypes, by Numba's version."""
    handle = stream.handle
    return int(getattr(handle, "value", handle) or 0) or _LEGACY
