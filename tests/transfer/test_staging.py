"""The chunks that all transfers share: whoever needs one waits, and what the device still reads counts as taken."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from matrix_interop.errors import DeviceUnavailableError
from matrix_interop.memory import Block, PinnedArena
from matrix_interop.transfer.staging import Staging
from simulated.runtime import SimulatedRuntime

CHUNK = 4096


@pytest.fixture(params=range(3))
def device(request: pytest.FixtureRequest) -> Iterator[SimulatedRuntime]:
    """A fresh device for each seed."""
    runtime = SimulatedRuntime(request.param)
    yield runtime
    runtime.quiesce()
    runtime.close()


@pytest.fixture
def arena(device: SimulatedRuntime) -> Iterator[PinnedArena]:
    """Room for 16 chunks, 8 of them for transfers. It has tried its memory, which waits for all there is."""
    with PinnedArena(16 * CHUNK, runtime=device, upstream="host_alloc", decay_s=None) as made:
        made.release(made.block(1))
        yield made


class Alone:
    """In the place of a condition: one thread, to which happens what happens to it while it sleeps."""

    def __init__(self, while_asleep: Callable[[], None]) -> None:
        self.wait = while_asleep

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass

    def notify_all(self) -> None:
        pass


def taken(staging: Staging, arena: PinnedArena) -> Block:
    """A chunk, waited for if need be."""
    return staging.take(arena, CHUNK, CHUNK)


def test_a_move_without_a_chunk_sleeps_until_one_comes_back(
    arena: PinnedArena, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It asks once before it sleeps and once after."""
    staging = Staging(arena)
    blocks = [taken(staging, arena) for _ in range(8)]
    asked: list[int] = []

    def settle() -> None:
        asked.append(len(blocks))
        assert len(asked) < 3

    monkeypatch.setattr(staging, "_settle", settle)
    staging._change = Alone(lambda: staging.give(arena, blocks.pop()))  # type: ignore[assignment]
    staging.give(arena, taken(staging, arena))
    assert asked == [8, 7]
    for block in blocks:
        staging.give(arena, block)


def test_chunks_that_the_device_reads_are_waited_for(arena: PinnedArena, device: SimulatedRuntime) -> None:
    """Where those of moves that returned fill the room, the next move waits for the device, and for nobody else."""

    def asleep() -> None:
        pytest.fail("nobody would wake it")

    staging = Staging(arena)
    staging._change = Alone(asleep)  # type: ignore[assignment]
    stream = device.stream_create(0)
    device.launch(lambda: None, ordinal=0, stream=stream, ticks=500)
    for _ in range(8):
        block = taken(staging, arena)
        staging.leave(arena, device, 0, stream, block, device.record(stream, 0))
    block = taken(staging, arena)
    stats = arena.stats()
    assert CHUNK <= stats.live + stats.pending <= staging.limit
    staging.give(arena, block)


def test_a_block_is_as_large_as_there_is_room(arena: PinnedArena) -> None:
    """Whoever comes second takes what is left, if that is enough, instead of waiting."""
    staging = Staging(arena)
    blocks = [staging.take(arena, 6 * CHUNK, CHUNK), staging.take(arena, 6 * CHUNK, CHUNK)]
    assert [block.nbytes for block in blocks] == [6 * CHUNK, 2 * CHUNK]
    for block in blocks:
        staging.give(arena, block)
    assert arena.stats().live == 0


def test_a_move_goes_on_as_soon_as_there_is_room_for_it(arena: PinnedArena) -> None:
    """Although another one has waited longer, for more."""
    staging = Staging(arena)
    most, rest = staging.take(arena, 7 * CHUNK, CHUNK), taken(staging, arena)
    waiters = [
        threading.Thread(target=lambda n=n: staging.give(arena, staging.take(arena, n * CHUNK, n * CHUNK)))
        for n in (7, 1)
    ]
    for number, waiter in enumerate(waiters, 1):
        waiter.start()
        while len(staging._change._waiters) < number:  # type: ignore[attr-defined]
            pass
    staging.give(arena, rest)
    waiters[1].join(30)
    assert [waiter.is_alive() for waiter in waiters] == [True, False]
    staging.give(arena, most)
    waiters[0].join()
    assert arena.stats().live == 0


def test_a_move_waits_for_no_slow_stream_of_others(arena: PinnedArena, device: SimulatedRuntime) -> None:
    """While chunks that the device has read suffice."""
    staging, ran = Staging(arena), list[int]()
    slow, quick = device.stream_create(0), device.stream_create(0)
    device._eagerness = 0.0
    device.launch(lambda: ran.append(1), ordinal=0, stream=slow, ticks=100_000)
    for stream in (slow, *[quick] * 40):
        block = taken(staging, arena)
        staging.leave(arena, device, 0, stream, block, device.record(stream, 0))
        device.stream_synchronize(quick, 0)
    assert ran == []
    device.quiesce()


@pytest.mark.parametrize("call", ["query", "synchronize"])
def test_a_device_that_failed_holds_nothing(arena: PinnedArena, device: SimulatedRuntime, call: str) -> None:
    """Its chunks count as read, and moves of others hear nothing of it."""
    staging, stream = Staging(arena), device.stream_create(0)
    device.launch(lambda: None, ordinal=0, stream=stream, ticks=500)
    for _ in range(8):
        block = taken(staging, arena)
        staging.leave(arena, device, 0, stream, block, device.record(stream, 0))
    for _ in range(100):
        device.fail(call, DeviceUnavailableError("lost"))
    staging.give(arena, taken(staging, arena))
    device._faults.clear()


def test_transfers_hold_the_reserve_at_most(device: SimulatedRuntime) -> None:
    """That of the arena, however small; half of one without; never nothing."""
    for limit, reserve, expected in ((1 << 30, 1 << 20, 1 << 20), (1 << 20, 1 << 20, 1 << 19), (1, 0, CHUNK)):
        made = PinnedArena(limit, staging_bytes=reserve, runtime=device, upstream="host_alloc", decay_s=None)
        assert Staging(made).limit == expected
