"""What moves bytes and orders work: one `Runtime` for each type of device, loaded when first asked for."""

from __future__ import annotations

import threading
from importlib import import_module
from typing import TYPE_CHECKING, Final

from matrix_interop.errors import DeviceUnavailableError
from matrix_interop.runtime.base import Pointer, Runtime, VirtualMemory

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Pointer", "Runtime", "VirtualMemory", "get_runtime", "is_served", "register_runtime", "running_runtimes"]

#: Device type -> module with a function ``load() -> Runtime``.
_MODULES: Final = {"cuda": "matrix_interop.runtime.cuda"}

_loaders: dict[str, Callable[[], Runtime]] = {}
_loaded: dict[str, Runtime] = {}
#: Why a runtime is absent. Looking for a driver costs a search of the library path, so the answer is kept.
_absent: dict[str, str] = {}
_lock = threading.Lock()


def get_runtime(device_type: str) -> Runtime:
    """The runtime that serves a device type ("cuda").

    Raises `DeviceUnavailableError` when no runtime serves the type, or when its driver, library or devices are absent.
    """
    return _loaded.get(device_type) or _load(device_type)


def is_served(device_type: str) -> bool:
    """True where a runtime is known for the type, whether it starts or not; elsewhere frameworks copy by themselves."""
    return device_type in _MODULES or device_type in _loaders


def running_runtimes() -> tuple[Runtime, ...]:
    """The runtimes that this process uses already; starts none."""
    return tuple(_loaded.values())


def register_runtime(device_type: str, load: Callable[[], Runtime]) -> None:
    """Let ``load()`` give the runtime of a device type when it is first asked for, in place of any other."""
    with _lock:
        _loaders[device_type] = load
        _loaded.pop(device_type, None)
        _absent.pop(device_type, None)


def _load(device_type: str) -> Runtime:
    with _lock:
        if device_type in _loaded:
            return _loaded[device_type]
        if device_type in _absent:
            raise DeviceUnavailableError(_absent[device_type])
        try:
            _loaded[device_type] = runtime = _loader(device_type)()
        except DeviceUnavailableError as error:
            _absent[device_type] = str(error)
            raise
        return runtime


def _loader(device_type: str) -> Callable[[], Runtime]:
    if device_type in _loaders:
        return _loaders[device_type]
    if device_type not in _MODULES:
        served = ", ".join(sorted({*_MODULES, *_loaders}))
        msg = f"no runtime serves devices of type {device_type!r} (served: {served}); register_runtime() adds one"
        raise DeviceUnavailableError(msg)
    load: Callable[[], Runtime] = import_module(_MODULES[device_type]).load
    return load
