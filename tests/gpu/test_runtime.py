"""The CUDA runtime on hardware: pointer facts, order against slow kernels, copies, and what failures leave behind."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from matrix_interop.errors import DeviceUnavailableError
from matrix_interop.runtime import Pointer, get_runtime
from matrix_interop.runtime.cuda import CudaRuntime

pytestmark = pytest.mark.gpu

#: Clock cycles of a slow kernel: about a tenth of a second.
SLOW = 200_000_000


@pytest.fixture(scope="module")
def runtime() -> CudaRuntime:
    """The runtime, or skip with its own reason."""
    try:
        found = get_runtime("cuda")
    except DeviceUnavailableError as error:
        pytest.skip(str(error))
    assert isinstance(found, CudaRuntime)
    return found


@pytest.fixture(scope="module")
def torch(runtime: CudaRuntime) -> Any:
    """torch, where it sees the device."""
    module = pytest.importorskip("torch")
    if not module.cuda.is_available():
        pytest.skip("this torch sees no CUDA device")
    return module


@pytest.fixture
def side_stream(runtime: CudaRuntime) -> Iterator[int]:
    """A stream that does not synchronise with the legacy stream."""
    stream = runtime.stream_create(0)
    yield stream
    runtime.stream_synchronize(stream, 0)
    runtime.stream_destroy(stream, 0)


def in_thread(work: Callable[[], Any]) -> Any:
    """What ``work`` gives in a new thread, where no device is current."""
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(work()))
    thread.start()
    thread.join()
    return results[0]


def sleep_on(torch: Any, stream: int) -> None:
    """Keep a stream busy."""
    with torch.cuda.stream(torch.cuda.ExternalStream(stream)):
        torch.cuda._sleep(SLOW)


def context_number() -> int:
    """The calling thread's current context; 0 for none."""
    from cuda.bindings import driver

    return int(driver.cuCtxGetCurrent()[1])


# Pointers ------------------------------------------------------------------------------------------
def test_pointer_of_torch(runtime: CudaRuntime, torch: Any) -> None:
    """Device and pinned tensors, at their start and inside."""
    device, pinned = torch.zeros(1000, device="cuda:0"), torch.zeros(1000, pin_memory=True)
    assert runtime.pointer(device.data_ptr()) == runtime.pointer(device[999:].data_ptr()) == Pointer("device", 0)
    assert runtime.pointer(pinned.data_ptr()) == runtime.pointer(pinned[999:].data_ptr()) == Pointer("pinned", 0)
    assert runtime.pointer(torch.zeros(1000).data_ptr()) == Pointer("pageable", None)


def test_pointer_of_cupy(runtime: CudaRuntime) -> None:
    """Device, pinned and managed memory of CuPy."""
    cupy = pytest.importorskip("cupy")
    assert runtime.pointer(cupy.zeros(10).data.ptr) == Pointer("device", 0)
    assert runtime.pointer(cupy.cuda.alloc_pinned_memory(4096).ptr) == Pointer("pinned", 0)
    assert runtime.pointer(cupy.cuda.malloc_managed(4096).ptr) == Pointer("managed", 0)


def test_pointer_of_host_memory(runtime: CudaRuntime) -> None:
    """Ordinary memory, and addresses behind which there is nothing, are pageable: nothing is dereferenced."""
    array = np.zeros(1000)
    assert [runtime.pointer(address) for address in (array.ctypes.data, 0, 1, 2**47)] == [Pointer("pageable", None)] * 4


def test_pointer_without_current_device(runtime: CudaRuntime) -> None:
    """A thread that never used CUDA asks, and no device becomes current in it."""
    address = runtime.device_alloc(4096, 0)
    facts, context = in_thread(lambda: (runtime.pointer(address), context_number()))
    runtime.device_free(address, 0)
    assert (facts, context) == (Pointer("device", 0), 0)


def test_registered_memory_is_pinned_until_unregistered(runtime: CudaRuntime) -> None:
    """Registration shows in the pointer facts, and goes."""
    array = np.zeros(1 << 20, np.uint8)
    address = array.ctypes.data
    runtime.host_register(address, array.nbytes)
    during = runtime.pointer(address).kind
    runtime.host_unregister(address)
    assert (during, runtime.pointer(address).kind) == ("pinned", "pageable")


# Order ---------------------------------------------------------------------------------------------
def test_event_is_done_after_the_slow_kernel(runtime: CudaRuntime, torch: Any, side_stream: int) -> None:
    """`query` does not block and says when the work before the record is done."""
    sleep_on(torch, side_stream)
    event = runtime.record(side_stream, 0)
    before = runtime.query(event)
    runtime.synchronize(event)
    assert (before, runtime.query(event)) == (False, True)
    runtime.release(event)


@pytest.mark.parametrize("named", [0, 1])
def test_named_stream_without_current_device(runtime: CudaRuntime, torch: Any, named: int) -> None:
    """The legacy stream means that of the given device, also in a thread without one, which stays so."""
    torch.cuda.synchronize()
    torch.cuda._sleep(SLOW)  # on the legacy stream
    event, context = in_thread(lambda: (runtime.record(named, 0), context_number()))
    before = runtime.query(event)
    runtime.synchronize(event)
    runtime.release(event)
    assert (before, context) == (False, 0)


def test_named_stream_under_another_context(runtime: CudaRuntime, torch: Any, side_stream: int) -> None:
    """While a foreign context is current, recording and waiting still mean the device's own legacy stream."""
    from cuda.bindings import driver

    error, foreign = driver.cuCtxCreate(None, 0, driver.cuDeviceGet(0)[1])  # becomes current
    if error:
        pytest.skip(f"no second context here: {error.name}")
    try:
        sleep_on_legacy = in_thread(lambda: torch.cuda._sleep(SLOW))
        assert sleep_on_legacy is None
        event = runtime.record(0, 0)
        recorded = runtime.query(event)
        runtime.synchronize(event)
        slow = in_thread(lambda: (sleep_on(torch, side_stream), runtime.record(side_stream, 0))[1])
        runtime.wait(0, slow, 0)
        after = in_thread(lambda: runtime.record(0, 0))
        waited = runtime.query(after)
        runtime.synchronize(after)
        assert (recorded, waited, context_number()) == (False, False, int(foreign))
    finally:
        driver.cuCtxDestroy(foreign)
    for used in (event, slow, after):
        runtime.release(used)


def test_wait_orders_streams(runtime: CudaRuntime, torch: Any) -> None:
    """A copy on one stream sees what a slow kernel and a fill on another wrote, 100 of 100."""
    value = torch.zeros(1 << 16, dtype=torch.int32, device="cuda:0")
    host = torch.zeros(1 << 16, dtype=torch.int32, pin_memory=True)
    first, second = torch.cuda.Stream(), torch.cuda.Stream()
    torch.cuda.synchronize()
    right = 0
    for number in range(1, 101):
        with torch.cuda.stream(first):
            torch.cuda._sleep(SLOW // 100)
            value.fill_(number)
        event = runtime.record(first.cuda_stream, 0)
        runtime.wait(second.cuda_stream, event, 0)
        runtime.release(event)  # a recorded wait keeps its meaning
        runtime.copy(host.data_ptr(), value.data_ptr(), host.nbytes, ordinal=0, stream=second.cuda_stream)
        runtime.stream_synchronize(second.cuda_stream, 0)
        right += bool((host == number).all())
    assert right == 100


def test_record_all_covers_every_stream(runtime: CudaRuntime, torch: Any, side_stream: int) -> None:
    """The event of `record_all` waits for streams that nobody named."""
    torch.cuda.synchronize()
    sleep_on(torch, side_stream)
    event = runtime.record_all(0)
    before = runtime.query(event)
    runtime.stream_synchronize(side_stream, 0)
    runtime.synchronize(event)
    assert (before, runtime.query(event)) == (False, True)
    runtime.release(event)


def test_events_are_used_again(runtime: CudaRuntime, side_stream: int) -> None:
    """Ten thousand records need one event."""
    events = set()
    for _ in range(10_000):
        event = runtime.record(side_stream, 0)
        events.add(event)
        runtime.release(event)
    assert len(events) == 1


# Copies --------------------------------------------------------------------------------------------
@pytest.mark.parametrize("pinned", [True, False])
def test_copies_there_and_back(runtime: CudaRuntime, torch: Any, side_stream: int, pinned: bool) -> None:
    """Bytes and rows with gaps, from and to pinned and ordinary memory."""
    source = torch.arange(64 * 100, dtype=torch.int32).reshape(64, 100)
    back = torch.zeros(64, 70, dtype=torch.int32)
    if pinned:
        source, back = source.pin_memory(), back.pin_memory()
    device = runtime.device_alloc(source.nbytes, 0)
    runtime.copy(device, source.data_ptr(), source.nbytes, ordinal=0, stream=side_stream)
    runtime.copy_rows(back.data_ptr(), 280, device + 40, 400, 280, 64, ordinal=0, stream=side_stream)
    runtime.copy(device, source.data_ptr(), 0, ordinal=0, stream=side_stream)
    runtime.stream_synchronize(side_stream, 0)
    runtime.device_free(device, 0)
    assert torch.equal(back, source[:, 10:80])


def test_copy_between_devices(runtime: CudaRuntime, torch: Any) -> None:
    """A peer copy arrives whole, whichever device is current."""
    if runtime.device_count() < 2:
        pytest.skip("one device here")
    source = torch.arange(1 << 20, dtype=torch.int32, device="cuda:0")
    target = torch.zeros(1 << 20, dtype=torch.int32, device="cuda:1")
    for current in (0, 1):
        target.zero_()
        torch.cuda.synchronize(1)
        with torch.cuda.device(current):
            runtime.copy_peer(target.data_ptr(), 1, source.data_ptr(), 0, source.nbytes, stream=0)
            runtime.stream_synchronize(0, 0)
            assert torch.cuda.current_device() == current
        assert torch.equal(target.cpu(), source.cpu())


def test_pinned_allocation(runtime: CudaRuntime) -> None:
    """`host_alloc` gives pinned memory and `host_free` takes it back."""
    address = runtime.host_alloc(1 << 20)
    during = runtime.pointer(address).kind
    runtime.host_free(address)
    assert (during, runtime.pointer(address).kind) == ("pinned", "pageable")


def test_pages_move_under_an_address(runtime: CudaRuntime, torch: Any, side_stream: int) -> None:
    """Pages written at one address are read by the device at another after they moved."""
    memory = runtime.virtual_memory(0)
    if memory is None:
        pytest.skip("no virtual memory management for host memory here")
    size = memory.granularity
    start = memory.reserve(2 * size)
    handle = memory.create(size)
    memory.map(start, size, handle)
    array = np.frombuffer((np.ctypeslib.ctypes.c_ubyte * size).from_address(start), np.uint8)
    array[:] = 7
    kind = runtime.pointer(start).kind
    memory.unmap(start, size)
    memory.map(start + size, size, handle)
    device = torch.zeros(size, dtype=torch.uint8, device="cuda:0")
    torch.cuda.synchronize()
    runtime.copy(device.data_ptr(), start + size, size, ordinal=0, stream=side_stream)
    runtime.stream_synchronize(side_stream, 0)
    memory.unmap(start + size, size)
    memory.destroy(handle)
    memory.unreserve(start, 2 * size)
    assert (kind, bool((device == 7).all())) == ("pinned", True)


# Failures ------------------------------------------------------------------------------------------
def test_failures_leave_the_device_usable(runtime: CudaRuntime, torch: Any) -> None:
    """Out of memory, an unknown pointer and a stale registration are errors, and the next kernel is not blamed."""
    with pytest.raises(MemoryError, match="cuMemAlloc"):
        runtime.device_alloc(1 << 50, 0)
    with pytest.raises(DeviceUnavailableError, match="cuMemHostUnregister"):
        runtime.host_unregister(np.zeros(10).ctypes.data)
    with pytest.raises(DeviceUnavailableError, match="no device cuda:99"):
        runtime.memory_info(99)
    assert float((torch.ones(10, device="cuda:0") * 2).sum()) == 20


def test_copy_across_two_registrations_is_refused(runtime: CudaRuntime, torch: Any, side_stream: int) -> None:
    """The driver takes no copy that crosses the edge of a registration; it says so and stays usable."""
    pages = np.zeros(3 << 20, np.uint8)
    start = -(-pages.ctypes.data // 4096) * 4096
    device = torch.zeros(2 << 20, dtype=torch.uint8, device="cuda:0")
    torch.cuda.synchronize()
    for address in (start, start + (1 << 20)):
        runtime.host_register(address, 1 << 20)
    with pytest.raises(DeviceUnavailableError, match="cuMemcpyAsync"):
        runtime.copy(device.data_ptr(), start, 2 << 20, ordinal=0, stream=side_stream)
    for address in (start, start + (1 << 20)):
        runtime.host_unregister(address)
    assert int((device + 1).sum()) == 2 << 20


def test_facts_of_the_device(runtime: CudaRuntime) -> None:
    """Free memory is part of the total, and the question about coherent memory has an answer."""
    free, total = runtime.memory_info(0)
    assert 0 < free <= total
    assert runtime.reads_pageable(0) in {True, False}


def test_forked_child_is_told(runtime: CudaRuntime) -> None:
    """In a forked child no call reaches the driver: each raises and says why."""
    with warnings.catch_warnings():
        # Python and JAX warn of threads and fork: the child only asks and exits.
        warnings.filterwarnings("ignore", r".*fork\(\)")
        child = os.fork()
    if not child:
        try:
            runtime.pointer(1)
        except DeviceUnavailableError as error:
            os._exit(0 if "fork" in str(error) else 2)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    assert runtime.pointer(1).kind == "pageable"
