"""Reading ahead: what is left behind when something goes wrong on the way."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from matrix_interop.devices import Device
from matrix_interop.dlpack import header_of
from matrix_interop.errors import DeviceUnavailableError
from matrix_interop.memory import default_arena
from matrix_interop.transfer.ahead import Piece, _Ring, read_ahead
from matrix_interop.transfer.staging import staging_of
from simulated.adapter import assert_all_is_back, device_with_arena
from simulated.runtime import SimulatedRuntime

DEVICE = Device("ext", 0)
F4 = np.dtype(np.float32)


@pytest.fixture(params=range(3))
def device(request: pytest.FixtureRequest) -> Iterator[SimulatedRuntime]:
    """A fresh device for each seed, and an arena over its pinned memory."""
    with device_with_arena(request.param) as runtime:
        yield runtime


def piece(device: SimulatedRuntime) -> Piece:
    """Rows of 60 floats that lie 70 apart."""
    address = device.device_alloc(64 * 280, 0)
    return Piece(header_of(address, (64, 60), (280, 4), F4, readonly=True, owner=None), None, None)


def test_staging_is_not_written_after_an_error(device: SimulatedRuntime) -> None:
    """The end of the copy into it could not be told: it is waited for."""
    rows = piece(device)
    device.fail("record", DeviceUnavailableError("the cable is out"))
    with pytest.raises(DeviceUnavailableError, match="the cable is out"):
        _Ring(DEVICE, device.stream_create(0), rows.header.nbytes).in_ordinary_memory(rows)
    arena = default_arena()
    block = staging_of(arena).take(arena, rows.header.nbytes, rows.header.nbytes)
    block.array.fill(9)
    device.quiesce()
    assert set(block.array.tolist()) == {9}
    staging_of(arena).give(arena, block)


@pytest.mark.parametrize("error", [DeviceUnavailableError("the cable is out"), KeyboardInterrupt()], ids=repr)
def test_no_event_is_lost_by_an_error(device: SimulatedRuntime, error: Any) -> None:
    """Neither when waiting for a piece fails, nor when waiting for the rest does."""
    reader = read_ahead([piece(device) for _ in range(4)], DEVICE)
    for call in ("synchronize", "synchronize", "stream_synchronize"):
        device.fail(call, error)
    with pytest.raises(type(error)):
        next(reader)
    device._faults.clear()
    del reader
    error.__traceback__ = error.__context__ = None  # whose frames hold the pieces
    assert_all_is_back(device, default_arena())
