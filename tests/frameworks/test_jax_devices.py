"""JAX on devices, over its stand-in: the C function behind `from_dlpack`, which device is meant, deleted arrays."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from frameworks.standins import adapter, on_cuda
from gpu.test_exchange import make, pointer, read
from matrix_interop import DeviceUnavailableError, UnsupportedTensorError, convert, from_tensor
from matrix_interop.devices import CUDA_DEVICES


@pytest.fixture(autouse=True)
def jax() -> Iterator[Any]:
    """JAX's stand-in on two simulated devices, where no array was tried yet."""
    with on_cuda(0):
        adapter("jax")._importer.cache_clear()
        yield sys.modules["jax"]
        adapter("jax")._importer.cache_clear()


def numbers() -> np.ndarray:
    """Distinct values."""
    return np.arange(1, 25, dtype=np.float32).reshape(4, 6)


def use(jax: Any, monkeypatch: pytest.MonkeyPatch, function: Callable[..., Any]) -> None:
    """Put ``function`` in the place of JAX's own, where the adapter looks for it; `jax.dlpack` keeps its own."""
    monkeypatch.setattr(jax._src.lib, "_jax", SimpleNamespace(dlpack_managed_tensor_to_buffer=function))


def test_what_the_c_function_is_told(jax: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each device is tried once. An import names the device, the stream that was made ready, no copy, CUDA's code."""
    calls, named, name_stream = list[Any](), list[int](), jax.Device.get_stream_for_external_ready_events

    def imported(capsule: Any, *rest: Any) -> Any:
        calls.append(rest)
        return jax._imported(capsule, *rest)

    def streams(device: Any) -> int:
        named.append(name_stream(device))
        return named[-1]

    use(jax, monkeypatch, imported)
    monkeypatch.setattr(jax.Device, "get_stream_for_external_ready_events", streams)
    for ordinal in (0, 1):
        x = make("torch", numbers(), ordinal)
        for tries in (1, 0, 0):
            calls.clear()
            made = convert(x, "jax")
            assert (pointer(made), made.devices()) == (pointer(x), {jax.Device(ordinal)})
            assert np.array_equal(read(made), numbers())
            assert len(calls) == tries + 1
            assert calls[-1] == (jax.Device(ordinal), named[-1], False, 2)


def gone(*_: Any) -> Any:
    """A function that is not there."""
    raise AttributeError("gone")


def other_arguments(capsule: Any, device: Any, stream: int, copy: Any) -> Any:
    """One of an older jaxlib."""


def elsewhere(capsule: Any, *rest: Any) -> Any:
    """A copy."""
    return sys.modules["jax"]._imported(capsule, *rest).apply(np.copy)


def uncommitted(capsule: Any, *rest: Any) -> Any:
    """An array that JAX would move to another device by itself."""
    made = sys.modules["jax"]._imported(capsule, *rest)
    made.committed = False
    return made


def wrong_device(capsule: Any, device: Any, *rest: Any) -> Any:
    """An array said to be on the other device."""
    made = sys.modules["jax"]._imported(capsule, device, *rest)
    made.ordinal = 1 - made.ordinal
    return made


@pytest.mark.parametrize("surprise", [gone, other_arguments, elsewhere, uncommitted, wrong_device])
def test_the_public_function_serves_all_the_same(
    jax: Any, monkeypatch: pytest.MonkeyPatch, surprise: Callable[..., Any]
) -> None:
    """Where the C function is missing or makes another array, it is not used."""
    use(jax, monkeypatch, surprise)
    x = make("torch", numbers(), 1)
    made = convert(x, "jax")
    assert adapter("jax")._importer(CUDA_DEVICES[1]) is jax.dlpack.from_dlpack
    assert (pointer(made), made.devices(), made.committed) == (pointer(x), {jax.Device(1)}, True)


def test_devices_by_their_number(jax: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """JAX may have been shown some devices only: their place in its list means nothing."""
    monkeypatch.setattr(jax, "local_devices", lambda *, backend: jax.devices(backend)[1:])
    m = from_tensor(numbers()).to_device("cuda:1", framework="jax")
    assert (m.array.devices(), read(m.array).tolist()) == ({jax.Device(1)}, numbers().tolist())
    with pytest.raises(DeviceUnavailableError, match="jax sees no cuda:0, only cuda:1"):
        from_tensor(numbers()).to_device("cuda:0", framework="jax")


def test_a_deleted_array_is_asked_nothing(jax: Any) -> None:
    """Whether it is ready must not be asked: that ends the process."""
    x = make("jax", numbers())
    x.deleted = True
    with pytest.raises(UnsupportedTensorError, match="deleted"):
        from_tensor(x)
