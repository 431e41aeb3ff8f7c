"""The simulated device: a missing wait shows, a wait cures it, and memory is as closed as on hardware."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from matrix_interop.errors import DeviceUnavailableError
from matrix_interop.runtime import Pointer
from simulated.memory import host_bytes
from simulated.runtime import SLOW, SimulatedRuntime

SEEDS = range(40)
BYTE = np.dtype(np.uint8)
N = 64


class Scene:
    """One device buffer, a host array, two streams: ``first`` produces, ``second`` consumes."""

    def __init__(self, seed: int) -> None:
        self.runtime = SimulatedRuntime(seed)
        self.buffer = self.runtime.device_alloc(N, 0)
        self.first, self.second = self.runtime.stream_create(0), self.runtime.stream_create(0)
        self.host = np.zeros(N, BYTE)

    def fill(self, value: int, stream: int, ticks: int = SLOW) -> None:
        """Fill the buffer on a stream."""
        target = self.runtime.array(self.buffer, (N,), (1,), BYTE)
        self.runtime.launch(lambda: target.fill(value), ordinal=0, stream=stream, ticks=ticks)

    def fetch(self, stream: int) -> None:
        """Copy the buffer to the host array on a stream."""
        self.runtime.copy(self.host.ctypes.data, self.buffer, N, ordinal=0, stream=stream)

    def order(self, producer: int, consumer: int) -> None:
        """Make one stream wait for the other."""
        event = self.runtime.record(producer, 0)
        self.runtime.wait(consumer, event, 0)
        self.runtime.release(event)

    def result(self, stream: int) -> list[int]:
        """The distinct values on the host once a stream is done."""
        self.runtime.stream_synchronize(stream, 0)
        values = sorted(set(self.host.tolist()))
        self.runtime.quiesce()
        self.runtime.close()
        return values


def read_too_early(seed: int, *, wait: bool) -> list[int]:
    """A consumer that reads what a slow kernel on another stream writes."""
    scene = Scene(seed)
    scene.fill(1, scene.first)
    if wait:
        scene.order(scene.first, scene.second)
    scene.fetch(scene.second)
    return scene.result(scene.second)


def overwritten_too_early(seed: int, *, wait: bool) -> list[int]:
    """A producer that writes anew while a consumer has yet to read."""
    scene = Scene(seed)
    scene.fill(1, scene.first, ticks=1)
    scene.order(scene.first, scene.second)
    scene.fetch(scene.second)
    if wait:
        scene.order(scene.second, scene.first)
    scene.fill(2, scene.first, ticks=1)
    scene.runtime.stream_synchronize(scene.first, 0)
    return scene.result(scene.second)


def host_source_reused_too_early(seed: int, *, wait: bool) -> list[int]:
    """A host that writes into the source of a copy to the device that still runs."""
    scene = Scene(seed)
    scene.host[:] = 1
    scene.runtime.copy(scene.buffer, scene.host.ctypes.data, N, ordinal=0, stream=scene.first)
    if wait:
        scene.runtime.stream_synchronize(scene.first, 0)
    scene.host[:] = 9
    scene.fetch(scene.first)
    return scene.result(scene.first)


def host_target_read_too_early(seed: int, *, wait: bool) -> list[int]:
    """A host that reads the target of a copy from the device that still runs."""
    scene = Scene(seed)
    scene.fill(1, scene.first, ticks=1)
    scene.fetch(scene.first)
    event = scene.runtime.record(scene.first, 0)
    if wait:
        scene.runtime.synchronize(event)
    seen = sorted(set(scene.host.tolist()))
    scene.result(scene.first)
    return seen


RACES = [read_too_early, overwritten_too_early, host_source_reused_too_early, host_target_read_too_early]


@pytest.mark.parametrize("race", RACES)
def test_a_missing_wait_shows(race: Callable[..., list[int]]) -> None:
    """Without the wait the value is wrong for most seeds."""
    wrong = sum(race(seed, wait=False) != [1] for seed in SEEDS)
    assert wrong > len(SEEDS) * 3 // 4


@pytest.mark.parametrize("race", RACES)
def test_the_wait_cures_it(race: Callable[..., list[int]]) -> None:
    """With the wait the value is right for every seed."""
    assert [race(seed, wait=True) for seed in SEEDS] == [[1]] * len(SEEDS)


def test_same_seed_same_order() -> None:
    """A failure can be run again: everything follows from the seed."""

    def order(seed: int) -> list[int]:
        runtime, done = SimulatedRuntime(seed), []
        streams = [runtime.stream_create(0) for _ in range(4)]
        for number in range(20):
            runtime.launch(lambda number=number: done.append(number), ordinal=0, stream=streams[number % 4])
        runtime.quiesce()
        return done

    orders = [order(seed) for seed in SEEDS]
    assert orders == [order(seed) for seed in SEEDS]
    assert len({tuple(found) for found in orders}) > len(SEEDS) // 2


def test_a_stream_keeps_its_order() -> None:
    """Work on one stream runs in the order it was queued, in the device's own thread."""
    runtime = SimulatedRuntime(3)
    done: list[tuple[int, bool]] = []
    here = threading.get_ident()
    for number in range(20):
        runtime.launch(lambda n=number: done.append((n, threading.get_ident() == here)), ordinal=1, stream=0)
    runtime.stream_synchronize(1, 1)  # 0 and 1 are the same stream
    assert done == [(number, False) for number in range(20)]


@pytest.mark.parametrize("seed", SEEDS)
def test_record_all_covers_every_stream(seed: int) -> None:
    """Its event is done when all that was queued on the device is, and does not ask for more."""
    scene = Scene(seed)
    scene.fill(1, scene.first)
    event = scene.runtime.record_all(0)
    scene.fill(2, scene.second)
    assert not scene.runtime.query(event)
    scene.runtime.synchronize(event)
    assert scene.runtime.array(scene.buffer, (N,), (1,), BYTE)[0] in {1, 2}
    scene.runtime.quiesce()


def test_polling_comes_to_an_end() -> None:
    """`query` never blocks, and asking again and again is enough for the work to get done."""
    scene = Scene(5)
    scene.fill(1, scene.first)
    event = scene.runtime.record(scene.first, 0)
    asked = 1
    while not scene.runtime.query(event):
        asked += 1
    assert asked > 1
    assert scene.runtime.array(scene.buffer, (N,), (1,), BYTE).tolist() == [1] * N


def test_waits_keep_what_the_event_meant() -> None:
    """An event that is released and recorded anew changes no wait queued before."""
    for seed in SEEDS:
        scene = Scene(seed)
        scene.fill(1, scene.first)
        scene.order(scene.first, scene.second)
        again = scene.runtime.record(scene.second, 0)
        scene.fetch(scene.second)
        assert scene.result(scene.second) == [1]
        scene.runtime.release(again)


def test_released_events_are_used_again_and_counted() -> None:
    """Nothing piles up, and a stale event is an error."""
    runtime = SimulatedRuntime()
    first = runtime.record(0, 0)
    assert runtime.events_out() == 1
    runtime.release(first)
    with pytest.raises(DeviceUnavailableError, match="was released"):
        runtime.query(first)
    assert (runtime.record(0, 0), runtime.events_out()) == (first, 1)


def test_pointer_facts() -> None:
    """Device, managed, pinned, registered and ordinary memory are told apart, inside as at the start."""
    runtime = SimulatedRuntime()
    device, managed, pinned = runtime.device_alloc(10, 1), runtime.managed_alloc(10, 1), runtime.host_alloc(10)
    array = np.zeros(10, BYTE)
    address = array.ctypes.data
    before = runtime.pointer(address)
    runtime.host_register(address, 10)
    assert [runtime.pointer(where + 9) for where in (device, managed, pinned, address)] == [
        Pointer("device", 1),
        Pointer("managed", 1),
        Pointer("pinned", 0),
        Pointer("pinned", 0),
    ]
    runtime.host_unregister(address)
    assert [before, runtime.pointer(address), runtime.pointer(device + 10)] == [Pointer("pageable", None)] * 3


def test_touching_device_memory_kills_the_process() -> None:
    """A host that reads through a device pointer dies of SIGSEGV, as on hardware: no test passes by accident."""
    tests = Path(__file__).resolve().parents[1]
    code = (
        "import numpy as np; from simulated.runtime import SimulatedRuntime; from simulated.memory import host_bytes\n"
        "address = SimulatedRuntime().device_alloc(64, 0); print(flush=True); host_bytes(address, 64).sum()"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tests), str(tests.parent / "src")])}
    ran = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=False)
    assert (ran.stdout, ran.returncode) == (b"\n", -signal.SIGSEGV)


def test_managed_memory_is_open_to_the_host() -> None:
    """Both sides see the same bytes."""
    runtime = SimulatedRuntime()
    address = runtime.managed_alloc(N, 0)
    host_bytes(address, N)[:] = 4
    assert runtime.array(address, (N,), (1,), BYTE).tolist() == [4] * N


@pytest.mark.parametrize("seed", range(5))
def test_rows_and_peers(seed: int) -> None:
    """Rows with gaps arrive without touching the gaps; a peer copy carries them to the other device and back."""
    runtime = SimulatedRuntime(seed)
    source, back = np.arange(60, dtype=BYTE).reshape(6, 10), np.full((6, 8), 99, BYTE)
    here, there = runtime.device_alloc(60, 0), runtime.device_alloc(60, 1)
    runtime.copy(here, source.ctypes.data, 60, ordinal=0, stream=0)
    runtime.copy_peer(there, 1, here, 0, 60, stream=0)
    event = runtime.record(0, 0)
    runtime.wait(0, event, 1)
    runtime.copy_rows(back.ctypes.data, 8, there + 2, 10, 5, 6, ordinal=1, stream=0)
    runtime.stream_synchronize(0, 1)
    assert back[:, :5].tolist() == source[:, 2:7].tolist()
    assert set(back[:, 5:].ravel().tolist()) == {99}


def test_refused_as_on_hardware() -> None:
    """Wrong devices, streams, edges and double registrations are errors at the call."""
    runtime = SimulatedRuntime(devices=2)
    array, device = np.zeros(8192, BYTE), runtime.device_alloc(64, 0)
    address = array.ctypes.data
    runtime.host_register(address, 4096)
    stream = runtime.stream_create(0)
    calls: list[tuple[str, Callable[[], object]]] = [
        ("no device ext:2", lambda: runtime.record(0, 2)),
        ("no stream of device 1", lambda: runtime.record(stream, 1)),
        ("cross the edge", lambda: runtime.copy(device, address + 4090, 16, ordinal=0, stream=0)),
        ("cross the edge", lambda: runtime.copy(device + 60, address, 16, ordinal=0, stream=0)),
        ("already registered", lambda: runtime.host_register(address + 4000, 4096)),
        ("not memory of device 1", lambda: runtime.copy_peer(device, 1, device, 0, 8, stream=0)),
        ("not the start of pinned", lambda: runtime.host_free(address + 1)),
    ]
    for text, call in calls:
        with pytest.raises(DeviceUnavailableError, match=text):
            call()
    runtime.stream_destroy(stream, 0)
    with pytest.raises(DeviceUnavailableError, match="no stream"):
        runtime.stream_synchronize(stream, 0)


def test_device_memory_ends() -> None:
    """The devices are as large as asked for; a freed allocation counts no more."""
    runtime = SimulatedRuntime(device_bytes=1000)
    address = runtime.device_alloc(600, 0)
    with pytest.raises(MemoryError, match="600 bytes"):
        runtime.device_alloc(600, 0)
    runtime.device_free(address, 0)
    assert runtime.memory_info(0) == (1000, 1000)


def test_injected_failures_come_once() -> None:
    """The call that was named fails with what was given, the next one works; calls are counted."""
    runtime = SimulatedRuntime()
    runtime.fail("host_alloc", MemoryError("no pages"), after=1)
    runtime.host_alloc(8)
    with pytest.raises(MemoryError, match="no pages"):
        runtime.host_alloc(8)
    runtime.host_alloc(8)
    assert runtime.calls["host_alloc"] == 3


def test_failure_on_the_device_reaches_who_waits() -> None:
    """Work that fails when it runs is reported at the next wait."""
    runtime = SimulatedRuntime()
    runtime.launch([].pop, ordinal=0, stream=0)
    with pytest.raises(DeviceUnavailableError, match="queued work failed"):
        runtime.stream_synchronize(0, 0)


def test_pages_move_under_an_address() -> None:
    """Contents follow the pages, and copies see them where they are now."""
    runtime = SimulatedRuntime()
    memory = runtime.virtual_memory(0)
    assert memory is not None
    size = memory.granularity
    start = memory.reserve(3 * size)
    handle = memory.create(size)
    memory.map(start, size, handle)
    host_bytes(start, size)[:] = 7
    memory.unmap(start, size)
    memory.map(start + 2 * size, size, handle)
    device = runtime.device_alloc(size, 0)
    runtime.copy(device, start + 2 * size, size, ordinal=0, stream=0)
    kinds = [runtime.pointer(start + step * size).kind for step in range(3)]
    runtime.quiesce()
    memory.unmap(start + 2 * size, size)
    memory.destroy(handle)
    memory.unreserve(start, 3 * size)
    assert kinds == ["pageable", "pageable", "pinned"]
    assert runtime.array(device, (size,), (1,), BYTE).tolist() == [7] * size
