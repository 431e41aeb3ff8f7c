"""dpnp: arrays on SYCL devices (oneAPI), a CPU among them.

No runtime serves these devices, so data comes and goes by dpnp's own copies. SYCL queues have no handles that could
be put in order with others: before memory is shared, what the device's default queue holds is waited for.
"""

from __future__ import annotations

from typing import Any, Final

import dpctl
import numpy as np

import dpnp
from matrix_interop.devices import Device, device_of_dlpack
from matrix_interop.dtypes import DLPACK_OF_DTYPE, is_extension, require_plain
from matrix_interop.errors import DeviceUnavailableError
from matrix_interop.frameworks.registry import Framework, Order
from matrix_interop.reasons import Obstacle, Reason
from matrix_interop.view import DeviceView, TensorView

_NO_ORDER: Final = -1


class DpnpFramework(Framework):
    """`dpnp.ndarray`."""

    name = "dpnp"
    device_types = ("oneapi",)

    def owns(self, x: Any) -> bool:
        return isinstance(x, dpnp.ndarray)

    def view(self, x: Any, fill: Any = None) -> TensorView:
        require_plain(x.dtype)
        interface = x.__sycl_usm_array_interface__
        address, readonly = interface["data"]
        address += interface["offset"] * x.dtype.itemsize
        device = device_of_dlpack(*x.__dlpack_device__())
        repeats = x.size > 0 and any(step == 0 for n, step in zip(x.shape, x.strides, strict=True) if n > 1)
        return DeviceView.of_tensor(
            x, self.name, device, address, x.shape, x.strides, x.dtype, readonly=readonly or repeats
        )

    def refusal(self, dtype: np.dtype[Any]) -> str | None:
        native = dtype.newbyteorder("=")
        if native not in DLPACK_OF_DTYPE or is_extension(native):
            return f"dpnp {dpnp.__version__} has no {dtype}: ask for dtype='float32'"
        return None

    def obstacle(self, header: np.ndarray, *, share_readonly: bool = False) -> Obstacle | None:
        if not header.dtype.isnative:
            return Obstacle(Reason.BYTE_ORDER, f"dpnp has no {header.dtype.byteorder}-endian numbers")
        if any(step % header.itemsize for step in header.strides):
            return Obstacle(Reason.STRIDES, f"a stride is no multiple of the {header.itemsize} bytes of an entry")
        if header.strides and min(header.strides) < 0:
            return Obstacle(Reason.NEGATIVE_STRIDE, "a DLPack consumer may not survive negative strides")
        if not header.flags.writeable and not share_readonly:
            return Obstacle(
                Reason.READONLY,
                "dpnp cannot keep memory read-only; share_readonly=True shares it and you promise not to write",
            )
        return None

    def wrap(self, header: np.ndarray) -> Any:
        raise DeviceUnavailableError("dpnp has no arrays on the host")

    def wrap_device(self, view: TensorView) -> Any:
        return dpnp.from_dlpack(view)

    def alias(self, native: Any) -> Any:
        return native[...]

    def namespace(self) -> Any:
        return dpnp

    def devices(self) -> tuple[Device, ...]:
        return tuple(Device("oneapi", index) for index in range(dpctl.get_num_devices()))

    def current_device(self) -> Device:
        return device_of_dlpack(*dpnp.empty(0).__dlpack_device__())

    def current_stream(self, device: Device) -> int:
        dpnp.empty(0, device=_sycl(device)).sycl_queue.wait()
        return _NO_ORDER

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any], device: Device) -> Any:
        return dpnp.empty(shape, dtype, device=_sycl(device))

    def copy(self, native: Any, dtype: np.dtype[Any], order: Order) -> Any:
        return dpnp.array(native, dtype=dtype, order=order, copy=True)

    def from_host(self, array: np.ndarray, device: Device) -> Any:
        return dpnp.array(array, device=_sycl(device), order="K")

    def to_host(self, native: Any) -> np.ndarray:
        made: np.ndarray = dpnp.asnumpy(native)
        return made


def _sycl(device: Device) -> Any:
    return dpctl.get_devices()[device.index]
