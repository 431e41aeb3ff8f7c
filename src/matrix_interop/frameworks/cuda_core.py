"""cuda.core: ``Buffer``, which comes in as bytes, and ``StridedMemoryView``, which is what other tensors become.

Both describe memory and carry no stream: as a producer and as a consumer the legacy default stream counts, unless
``stream=`` names another.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from cuda.core import Buffer
from cuda.core.utils import StridedMemoryView

from matrix_interop.devices import CPU, CUDA_DEVICES, Device
from matrix_interop.dlpack import header_of, row_strides
from matrix_interop.dtypes import DLPACK_OF_DTYPE, require_plain
from matrix_interop.errors import UnsupportedDtypeError
from matrix_interop.frameworks.registry import Framework
from matrix_interop.reasons import Obstacle, Reason
from matrix_interop.runtime import get_runtime
from matrix_interop.view import DeviceView, TensorView

_LEGACY: Final = 1
_NO_ORDER: Final = -1


class CudaCoreFramework(Framework):
    """`cuda.core.Buffer` and `cuda.core.utils.StridedMemoryView`."""

    name = "cuda.core"
    device_types = ("cpu", "cuda")
    computes = False

    def owns(self, x: Any) -> bool:
        return isinstance(x, Buffer | StridedMemoryView)

    def view(self, x: Any, fill: Any = None) -> TensorView:
        shape: tuple[int, ...]
        strides: tuple[int, ...]
        if isinstance(x, Buffer):
            address, shape, strides, dtype = int(x.handle), (x.size,), (1,), np.dtype(np.uint8)
            readonly, on_device, ordinal = False, x.is_device_accessible and not x.is_host_accessible, x.device_id
            if x.is_managed:
                on_device, ordinal = True, get_runtime("cuda").pointer(address).ordinal
        else:
            if x.dtype is None:
                raise UnsupportedDtypeError("a cuda.core view without a dtype cannot be read: use x.view(dtype=...)")
            dtype = require_plain(np.dtype(x.dtype))
            address, shape, readonly = x.ptr, tuple(x.shape), x.readonly
            on_device, ordinal = x.is_device_accessible, x.device_id
            steps = x.strides
            strides = row_strides(shape, dtype.itemsize) if steps is None else tuple(n * dtype.itemsize for n in steps)
        if not on_device:
            header = header_of(address, shape, strides, dtype, readonly=readonly, owner=x)
            return TensorView.of(header, self.name, x)
        device = CUDA_DEVICES[max(ordinal or 0, 0)]
        return DeviceView.of_tensor(
            x, self.name, device, address, shape, strides, dtype, readonly=readonly, stream=_LEGACY
        )

    def refusal(self, dtype: np.dtype[Any]) -> str | None:
        if dtype.newbyteorder("=") in DLPACK_OF_DTYPE:
            return None
        return f"cuda.core has no {dtype}: ask for dtype='float32'"

    def obstacle(self, header: np.ndarray, *, share_readonly: bool = False) -> Obstacle | None:
        if not header.dtype.isnative:
            return Obstacle(Reason.BYTE_ORDER, f"DLPack has no {header.dtype.byteorder}-endian numbers")
        if any(step % header.itemsize for step in header.strides):
            return Obstacle(Reason.STRIDES, f"a stride is no multiple of the {header.itemsize} bytes of an entry")
        if min(header.strides, default=0) < 0:
            return Obstacle(Reason.NEGATIVE_STRIDE, "a DLPack consumer may not survive negative strides")
        return None

    def wrap(self, header: np.ndarray) -> Any:
        return StridedMemoryView.from_dlpack(TensorView.of(header, "numpy", header), _NO_ORDER)

    def wrap_device(self, view: TensorView) -> Any:
        return StridedMemoryView.from_dlpack(view, _NO_ORDER)

    def alias(self, native: Any) -> Any:
        view = self.view(native)
        return self.wrap(view.header) if view.device is CPU else self.wrap_device(view)

    def item(self, native: Any, key: Any) -> Any:
        return None  # it has no views of its own

    def devices(self) -> tuple[Device, ...]:
        return (CPU, *(Device("cuda", index) for index in range(get_runtime("cuda").device_count())))

    def current_stream(self, device: Device) -> int:
        return _LEGACY
