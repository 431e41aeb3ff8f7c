"""Transfers on hardware: right values from many threads, bounded pinned memory, the handed cases T25, T27 and T30."""

from __future__ import annotations

import gc
import random
import statistics
import threading
import time
from typing import Any

import numpy as np
import pytest

from matrix_interop import MatrixBuilder, from_tensor
from matrix_interop.errors import DeviceUnavailableError
from matrix_interop.memory import PinnedArena, use_arena
from matrix_interop.runtime import get_runtime
from matrix_interop.transfer import report_progress

pytestmark = pytest.mark.gpu

MIB = 1 << 20


@pytest.fixture(scope="module", autouse=True)
def device() -> Any:
    """The runtime, or skip with its own reason."""
    try:
        return get_runtime("cuda")
    except DeviceUnavailableError as error:
        pytest.skip(str(error))


def settled(arena: PinnedArena, device: Any) -> tuple[int, int]:
    """Live and pending bytes once the device is idle."""
    gc.collect()
    device.synchronize(device.record_all(0))
    stats = arena.stats()
    return stats.live, stats.pending


@pytest.mark.parametrize("seed", range(2))
def test_random_transfers_on_many_threads(device: Any, seed: int) -> None:
    """5000 moves of 8 threads, each on streams of its own, arrive whole; pinned memory stays within bounds."""
    arena = PinnedArena(1 << 30, decay_s=None)
    wrong: list[str] = []

    def work(number: int) -> None:
        chance = random.Random(seed * 100 + number)
        values = np.random.default_rng(number).integers(0, 1 << 30, 4 * MIB, dtype=np.int32)
        torch = pytest.importorskip("torch")
        stream = torch.cuda.Stream()
        with use_arena(arena), torch.cuda.stream(stream):
            for turn in range(625):
                rows, columns = chance.randrange(1, 2000), chance.choice((1, 7, 64, 513, 2048))
                step = chance.choice((1, 1, 2))
                rows = min(rows, values.size // (columns * step) - 1)
                start = chance.randrange(values.size - rows * columns * step)
                a = values[start : start + rows * columns * step : step].reshape(rows, columns)
                m = from_tensor(a.copy(order=chance.choice("CF"))).to_device("cuda:0", framework="torch")
                way = turn % 4
                if way == 0:
                    back = np.asarray(m.to_host())
                elif way == 1:
                    out = np.empty_like(a)
                    m.to_host(out=out, non_blocking=bool(turn % 8 == 1))
                    back = out if turn % 8 != 1 else np.asarray(m.to_host(out=out, non_blocking=True).result())
                elif way == 2:
                    back = np.stack(list(m.rows(block=chance.choice((None, 100)))))
                else:
                    back = np.concatenate([np.asarray(b) for b in m.blocks(1 + rows // 3, device="cpu")])
                if not np.array_equal(back, a):
                    wrong.append(f"thread {number}, turn {turn}: {a.shape}")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    peak = arena.stats().peak_reserved
    assert wrong == []
    assert settled(arena, device) == (0, 0)
    assert peak < 512 * MIB  # results of eight threads included


def test_chunks_in_a_row(device: Any) -> None:
    """T25: a thousand uploads of 1 MiB from one buffer that is filled anew each time."""
    buffer, kept = np.empty((256, 1024), np.float32), []
    with use_arena(PinnedArena(1 << 30, decay_s=None)) as arena:
        for number in range(1000):
            buffer.fill(number)
            kept.append(from_tensor(buffer).to_device("cuda:0"))
        assert arena.stats().peak_reserved <= 64 * MIB
        got = [set(np.unique(np.asarray(m.to_host())).tolist()) for m in kept]
    assert got == [{float(number)} for number in range(1000)]


def test_large_moves_stay_within_the_staging_reserve(device: Any) -> None:
    """Moves of 1 GiB there and back, and all rows of it kept, pin at most 64 MiB; progress ends at the end."""
    a = np.empty((131072, 2048), np.float32)
    a[...] = np.arange(131072, dtype=np.float32)[:, None]
    told: list[tuple[int, int]] = []
    with use_arena(PinnedArena(1 << 30, decay_s=None)) as arena, report_progress(lambda *at: told.append(at)):
        m = from_tensor(a).to_device("cuda:0")
        out = np.empty_like(a)
        m.to_host(out=out)
        rows = list(m.rows())
        assert arena.stats().peak_reserved <= 64 * MIB
        assert np.array_equal(out, a)
        assert [row[0] for row in rows[::997]] == [float(i) for i in range(0, 131072, 997)]
        assert told[-1] == (a.nbytes, a.nbytes)
        del rows, m
        assert settled(arena, device) == (0, 0)


def test_rows_of_a_pinned_reader(device: Any) -> None:
    """T27: pin() of a device matrix gives it back, and its rows are read through pinned blocks all the same."""
    a = np.arange(6000, dtype=np.float32).reshape(100, 60)
    m = from_tensor(a).to_device("cuda:0")
    assert m.pin() is m
    assert np.array_equal(np.stack(list(m.rows())), a)


def test_pinned_out_is_filled_at_the_rate_of_a_bare_copy(device: Any) -> None:
    """T30: the very buffer is filled, at 80 % of a bare copy's rate at least."""
    a = np.random.default_rng(0).random((8192, 2048), dtype=np.float32)
    m = from_tensor(a).to_device("cuda:0")
    with use_arena(PinnedArena(1 << 30)) as arena:
        out = arena.empty(a.shape, a.dtype)
    address = int(out.__array_interface__["data"][0])

    def seconds(call: Any) -> float:
        began = time.perf_counter()
        call()
        device.stream_synchronize(1, 0)
        return time.perf_counter() - began

    def bare() -> None:
        device.copy(address, m._view.pointer, a.nbytes, ordinal=0, stream=1)

    times = [(seconds(lambda: m.to_host(out=out)), seconds(bare)) for _ in range(30)]
    got = m.to_host(out=out)
    assert got._view.pointer == address
    assert np.array_equal(out, a)
    ours, theirs = (statistics.median(column) for column in zip(*times, strict=True))
    assert theirs / ours > 0.8


def test_builder(device: Any) -> None:
    """Rows one by one, in bulk, and from the device, on the device."""
    a = np.random.default_rng(0).random((5000, 300), dtype=np.float32)
    for capacity in (None, 5000, 9000):
        builder = MatrixBuilder(300, device="cuda:0", capacity=capacity)
        for row in a[:1000]:
            builder.append(row)
        builder.extend(a[1000:3000])
        builder.extend(from_tensor(a[3000:]).to_device("cuda:0"))
        assert np.array_equal(np.asarray(builder.finish().to_host()), a)
