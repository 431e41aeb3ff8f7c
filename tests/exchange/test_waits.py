"""Waits that matter only on some machines, or where memory belongs to another stream than the current one."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from frameworks.standins import on_cuda
from matrix_interop import from_tensor
from matrix_interop.devices import Device
from matrix_interop.matrix import Matrix
from matrix_interop.memory import default_arena
from simulated import lateframe
from simulated.adapter import exchange_on

SEEDS = range(3)


def numbers(shape: tuple[int, ...] = (7, 5)) -> np.ndarray:
    """Distinct values."""
    return np.arange(1, np.prod(shape) + 1, dtype=np.float32).reshape(shape)


def late(values: np.ndarray) -> lateframe.Array:
    """A device array that a slow kernel fills; until then it holds something else."""
    return lateframe.copy_late(lateframe.empty(values.shape, values.dtype), lateframe.array(values))


@pytest.mark.parametrize("seed", SEEDS)
def test_rows_gathered_where_the_device_writes_ordinary_memory(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """On coherent machines the device fills the new matrix itself, and `from_rows` returns once it has."""
    long = numbers((3 << 17,))
    with exchange_on(seed) as device:
        monkeypatch.setattr(device, "reads_pageable", lambda ordinal: True)
        made = Matrix.from_rows([late(long), late(-long)])
        assert np.array_equal(np.asarray(made), np.stack([long, -long]))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_source_is_kept_while_another_device_reads_it(seed: int) -> None:
    """Its allocator, which works on another stream than the current one, does not give it to others meanwhile."""
    with exchange_on(seed) as device:
        default_arena().release(default_arena().block(1))  # an arena's first block waits for all there is
        home, side = lateframe.current_stream(0), lateframe.new_stream(0)
        x = late(numbers())
        lateframe.order(home, side, 0)
        with lateframe.stream(side, 0):
            moved = from_tensor(x).to_device("ext:1")
        del x
        device.run_all_but(side)
        assert np.array_equal(moved.array.numpy(), numbers())


@pytest.mark.parametrize("seed", SEEDS)
def test_jax_is_done_with_new_memory(seed: int) -> None:
    """JAX shows no stream: nothing is written to memory that it gives out before its own work with it is done."""
    with on_cuda(seed) as device:
        default_arena().release(default_arena().block(1))  # an arena's first block waits for all there is
        jax: Any = sys.modules["jax"]
        freed = jax.device_put(numbers(), jax.devices()[0])
        own = freed.streams.of(0)
        device.launch(lambda: None, ordinal=0, stream=own, ticks=50)
        del freed  # used late, and taken next
        moved = from_tensor(numbers()).to_device("cuda:0", framework="jax")
        device.run_all_but(own)
        assert np.array_equal(np.asarray(moved.array), numbers())


def test_dpnp_is_asked_to_finish(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its queues are no streams: whoever asks for the current one hears of none, once the default queue is done."""
    done: list[str] = []

    def empty(shape: int, device: str) -> Any:
        return SimpleNamespace(sycl_queue=SimpleNamespace(wait=lambda: done.append(device)))

    for name in ("dpctl", "dpnp"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setattr(sys.modules["dpnp"], "empty", empty, raising=False)
    monkeypatch.delitem(sys.modules, "matrix_interop.frameworks.dpnp", raising=False)
    adapter = importlib.import_module("matrix_interop.frameworks.dpnp")
    monkeypatch.setattr(adapter, "_sycl", str)
    assert (adapter.DpnpFramework().current_stream(Device("oneapi", 0)), done) == (-1, ["oneapi:0"])
    del sys.modules["matrix_interop.frameworks.dpnp"]
