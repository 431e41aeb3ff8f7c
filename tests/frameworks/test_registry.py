"""Finding frameworks: names, modules, plug-ins, what is missing or broken."""

from __future__ import annotations

import importlib.metadata
import sys
import types
from collections.abc import Iterator
from typing import Any

import array_api_compat.torch
import jax.numpy
import numpy as np
import pyarrow as pa
import pytest
import torch

from frameworks.toy import ToyFramework, ToyTensor
from matrix_interop import (
    DeviceUnavailableError,
    FrameworkNotInstalledError,
    TensorView,
    UnknownFrameworkError,
    convert,
    frameworks,
    from_tensor,
    register_framework,
)
from matrix_interop.devices import Device
from matrix_interop.frameworks import registry


@pytest.fixture
def own_registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a test registers ends with it."""
    monkeypatch.setattr(registry, "_registered", dict(registry._registered))
    yield
    registry._by_type.clear()
    for name in [name for name in registry._adapters if name.startswith("x_")]:
        del registry._adapters[name]


@pytest.mark.parametrize(
    ("named", "name"),
    [
        ("numpy", "numpy"),
        (np, "numpy"),
        (torch, "torch"),
        (jax, "jax"),
        (jax.numpy, "jax"),
        (pa, "pyarrow"),
        (array_api_compat.torch, "torch"),
        ("toy", "toy"),
    ],
)
def test_by_name_or_module(named: Any, name: str) -> None:
    """A framework is named by its name, its module, its array namespace or array_api_compat's."""
    assert registry.framework(named).name == name
    assert TensorView(convert(np.ones((2, 2), np.float32), named)).framework == name


@pytest.mark.parametrize(
    "named",
    [
        "nope",
        "",
        "NumPy",
        "protocols",
        [1],
        {},
        5,
        np.ndarray,
        object(),
        types.SimpleNamespace(__name__=[]),
    ],
    ids=lambda x: x if isinstance(x, str) else type(x).__name__,
)
def test_unknown_names_list_the_known(named: Any) -> None:
    """The message quotes what was written and lists the known and the installed frameworks."""
    with pytest.raises(
        UnknownFrameworkError,
        match=r"known are array_api_strict, cuda.core, cupy, .*, torch, toy; installed here: ",
    ) as caught:
        from_tensor(np.ones((2, 2))).to_tensor(named)
    written = named if isinstance(named, str) else getattr(named, "__name__", None) or named
    assert str(written) in str(caught.value)
    assert "cupy" not in str(caught.value).partition("installed here")[2]
    for as_builtin in (TypeError, ValueError):
        assert isinstance(caught.value, as_builtin)


def test_like_something_that_is_no_tensor() -> None:
    """A model without any protocol is refused by its type."""
    for model in (5, object(), types.SimpleNamespace()):
        with pytest.raises(UnknownFrameworkError, match=type(model).__name__):
            convert(np.ones(2), like=model)


def test_not_installed() -> None:
    """A known framework that is not here says how to install it."""
    with pytest.raises(
        FrameworkNotInstalledError, match=r"cupy is not installed.*pip install 'matrix-interop\[cupy"
    ) as caught:
        convert(np.ones(2), "cupy")
    assert isinstance(caught.value, ImportError)
    assert caught.value.name == "cupy"


@pytest.mark.usefixtures("own_registry")
def test_a_broken_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plug-in that fails to load is reported where it is asked for, and stands in nobody else's way."""

    class Broken(ToyFramework):
        name = "x_broken"

        def __init__(self) -> None:
            raise RuntimeError("no driver")

    register_framework("x_broken", Broken)
    with pytest.raises(FrameworkNotInstalledError, match=r"x_broken does not import here \(RuntimeError: no driver\)"):
        convert(np.ones(2), "x_broken")
    info = next(info for info in frameworks() if info.name == "x_broken")
    assert (info.installed, info.loaded, info.devices) == (True, False, ())
    assert info.problem is not None
    assert "no driver" in info.problem

    class Unheard:
        __array_interface__ = np.ones((2, 2)).__array_interface__

    assert from_tensor(Unheard()).framework == "numpy"


@pytest.mark.usefixtures("own_registry")
def test_registered_ones_are_asked_first() -> None:
    """A plug-in may own a subclass of a built-in framework's tensor; an instance registers like a class."""

    class Tagged(np.ndarray):
        pass

    class TaggedFramework(ToyFramework):
        name = "x_tagged"

        def owns(self, x: Any) -> bool:
            return isinstance(x, Tagged)

        def view(self, x: Any, fill: Any = None) -> TensorView:
            return TensorView.of(x.view(np.ndarray), self.name, x)

    x = np.ones((2, 2)).view(Tagged)
    assert TensorView(x).framework == "numpy"
    register_framework("x_tagged", TaggedFramework())
    assert TensorView(x).framework == "x_tagged"
    assert TensorView(np.ones(2)).framework == "numpy"


@pytest.mark.parametrize("adapter", [object(), int, None, np])
def test_only_adapters_register(adapter: Any) -> None:
    """Anything but a Framework is refused, and so is an adapter under another name than its own."""
    with pytest.raises(UnknownFrameworkError, match="subclass"):
        register_framework("x_none", adapter)
    with pytest.raises(UnknownFrameworkError, match="toy"):
        register_framework("x_other", ToyFramework)


@pytest.mark.usefixtures("own_registry")
def test_entry_points(monkeypatch: pytest.MonkeyPatch) -> None:
    """A package adds a framework through the entry-point group; it loads once its module is imported."""

    class Plugged(ToyFramework):
        name = "x_plugged"

    module = types.ModuleType("x_plugged")
    module.Adapter = Plugged  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "x_plugged", module)
    entry = importlib.metadata.EntryPoint("x_plugged", "x_plugged:Adapter", "matrix_interop.frameworks")
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [entry])
    registry._entry_points.cache_clear()
    try:
        assert registry.framework("x_plugged").name == "x_plugged"
        assert any(info.name == "x_plugged" and info.loaded for info in frameworks())
    finally:
        registry._entry_points.cache_clear()


def test_frameworks_lists_all() -> None:
    """Every known framework with version, whether installed and loaded, and devices; absent ones too."""
    listed = {info.name: info for info in frameworks(load=True)}
    assert {"cupy", "jax", "numpy", "pyarrow", "torch", "toy"} <= set(listed)
    assert (listed["numpy"].version, listed["numpy"].installed, listed["numpy"].loaded) == (np.__version__, True, True)
    assert listed["torch"].version == torch.__version__
    assert {listed[name].devices[0] for name in ("numpy", "torch", "jax", "toy")} == {"cpu"}
    assert (listed["cupy"].installed, listed["cupy"].version, listed["cupy"].devices) == (False, None, ())
    assert [listed[name].problem for name in ("cupy", "jax", "numpy", "pyarrow", "torch", "toy")] == [None] * 6


def test_types_made_at_run_time_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache of types forgets rather than grows; finding goes on working."""
    monkeypatch.setattr(registry, "_TYPES_KEPT", 8)
    for _ in range(20):
        kind = type("Passing", (ToyTensor,), {})
        assert from_tensor(kind(memoryview(bytearray(16)), "float32", (2, 2))).framework == "toy"
    assert len(registry._by_type) <= 8


def test_a_package_that_is_no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """A parent module that cannot say where it came from holds no framework, and breaks nothing."""
    monkeypatch.setitem(sys.modules, "numba", types.ModuleType("numba"))
    listed = {info.name: info for info in frameworks()}
    assert (listed["numba.cuda"].installed, listed["numba.cuda"].problem) == (False, None)


@pytest.mark.usefixtures("own_registry")
def test_a_broken_plugin_owns_no_device_memory() -> None:
    """Device memory that nobody chose a framework for goes to the next one; where none takes it, what to install."""

    class Broken(ToyFramework):
        name = "x_devices"

        def __init__(self) -> None:
            raise RuntimeError("no driver")

    register_framework("x_devices", Broken)
    assert registry.device_framework("cuda").name == "torch"
    with pytest.raises(FrameworkNotInstalledError, match="no framework here holds vulkan memory"):
        registry.device_framework("vulkan")


@pytest.mark.parametrize(
    "call",
    [
        lambda toy, view: toy.wrap_device(view),
        lambda toy, view: toy.current_stream(view.device),
        lambda toy, view: toy.empty((2, 2), view.dtype, view.device),
        lambda toy, view: toy.from_host(view.header, view.device),
        lambda toy, view: toy.to_host(view.native),
        lambda toy, view: toy.copy(view.native, view.dtype, "C"),
    ],
)
def test_a_framework_without_devices(call: Any) -> None:
    """An adapter that brings none of the methods for devices says so by name, and sees the host alone."""
    toy = registry.framework("toy")
    view = TensorView.of(np.ones((2, 2), np.float32), "toy", None, Device("cuda", 0))
    with pytest.raises(DeviceUnavailableError, match="toy"):
        call(toy, view)
    assert (toy.devices(), toy.current_device(), toy.capsule(view.native)) == (("cpu",), "cpu", None)


def test_an_interface_without_a_stream_is_not_offered() -> None:
    """Where the framework has no stream to name, the CUDA array interface would be a promise that nobody keeps."""
    view = TensorView.of(np.ones((2, 2), np.float32), "toy", None, Device("cuda", 0))
    assert not hasattr(view, "__cuda_array_interface__")
