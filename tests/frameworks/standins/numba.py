"""numba-cuda 0.30 (Numba's simulator is of no use here: its arrays have no addresses).

Facts copied (read in its source; ``tests/gpu`` proves them on the real one): an array knows its pointer as a ctypes
value (None for an empty one) and its stream as an object, or 0; a stream's handle is an object of cuda-bindings, 0 for
the default one; an array over foreign memory is made in the current context from a CUDA array interface, whose stream
it waits for only when asked to; new memory lies on the current device.
Not copied: kernels.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from ctypes import c_void_p
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from frameworks.standins import late
from simulated import lateframe
from simulated.fake_driver import CUstream

__version__ = "0.68.1"
_streams = late.Streams()


class Stream:
    """A stream; without a handle the default one."""

    def __init__(self, handle: int = 0) -> None:
        self.handle = CUstream(handle)


class DeviceNDArray(late.CudaArray):
    """An array."""

    streams = _streams
    stream: Any = 0

    @property
    def device_ctypes_pointer(self) -> c_void_p:
        """The address."""
        return c_void_p(self.pointer if self.size else 0)

    def copy_to_host(self) -> np.ndarray:
        """The values."""
        return self.host()

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        data = {"shape": self.shape, "strides": self.strides, "typestr": self.dtype.str, "version": 3}
        return {**data, "data": (self.pointer, False), "stream": None}


def device_array(shape: tuple[int, ...], dtype: Any) -> DeviceNDArray:
    """New memory on the current device."""
    return DeviceNDArray.made(shape, dtype, lateframe.current_device())


def to_device(values: np.ndarray, stream: Any = 0) -> DeviceNDArray:
    """A copy of host values, done on return where no stream is named."""
    made = DeviceNDArray.holding(values, lateframe.current_device())
    if not stream:
        late.runtime().quiesce()
    made.stream = stream
    return made


def from_cuda_array_interface(desc: dict[str, Any], owner: Any = None, sync: bool = True) -> DeviceNDArray:
    """An array over memory of the current device."""
    address, ordinal = desc["data"][0], lateframe.current_device()
    if address and late.runtime().pointer(address).ordinal != ordinal:
        raise RuntimeError(f"the address is not of device {ordinal}, which is current")
    if sync and desc.get("stream"):
        late.runtime().stream_synchronize(desc["stream"], ordinal)
    return DeviceNDArray(address, desc["shape"], desc["strides"], desc["typestr"], ordinal, owner)


class _Devices:
    """The devices by number, each current inside a with statement."""

    def __getitem__(self, index: int) -> AbstractContextManager[None]:
        return lateframe.device(index)


cuda, _driver, _arrays = (ModuleType(f"numba.{name}") for name in ("cuda", "cuda.cudadrv", "cuda.cudadrv.devicearray"))
vars(_arrays).update(DeviceNDArray=DeviceNDArray)
vars(cuda).update(
    default_stream=Stream,
    device_array=device_array,
    external_stream=Stream,
    from_cuda_array_interface=from_cuda_array_interface,
    get_current_device=lambda: SimpleNamespace(id=lateframe.current_device()),
    gpus=_Devices(),
    to_device=to_device,
)
SUBMODULES = {"numba.cuda": cuda, "numba.cuda.cudadrv": _driver, "numba.cuda.cudadrv.devicearray": _arrays}
