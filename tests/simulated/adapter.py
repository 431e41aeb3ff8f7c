"""The adapter of lateframe: what a framework on a device has to bring, and nothing more."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np

from matrix_interop.devices import Device
from matrix_interop.errors import DeviceUnavailableError
from matrix_interop.frameworks.registry import Framework, Order, register_framework
from matrix_interop.reasons import Obstacle, Reason
from matrix_interop.view import DeviceView, TensorView
from simulated import lateframe
from simulated.runtime import DEVICE_TYPE, SimulatedRuntime


class LateframeFramework(Framework):
    """`lateframe.Array`. It has strides of any sign, and like torch no read-only arrays."""

    name = "lateframe"
    device_types = (DEVICE_TYPE,)

    def owns(self, x: Any) -> bool:
        return isinstance(x, lateframe.Array)

    def view(self, x: lateframe.Array, fill: Any = None) -> TensorView:
        device = Device(self.device_types[0], x.ordinal)
        return DeviceView.of_tensor(x, self.name, device, x.pointer, x.shape, x.strides, x.dtype)

    def refusal(self, dtype: np.dtype[Any]) -> str | None:
        return "lateframe holds numbers and booleans: ask for dtype='float32'" if dtype.kind in "OSUMm" else None

    def obstacle(self, header: np.ndarray, *, share_readonly: bool = False) -> Obstacle | None:
        if not header.dtype.isnative:
            return Obstacle(Reason.BYTE_ORDER, f"lateframe has no {header.dtype.byteorder}-endian numbers")
        if not header.flags.writeable and not share_readonly:
            return Obstacle(Reason.READONLY, "lateframe cannot keep memory read-only; share_readonly=True shares it")
        return None

    def wrap(self, header: np.ndarray) -> lateframe.Array:
        raise DeviceUnavailableError("lateframe has no arrays on the host")

    def wrap_device(self, view: TensorView) -> lateframe.Array:
        return lateframe.Array(view.pointer, view.shape, view.strides, view.dtype, view.device.index, view)

    def alias(self, native: lateframe.Array) -> lateframe.Array:
        return native[...]

    def namespace(self) -> ModuleType:
        return lateframe

    def devices(self) -> tuple[Device, ...]:
        return tuple(Device(DEVICE_TYPE, index) for index in range(lateframe.device_count()))

    def current_device(self) -> Device:
        return Device(DEVICE_TYPE, lateframe.current_device())

    def current_stream(self, device: Device) -> int:
        return lateframe.current_stream(device.index)

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any], device: Device) -> lateframe.Array:
        return lateframe.empty(shape, dtype, device.index)

    def copy(self, native: lateframe.Array, dtype: np.dtype[Any], order: Order) -> lateframe.Array:
        flip = order == "F"
        out = lateframe.empty(native.shape[::-1] if flip else native.shape, dtype, native.ordinal)
        return lateframe.copy_late(out.T if flip else out, native)

    def keep_until(self, native: lateframe.Array, stream: int, device: Device) -> None:
        lateframe.record_stream(native, stream)


def install(seed: int, devices: int = 2) -> SimulatedRuntime:
    """Simulated devices whose order follows from ``seed``, and lateframe on them, known to matrix_interop."""
    register_framework(LateframeFramework.name, LateframeFramework)
    return lateframe.use(SimulatedRuntime(seed, devices))
