"""The chunks that all transfers share: whoever needs one waits, and what the device still reads counts as taken."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

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

    def notify(self) -> None:
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
