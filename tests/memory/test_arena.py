"""The arena: blocks that come cheaply, go back by themselves and never pile up."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import matrix_interop.memory
from matrix_interop.errors import ClosedError, PinnedLimitError, UnsupportedDtypeError
from matrix_interop.memory import PinnedArena, default_arena, is_pinned, use_arena
from memory.fake_runtime import FakeRuntime
from simulated.runtime import SimulatedRuntime

MIB = 1 << 20


def address(array):
    """Where an array's memory starts."""
    return array.ctypes.data


# Blocks ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("policy", ["bounded", "remap", "none"])
@pytest.mark.parametrize("shape", [(), (0,), (3, 0), 7, (5, 7), [2, 3], (2, 3, 4), (np.int64(3), 2)])
@pytest.mark.parametrize("dtype", ["u1", ">f8", np.float32, ml_dtypes.bfloat16])
def test_empty_gives_what_was_asked(policy, shape, dtype):
    """Shape, dtype and order are as asked, the memory is aligned to 256 bytes, writeable and the arena's own."""
    arena = PinnedArena(64 * MIB, policy=policy, runtime=None, decay_s=None)
    array = arena.empty(shape, dtype, order="F")
    array[...] = 1
    assert (array.shape, array.dtype) == (np.empty(shape).shape, np.dtype(dtype))
    assert (address(array) % 256, array.flags.writeable, array.flags.f_contiguous) == (0, True, True)
    assert arena.stats().live >= array.nbytes


def test_a_block_goes_back_with_its_last_view():
    """Rows, reinterpretations and other libraries' tensors keep the block; when the last one dies it is free."""
    torch = pytest.importorskip("torch")
    arena = PinnedArena(64 * MIB, runtime=None, decay_s=None)
    array = arena.empty((8, 64), np.float32)
    array[:] = 3
    views = [array[2], array.view(np.int32).reshape(-1)[7:9], memoryview(array), torch.from_numpy(array)]
    del array
    while views:
        assert arena.stats().live == 2048
        views.pop()
    assert (arena.stats().live, arena.stats().results) == (0, 0)


def test_a_block_in_a_reference_cycle_goes_back():
    """The collector, which may run anywhere, returns a block like anyone else."""
    arena = PinnedArena(64 * MIB, runtime=None, decay_s=None)
    cycle = [arena.empty(100)]
    cycle.append(cycle)
    del cycle
    gc.collect()
    assert arena.stats().live == 0


def test_steady_state_asks_nothing_of_upstream():
    """The same sizes again cost no upstream call, and one size alone gets the same block again."""
    arena = PinnedArena(256 * MIB, runtime=None, decay_s=None)
    first = address(arena.empty((MIB,), "u1"))
    assert address(arena.empty((MIB,), "u1")) == first
    for _ in range(3):
        blocks = [arena.empty((size * MIB,), "u1") for size in (1, 3, 7)]
        allocs = arena.stats().allocs
        del blocks
    assert arena.stats().allocs == allocs == 1


def test_released_blocks_are_reused_and_refused_twice():
    """`release` frees a pipeline's block at once; a second release is an error and changes nothing."""
    arena = PinnedArena(64 * MIB, runtime=None, decay_s=None)
    block = arena.block(1000)
    assert (block.nbytes, block.array.shape, block.address % 256) == (1000, (1000,), 0)
    arena.release(block)
    with pytest.raises(ValueError, match="released already"):
        arena.release(block)
    again = arena.block(1000)
    assert (again.address, arena.stats().live) == (block.address, 1024)
    with pytest.raises(ValueError, match="released already"):
        arena.release(block)
    del block
    assert arena.stats().live == 1024


def test_blocks_end_without_a_lock():
    """The collector may end a block while its thread is inside the arena: neither death nor release waits for it."""
    arena = PinnedArena(64 * MIB, runtime=None, decay_s=None)
    array, block = arena.empty(1000, "u1"), arena.block(1000)
    with arena._lock, arena._growing:
        del array
        arena.release(block)
    assert (arena.stats().live, arena.stats().results) == (0, 0)


@pytest.mark.parametrize(
    ("shape", "dtype", "error"),
    [
        ((3, -1), "f4", ValueError),
        ((2.5,), "f4", TypeError),
        ((3,), object, UnsupportedDtypeError),
        (-1, "f4", ValueError),
    ],
)
def test_bad_requests_change_nothing(shape, dtype, error):
    """A shape or dtype that cannot be is refused before anything is taken."""
    arena = PinnedArena(64 * MIB, runtime=None, decay_s=None)
    with pytest.raises(error):
        arena.empty(shape, dtype)
    assert (arena.stats().live, arena.stats().reserved) == (0, 0)


@pytest.mark.parametrize("options", [{"policy": "best"}, {"upstream": "magic"}, {"max_bytes": 0}])
def test_unknown_options_are_named(options):
    """A policy, upstream or limit that does not exist is refused when the arena is made."""
    with pytest.raises(ValueError, match=str(next(iter(options.values())))):
        PinnedArena(**options)


# Without and with a device -----------------------------------------------------------------------------------------
def test_without_a_device_it_is_ordinary_memory_and_says_so():
    """No device: blocks work, are not pinned, and the reason stands in the figures once (T28)."""
    arena = PinnedArena(64 * MIB, runtime=None)
    arrays = [arena.empty(10 * MIB, "u1") for _ in range(5)]
    stats = arena.stats()
    assert (stats.pinned, stats.upstream, len(stats.reasons)) == (False, "ordinary", 1)
    assert not any(map(is_pinned, arrays))


def test_with_a_device_blocks_are_pinned():
    """Registered pages come first where they work, and views know that they are pinned."""
    runtime = FakeRuntime()
    arena = PinnedArena(64 * MIB, runtime=runtime, decay_s=None)
    array = arena.empty((4, 4))
    assert (arena.stats().pinned, arena.stats().upstream, arena.stats().reasons) == (True, "registered", ())
    assert (is_pinned(array[1:]), is_pinned(np.empty(3))) == (True, False)
    assert list(runtime.registered.values()) == [arena.stats().reserved]


def test_nothing_is_touched_before_the_first_block():
    """Making an arena, asking for its figures and closing it does not start a device."""
    runtime = FakeRuntime()
    arena = PinnedArena(runtime=runtime)
    assert (arena.stats().reserved, arena.stats().upstream) == (0, "")
    arena.close()
    assert runtime.calls == []


# Waiting for the device --------------------------------------------------------------------------------------------
def test_a_block_that_a_user_saw_waits_for_all_work():
    """A dropped array is reused only when everything enqueued before, on every device in use, is done."""
    runtime = FakeRuntime(ordinals=(0, 2), done=False)
    arena = PinnedArena(64 * MIB, runtime=runtime, decay_s=None)
    arena.empty(MIB, "u1")
    assert (arena.stats().pending, arena.stats().live, len(runtime.undone)) == (MIB, 0, 2)
    runtime.undone.pop()
    assert arena.stats().pending == MIB
    runtime.undone.clear()
    assert (arena.stats().pending, runtime.events) == (0, set())


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("policy", ["bounded", "remap", "none"])
def test_uploads_from_dropped_results_arrive(policy, seed):
    """Asynchronous uploads on a device that runs late, each source dropped at once: all values are right."""
    runtime = SimulatedRuntime(seed)
    arena = PinnedArena(64 * MIB, policy=policy, runtime=runtime, decay_s=None)
    streams = [runtime.stream_create(0) for _ in range(3)]
    nbytes, targets = 1 << 12, []
    for number in range(150):
        source = arena.empty(nbytes, "u1")
        source[:] = number
        targets.append(runtime.device_alloc(nbytes, 0))
        runtime.copy(targets[-1], address(source), nbytes, ordinal=0, stream=streams[number % 3])
        if number % 40 == 39:
            runtime.stream_synchronize(streams[0], 0)
        del source
    runtime.quiesce()
    values = [set(runtime.array(target, (nbytes,), (1,), np.dtype("u1")).tolist()) for target in targets]
    assert values == [{number} for number in range(150)]
    assert (arena.stats().live, arena.stats().pending, runtime.events_out()) == (0, 0, 0)
    runtime.close()


def test_a_pending_block_is_not_given_out():
    """While a dead block waits, another request of its size gets other memory."""
    runtime = FakeRuntime(done=False)
    arena = PinnedArena(64 * MIB, runtime=runtime, decay_s=None)
    first = address(arena.empty(MIB, "u1"))
    assert arena.stats().pending >= MIB  # recorded by now, and not done
    second = arena.empty(MIB, "u1")
    assert address(second) != first
    runtime.undone.clear()
    arena.stats()
    assert address(arena.empty(MIB, "u1")) == first


def test_a_pipeline_block_waits_for_its_own_events_only():
    """`release` takes the events over: the block is free when they are done, whatever else is running."""
    runtime = FakeRuntime(done=False)
    arena = PinnedArena(64 * MIB, runtime=runtime, decay_s=None)
    slow, fast = arena.block(MIB), arena.block(MIB)
    for block in (slow, fast):
        arena.release(block, [runtime.event()])
    runtime.undone.remove(2)
    assert (arena.stats().pending, runtime.events, "record_all" in runtime.calls) == (MIB, {1}, False)
    runtime.undone.clear()
    assert (arena.stats().pending, arena.stats().live, runtime.events) == (0, 0, set())


def test_a_pipeline_block_that_is_dropped_waits_like_a_users():
    """A block lost on the way, by an exception say, is not leaked and not reused too early."""
    runtime = FakeRuntime(done=False)
    arena = PinnedArena(64 * MIB, runtime=runtime, decay_s=None)
    arena.block(MIB)
    assert (arena.stats().pending, arena.stats().live) == (MIB, 0)
    runtime.undone.clear()
    assert arena.stats().pending == 0


def test_an_event_that_cannot_be_recorded_is_tried_again():
    """A driver that refuses to record keeps the block waiting and raises nowhere."""
    refusing = [True]
    runtime = FakeRuntime(refuse=lambda name, _: name == "record_all" and refusing[0])
    arena = PinnedArena(64 * MIB, runtime=runtime, decay_s=None)
    arena.empty(MIB, "u1")
    assert arena.stats().pending == MIB
    refusing.clear()
    refusing.append(False)
    assert (arena.stats().pending, runtime.events) == (0, set())


# Limits ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("policy", ["bounded", "remap", "none"])
def test_the_limit_names_its_figures(policy):
    """Past max_bytes the error says asked, live, pending, cached and limit; what was dropped is usable again."""
    arena = PinnedArena(8 * MIB, policy=policy, runtime=None, decay_s=None)
    kept = arena.empty(5 * MIB, "u1")
    with pytest.raises(PinnedLimitError) as caught:
        arena.empty(4 * MIB, "u1")
    for words in (f"asked for {4 * MIB} bytes", f"limit of {8 * MIB}", f"{5 * MIB} are live", "0 pending", "cached"):
        assert words in str(caught.value)
    assert (arena.stats().live, arena.stats().reserved <= 8 * MIB) == (kept.nbytes, True)
    del kept
    assert arena.empty(8 * MIB, "u1").nbytes == 8 * MIB


def test_at_the_limit_it_waits_for_pending_blocks():
    """Memory that the device will give up soon is waited for, not refused."""
    runtime = FakeRuntime(done=False)
    arena = PinnedArena(8 * MIB, runtime=runtime, decay_s=None)
    arena.empty(6 * MIB, "u1")
    assert arena.empty(6 * MIB, "u1").nbytes == 6 * MIB
    assert "synchronize" in runtime.calls


def test_results_leave_the_staging_reserve_alone():
    """However many results are kept, a pipeline gets its reserve; a small arena keeps none."""
    arena = PinnedArena(32 * MIB, staging_bytes=8 * MIB, runtime=None, decay_s=None)
    kept = [arena.empty(8 * MIB, "u1") for _ in range(3)]
    with pytest.raises(PinnedLimitError, match=f"{8 * MIB} are kept for staging"):
        arena.empty(1, "u1")
    blocks = [arena.block(4 * MIB) for _ in range(2)]
    with pytest.raises(PinnedLimitError):
        arena.block(1)
    assert (arena.stats().results, arena.stats().live) == (24 * MIB, 32 * MIB)
    del kept, blocks
    assert PinnedArena(15 * MIB, staging_bytes=8 * MIB, runtime=None).empty(15 * MIB, "u1").nbytes == 15 * MIB


def test_results_past_their_budget_are_ordinary():
    """`result` never fails for want of pinned memory: past result_bytes or the limit it gives ordinary memory."""
    runtime = FakeRuntime()
    arena = PinnedArena(32 * MIB, result_bytes=10 * MIB, runtime=runtime, decay_s=None)
    first, second, third = (arena.result((size, MIB), "u1") for size in (6, 6, 4))
    assert [is_pinned(array) for array in (first, second, third)] == [True, False, True]
    assert (address(second) % 256, arena.stats().ordinary_results) == (0, 1)
    del first
    assert is_pinned(arena.result((6, MIB), "u1"))
    assert not is_pinned(PinnedArena(MIB, result_bytes=9 * MIB, runtime=runtime).result((2, MIB), "u1"))


def test_a_large_block_is_taken_without_much_more():
    """Staging 1.1 GiB at once holds at most 1.1 times as much (T26)."""
    arena = PinnedArena(4096 * MIB, runtime=None, decay_s=None)
    nbytes = 1126 * MIB
    arena.release(arena.block(nbytes))
    assert nbytes <= arena.stats().peak_reserved <= 1.1 * nbytes


# Keeping house -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("policy", ["bounded", "remap", "none"])
def test_trim_gives_back_what_is_unused(policy):
    """Trimming returns cached memory and leaves live blocks and their contents alone."""
    runtime = FakeRuntime()
    arena = PinnedArena(512 * MIB, policy=policy, runtime=runtime, decay_s=None)
    kept, dropped = arena.empty(10 * MIB, "u1"), arena.empty(200 * MIB, "u1")
    kept[:] = 7
    del dropped
    arena.stats()
    assert arena.trim() >= 200 * MIB - 64 * MIB
    assert (arena.stats().live, bool((kept == 7).all())) == (kept.nbytes, True)
    del kept
    arena.trim()
    assert arena.stats().reserved == 0
    arena.close()
    assert runtime.held == []


@pytest.mark.parametrize("policy", ["bounded", "remap"])
def test_idle_memory_decays_down_to_the_staging_reserve(policy):
    """What was unused for decay_s seconds goes back, not sooner, and the reserve stays."""
    arena = PinnedArena(1024 * MIB, policy=policy, decay_s=1e6, runtime=None, staging_bytes=64 * MIB)
    blocks = [arena.empty(48 * MIB, "u1") for _ in range(5)]
    del blocks
    held = arena.stats().reserved
    arena.decay(0.0)
    assert arena.stats().reserved == held
    for _ in range(2):  # moving pages are judged by what was spare all the time since the last look
        arena.decay(1e12)
    assert 64 * MIB <= arena.stats().reserved < 64 * MIB + 96 * MIB


def test_an_idle_arena_tends_itself():
    """A thread of its own gives idle memory back and ends when there is nothing left to watch."""
    before = set(threading.enumerate())
    arena = PinnedArena(256 * MIB, decay_s=0.02, staging_bytes=0, runtime=None)
    arena.empty(100 * MIB, "u1")
    (janitor,) = (thread for thread in set(threading.enumerate()) - before if "janitor" in thread.name)
    janitor.join(30)
    assert (janitor.is_alive(), arena.stats().reserved) == (False, 0)


def test_close_gives_memory_back_as_arrays_die():
    """After close no block is given; live arrays stay valid, and their memory goes back with them."""
    runtime = FakeRuntime()
    arena = PinnedArena(256 * MIB, runtime=runtime, decay_s=None)
    kept, dropped = arena.empty(100 * MIB, "u1"), arena.empty(20 * MIB, "u1")
    kept[:] = 5
    del dropped
    arena.close()
    with pytest.raises(ClosedError, match="closed"):
        arena.empty(1)
    assert (bool((kept == 5).all()), arena.stats().reserved >= 100 * MIB) == (True, True)
    del kept
    arena.close()
    assert (arena.stats().reserved, runtime.held, runtime.events) == (0, [], set())


def test_an_arena_that_is_dropped_lives_as_long_as_its_blocks():
    """Nothing leaks when the arena goes first: its memory goes back with the last array."""
    runtime = FakeRuntime(done=False)
    array = PinnedArena(64 * MIB, runtime=runtime, decay_s=None).empty(MIB, "u1")
    array[:] = 9
    assert (bool((array == 9).all()), bool(runtime.registered)) == (True, True)
    del array
    assert (runtime.held, runtime.events) == ([], set())


def test_use_arena_holds_for_its_context():
    """Inside the block the library draws from the given arena, elsewhere from the one of the process."""
    mine, seen = PinnedArena(MIB, runtime=None), []
    with use_arena(mine) as arena:
        thread = threading.Thread(target=lambda: seen.append(default_arena()))
        thread.start()
        thread.join()
        assert (default_arena(), arena) == (mine, mine)
    assert seen == [default_arena()]
    assert default_arena() is not mine


@pytest.mark.parametrize("arena", [None, 5, PinnedArena])
def test_use_arena_takes_an_arena_only(arena):
    """Anything else would fail later, far from here."""
    with pytest.raises(TypeError, match="takes a PinnedArena"), use_arena(arena):
        pass


@pytest.mark.parametrize("most", ["1", 1.5])
def test_limits_are_whole_numbers(most):
    """Of bytes."""
    with pytest.raises(TypeError):
        PinnedArena(most)


# Threads and forks -------------------------------------------------------------------------------------------------
def hammer(policy, threads, count):
    """Many threads take, stamp, check and drop blocks of random sizes; the arena's last figures and all errors."""
    arena = PinnedArena(1024 * MIB, policy=policy, runtime=FakeRuntime(), decay_s=None)
    errors = []

    def work(seed):
        pick = np.random.default_rng(seed)
        sizes, actions = pick.integers(1, 20_000, count), pick.integers(0, 3, count)
        held = []
        try:
            for number, (size, action) in enumerate(zip(sizes.tolist(), actions.tolist(), strict=True)):
                stamp = (seed * 31 + number) % 251
                if action == 0:
                    block = arena.block(size)
                    array = block.array
                else:
                    block, array = None, arena.empty(size, "u1")
                array[:: max(1, size // 16)] = stamp
                array[-1] = stamp
                held.append((block, array, stamp))
                if len(held) > 8 or action == 2:
                    block, array, stamp = held.pop(number % len(held))
                    assert (array[0], array[-1]) == (stamp, stamp)
                    assert (array[:: max(1, array.size // 16)] == stamp).all()
                    del array
                    if block is not None:
                        arena.release(block)
        except BaseException as error:  # noqa: BLE001 - shown by the test
            errors.append(error)

    workers = [threading.Thread(target=work, args=(seed,)) for seed in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return arena, errors


@pytest.mark.parametrize("policy", ["bounded", "remap"])
@pytest.mark.parametrize("count", [1500, pytest.param(100_000, marks=pytest.mark.slow)])
def test_threads_never_share_a_block(policy, count):
    """Eight threads with their own patterns: live blocks never overlap, and all memory comes back."""
    arena, errors = hammer(policy, 8, count)
    assert errors == []
    stats = arena.stats()
    assert (stats.live, stats.pending, stats.results) == (0, 0, 0)
    assert arena.trim() == stats.reserved


FORK = """
import os
import numpy as np
from memory.fake_runtime import FakeRuntime
from simulated.runtime import SimulatedRuntime
from matrix_interop.errors import ClosedError
from matrix_interop.memory import PinnedArena, default_arena, is_pinned, use_arena
from matrix_interop.runtime import register_runtime

runtime = FakeRuntime()
register_runtime("cuda", lambda: runtime)
array = default_arena().empty((4, 4))
array[:] = 6
own = PinnedArena()
block = own.block(100)
calls = len(runtime.calls)
child = os.fork()
if child == 0:
    code = 1
    try:
        assert is_pinned(array) and array[1:3].sum() == 48
        try:
            own.empty(3)
        except ClosedError as error:
            assert "forked" in str(error)
            with use_arena(own):
                fresh = default_arena().empty(1000)
        fresh[:] = 1
        assert fresh.sum() == 1000 and not is_pinned(fresh)
        assert "forked" in default_arena().stats().reasons[0]
        own.release(block, [])
        own.trim(), own.close(), own.decay(1e9), own.stats()
        del array, block, own
        assert len(runtime.calls) == calls
        code = 0
    finally:
        os._exit(code)
assert os.waitpid(child, 0)[1] == 0
own.release(block)
assert own.empty(3).size == 3
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_has_a_dead_copy_and_an_arena_of_its_own():
    """In a child arrays are readable, the parent's arenas say they are dead, and no device call is made (T29)."""
    paths = [str(Path(matrix_interop.memory.__file__).parents[2]), str(Path(__file__).parents[1])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    # Newer Pythons warn of any fork in a process with threads.
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORK]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_an_arena_closes_with_its_block():
    """``with`` closes the arena, which then gives no more."""
    with PinnedArena(4 * MIB, upstream="ordinary", decay_s=None) as arena:
        kept = arena.empty(16, "u1")
    kept[:] = 7
    with pytest.raises(ClosedError, match="closed"):
        arena.empty(16, "u1")
    assert kept.tolist() == [7] * 16
