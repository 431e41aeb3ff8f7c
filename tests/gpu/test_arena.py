"""The arena on hardware: every upstream, reuse against a slow device, and what other libraries see."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import matrix_interop.memory
from matrix_interop.errors import DeviceUnavailableError
from matrix_interop.memory import PinnedArena, is_pinned
from matrix_interop.memory.paged import Remap
from matrix_interop.runtime import Runtime, get_runtime

pytestmark = pytest.mark.gpu

MIB = 1 << 20
#: Clock cycles of a slow kernel: about a hundredth of a second.
SLOW = 20_000_000


@pytest.fixture(scope="module")
def runtime() -> Runtime:
    """The runtime, or skip with its own reason."""
    try:
        return get_runtime("cuda")
    except DeviceUnavailableError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def torch(runtime: Runtime) -> Any:
    """torch, where it sees the device."""
    module = pytest.importorskip("torch")
    if not module.cuda.is_available():
        pytest.skip("this torch sees no CUDA device")
    return module


@pytest.fixture(params=["registered", "host_alloc", "virtual"])
def arena(request: pytest.FixtureRequest, runtime: Runtime) -> PinnedArena:
    """An arena over each pinned upstream that works here."""
    policy = Remap(2 * MIB) if request.param == "virtual" else "bounded"
    made = PinnedArena(2048 * MIB, policy=policy, upstream=request.param, decay_s=None)
    made.release(made.block(1))
    if made.stats().upstream != request.param:
        pytest.skip(str(made.stats().reasons))
    return made


def test_default_upstream_is_registered_pages(runtime: Runtime) -> None:
    """Where there is a device the arena is pinned, without a fallback."""
    arena = PinnedArena(decay_s=None)
    array = arena.empty((1000, 1000))
    stats = arena.stats()
    assert (stats.upstream, stats.pinned, stats.reasons, is_pinned(array)) == ("registered", True, (), True)


def test_libraries_see_pinned_memory(arena: PinnedArena, runtime: Runtime, torch: Any) -> None:
    """torch's is_pinned and the driver's pointer facts say pinned, at the start of a block and inside."""
    torch.cuda.init()  # before that torch asks no driver and says no
    array = arena.empty((1 << 20,))
    assert torch.from_numpy(array).is_pinned()
    assert torch.from_numpy(array[1000:]).is_pinned()
    assert [runtime.pointer(array[start:].ctypes.data).kind for start in (0, 999_999)] == ["pinned", "pinned"]


def test_cupy_sees_pinned_memory(arena: PinnedArena) -> None:
    """The CUDA runtime, which CuPy asks, says page-locked host memory."""
    cupy = pytest.importorskip("cupy")
    array = arena.empty((1 << 20,))
    host = 1
    assert cupy.cuda.runtime.pointerGetAttributes(array.ctypes.data).type == host


def test_blocks_go_to_the_device_and_back(arena: PinnedArena, runtime: Runtime) -> None:
    """One copy of a whole block, over many pages and neighbours' pages, arrives right in both directions."""
    blocks = [arena.block(size) for size in (3 * MIB + 4096, 100 * MIB, 5 * MIB - 256, 64 * MIB)]
    stream = runtime.stream_create(0)
    for number, block in enumerate(blocks):
        pattern = np.random.default_rng(number).integers(0, 256, block.nbytes, dtype=np.uint8)
        block.array[:] = pattern
        device = runtime.device_alloc(block.nbytes, 0)
        runtime.copy(device, block.address, block.nbytes, ordinal=0, stream=stream)
        runtime.stream_synchronize(stream, 0)
        block.array[:] = 0
        runtime.copy(block.address, device, block.nbytes, ordinal=0, stream=stream)
        runtime.stream_synchronize(stream, 0)
        assert np.array_equal(block.array, pattern)
        runtime.device_free(device, 0)
        arena.release(block)
    runtime.stream_destroy(stream, 0)


def test_uploads_from_dropped_results_torch(arena: PinnedArena, torch: Any) -> None:
    """500 asynchronous uploads behind slow kernels, each source dropped at once: every value arrives."""
    streams = [torch.cuda.Stream() for _ in range(3)]
    uploads = []
    for number in range(500):
        with torch.cuda.stream(streams[number % 3]):
            if number % 50 == 0:
                torch.cuda._sleep(SLOW)
            source = arena.empty((1 << 16,))
            source[:] = number
            uploads.append(torch.from_numpy(source).to("cuda", non_blocking=True))
            del source
    torch.cuda.synchronize()
    assert [(float(upload.min()), float(upload.max())) for upload in uploads] == [(n, n) for n in range(500)]
    assert (arena.stats().live, arena.stats().pending) == (0, 0)


def test_uploads_from_dropped_results_cupy(arena: PinnedArena) -> None:
    """The same through CuPy, on streams that do not wait for the legacy one."""
    cupy = pytest.importorskip("cupy")
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(3)]
    big = cupy.ones((4096, 4096), np.float32)
    uploads = []
    for number in range(500):
        with streams[number % 3] as stream:
            if number % 50 == 0:
                big @ big
            source = arena.empty((1 << 16,))
            source[:] = number
            target = cupy.empty(source.shape, source.dtype)
            target.set(source, stream=stream)
            uploads.append(target)
            del source
    cupy.cuda.Device().synchronize()
    assert [(float(upload.min()), float(upload.max())) for upload in uploads] == [(n, n) for n in range(500)]
    assert (arena.stats().live, arena.stats().pending) == (0, 0)


def test_steady_state_asks_nothing_of_upstream(arena: PinnedArena, torch: Any) -> None:
    """Once warm, uploads of the same sizes cost no upstream call."""

    def upload() -> None:
        for size in (1, 3, 7):
            source = arena.empty((size * MIB,), "u1")
            torch.from_numpy(source).to("cuda", non_blocking=True)
            del source
        torch.cuda.synchronize()

    for _ in range(5):
        upload()
    before = arena.stats().allocs
    for _ in range(50):
        upload()
    assert arena.stats().allocs == before


def test_closing_gives_everything_back(arena: PinnedArena, runtime: Runtime, torch: Any) -> None:
    """After close, and the death of the last array, no address of the arena is pinned any more."""
    kept, dropped = arena.empty((10 * MIB,), "u1"), arena.empty((10 * MIB,), "u1")
    addresses = [kept.ctypes.data, dropped.ctypes.data]
    torch.from_numpy(dropped).to("cuda", non_blocking=True)
    del dropped
    arena.close()
    kept[:] = 1
    assert runtime.pointer(addresses[0]).kind == "pinned"
    del kept
    arena.close()
    assert arena.stats().reserved == 0
    assert [runtime.pointer(address).kind for address in addresses] == ["pageable", "pageable"]


def test_a_large_matrix_is_staged_without_much_more(runtime: Runtime) -> None:
    """Staging 1.1 GiB at once locks at most 1.1 times as much (T26)."""
    arena = PinnedArena(4096 * MIB, decay_s=None)
    nbytes = 1126 * MIB
    arena.release(arena.block(nbytes))
    assert nbytes <= arena.stats().peak_reserved <= 1.1 * nbytes
    arena.close()


FORK = """
import os
from matrix_interop.errors import ClosedError
from matrix_interop.memory import default_arena, is_pinned

array = default_arena().empty((4, 4))
array[:] = 6
parent = default_arena()
assert is_pinned(array)
child = os.fork()
if child == 0:
    code = 1
    try:
        assert is_pinned(array) and array[1:3].sum() == 48
        try:
            parent.empty(3)
        except ClosedError:
            code = 0 if default_arena().empty(1000).size == 1000 and not default_arena().stats().pinned else 2
        del array
    finally:
        os._exit(code)
assert os.waitpid(child, 0)[1] == 0
assert is_pinned(parent.empty(3)) and array.sum() == 96
"""


def test_a_forked_child_reads_and_makes_no_cuda_call(runtime: Runtime) -> None:
    """A child of a process with pinned memory reads it, and works on ordinary memory of its own (T29)."""
    source = str(Path(matrix_interop.memory.__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": source}
    # Newer Pythons warn of any fork in a process with threads.
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORK]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
