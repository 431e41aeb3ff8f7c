"""`rows` and `blocks`: right on every device and under any delay, ahead of the reader, within bounds."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from matrix_interop import RowReader, forbid_copies, from_tensor, track_copies
from matrix_interop.errors import DeviceUnavailableError, UnsupportedLayoutError
from matrix_interop.io import open_matrix, open_rows
from matrix_interop.memory import PinnedArena, default_arena, is_pinned, use_arena
from matrix_interop.rows import blocks_of
from matrix_interop.transfer.staging import staging_of
from simulated import lateframe
from simulated.adapter import device_with_arena
from simulated.runtime import SimulatedRuntime
from simulated.unserved import unserved_device

SELECTIONS = [
    None,
    slice(None, None, -1),
    slice(3, 170, 7),
    slice(160, 4, -3),
    slice(5, 5),
    [3, 3, 199, 0, 57],
    np.arange(199, -1, -2),
]


@pytest.fixture(params=range(3))
def device(request: pytest.FixtureRequest) -> Iterator[SimulatedRuntime]:
    """A fresh device for each seed, and an arena over its pinned memory."""
    with device_with_arena(request.param) as runtime:
        yield runtime


def numbers(rows: int = 200, columns: int = 16) -> np.ndarray:
    """Values that are all different."""
    return np.arange(rows * columns, dtype=np.float32).reshape(rows, columns)


def stacked(rows: Any) -> np.ndarray:
    """All rows copied as they come, each let go before the next."""
    out = [row.copy() for row in rows]
    return np.stack(out) if out else np.empty((0, 16), np.float32)


# Rows ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("select", SELECTIONS, ids=str)
def test_rows_of_a_device(device: SimulatedRuntime, select: Any) -> None:
    """Any selection, in its order, and the same again; also of a matrix of dense columns."""
    a = numbers()
    expected = a[slice(None) if select is None else select]
    for m in (from_tensor(a).to_device("ext:0"), from_tensor(np.asfortranarray(a)).to_device("ext:1")):
        reader = m.rows(select, block=9)
        assert (len(reader), reader.shape, reader.dtype) == (len(expected), expected.shape, a.dtype)
        assert stacked(reader).tolist() == expected.tolist()
        assert stacked(reader).tolist() == expected.tolist()


@pytest.mark.parametrize("select", SELECTIONS, ids=str)
def test_rows_of_the_host(select: Any) -> None:
    """They are read-only views where that is possible."""
    a = numbers()
    rows = list(from_tensor(a).rows(select, block=9))
    assert [row.tolist() for row in rows] == a[slice(None) if select is None else select].tolist()
    assert all(not row.flags.writeable for row in rows)
    assert all(np.shares_memory(row, a) == (select is None or isinstance(select, slice)) for row in rows)


def test_rows_by_number_are_counted() -> None:
    """They are copied, as `take` copies them, and asked for; rows of a slice are views."""
    m = from_tensor(np.arange(12, dtype=np.float32).reshape(4, 3))
    with forbid_copies(), track_copies() as log:
        assert [row.tolist() for row in m.rows([3, 0])] == [[9, 10, 11], [0, 1, 2]]
        assert len(list(m.rows(slice(None, None, -1)))) == 4
    assert [record.nbytes for record in log] == [24]


def test_rows_of_views(device: SimulatedRuntime) -> None:
    """Slices of rows and transposes are read as what they are."""
    a = numbers()
    m = from_tensor(a).to_device("ext:0")
    assert stacked(m[10:100:3].rows(block=4)).tolist() == a[10:100:3].tolist()
    assert stacked(m[::-1].rows(block=4)).tolist() == a[::-1].tolist()
    assert stacked(m.T.rows(block=4)).tolist() == a.T.tolist()


def test_kept_rows_stay_right(device: SimulatedRuntime) -> None:
    """All rows kept, by two readers at once: each is right and read-only, and pinned memory stays within its share."""
    a = numbers(6000, 64)
    m = from_tensor(a).to_device("ext:0")
    device.quiesce()
    live = default_arena().stats().live
    first, second = [], []
    for one, other in zip(m.rows(block=100), m.rows(slice(None, None, -1), block=77), strict=True):
        first.append(one)
        second.append(other)
    assert default_arena().stats().live - live <= 4 << 20  # an arena of 16 MiB gives staging 8, and kept blocks half
    assert np.array_equal(np.stack(first), a)
    assert np.array_equal(np.stack(second), a[::-1])
    assert not first[0].flags.writeable
    order = np.arange(6000)[::-1] // 2 * 2
    taken = list(m.rows(order, block=500))  # made by the device, then read into ordinary memory
    assert np.array_equal(np.stack(taken), a[order])
    spread = list(m.rows(slice(None, None, 2), block=200))
    assert np.array_equal(np.stack(spread), a[::2])
    del first, second, one, other, taken, spread
    gc.collect()
    device.quiesce()
    stats = default_arena().stats()
    assert (stats.live, stats.pending) == (0, 0)


def test_a_block_waits_for_copies_from_its_rows(device: SimulatedRuntime) -> None:
    """Device work that still reads a row when the caller lets go of it sees that row."""
    a = numbers(400, 64)
    m = from_tensor(a).to_device("ext:0")
    side = device.stream_create(0)
    target = device.device_alloc(a.nbytes, 0)
    for number, row in enumerate(m.rows(block=5)):
        device.copy(target + number * 256, row.ctypes.data, 256, ordinal=0, stream=side)
    del row
    device.stream_synchronize(side, 0)
    assert device.array(target, a.shape, a.strides, a.dtype).tolist() == a.tolist()


def test_rows_come_after_what_the_matrix_waits_for(device: SimulatedRuntime) -> None:
    """A slow kernel that the current stream holds at the start is done before its rows come."""
    x = lateframe.empty((100, 16))
    m = from_tensor(x)
    lateframe.fill_late(x, 5)
    assert {value for row in m.rows(block=9) for value in row.tolist()} == {5.0}


@pytest.mark.parametrize("step", [1, 2])
def test_rows_in_ordinary_memory_come_after_what_the_matrix_waits_for(device: SimulatedRuntime, step: int) -> None:
    """So too where others keep all pinned memory that may be kept, dense or spread out."""
    arena = default_arena()
    kept = staging_of(arena).keep(arena, staging_of(arena).limit // 2)
    x = lateframe.empty((100, 16))
    m = from_tensor(x)[::step]
    lateframe.fill_late(x, 5)
    rows = list(m.rows(block=9))
    assert {value for row in rows for value in row.tolist()} == {5.0}
    assert (kept is None, any(is_pinned(row) for row in rows)) == (False, False)


def test_a_reader_left_early_has_nothing_written_later(device: SimulatedRuntime) -> None:
    """Blocks of an arena that knows no device go to the next user at once."""
    m = from_tensor(numbers()).to_device("ext:0")
    with use_arena(PinnedArena(1 << 20, runtime=None, decay_s=None)) as arena:
        rows = iter(m.rows(block=9))
        next(rows)
        rows.close()  # type: ignore[attr-defined]
        others = [arena.empty(9 * 64, np.uint8) for _ in range(8)]
        for other in others:
            other.fill(7)
        device.quiesce()
        assert {value for other in others for value in other.tolist()} == {7}


def test_a_reader_left_early(device: SimulatedRuntime) -> None:
    """Nothing is lost, and the matrix may be dropped."""
    m = from_tensor(numbers()).to_device("ext:0")
    rows = iter(m.rows(block=9))
    first = next(rows)
    rows.close()  # type: ignore[attr-defined]
    del m
    assert first.tolist() == numbers()[0].tolist()
    del first, rows
    gc.collect()
    device.quiesce()
    stats = default_arena().stats()
    assert (stats.live, stats.pending) == (0, 0)


def test_an_error_while_reading(device: SimulatedRuntime) -> None:
    """It comes out of the iteration, no block is lost, and the next pass is right."""
    a = numbers()
    m = from_tensor(a).to_device("ext:0")
    stacked(m.rows(block=9))
    device.fail("copy", DeviceUnavailableError("the cable is out"), after=3)
    with pytest.raises(DeviceUnavailableError, match="the cable is out"):
        stacked(m.rows(block=9))
    assert np.array_equal(stacked(m.rows(block=9)), a)


def test_refusals() -> None:
    """Rows that are not there and blocks of nothing are refused at the call."""
    m = from_tensor(numbers())
    with pytest.raises(IndexError, match="index 200 at position 1"):
        m.rows([0, 200])
    for numbered in (range(10**12), range(2**70)):  # refused without a list of them
        with pytest.raises(IndexError, match="index 200 at position 200"):
            m.rows(numbered)
    with pytest.raises(ValueError, match="block=0 rows"):
        m.rows(block=0)
    with pytest.raises(ValueError, match="block=-1 rows"):
        m.blocks(-1)
    assert repr(m.rows()) == "<RowReader of 200 rows of 16 float32 on cpu>"
    assert isinstance(m.rows(), RowReader)


@pytest.mark.parametrize("where", ["cpu", "ext:0"])
def test_no_entries(device: SimulatedRuntime, where: str) -> None:
    """Rows without entries are still counted, read-only and cut into blocks; no rows give none."""
    narrow, short = (from_tensor(np.empty(shape, np.float32), device=where) for shape in ((3, 0), (0, 3)))
    assert [(row.shape, row.flags.writeable) for row in narrow.rows()] == [((0,), False)] * 3
    for target in (None, "cpu", "ext:0"):
        assert [block.shape for block in narrow.blocks(2, device=target)] == [(2, 0), (1, 0)]
        assert list(short.blocks(2, device=target)) == []
    assert list(short.rows()) == []
    assert list(narrow.rows([]).blocks()) == []


def test_a_device_without_a_runtime() -> None:
    """Rows and blocks come and go as its framework copies them."""
    a = numbers()
    m = from_tensor(a)
    with unserved_device() as there:
        moved = m.to_device(there)
        for select in SELECTIONS:
            expected = a[slice(None) if select is None else select].tolist()
            assert [row.tolist() for row in moved.rows(select, block=9)] == expected
        assert not next(iter(moved.rows())).flags.writeable
        for source in (m, moved):
            for target in ("cpu", there):
                blocks = list(source.blocks(90, device=target))
                assert [(len(block), block.device) for block in blocks] == [(90, target), (90, target), (20, target)]
                assert np.array_equal(np.concatenate([np.asarray(block.to_host()) for block in blocks]), a)


# Blocks --------------------------------------------------------------------------------------------
@pytest.mark.parametrize("select", SELECTIONS, ids=str)
@pytest.mark.parametrize("source", ["host", "ext:0"])
@pytest.mark.parametrize("target", [None, "cpu", "ext:0", "ext:1"])
def test_blocks(device: SimulatedRuntime, select: Any, source: str, target: str | None) -> None:
    """From anywhere to anywhere: the rows in order, 30 at a time, where they were asked for: no hidden copy."""
    a = numbers()
    m = from_tensor(a) if source == "host" else from_tensor(a).to_device(source)
    expected = a[slice(None) if select is None else select]
    with forbid_copies():
        blocks = list(m.blocks(30, select=select, device=target))
    assert [len(block) for block in blocks] == [30] * (len(expected) // 30) + [len(expected) % 30] * (
        len(expected) % 30 > 0
    )
    assert {str(block.device) for block in blocks} <= {target or str(m.device)}
    got = [np.asarray(block.to_host()) for block in blocks]
    assert np.array_equal(np.concatenate([expected[:0], *got]), expected)


@pytest.mark.parametrize("select", SELECTIONS, ids=str)
def test_large_blocks_of_a_device(device: SimulatedRuntime, select: Any) -> None:
    """They have the rows that were asked for, also where those are more than are read ahead at once; read-only."""
    a = numbers(200, 16 << 10)  # 64 KiB a row
    blocks = from_tensor(a).to_device("ext:0").blocks(90, select=select, device="cpu")
    expected, got = a[slice(None) if select is None else select], list(blocks)
    assert [len(block) for block in got] == [min(90, len(expected) - at) for at in range(0, len(expected), 90)]
    assert all(block.readonly for block in got)
    assert np.array_equal(np.concatenate([expected[:0], *map(np.asarray, got)]), expected)


def test_blocks_are_views_where_the_matrix_lies() -> None:
    """Nothing is copied."""
    a = numbers()
    assert all(np.shares_memory(np.asarray(block), a) for block in from_tensor(a).blocks(30))


def test_blocks_are_ready_on_the_current_stream(device: SimulatedRuntime) -> None:
    """Work that the caller queues on a block at once sees its values; blocks may be let go meanwhile."""
    a = numbers()
    totals = []
    for block in from_tensor(a).blocks(30, device="ext:0"):
        totals.append(lateframe.sum(block.array))
        del block
    assert [float(total.numpy()) for total in totals] == [float(a[s : s + 30].sum()) for s in range(0, 200, 30)]


def test_a_block_is_held_until_the_stream_that_asked_for_it_has_read_it(device: SimulatedRuntime) -> None:
    """Its memory goes back to the stream on which the block before was asked for."""
    blocks, side = from_tensor(numbers()).blocks(30, device="ext:0"), lateframe.new_stream(0)
    next(blocks)
    with lateframe.stream(side, 0):
        block = next(blocks)
        copy = lateframe.copy_late(lateframe.empty((30, 16)), block.array)
        del block
        device.run_all_but(side)
        assert copy.numpy().tolist() == numbers()[30:60].tolist()


def test_blocks_left_early(device: SimulatedRuntime) -> None:
    """What was on its way is waited for, so that its memory can be given out again."""
    for _ in range(8):
        blocks = from_tensor(numbers()).blocks(30, device="ext:0")
        kept = next(blocks)
        blocks.close()  # type: ignore[attr-defined]
        again = [lateframe.fill_late(lateframe.empty((30, 16)), 7) for _ in range(3)]
        device.quiesce()
        assert {value for x in again for value in x.numpy().ravel().tolist()} == {7.0}
        assert np.asarray(kept.to_host()).tolist() == numbers()[:30].tolist()
    device.quiesce()
    stats = default_arena().stats()
    assert (stats.live, stats.pending) == (0, 0)


def test_a_block_left_early_is_not_written_later(device: SimulatedRuntime) -> None:
    """Its memory goes to others once it was sent."""
    m = from_tensor(numbers())
    device.launch(lambda: None, ordinal=0, stream=lateframe.current_stream(0), ticks=200)
    blocks = m.blocks(30, device="ext:0")
    next(blocks)
    blocks.close()  # type: ignore[attr-defined]
    others = [lateframe.fill_late(lateframe.empty((30, 16)), 7) for _ in range(3)]
    device.stream_synchronize(lateframe.current_stream(0), 0)
    device.quiesce()
    assert {value for x in others for value in x.numpy().ravel().tolist()} == {7.0}


def test_a_block_goes_to_memory_that_nobody_uses_any_more(device: SimulatedRuntime) -> None:
    """What its framework gives out may still be written by work of the current stream."""
    m = from_tensor(numbers())
    lateframe.fill_late(lateframe.empty((30, 16)), -1)  # freed at once, used late, and taken next
    blocks = m.blocks(30, device="ext:0")
    block = next(blocks)
    device.run_all_but(lateframe.current_stream(0))
    device.quiesce()
    blocks.close()  # type: ignore[attr-defined]
    assert block.array.numpy().tolist() == numbers()[:30].tolist()


@pytest.mark.parametrize("left", [False, True], ids=["used up", "left early"])
def test_the_thread_that_reads_a_file_ahead_ends(
    device: SimulatedRuntime, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, left: bool
) -> None:
    """It does so with the iteration."""
    readers: list[ThreadPoolExecutor] = []

    class Noted(ThreadPoolExecutor):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            readers.append(self)

    monkeypatch.setattr("matrix_interop.rows.ThreadPoolExecutor", Noted)
    np.save(tmp_path / "a.npy", numbers())
    with open_rows(tmp_path / "a.npy") as source:
        blocks = blocks_of(source, 30, device="ext:0")
        next(blocks)
        blocks.close() if left else list(blocks)  # type: ignore[attr-defined]
        with pytest.raises(RuntimeError, match="shutdown"):
            readers[0].submit(int)


def test_a_block_that_cannot_be_sent(device: SimulatedRuntime) -> None:
    """The error comes out of the iteration."""
    m = from_tensor(numbers())
    list(m.blocks(30, device="ext:0"))
    device.fail("copy", DeviceUnavailableError("the cable is out"), after=2)
    with pytest.raises(DeviceUnavailableError, match="the cable is out"):
        list(m.blocks(30, device="ext:0"))


def test_a_block_that_no_stream_sends(device: SimulatedRuntime) -> None:
    """Where the device makes none, no event stays out."""
    device.fail("stream_create", DeviceUnavailableError("the cable is out"))
    with pytest.raises(DeviceUnavailableError, match="the cable is out"):
        list(from_tensor(numbers()).blocks(30, device="ext:0"))
    assert device.events_out() == 0


@pytest.mark.parametrize("target", [None, "ext:0"])
@pytest.mark.parametrize("wrong", [np.s_[:29], np.s_[:31], np.s_[:30, :15]], ids=str)
def test_a_source_that_gives_other_rows(device: SimulatedRuntime, wrong: Any, target: str | None) -> None:
    """They are refused: fewer would leave memory as it was, more would be written beside it."""

    class Source:
        shape, dtype = (200, 16), np.dtype(np.float32)

        def __len__(self) -> int:
            return 200

        def read(self, start: int, stop: int) -> np.ndarray:
            return numbers()[start:][wrong] if start else numbers()[:stop]

    blocks = blocks_of(Source(), 30, device=target)
    assert len(next(blocks)) == 30
    with pytest.raises(UnsupportedLayoutError, match=r"gave an array \(\d+, 1\d\) for 30 rows of 16 entries"):
        list(blocks)


@pytest.mark.parametrize("target", [None, "ext:0"])
def test_blocks_of_a_file(device: SimulatedRuntime, tmp_path: Path, target: str | None) -> None:
    """A mapped matrix and a row source give the same blocks."""
    a = numbers()
    np.save(tmp_path / "a.npy", a)
    mapped = open_matrix(tmp_path / "a.npy")
    with open_rows(tmp_path / "a.npy") as source:
        for select in (None, slice(100, 3, -1), [5, 2, 2]):
            for blocks in (
                mapped.blocks(30, select=select, device=target),
                blocks_of(source, 30, select=select, device=target),
            ):
                got = np.concatenate([np.asarray(block.to_host()) for block in blocks])
                assert np.array_equal(got, a[slice(None) if select is None else select])
