"""lateframe itself: the framework that the device tests rest on behaves like one on CUDA."""

from __future__ import annotations

import numpy as np
import pytest

from simulated import lateframe
from simulated.runtime import SimulatedRuntime

SEEDS = range(30)


@pytest.fixture(params=SEEDS)
def device(request: pytest.FixtureRequest) -> SimulatedRuntime:
    """A fresh pair of devices for each seed."""
    return lateframe.use(SimulatedRuntime(request.param))


def test_values_views_and_arithmetic(device: SimulatedRuntime) -> None:
    """Everything runs late, and on one stream everything is right."""
    values = np.arange(12, dtype=np.float32).reshape(3, 4)
    x = lateframe.array(values)
    values[:] = -1  # the values were taken at the call
    host = np.arange(12, dtype=np.float32).reshape(3, 4)
    assert x[::-1, 1:].numpy().tolist() == host[::-1, 1:].tolist()
    assert (x.T @ x * 2.0 + 1.0).numpy().tolist() == (host.T @ host * 2 + 1).tolist()


def test_dlpack_orders_the_consumer(device: SimulatedRuntime) -> None:
    """What the producer queued before the export is done before the consumer's stream goes on; -1 asks for no order."""
    x, side = lateframe.empty((4,), np.int64), lateframe.new_stream()
    lateframe.fill_late(x, 1)
    capsule = x.__dlpack__(stream=side, max_version=(1, 3))
    with lateframe.stream(side):
        assert lateframe._from_capsule(capsule).numpy().tolist() == [1] * 4
    waits = device.calls["wait"]
    x.__dlpack__(stream=-1)
    assert device.calls["wait"] == waits


def test_dlpack_refusals(device: SimulatedRuntime) -> None:
    """As torch: the device must be current; stream 0 and stream objects are refused."""
    x = lateframe.empty((4,), device=1)
    with pytest.raises(BufferError, match="while device 0 is current"):
        x.__dlpack__()
    with lateframe.device(1), pytest.raises(BufferError, match="ambiguous"):
        x.__dlpack__(stream=0)


def test_memory_given_back_is_overwritten(device: SimulatedRuntime) -> None:
    """A copy on another stream finds poison where the array died first; `record_stream` prevents it."""
    side = lateframe.new_stream()

    def copy_then_drop(*, recorded: bool) -> list[int]:
        x, out = lateframe.empty((64,), np.uint8), np.zeros(64, np.uint8)
        lateframe.fill_late(x, 1)
        lateframe.order(lateframe.current_stream(), side, 0)
        device.launch(lambda: None, ordinal=0, stream=side, ticks=50)
        device.copy(out.ctypes.data, x.pointer, 64, ordinal=0, stream=side)
        if recorded:
            lateframe.record_stream(x, side)
        del x
        device.stream_synchronize(lateframe.current_stream(), 0)
        device.stream_synchronize(side, 0)
        return sorted(set(out.tolist()))

    assert [copy_then_drop(recorded=True), copy_then_drop(recorded=False)] == [[1], [lateframe.POISON]]
    assert device.events_out() == 0
