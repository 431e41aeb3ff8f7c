"""Stand-ins for frameworks on CUDA, for machines without a GPU: torch, CuPy, JAX and Numba over the simulated device.

Each file says which facts of the real one it copies; ``tests/gpu`` proves them, by the same tests, on the real one.
cuda.core needs no stand-in: it describes memory without touching it, so the real one runs here.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import array_api_compat  # noqa: F401  so that a namespace can be put into it

from matrix_interop.frameworks import registry
from matrix_interop.memory import PinnedArena, use_arena
from matrix_interop.runtime import cuda, register_runtime
from simulated import lateframe
from simulated.adapter import assert_all_is_back
from simulated.runtime import SimulatedRuntime

NAMES = ("torch", "cupy", "jax", "numba")
#: What reads the frameworks, and so is loaded anew over them.
_READERS = (
    *(f"matrix_interop.frameworks.{name}" for name in NAMES),
    *(f"array_api_compat.cupy{part}" for part in ("", "._aliases", "._info", "._typing", ".linalg", ".fft")),
)
_ABSENT: Any = object()
#: The adapters over them, by the names of the registry; cuda.core's is that of the real one.
_OVER = ("torch", "cupy", "jax", "numba.cuda")
#: Stand-ins, their submodules and readers once loaded; the adapters.
_kept: dict[str, ModuleType] = {}
_adapters: dict[str, registry.Framework] = {}


@contextmanager
def on_cuda(seed: int, devices: int = 2) -> Iterator[SimulatedRuntime]:
    """Simulated devices in the place of CUDA's, and all stand-ins in the place of their frameworks.

    At the end every event and every block of pinned memory must be back.
    """
    runtime = lateframe.use(SimulatedRuntime(seed, devices))
    register_runtime("cuda", lambda: runtime)
    adapters = dict(registry._adapters)
    _forget(registry._adapters, registry._by_type)
    try:
        with use_arena(PinnedArena(64 << 20, runtime=runtime, staging_bytes=16 << 20)) as arena, _stood_in():
            yield runtime
            assert_all_is_back(runtime, arena)
    finally:
        register_runtime("cuda", cuda.load)
        _forget(registry._adapters, registry._by_type)
        registry._adapters.update(adapters)


def _forget(*tables: dict[Any, Any]) -> None:
    for table in tables:
        table.clear()


@contextmanager
def _stood_in() -> Iterator[None]:
    """The stand-ins in `sys.modules`, and what was there before put back. They are loaded once."""
    for name in NAMES:
        if name not in _kept:
            _kept[name] = _loaded(name)
            _kept.update(_kept[name].SUBMODULES)
        _kept[name]._streams.current.clear()
    names = {*_kept, *_READERS}
    outside = [name for name in names if "." in name and name.rpartition(".")[0] not in names]
    attributes = {name: _attribute(name) for name in outside}
    before = {name: sys.modules.pop(name, _ABSENT) for name in names}
    sys.modules.update(_kept)
    for name in outside:
        _set_attribute(name, _kept.get(name, _ABSENT))
    registry._adapters.update(_adapters)
    try:
        yield
    finally:
        _adapters.update({name: registry._adapters[name] for name in _OVER if name in registry._adapters})
        _kept.update({name: sys.modules[name] for name in _READERS if name in sys.modules})
        for name, module in before.items():
            if module is _ABSENT:
                sys.modules.pop(name, None)
            else:
                sys.modules[name] = module
        for name, module in attributes.items():
            _set_attribute(name, module)


def _loaded(name: str) -> ModuleType:
    """The file of that name beside this one, run anew under the name of the framework."""
    spec = spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[name], before = module, sys.modules.get(name, _ABSENT)
    try:
        spec.loader.exec_module(module)
    finally:
        if before is _ABSENT:
            del sys.modules[name]
        else:
            sys.modules[name] = before
    return module


def _attribute(name: str) -> Any:
    """What the parent package calls by that name."""
    parent, _, child = name.rpartition(".")
    return getattr(sys.modules.get(parent), child, _ABSENT)


def _set_attribute(name: str, module: Any) -> None:
    parent, _, child = name.rpartition(".")
    package = sys.modules.get(parent)
    if package is None:
        return
    if module is not _ABSENT:
        setattr(package, child, module)
    elif hasattr(package, child):
        delattr(package, child)


def adapter(name: str) -> ModuleType:
    """The module of an adapter over its stand-in."""
    return importlib.import_module(f"matrix_interop.frameworks.{name}")
