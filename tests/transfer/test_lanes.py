"""Moves through pinned chunks: right values under any delay, bounded pinned memory, and nothing lost after an error."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from matrix_interop.devices import Device
from matrix_interop.errors import DeviceUnavailableError
from matrix_interop.memory import PinnedArena, use_arena
from matrix_interop.transfer import download, report_progress, start_download, transfer_setting, upload
from simulated.adapter import install
from simulated.runtime import SimulatedRuntime

DEVICE = Device("ext", 0)
F4 = np.dtype(np.float32)
SEEDS = range(8)
#: One lane in the caller, and several threads.
SPREADS = ({"lanes": 1, "chunk_bytes": 4096, "in_flight": 3}, {"lanes": 3, "chunk_bytes": 8192, "in_flight": 2})


@pytest.fixture(params=SEEDS)
def device(request: pytest.FixtureRequest) -> Iterator[SimulatedRuntime]:
    """A fresh device for each seed, and an arena over its pinned memory."""
    runtime = install(request.param)
    with use_arena(PinnedArena(1 << 24, runtime=runtime, upstream="host_alloc", decay_s=None)):
        yield runtime
    runtime.close()


@pytest.fixture(params=SPREADS, ids=["one lane", "three lanes"])
def spread(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Moves of any size are cut and spread."""
    monkeypatch.setattr("matrix_interop.transfer.lanes._SMALL", 0)
    with transfer_setting(**request.param):
        yield


def on_device(runtime: SimulatedRuntime, shape: tuple[int, ...], dtype: Any = F4) -> tuple[int, np.ndarray]:
    """Device memory filled with 0xff, and what the device sees there."""
    dtype = np.dtype(dtype)
    address = runtime.device_alloc(int(np.prod(shape)) * dtype.itemsize, 0)
    seen = runtime.array(address, shape, np.empty(shape, dtype).strides, dtype)
    seen.reshape(-1).view(np.uint8)[...] = 0xFF
    return address, seen


def numbers(shape: tuple[int, ...], dtype: Any = F4) -> np.ndarray:
    """Values that are all different as far as the type allows."""
    return np.arange(np.prod(shape)).reshape(shape).astype(dtype)


SOURCES = {
    "dense": lambda: numbers((250, 64)),
    "columns": lambda: np.asfortranarray(numbers((250, 64))),
    "padded": lambda: numbers((250, 70))[:, 3:67],
    "backwards": lambda: numbers((250, 64))[::-1, ::-1],
    "swapped": lambda: numbers((250, 64), ">f4"),
    "wide": lambda: numbers((250, 64), "f8"),
    "integers": lambda: numbers((250, 64), "i8"),
    "one long row": lambda: numbers((1, 16000))[:, ::1],
    "long strided rows": lambda: numbers((3, 12000))[:, ::2],
    "three axes": lambda: numbers((5, 50, 64)).transpose(1, 0, 2),
    "scalar": lambda: np.array(3.5, F4),
}


@pytest.mark.parametrize("name", SOURCES)
def test_upload(device: SimulatedRuntime, spread: None, name: str) -> None:
    """Any layout, byte order and type arrives as dense rows, and the source may be overwritten on return."""
    source = SOURCES[name]()
    expected = source.astype(F4)
    address, seen = on_device(device, source.shape)
    stream = device.stream_create(0)
    upload(source, address, F4, DEVICE, stream)
    source[...] = 0
    device.stream_synchronize(stream, 0)
    assert seen.tolist() == expected.tolist()


@pytest.mark.parametrize("name", SOURCES)
def test_download(device: SimulatedRuntime, spread: None, name: str) -> None:
    """Memory of any layout, byte order and type is filled when the call returns, with what the stream left."""
    out = SOURCES[name]()
    expected = out.astype(F4)
    out[...] = 0
    address, seen = on_device(device, out.shape)
    stream = device.stream_create(0)
    device.launch(lambda: np.copyto(seen, expected), ordinal=0, stream=stream, ticks=40)
    download(address, F4, out, DEVICE, stream)
    assert out.tolist() == expected.tolist()
    assert device.events_out() == 0
