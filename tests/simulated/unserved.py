"""A framework whose device no runtime serves, as dpnp's: it copies to its device and back by itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from matrix_interop.devices import Device
from matrix_interop.frameworks.registry import Framework, Order, register_framework
from matrix_interop.reasons import Obstacle
from matrix_interop.view import DeviceView, TensorView

#: Its only device.
DEVICE = Device("oneapi", 0)


class Array:
    """An array on the device, whose memory is the host's in truth."""

    def __init__(self, values: np.ndarray) -> None:
        self.values = values


class _Functions:
    """The part of the array API that taking rows needs."""

    @staticmethod
    def take(x: Array, indices: Array, *, axis: int) -> Array:
        return Array(x.values.take(indices.values, axis))


class UnservedFramework(Framework):
    """Strided arrays, and no streams."""

    name = "unserved"
    device_types = (DEVICE.type,)

    def owns(self, x: Any) -> bool:
        return isinstance(x, Array)

    def view(self, x: Array, fill: Any = None) -> TensorView:
        values = x.values
        address = values.__array_interface__["data"][0]
        return DeviceView.of_tensor(x, self.name, DEVICE, address, values.shape, values.strides, values.dtype)

    def refusal(self, dtype: np.dtype[Any]) -> str | None:
        return None

    def obstacle(self, header: np.ndarray, *, share_readonly: bool = False) -> Obstacle | None:
        return None

    def wrap(self, header: np.ndarray) -> Any:
        raise AssertionError("it has no arrays on the host")

    def alias(self, native: Array) -> Array:
        return Array(native.values)

    def item(self, native: Array, key: Any) -> Array:
        return Array(native.values[key])

    def namespace(self) -> Any:
        return _Functions

    def devices(self) -> tuple[Device, ...]:
        return (DEVICE,)

    def from_host(self, array: np.ndarray, device: Device) -> Array:
        return Array(array.copy())

    def to_host(self, native: Array) -> np.ndarray:
        return native.values.copy()

    def copy(self, native: Array, dtype: np.dtype[Any], order: Order) -> Array:
        return Array(native.values.astype(dtype, order))


@contextmanager
def unserved_device() -> Iterator[Device]:
    """The device, known to matrix_interop."""
    register_framework(UnservedFramework.name, UnservedFramework)
    yield DEVICE
