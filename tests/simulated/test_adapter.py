"""matrix_interop on the simulated device: views, stream order and lifetimes hold for every seed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from matrix_interop.devices import Device
from matrix_interop.frameworks.registry import framework
from matrix_interop.view import TensorView
from simulated import lateframe
from simulated.adapter import install
from simulated.runtime import SimulatedRuntime


@pytest.fixture(params=range(20))
def device(request: pytest.FixtureRequest) -> SimulatedRuntime:
    """A fresh pair of devices for each seed."""
    return install(request.param)


def consume(view: TensorView, side: int) -> Any:
    """What another library does with a DLPack export for its stream."""
    return lateframe._from_capsule(view.__dlpack__(stream=side, max_version=(1, 1)))


def test_view_shares_and_knows_its_device(device: SimulatedRuntime) -> None:
    """Pointer, layout and device come from the array; nothing is queued to read them."""
    x = lateframe.empty((4, 6), np.float32, device=1)[::2, ::-1]
    calls = device.calls.total()
    view = TensorView(x)
    facts = view.pointer, view.shape, view.strides, view.dtype, view.device, view.framework
    assert facts == (x.pointer, (2, 6), (48, -4), np.float32, "ext:1", "lateframe")
    assert device.calls.total() == calls


def test_export_is_ready_on_the_consumers_stream(device: SimulatedRuntime) -> None:
    """A slow kernel on the producer's current stream is done before the consumer reads, on either device."""
    for ordinal in (0, 1):
        x, side = lateframe.empty((8,), np.int32, device=ordinal), lateframe.new_stream(ordinal)
        lateframe.fill_late(x, 5)
        y = consume(TensorView(x), side)
        with lateframe.stream(side, ordinal):
            assert (y.pointer, y.device, y.numpy().tolist()) == (x.pointer, x.device, [5] * 8)


def test_export_without_order_queues_nothing(device: SimulatedRuntime) -> None:
    """-1 asks for no order, and the producer's own stream needs none."""
    x = lateframe.empty((8,))
    for stream in (-1, lateframe.current_stream()):
        TensorView(x).__dlpack__(stream=stream)
    assert (device.calls["record"], device.calls["wait"]) == (0, 0)


def test_events_go_back_to_the_pool(device: SimulatedRuntime) -> None:
    """A thousand exports leave no event behind."""
    x, side = lateframe.empty((8,)), lateframe.new_stream()
    view = TensorView(x)
    for _ in range(1000):
        view.__dlpack__(stream=side)
    assert device.events_out() == 0


def test_memory_outlives_its_array_until_the_consumer_is_done(device: SimulatedRuntime) -> None:
    """The source's allocator hears of the consumer's stream: memory is not given out anew before its work is done."""
    x, side, out = lateframe.empty((64,), np.uint8), lateframe.new_stream(), np.zeros(64, np.uint8)
    lateframe.fill_late(x, 1)
    y = consume(TensorView(x), side)
    device.launch(lambda: None, ordinal=0, stream=side, ticks=50)
    device.copy(out.ctypes.data, y.pointer, 64, ordinal=0, stream=side)
    del x, y
    device.stream_synchronize(lateframe.current_stream(), 0)
    device.stream_synchronize(side, 0)
    assert set(out.tolist()) == {1}


def test_wrapped_memory_keeps_its_owner(device: SimulatedRuntime) -> None:
    """A tensor made over a view's memory keeps it, and memory made by the adapter is what was asked for."""
    adapter = framework("lateframe")
    x = lateframe.array(np.arange(6, dtype=np.int64).reshape(2, 3))
    view = TensorView(x)
    y = adapter.wrap_device(TensorView.of(view.header[:, 1:], "lateframe", None, view.device))
    del x, view
    assert y.numpy().tolist() == [[1, 2], [4, 5]]
    made = adapter.copy(y, np.dtype(np.float32), "F")
    assert (made.strides, made.numpy().tolist()) == ((4, 8), [[1.0, 2.0], [4.0, 5.0]])
    assert adapter.empty((2, 2), np.dtype(np.int8), Device("ext", 1)).device == "ext:1"
