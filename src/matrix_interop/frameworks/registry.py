"""The frameworks: what an adapter is, the table of them, and finding the one that owns a tensor.

An adapter is one class in one file, every quirk of its framework inside.  Adding one takes that
file and either a line in `_BUILT_IN` or `register_framework` / an entry point of the group
``matrix_interop.frameworks``.  No framework is imported because it exists: an adapter is loaded
when its framework already is, or when the user names it.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, ClassVar, Final, Literal, cast

import numpy as np

from matrix_interop.devices import CPU, Device
from matrix_interop.errors import DeviceUnavailableError, FrameworkNotInstalledError, UnknownFrameworkError
from matrix_interop.reasons import Obstacle
from matrix_interop.view import TensorView

__all__ = [
    "Framework",
    "FrameworkInfo",
    "device_framework",
    "framework",
    "frameworks",
    "read",
    "register_framework",
]


Order = Literal["C", "F"]


class Framework(ABC):
    """Adapter of one framework. On the host tensors pass through NumPy arrays that share their memory."""

    #: The name it is imported by.
    name: ClassVar[str]
    #: Device types that its tensors can live on, the preferred one first.
    device_types: ClassVar[tuple[str, ...]] = ("cpu",)
    #: The only memory order it can describe, or None where it describes strides.
    only_order: ClassVar[str | None] = None
    #: The fewest axes that its tensors have.
    least_ndim: ClassVar[int] = 0
    #: True where its tensors can be copied and computed with on a device.
    computes: ClassVar[bool] = True
    #: True where `wrap_device` itself waits for the data, on a stream that only the framework knows.
    orders_itself: ClassVar[bool] = False

    # Reading -----------------------------------------------------------------------------------
    @abstractmethod
    def owns(self, x: Any) -> bool:
        """True if ``x`` is this framework's tensor; called once for each type, the answer is kept."""

    @abstractmethod
    def view(self, x: Any, fill: Any = None) -> TensorView:
        """The memory of ``x``, shared and untouched. ``fill``: value for masked or null entries.

        Raises `UnsupportedTensorError`, `UnsupportedDtypeError` or `UnsupportedLayoutError`.
        """

    # Sharing -----------------------------------------------------------------------------------
    @abstractmethod
    def refusal(self, dtype: np.dtype[Any]) -> str | None:
        """Why no tensor of this framework can hold ``dtype``, with the way out; None if it can."""

    @abstractmethod
    def obstacle(self, header: np.ndarray, *, share_readonly: bool = False) -> Obstacle | None:
        """Why memory of a `dtype` that is not refused cannot be shared as it lies; None if it can."""

    @abstractmethod
    def wrap(self, header: np.ndarray) -> Any:
        """A tensor over that host memory, which it keeps alive. Called only where `obstacle` found none."""

    def quick(self, header: np.ndarray, share_readonly: bool = False) -> Any:
        """A tensor over host memory, or None where something may be in the way: the fast path asks no reasons."""
        if (
            "cpu" not in self.device_types
            or self.refusal(header.dtype) is not None
            or self.obstacle(header, share_readonly=share_readonly) is not None
        ):
            return None
        return self.wrap(header)

    @abstractmethod
    def alias(self, native: Any) -> Any:
        """A second tensor object over the memory of ``native``, outside any graph."""

    def item(self, native: Any, key: Any) -> Any:
        """``native[key]`` as a view, for an int or a slice; None where the framework has no such view."""
        return native[key]

    # Computing ---------------------------------------------------------------------------------
    def namespace(self) -> ModuleType:
        """Its array-API namespace."""
        return np

    # Devices: the host needs none of these -----------------------------------------------------
    def fits(self, view: TensorView, share_readonly: bool = False) -> bool:
        """True where nothing is in the way of sharing device memory; False where something may be: no reasons asked."""
        return self.refusal(view.dtype) is None and not self.obstacle(view.header, share_readonly=share_readonly)

    def capsule(self, native: Any) -> Any:
        """Its own DLPack capsule of a device tensor as it lies, nothing waited for; None where it has no cheap one."""
        return None

    def wrap_device(self, view: TensorView) -> Any:
        """A tensor over the device memory of ``view``, which it keeps. Called only where `obstacle` found none."""
        raise DeviceUnavailableError(f"{self.name} has no tensors on {view.device}")

    def devices(self) -> tuple[Device, ...]:
        """The devices it sees now."""
        return (CPU,)

    def current_device(self) -> Device:
        """The device on which its next tensor is made by default; the host only where it sees no other."""
        return next((device for device in self.devices() if not device.is_host), CPU)

    def current_stream(self, device: Device) -> int:
        """Handle of the stream that its next operation on ``device`` runs on; 1 for the legacy default stream."""
        raise DeviceUnavailableError(f"{self.name} has no streams on {device}")

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any], device: Device) -> Any:
        """New uninitialised device memory of its own allocator, dense rows, on its current stream."""
        raise DeviceUnavailableError(f"{self.name} allocates no memory on {device}")

    def from_host(self, array: np.ndarray, device: Device) -> Any:
        """A copy of host values in device memory, done on return: asked for only where no runtime serves the device."""
        raise DeviceUnavailableError(f"no runtime serves {device}, and {self.name} copies nothing there by itself")

    def to_host(self, native: Any) -> np.ndarray:
        """A host copy of a device tensor, done on return: asked for only where no runtime serves the device."""
        raise DeviceUnavailableError(f"no runtime serves this device, and {self.name} copies nothing to the host")

    def written(self, native: Any, stream: int, device: Device) -> Any:
        """The tensor to hand out for memory of `empty` that was written on ``stream``, its current one."""
        return native

    def copy(self, native: Any, dtype: np.dtype[Any], order: Order) -> Any:
        """The values of a device tensor in new memory of its own, on its current stream."""
        raise DeviceUnavailableError(f"{self.name} computes nothing on a device")

    def keep_until(self, native: Any, stream: int, device: Device) -> None:
        """Tell its allocator that ``stream`` reads ``native``, where it has such a call."""


#: Import name -> adapter, in order of preference for new device memory.
_BUILT_IN: Final[dict[str, str]] = {
    "numpy": "matrix_interop.frameworks.numpy:NumpyFramework",
    "torch": "matrix_interop.frameworks.torch:TorchFramework",
    "cupy": "matrix_interop.frameworks.cupy:CupyFramework",
    "jax": "matrix_interop.frameworks.jax:JaxFramework",
    "dpnp": "matrix_interop.frameworks.dpnp:DpnpFramework",
    "numba.cuda": "matrix_interop.frameworks.numba:NumbaFramework",
    "cuda.core": "matrix_interop.frameworks.cuda_core:CudaCoreFramework",
    "pyarrow": "matrix_interop.frameworks.pyarrow:ArrowFramework",
    "array_api_strict": "matrix_interop.frameworks.array_api_strict:StrictFramework",
}
#: What to install for those.
_EXTRAS: Final = {
    "array_api_strict": "array-api-strict",
    "cuda.core": "cuda-core",
    "cupy": "cupy-cuda13",
    "numba.cuda": "numba-cuda",
}
#: Those that may own new device memory which nobody chose a framework for, the preferred one first.
_OWNERS: Final = ("torch", "cupy", "jax", "dpnp")
_GROUP: Final = "matrix_interop.frameworks"
#: What stands for the framework of device memory that none here can hold: it can be moved all the same.
NOBODY: Final = "no framework"

_lock = threading.RLock()
_registered: dict[str, Framework | type[Framework]] = {}  # from register_framework
_adapters: dict[str, Framework] = {}  # loaded
_by_type: dict[type, Framework] = {}  # exact types already met; read without the lock, as dict look-ups are atomic
_TYPES_KEPT: Final = 4096  # classes made at run time must not pile up


def register_framework(name: str, adapter: Framework | type[Framework]) -> None:
    """Add a framework, or replace one: ``adapter`` is a `Framework` subclass or an instance of one.

    The adapter is asked for tensors of types not met before, ahead of the built-in ones.
    """
    if not issubclass(adapter if isinstance(adapter, type) else type(adapter), Framework):
        msg = f"cannot register {adapter!r} as {name!r}: write a subclass of matrix_interop.Framework"
        raise UnknownFrameworkError(msg)
    own = getattr(adapter, "name", None)
    if own != name:
        raise UnknownFrameworkError(f"cannot register {adapter!r} as {name!r}: its own name is {own!r}")
    with _lock:
        _registered[name] = adapter
        _adapters.pop(name, None)
        _by_type.clear()


def framework(which: Any) -> Framework:
    """The adapter named ``which``: a name or the module itself; its framework is imported if need be.

    Raises `UnknownFrameworkError` (listing the known and the installed) and `FrameworkNotInstalledError`.
    """
    name = which if isinstance(which, str) else getattr(which, "__name__", None)
    if not isinstance(name, str) or not name:
        name = repr(which)
    adapter = _adapters.get(name)
    return adapter if adapter is not None else _load(_import_name(name, which))


#: The adapters that are loaded, by name, for fast paths: only to be looked up.
adapter_of_name: Final[Mapping[str, Framework]] = _adapters
#: The adapter of that name if it is loaded, else None.
loaded_framework: Final = _adapters.get


def _import_name(name: str, which: Any) -> str:
    """The registered name behind ``jax.numpy``, ``cuda.core.cu13``, ``array_api_compat.torch`` and the like."""
    known = _known()
    if name not in known and isinstance(which, ModuleType):
        parts = name.split(".")
        for end in range(len(parts) - 1, 0, -1):
            if (package := ".".join(parts[:end])) in known:
                return package
        if parts[0] == "array_api_compat" and parts[-1] in known:
            return parts[-1]
    return name


def _known() -> dict[str, Any]:
    """Every framework by name: registered at run time, built in, from entry points."""
    return {**_entry_points(), **_BUILT_IN, **_registered}


@cache
def _entry_points() -> dict[str, Any]:
    from importlib.metadata import entry_points  # slow to import, and needed only for an unknown type or name

    return {entry.name: entry for entry in entry_points(group=_GROUP)}


def _load(name: str) -> Framework:
    with _lock:
        adapter = _adapters.get(name)
        if adapter is not None:
            return adapter
        if name == NOBODY:
            from matrix_interop.frameworks.protocols import PROTOCOLS

            return PROTOCOLS
        known = _known()
        if name not in known:
            here = ", ".join(sorted(n for n in known if _is_installed(n)))
            msg = f"unknown framework {name!r}: known are {', '.join(sorted(known))}; installed here: {here}"
            raise UnknownFrameworkError(msg)
        source = known[name]
        try:
            if isinstance(source, str):
                module, _, attribute = source.partition(":")
                source = getattr(importlib.import_module(module), attribute)
            elif hasattr(source, "load"):  # an entry point
                source = source.load()
            adapter = cast(Framework, source() if isinstance(source, type) else source)
        except Exception as error:  # a broken install raises anything
            why = (
                "is not installed"
                if not _is_installed(name)
                else f"does not import here ({type(error).__name__}: {error})"
            )
            extra = _EXTRAS.get(name, name)
            msg = f"{name} {why}; install it with: pip install 'matrix-interop[{extra}]'"
            raise FrameworkNotInstalledError(msg, name=name) from error
        _adapters[name] = adapter
        return adapter


def _is_imported(name: str) -> bool:
    return name in _registered or name in sys.modules


def _is_installed(name: str) -> bool:
    if _is_imported(name):
        return True
    try:
        spec = _spec(name)
    except (ImportError, ValueError):
        return False
    return spec is not None and spec.origin is not None  # a mere folder of that name is none


def _spec(name: str) -> ModuleSpec | None:
    """Where a module would be loaded from. importlib's own `find_spec` imports the parents of a dotted name."""
    parent, _, _ = name.rpartition(".")
    if not parent:
        return importlib.util.find_spec(name)
    package = _spec(parent)
    if package is None:
        return None
    found = (finder.find_spec(name, package.submodule_search_locations) for finder in sys.meta_path)
    return next((spec for spec in found if spec is not None), None)


#: The adapter of each exact type met before, for fast paths: only to be looked up.
adapter_of_type: Final[Mapping[type, Framework]] = _by_type


def read(x: Any, fill: Any = None) -> TensorView:
    """The `TensorView` of anything: by exact type, then by loaded framework, then by protocol."""
    adapter = _by_type.get(type(x))
    if adapter is None:
        if isinstance(x, TensorView):
            return x
        view = x._view if hasattr(type(x), "_view") else None  # asked of the type: instances may answer anything
        if isinstance(view, TensorView):  # a Matrix, which this room cannot import
            return view
        adapter = _find(x)
    return adapter.view(x, fill)


def _find(x: Any) -> Framework:
    """The adapter that owns ``x`` among frameworks already imported; else the one for protocols."""
    with _lock:
        known = _known()
        for name in (*_registered, *(name for name in known if name not in _registered)):
            if name in _registered or name in sys.modules:
                try:
                    adapter = framework(name)
                except FrameworkNotInstalledError:  # half imported or broken: not what x comes from
                    continue
                if adapter.owns(x):
                    break
        else:
            from matrix_interop.frameworks.protocols import PROTOCOLS

            return PROTOCOLS
        if len(_by_type) >= _TYPES_KEPT:
            _by_type.clear()
        _by_type[type(x)] = adapter
        return adapter


def own_capsule(view: TensorView) -> Any:
    """The capsule that the framework of a device view makes of its tensor, for a consumer that orders it; else None.

    NumPy's, of the view's header, costs 1.5 us more, and JAX 12: its deleter needs the interpreter's lock.
    """
    native, source = view.native, loaded_framework(view.framework)
    return None if native is None or source is None else source.capsule(native)


def device_framework(device_type: str) -> Framework:
    """Which framework owns device memory that nobody chose one for: the first imported, else the first installed.

    Order of preference: registered ones, then torch, CuPy, JAX.  Raises `FrameworkNotInstalledError` where none is.
    """
    names = [*_registered, *_OWNERS]
    for seen in (_is_imported, _is_installed):  # whether a module is installed takes long to find out
        for name in names:
            if not seen(name):
                continue
            try:
                found = _adapters.get(name) or framework(name)
            except FrameworkNotInstalledError:
                continue
            if device_type in found.device_types:
                return found
    what = f"no framework here holds {device_type} memory"
    msg = f"{what}: pip install 'matrix-interop[torch]' or 'matrix-interop[cupy-cuda13]'"
    raise FrameworkNotInstalledError(msg)


@dataclass(frozen=True, slots=True)
class FrameworkInfo:
    """One line of `frameworks`. ``loaded``: imported in this process; ``devices``: known only then.

    ``problem``: why it does not work although it is installed, else None.
    """

    name: str
    version: str | None
    installed: bool
    loaded: bool
    devices: tuple[Device, ...]
    problem: str | None


def frameworks(*, load: bool = False) -> tuple[FrameworkInfo, ...]:
    """Every known framework: version, whether installed and imported, devices, and what is wrong with it.

    Nothing is imported unless ``load``; devices are known only for loaded ones.  A broken install is
    reported in ``problem`` and raises nothing.
    """
    found = []
    for name in sorted(_known()):
        installed = _is_installed(name)
        problem: str | None = None
        devices: tuple[Device, ...] = ()
        if installed and (load or name in sys.modules or name in _registered):
            try:
                devices = framework(name).devices()
            except Exception as error:  # noqa: BLE001 - a broken install or driver raises anything
                problem = f"{type(error).__name__}: {error}"
        found.append(FrameworkInfo(name, _version(name), installed, name in sys.modules, devices, problem))
    return tuple(found)


def _version(name: str) -> str | None:
    module = sys.modules.get(name)
    if module is not None and isinstance(getattr(module, "__version__", None), str):
        return str(module.__version__)
    from importlib.metadata import PackageNotFoundError, packages_distributions, version

    try:
        return version(packages_distributions().get(name, [name.replace(".", "-")])[0])
    except PackageNotFoundError:
        return None
