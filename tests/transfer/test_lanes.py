"""Moves through pinned chunks: right values under any delay, bounded pinned memory, and nothing lost after an error."""

from __future__ import annotations

import mmap
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from contextvars import copy_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from matrix_interop.devices import Device
from matrix_interop.errors import DeviceUnavailableError, FormatError, PinnedLimitError
from matrix_interop.io import open_matrix, save_matrix
from matrix_interop.memory import Block, PinnedArena, default_arena, use_arena
from matrix_interop.transfer import download, report_progress, start_download, transfer_setting, upload
from matrix_interop.transfer.lanes import _Move
from matrix_interop.transfer.staging import staging_of
from simulated.adapter import assert_all_is_back, device_with_arena
from simulated.runtime import SimulatedRuntime

DEVICE = Device("ext", 0)
F4 = np.dtype(np.float32)
#: More with the wide profile, as for random examples.
SEEDS = range(8 if os.environ.get("MATRIX_INTEROP_HYPOTHESIS") == "wide" else 3)
#: One lane in the caller, and several threads.
SPREADS = ({"lanes": 1, "chunk_bytes": 4096, "in_flight": 3}, {"lanes": 3, "chunk_bytes": 8192, "in_flight": 2})


@pytest.fixture(params=SEEDS)
def device(request: pytest.FixtureRequest) -> Iterator[SimulatedRuntime]:
    """A fresh device for each seed, and an arena over its pinned memory."""
    with device_with_arena(request.param) as runtime:
        yield runtime


@pytest.fixture(params=SPREADS, ids=["one lane", "three lanes"])
def spread(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Moves of any size are cut and spread."""
    monkeypatch.setattr("matrix_interop.transfer.lanes._SMALL", 4096)
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


# Order ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize("named", [True, False], ids=["legacy stream", "own stream"])
def test_upload_is_ordered_on_its_stream(device: SimulatedRuntime, spread: None, named: bool) -> None:
    """It comes after what the stream held before, and what is queued on the stream afterwards finds it."""
    source = numbers((250, 64))
    address, seen = on_device(device, source.shape)
    stream = 1 if named else device.stream_create(0)
    found = np.zeros_like(source)
    device.launch(lambda: seen.fill(7), ordinal=0, stream=stream, ticks=60)
    upload(source, address, F4, DEVICE, stream)
    device.launch(lambda: np.copyto(found, seen), ordinal=0, stream=stream, ticks=1)
    device.stream_synchronize(stream, 0)
    assert found.tolist() == source.tolist()


@pytest.mark.parametrize("named", [True, False], ids=["legacy stream", "own stream"])
def test_download_comes_after_its_stream(device: SimulatedRuntime, spread: None, named: bool) -> None:
    """What the stream holds at the call is done before anything is read."""
    address, seen = on_device(device, (250, 64))
    stream = 1 if named else device.stream_create(0)
    out = np.zeros((250, 64), F4)
    device.launch(lambda: seen.fill(7), ordinal=0, stream=stream, ticks=60)
    download(address, F4, out, DEVICE, stream)
    assert set(out.ravel().tolist()) == {7.0}


def test_many_uploads_in_a_row(device: SimulatedRuntime) -> None:
    """Chunks of moves that returned are not filled again before the device has read them."""
    stream = device.stream_create(0)
    places = [on_device(device, (64, 64)) for _ in range(60)]
    buffer = np.empty((64, 64), F4)
    for number, (address, _) in enumerate(places):
        buffer.fill(number)
        upload(buffer, address, F4, DEVICE, stream)
    device.stream_synchronize(stream, 0)
    assert [set(seen.ravel().tolist()) for _, seen in places] == [{float(number)} for number in range(60)]


def test_pinned_memory_is_moved_as_it_lies(device: SimulatedRuntime) -> None:
    """No chunk is taken; the source may be overwritten on return, and a Transfer tells when the target is filled."""
    arena = default_arena()
    source, out = arena.empty((64, 64), F4), arena.empty((64, 64), F4)
    source.fill(3)
    address, seen = on_device(device, source.shape)
    live = arena.stats().live
    upload(source, address, F4, DEVICE, 1)
    source.fill(4)
    moved = start_download(address, F4, out, DEVICE, 1)
    assert arena.stats().live == live
    moved.wait()
    assert (set(seen.ravel().tolist()), set(out.ravel().tolist()), moved.done()) == ({3.0}, {3.0}, True)
    assert moved.result() is out


@pytest.mark.parametrize("pinned", [True, False], ids=["pinned", "ordinary"])
def test_a_small_source_may_be_overwritten_on_return(device: SimulatedRuntime, pinned: bool) -> None:
    """Where the driver reads small ordinary memory at once, and pinned memory when the stream comes to it."""
    device.captured_bytes = 1 << 16
    source = default_arena().empty((16, 16), F4) if pinned else np.empty((16, 16), F4)
    source.fill(3)
    address, seen = on_device(device, source.shape)
    upload(source, address, F4, DEVICE, 1)
    source.fill(4)
    device.quiesce()
    assert set(seen.ravel().tolist()) == {3.0}


def test_early_return_into_pageable_memory(device: SimulatedRuntime, spread: None) -> None:
    """A thread fills the memory with what the stream held at the call, whatever is queued there later."""
    address, seen = on_device(device, (250, 64))
    stream, out = device.stream_create(0), np.zeros((250, 64), F4)
    device.launch(lambda: seen.fill(7), ordinal=0, stream=stream, ticks=60)
    moved = start_download(address, F4, out, DEVICE, stream, early=True)
    assert moved.result() is out
    assert set(out.ravel().tolist()) == {7.0}


@pytest.mark.parametrize("threads", [True, False], ids=["thread", "no more threads"])
def test_an_early_move_holds_its_source(
    device: SimulatedRuntime, monkeypatch: pytest.MonkeyPatch, threads: bool
) -> None:
    """What owns the device memory lives until it has been read, although nobody holds the Transfer."""
    gate, out = threading.Event(), np.zeros((250, 64), F4)
    address, seen = on_device(device, out.shape)
    seen.fill(7)
    owner = PinnedArena(1, runtime=None)
    alive = weakref.ref(owner)
    run = _Move.run

    def gated(self: _Move, **keywords: Any) -> None:
        assert gate.wait(60)
        assert alive() is not None
        run(self, **keywords)

    def refuse(_: threading.Thread) -> None:
        gate.set()
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(_Move, "run", gated)
    if not threads:
        monkeypatch.setattr(threading.Thread, "start", refuse)
    start_download(address, F4, out, DEVICE, 1, early=True, keep=owner)
    del owner
    gate.set()
    for thread in threading.enumerate():
        if thread.name == "matrix-interop transfer":
            thread.join()
    assert (set(out.ravel().tolist()), alive()) == ({7.0}, None)


# Bounds, errors, progress --------------------------------------------------------------------------
def test_pinned_use_is_bounded(device: SimulatedRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
    """A move of many times the reserve, and eight at once, pin no more than the staging limit."""
    arena = default_arena()
    source = numbers((8192, 1024))
    address, seen = on_device(device, source.shape)
    in_use: list[int] = []
    take = PinnedArena.block

    def block(self: PinnedArena, nbytes: int) -> Block:
        found = take(self, nbytes)
        stats = self.stats()
        in_use.append(stats.live + stats.pending)
        return found

    monkeypatch.setattr(PinnedArena, "block", block)

    def there_and_back() -> None:
        out = np.empty((500, 64), F4)
        place, _ = on_device(device, out.shape)
        for number in range(3):
            upload(np.full_like(out, number), place, F4, DEVICE, device.stream_create(0))
            device.quiesce()
            download(place, F4, out, DEVICE, device.stream_create(0))
            assert set(out.ravel().tolist()) == {float(number)}

    upload(source, address, F4, DEVICE, 1)
    failures: list[BaseException] = []
    threads = [threading.Thread(target=copy_context().run, args=(caught(there_and_back, failures),)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    device.quiesce()
    assert failures == []
    assert np.array_equal(seen, source)
    stats = arena.stats()
    assert (stats.live, stats.pending) == (0, 0)
    assert 0 < max(in_use) <= staging_of(arena).limit


def caught(work: Callable[[], None], failures: list[BaseException]) -> Callable[[], None]:
    """The call, its failure put into the list."""

    def run() -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - shown by the test
            failures.append(error)

    return run


@pytest.mark.parametrize("call", ["copy", "record", "synchronize"])
@pytest.mark.parametrize("direction", ["up", "down"])
def test_an_error_in_the_middle(device: SimulatedRuntime, spread: None, call: str, direction: str) -> None:
    """It names array, device and byte; no block is lost, no thread hangs, and the next move is right."""
    values = numbers((250, 64))
    address, seen = on_device(device, values.shape)
    stream = device.stream_create(0)
    upload(np.zeros_like(values), address, F4, DEVICE, stream)  # the arena tries its memory at its first block
    device.fail(call, DeviceUnavailableError("the cable is out"), after=1)
    move = (
        (lambda a: upload(a, address, F4, DEVICE, stream))
        if direction == "up"
        else (lambda a: download(address, F4, a, DEVICE, stream))
    )
    with pytest.raises(
        DeviceUnavailableError, match=r"float32 \(250, 64\).*ext:0.*byte \d+ of 64000: the cable is out"
    ):
        move(values.copy())
    device.quiesce()
    stats = default_arena().stats()
    assert (stats.live, stats.pending) == (0, 0)
    upload(values, address, F4, DEVICE, stream)
    device.stream_synchronize(stream, 0)
    assert seen.tolist() == values.tolist()


@pytest.mark.parametrize("error", [DeviceUnavailableError("the cable is out"), KeyboardInterrupt()], ids=repr)
@pytest.mark.parametrize("direction", ["up", "down", "early"])
def test_an_error_at_any_call(spread: None, error: Any, direction: str) -> None:
    """Whichever call it is that fails: the error says what was moved, nothing is lost, and the next move is right."""
    values, out = numbers((24, 256)), np.empty((24, 256), F4)
    with device_with_arena(0) as device:
        address, _ = on_device(device, values.shape)

        def move() -> str:
            try:
                if direction == "up":
                    upload(values, address, F4, DEVICE, 1)
                else:
                    start_download(address, F4, out, DEVICE, 1, early=direction == "early").wait()
            except (DeviceUnavailableError, KeyboardInterrupt) as raised:
                return "".join([str(raised), *getattr(raised, "__notes__", ())])
            return ""

        for call in ("copy", "record", "wait", "synchronize", "stream_create"):
            after = 0
            device.fail(call, error)
            while said := move():
                assert "the move between float32 (24, 256), host memory, and ext:0 memory as float32" in said
                assert_all_is_back(device, default_arena())
                upload(values, address, F4, DEVICE, 1)
                download(address, F4, out, DEVICE, 1)
                assert np.array_equal(out, values)
                after += 1
                device.fail(call, error, after=after)
            device._faults.clear()
        assert_all_is_back(device, default_arena())


@pytest.mark.parametrize(("call", "after"), [("wait", 1), ("record", 1), ("record", 2)])
def test_nothing_is_under_way_after_an_error(device: SimulatedRuntime, spread: None, call: str, after: int) -> None:
    """Where the stream cannot be made to wait for the copies, the host has waited for them."""
    values = numbers((250, 64))
    address, seen = on_device(device, values.shape)
    upload(values, address, F4, DEVICE, 1)
    device.quiesce()
    device.fail(call, DeviceUnavailableError("the cable is out"), after=after)
    with pytest.raises(DeviceUnavailableError, match="the cable is out"):
        upload(values, address, F4, DEVICE, 1)
    device.stream_synchronize(1, 0)
    seen.fill(9)  # the memory is somebody else's
    device.quiesce()
    assert set(seen.ravel().tolist()) == {9.0}


def test_pinned_memory_is_left_alone_after_an_error(device: SimulatedRuntime) -> None:
    """The device does not write it any more, although the end of its copy could not be told."""
    out = default_arena().empty((64, 64), F4)
    address, _ = on_device(device, out.shape)
    device.fail("record", DeviceUnavailableError("the cable is out"))
    with pytest.raises(DeviceUnavailableError, match=r"float32 \(64, 64\).*failed: the cable is out"):
        start_download(address, F4, out, DEVICE, 1)
    out.fill(9)
    device.quiesce()
    assert set(out.ravel().tolist()) == {9.0}


@pytest.mark.parametrize("error", [DeviceUnavailableError("the cable is out"), KeyboardInterrupt()], ids=repr)
def test_a_chunk_is_not_filled_while_the_device_may_write_it(device: SimulatedRuntime, error: BaseException) -> None:
    """Waiting for a copy from the device failed: whoever takes the memory next waits for it."""
    values = np.full((64, 64), 7, F4)
    address, _ = on_device(device, values.shape)
    other, seen = on_device(device, values.shape)
    slow, stream = device.stream_create(0), device.stream_create(0)
    device.launch(lambda: None, ordinal=0, stream=slow, ticks=200)
    device.fail("synchronize", error)  # type: ignore[arg-type]
    with pytest.raises(type(error)):
        download(address, F4, np.empty_like(values), DEVICE, slow)
    upload(values, other, F4, DEVICE, stream)
    device.run_all_but(stream)
    device.quiesce()
    assert set(seen.ravel().tolist()) == {7.0}


def test_chunks_stay_inside_a_small_block(device: SimulatedRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many were asked for: where there is room for one, there is one."""
    monkeypatch.setattr("matrix_interop.transfer.lanes._SMALL", 4096)
    arena, values = default_arena(), numbers((250, 64))
    staging = staging_of(arena)
    address, seen = on_device(device, values.shape)
    held = staging.take(arena, staging.limit - 4096, 4096)
    read: list[int] = []
    copy = device.copy

    def noted(dst: int, src: int, nbytes: int, **where: int) -> None:
        read.extend((src, src + nbytes))
        copy(dst, src, nbytes, **where)

    monkeypatch.setattr(device, "copy", noted)
    with transfer_setting(lanes=1, chunk_bytes=4096, in_flight=100):
        upload(values, address, F4, DEVICE, device.stream_create(0))
    assert max(read) - min(read) <= 4096
    device.quiesce()
    assert np.array_equal(seen, values)
    staging.give(arena, held)


@pytest.mark.parametrize("direction", ["up", "down"])
def test_progress_of_pinned_memory(device: SimulatedRuntime, monkeypatch: pytest.MonkeyPatch, direction: str) -> None:
    """A move that the device makes in one go tells its end."""
    monkeypatch.setattr("matrix_interop.transfer.progress._LONG", 1)
    values = default_arena().empty((64, 64), F4)
    address, _ = on_device(device, values.shape)
    told: list[tuple[int, int]] = []
    with report_progress(lambda done, total: told.append((done, total))):
        if direction == "up":
            upload(values, address, F4, DEVICE, 1)
        else:
            moved = start_download(address, F4, values, DEVICE, 1)
            assert told == []
            moved.wait()
    assert told == [(16384, 16384)]


def test_progress(device: SimulatedRuntime, spread: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Long moves tell bytes done and bytes in all, ascending, last that all is done; short ones tell nothing."""
    values = numbers((250, 64))
    address, _ = on_device(device, values.shape)
    told: list[tuple[int, int]] = []
    with report_progress(lambda done, total: told.append((done, total))):
        upload(values, address, F4, DEVICE, 1)
        assert told == []
        monkeypatch.setattr("matrix_interop.transfer.progress._LONG", 1)
        upload(values, address, F4, DEVICE, 1)
    assert told[-1] == (64000, 64000)
    assert told == sorted(told)
    assert len(told) > 1


def test_what_progress_raises_ends_the_move(
    device: SimulatedRuntime, spread: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller's own exception comes out as it is."""
    monkeypatch.setattr("matrix_interop.transfer.progress._LONG", 1)
    values = numbers((250, 64))
    address, _ = on_device(device, values.shape)

    def stop(done: int, total: int) -> None:
        raise ArithmeticError("enough")

    with report_progress(stop), pytest.raises(ArithmeticError, match="enough"):
        upload(values, address, F4, DEVICE, 1)
    device.quiesce()
    assert default_arena().stats().live == 0


def test_one_move_after_the_other_pins_the_reserve_at_most(device: SimulatedRuntime) -> None:
    """What the arena takes beyond what is asked for included, and while the device still reads for the one before."""
    values, out = numbers((9000, 1024)), np.empty((9000, 1024), F4)
    address, _ = on_device(device, values.shape)
    with use_arena(PinnedArena(1 << 30, runtime=device, upstream="host_alloc", decay_s=None)) as arena:
        for _ in range(2):
            upload(values, address, F4, DEVICE, 1)
            download(address, F4, out, DEVICE, 1)
        assert 32 << 20 <= arena.stats().peak_reserved <= staging_of(arena).limit
    assert np.array_equal(out, values)


def test_an_arena_of_few_bytes(device: SimulatedRuntime) -> None:
    """Chunks shrink with the arena."""
    values = numbers((3000, 64))
    address, seen = on_device(device, values.shape)
    with use_arena(PinnedArena(1 << 16, runtime=device, upstream="host_alloc", decay_s=None)) as arena:
        upload(values, address, F4, DEVICE, 1)
        device.quiesce()
        assert arena.stats().peak_reserved <= 1 << 16
    assert np.array_equal(seen, values)


@pytest.mark.parametrize("nbytes", [1, 255, 4095, 4096, 5000, 8191, 8193])
@pytest.mark.parametrize("dtype", ["u1", "f4", "c16"])
def test_an_arena_of_next_to_nothing(device: SimulatedRuntime, nbytes: int, dtype: str) -> None:
    """A page is enough; less is an error that says so."""
    values = numbers((100, 70), dtype)
    address, seen = on_device(device, values.shape, dtype)
    with use_arena(PinnedArena(nbytes, runtime=device, upstream="host_alloc", decay_s=None)):
        if nbytes < 4096:
            with pytest.raises(PinnedLimitError, match=f"this arena's limit of {nbytes} bytes"):
                upload(values, address, np.dtype(dtype), DEVICE, 1)
            return
        upload(values, address, np.dtype(dtype), DEVICE, 1)
        device.quiesce()
    assert np.array_equal(seen, values)


def test_results_that_are_kept_stop_no_transfer(device: SimulatedRuntime) -> None:
    """They fill the arena up to its reserve, of which chunks take no more than there is."""
    values = numbers((9000, 1024))
    address, seen = on_device(device, values.shape)
    arena = PinnedArena(64 << 20, staging_bytes=1 << 20, runtime=device, upstream="host_alloc", decay_s=None)
    kept = [arena.empty(1 << 20, np.uint8) for _ in range(63)]
    with pytest.raises(PinnedLimitError):
        kept.append(arena.empty(1, np.uint8))
    with use_arena(arena):
        upload(values, address, F4, DEVICE, 1)
    device.quiesce()
    assert np.array_equal(seen, values)


def test_an_arena_of_another_runtime(device: SimulatedRuntime) -> None:
    """Chunks of an arena that does not know the device wait on the host, before they are filled again."""
    stream = device.stream_create(0)
    places = [on_device(device, (64, 64)) for _ in range(6)]
    buffer = np.empty((64, 64), F4)
    with use_arena(PinnedArena(1 << 20, runtime=None, decay_s=None)):
        for number, (address, _) in enumerate(places):
            buffer.fill(number)
            upload(buffer, address, F4, DEVICE, stream)
    device.stream_synchronize(stream, 0)
    assert [set(seen.ravel().tolist()) for _, seen in places] == [{float(number)} for number in range(6)]


# Mapped files --------------------------------------------------------------------------------------
def test_a_copy_of_a_memmap(device: SimulatedRuntime, spread: None, tmp_path: Path) -> None:
    """It has the type of a mapped file, and is none."""
    values = numbers((250, 64))
    np.save(tmp_path / "a.npy", values)
    rows = np.load(tmp_path / "a.npy", mmap_mode="r").copy()
    address, seen = on_device(device, rows.shape)
    upload(rows, address, F4, DEVICE, 1)
    device.quiesce()
    assert np.array_equal(seen, values)


@pytest.mark.parametrize("mode", ["r", "r+", "c"])
def test_a_mapped_file(device: SimulatedRuntime, spread: None, tmp_path: Path, mode: Any) -> None:
    """What is sent is what the mapping shows, changes that the file will never see among it."""
    np.save(tmp_path / "a.npy", numbers((250, 64)))
    rows = open_matrix(tmp_path / "a.npy", mode=mode).array[3:]
    if mode != "r":
        rows[7] = -1
    expected = rows.tolist()
    address, seen = on_device(device, rows.shape)
    upload(rows, address, F4, DEVICE, 1)
    device.quiesce()
    assert seen.tolist() == expected


def test_a_mapped_file_that_was_replaced(device: SimulatedRuntime, spread: None, tmp_path: Path) -> None:
    """What is sent is the file that was mapped, whatever its path names now."""
    save_matrix(tmp_path / "a.npy", numbers((250, 64)))
    rows = open_matrix(tmp_path / "a.npy").array
    save_matrix(tmp_path / "a.npy", -numbers((250, 64)))
    address, seen = on_device(device, rows.shape)
    upload(rows, address, F4, DEVICE, 1)
    device.quiesce()
    assert seen.tolist() == numbers((250, 64)).tolist()


@pytest.mark.parametrize("part", [slice(None), slice(None, None, 2)], ids=["dense", "strided"])
@pytest.mark.parametrize(("mapped", "name"), [(open_matrix, r"a\.npy"), (np.load, "a mapped file")])
def test_a_mapped_file_that_became_shorter(
    device: SimulatedRuntime, spread: None, tmp_path: Path, mapped: Any, name: str, part: slice
) -> None:
    """It is an error, where touching the pages would end the process: of a `numpy.memmap` too."""
    np.save(tmp_path / "a.npy", numbers((250, 64)))
    how = {"mmap_mode": "r"} if mapped is np.load else {}
    rows = np.asarray(mapped(tmp_path / "a.npy", **how))[:, part]
    os.truncate(tmp_path / "a.npy", 20000)
    address, _ = on_device(device, rows.shape)
    with pytest.raises(FormatError, match=f"{name}: 20000 bytes are left of 64128"):
        upload(rows, address, F4, DEVICE, 1)
    device.quiesce()
    assert default_arena().stats().live == 0


def test_a_part_of_a_memmap_that_became_shorter(device: SimulatedRuntime, spread: None, tmp_path: Path) -> None:
    """A mapping that begins inside the file is cut where its end is."""
    np.save(tmp_path / "a.npy", numbers((250, 64)))
    rows = np.memmap(tmp_path / "a.npy", F4, "r", offset=40960, shape=(90, 64))
    os.truncate(tmp_path / "a.npy", 50000)
    address, _ = on_device(device, rows.shape)
    with pytest.raises(FormatError, match="50000 bytes are left of 64000"):
        upload(np.asarray(rows), address, F4, DEVICE, 1)
    device.quiesce()


def test_mapped_memory_of_no_file(device: SimulatedRuntime, spread: None) -> None:
    """It cannot be cut, and goes like any other."""
    rows = np.frombuffer(mmap.mmap(-1, 64000), F4).reshape(250, 64)
    rows[:] = numbers((250, 64))
    address, seen = on_device(device, rows.shape)
    upload(rows, address, F4, DEVICE, 1)
    device.quiesce()
    assert np.array_equal(seen, rows)


def test_descriptors_of_mapped_files_are_closed(tmp_path: Path) -> None:
    """Each goes with the last array over its mapping."""
    np.save(tmp_path / "a.npy", numbers((250, 64)))
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(50):
        open_matrix(tmp_path / "a.npy")
    assert len(list(Path("/proc/self/fd").iterdir())) <= before
