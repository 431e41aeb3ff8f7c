"""Devices: one small string type, and the DLPack numbers that belong to it.

A `Device` is the text users write ("cpu", "cuda:0"), so it compares and hashes as that text.
"""

from __future__ import annotations

import operator
from functools import lru_cache
from typing import Any, Final, Self

from matrix_interop.errors import DeviceUnavailableError

__all__ = ["CPU", "CUDA_DEVICES", "HOST_CODES", "Device", "as_device", "device_of_dlpack"]

#: Device type -> code of ``DLDeviceType`` in the DLPack header (1.3). A type is data, not code: more can be added.
DLPACK_CODES: Final[dict[str, int]] = {
    "cpu": 1,
    "cuda": 2,
    "opencl": 4,
    "vulkan": 7,
    "metal": 8,
    "vpi": 9,
    "rocm": 10,
    "ext": 12,
    "oneapi": 14,
    "webgpu": 15,
    "hexagon": 16,
    "maia": 17,
    "trn": 18,
}
#: Codes that describe memory the CPU addresses: ordinary, CUDA page-locked, ROCm page-locked.
HOST_CODES: Final = frozenset({1, 3, 11})
#: Names that other frameworks give the same types, and the code of managed memory, which is a CUDA device's.
_SYNONYMS: Final = {"gpu": "cuda", "xpu": "oneapi", "mps": "metal", "sycl": "oneapi"}
_MANAGED: Final = 13
_TYPE_OF_CODE: Final = (
    {code: name for name, code in DLPACK_CODES.items()} | dict.fromkeys(HOST_CODES, "cpu") | {_MANAGED: "cuda"}
)


class Device(str):
    """Where memory lives: ``type`` ("cpu", "cuda", ...) and ``index``; equal to its own text.

    The host is "cpu", whatever its pages are; every other device carries its index ("cuda:0").
    """

    __slots__ = ("dlpack", "index", "type")
    type: str
    #: (device type code, device id) as ``__dlpack_device__`` gives them.
    dlpack: tuple[int, int]
    index: int  # type: ignore[assignment]  # hides str.index: nobody looks for text inside a device

    def __new__(cls, type: str, index: int = 0) -> Self:
        self = super().__new__(cls, type if type == "cpu" else f"{type}:{index}")
        self.type = type
        self.index = index
        self.dlpack = DLPACK_CODES[type], index
        return self

    @property
    def is_host(self) -> bool:
        """True for memory that the CPU addresses."""
        return self.type == "cpu"

    def __reduce__(self) -> tuple[Any, ...]:
        return as_device, (str(self),)  # the host stays one object


CPU: Final = Device("cpu")


class _Numbered(dict[int, Device]):
    """The devices of one type by index, each made once: a look-up that fast paths can afford."""

    def __init__(self, type: str) -> None:
        super().__init__()
        self.type = type

    def __missing__(self, index: int) -> Device:
        self[index] = made = Device(self.type, index)
        return made


#: CUDA's devices by index.
CUDA_DEVICES: Final = _Numbered("cuda")


@lru_cache(maxsize=256)
def _parse(text: str) -> Device:
    name, colon, index = text.partition(":")
    name = _SYNONYMS.get(name, name)
    if name not in DLPACK_CODES or (colon and not index.isdecimal()):
        msg = f"unknown device {text!r}: write 'cpu', 'cuda' or 'cuda:0' (known types: {', '.join(DLPACK_CODES)})"
        raise DeviceUnavailableError(msg)
    if name == "cpu":
        return CPU
    return Device(name, int(index or 0))


def as_device(device: Any) -> Device:
    """The `Device` that ``device`` names.

    Takes text ("cuda:1"), a (DLPack type, id) pair, and the device objects of torch, CuPy, JAX and
    of the array API.  Raises `DeviceUnavailableError` for what names none; whether the device is
    present is not asked here.
    """
    if isinstance(device, Device):
        return device
    if isinstance(device, str):
        return _parse(device)
    if isinstance(device, tuple):
        try:
            code, index = (operator.index(number) for number in device)
        except (TypeError, ValueError):
            msg = f"unknown device {device!r}: a pair is (DLPack device type, device id), as in (2, 0)"
            raise DeviceUnavailableError(msg) from None
        return device_of_dlpack(code, index)
    if type(device).__module__.partition(".")[0] == "cupy":  # cupy.cuda.Device
        return Device("cuda", int(device.id))
    # torch.device says type and index, jax.Device platform and local_hardware_id
    kind = getattr(device, "type", None) or getattr(device, "platform", None)
    if not isinstance(kind, str):
        return _parse(str(device))
    index = getattr(device, "index", None) or getattr(device, "local_hardware_id", None) or 0
    return _parse(kind if kind == "cpu" else f"{kind}:{index}")


@lru_cache(maxsize=256)
def device_of_dlpack(code: int, index: int) -> Device:
    """The `Device` of a DLPack pair; page-locked host memory is "cpu", managed memory its CUDA device."""
    name = _TYPE_OF_CODE.get(int(code))
    if name is None or not -1 < int(index) < 2**31:
        msg = f"unknown DLPack device ({code}, {index}): known type codes are {sorted(_TYPE_OF_CODE)}, ids count from 0"
        raise DeviceUnavailableError(msg)
    return CPU if name == "cpu" else Device(name, int(index))
