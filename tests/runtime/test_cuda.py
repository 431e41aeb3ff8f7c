"""The CUDA runtime without a driver: why it does not start, and which calls it makes on a stand-in for the bindings."""

from __future__ import annotations

import builtins
import sys
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from matrix_interop.errors import DeviceUnavailableError
from matrix_interop.runtime import Pointer, cuda
from matrix_interop.runtime.cuda import CudaRuntime
from simulated.fake_driver import CUresult, FakeDriver

SIDE = 0x500  # a stream with a handle of its own
FIRST, SECOND = 0xC0, 0xC1  # the primary contexts of the fake's devices


@pytest.fixture
def driver() -> FakeDriver:
    """Two devices, none current."""
    return FakeDriver()


@pytest.fixture
def runtime(driver: FakeDriver) -> CudaRuntime:
    """The runtime on them, the calls of its start forgotten."""
    runtime = CudaRuntime(driver)
    driver.calls.clear()
    return runtime


# Starting ------------------------------------------------------------------------------------------
def test_missing_bindings_name_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without cuda-bindings the error says what to install."""
    found = builtins.__import__

    def absent(name: str, *args: Any) -> Any:
        if name.startswith("cuda"):
            raise ModuleNotFoundError(f"No module named {name!r}")
        return found(name, *args)

    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(DeviceUnavailableError, match=r"pip install 'matrix-interop\[cuda13\]'"):
        cuda.load()


def raising(error: Exception) -> Callable[..., Any]:
    """A function that raises."""

    def call(*_args: Any) -> Any:
        raise error

    return call


@pytest.mark.parametrize("error", [RuntimeError("libcuda.so.1 not found"), OSError("libcuda.so.1 not found")])
def test_missing_driver(driver: FakeDriver, error: Exception) -> None:
    """The bindings raise when there is no driver library; the reason is passed on."""
    driver.cuInit = raising(error)
    with pytest.raises(DeviceUnavailableError, match=r"no CUDA driver on this machine: libcuda\.so\.1 not found"):
        CudaRuntime(driver)


@pytest.mark.parametrize(
    ("error", "hint"),
    [
        (CUresult.CUDA_ERROR_NO_DEVICE, "CUDA_VISIBLE_DEVICES"),
        (CUresult.CUDA_ERROR_NOT_INITIALIZED, "forked"),
        (CUresult.CUDA_ERROR_INVALID_CONTEXT, "nvidia-smi"),
    ],
)
def test_driver_that_does_not_start(driver: FakeDriver, error: CUresult, hint: str) -> None:
    """The driver's own reason is named, with what to look at."""
    driver.errors["cuInit"] = error
    with pytest.raises(DeviceUnavailableError, match=f"{error.name}.*{hint}"):
        CudaRuntime(driver)


@pytest.mark.parametrize(("version", "way_out"), [(12080, r"driver or pip install .*\[cuda12\]'$"), (11080, "driver$")])
def test_old_driver(version: int, way_out: str) -> None:
    """A driver of an older major version than the bindings is refused with both versions and what can be done."""
    text = rf"serves CUDA {version // 1000}\.8.*for CUDA 13\.0: update the {way_out}"
    with pytest.raises(DeviceUnavailableError, match=text):
        CudaRuntime(FakeDriver(version=version))


def test_no_devices() -> None:
    """A driver that counts no device is no runtime."""
    with pytest.raises(DeviceUnavailableError, match="no CUDA device"):
        CudaRuntime(FakeDriver(devices=0))


@pytest.mark.parametrize("ordinal", [-1, 2])
def test_ordinal_out_of_range(runtime: CudaRuntime, driver: FakeDriver, ordinal: int) -> None:
    """Every kind of call refuses a device that is not there, before the driver is asked for it."""
    calls = [
        lambda: runtime.record(SIDE, ordinal),
        lambda: runtime.record_all(ordinal),
        lambda: runtime.copy(1, 2, 3, ordinal=ordinal, stream=0),
        lambda: runtime.memory_info(ordinal),
        lambda: runtime.stream_create(ordinal),
        lambda: runtime.reads_pageable(ordinal),
    ]
    for call in calls:
        with pytest.raises(DeviceUnavailableError, match=f"no device cuda:{ordinal}.*sees 2"):
            call()
    assert driver.names() == []


# Order ---------------------------------------------------------------------------------------------
def test_record_query_wait_on_a_handle(runtime: CudaRuntime, driver: FakeDriver) -> None:
    """With a stream of its own each is one call into the driver, once an event is at hand."""
    runtime.release(runtime.record(SIDE, 0))
    driver.calls.clear()
    event = runtime.record(SIDE, 0)
    assert runtime.query(event)
    runtime.wait(SIDE, event, 0)
    runtime.synchronize(event)
    assert [name for name, _, _ in driver.calls] == [
        "cuEventRecord",
        "cuEventQuery",
        "cuStreamWaitEvent",
        "cuEventSynchronize",
    ]


def test_query_of_a_busy_event(runtime: CudaRuntime, driver: FakeDriver) -> None:
    """Not ready is False, not an error; anything else is one."""
    event = runtime.record(SIDE, 0)
    driver.busy.add(event)
    assert runtime.query(event) is False
    driver.errors["cuEventQuery"] = CUresult.CUDA_ERROR_INVALID_HANDLE
    with pytest.raises(DeviceUnavailableError, match="cuEventQuery failed with CUDA_ERROR_INVALID_HANDLE"):
        runtime.query(event)


def test_events_return_to_their_own_device(runtime: CudaRuntime, driver: FakeDriver) -> None:
    """A released event is used again on the device it was made for, and on no other."""
    first = runtime.record(SIDE, 0)
    runtime.release(first)
    second = runtime.record(SIDE, 1)
    assert (runtime.record(SIDE, 0), driver.event_context) == (first, {first: FIRST, second: SECOND})


@pytest.mark.parametrize("stream", [0, 1])
def test_named_stream_is_the_one_of_the_given_device(runtime: CudaRuntime, driver: FakeDriver, stream: int) -> None:
    """Stream 0 is the legacy stream, resolved in the device's context, whatever device is current."""
    driver.stack.append(SECOND)
    event = runtime.record(stream, 0)
    runtime.wait(stream, event, 0)
    done = [call for call in driver.calls if call[0] in {"cuEventRecord", "cuStreamWaitEvent"}]
    assert done == [
        ("cuEventRecord", SECOND, (event, 1)),  # the driver refuses this one
        ("cuEventRecord", FIRST, (event, 1)),
        ("cuStreamWaitEvent", FIRST, (1, event, 0)),
    ]
    assert driver.stack == [SECOND]


def test_failed_record_gives_its_event_back(runtime: CudaRuntime, driver: FakeDriver) -> None:
    """A failure loses no event and leaves the current device as it was."""
    event = runtime.record(SIDE, 0)
    runtime.release(event)
    driver.errors["cuEventRecord"] = CUresult.CUDA_ERROR_INVALID_HANDLE
    with pytest.raises(DeviceUnavailableError, match="cuEventRecord"):
        runtime.record(SIDE, 0)
    del driver.errors["cuEventRecord"]
    assert (runtime.record(SIDE, 0), driver.stack) == (event, [])


def test_record_all_asks_the_context(runtime: CudaRuntime, driver: FakeDriver) -> None:
    """One call, and nothing blocks."""
    runtime.record_all(1)
    assert "cuCtxSynchronize" not in driver.names()


@pytest.mark.parametrize("missing", [AttributeError("old bindings"), RuntimeError("old driver"), None])
def test_record_all_on_an_old_driver(runtime: CudaRuntime, driver: FakeDriver, missing: Exception | None) -> None:
    """Where the driver cannot record a context, the context is waited for: its event is done."""
    if missing is None:
        driver.errors["cuCtxRecordEvent"] = CUresult.CUDA_ERROR_NOT_SUPPORTED
    else:
        driver.cuCtxRecordEvent = raising(missing)
    runtime.record_all(1)
    waits = [(name, context) for name, context, _ in driver.calls if name in {"cuCtxSynchronize", "cuEventRecord"}]
    assert waits == [("cuCtxSynchronize", SECOND), ("cuEventRecord", SECOND)]


def test_record_all_during_capture_does_not_block(runtime: CudaRuntime, driver: FakeDriver) -> None:
    """While a graph is captured waiting is forbidden too: the driver's error is raised."""
    driver.errors["cuCtxRecordEvent"] = CUresult.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
    with pytest.raises(DeviceUnavailableError, match="STREAM_CAPTURE_UNSUPPORTED"):
        runtime.record_all(0)
    assert "cuCtxSynchronize" not in driver.names()


# The current device --------------------------------------------------------------------------------
@pytest.mark.parametrize("current", [[], [FIRST], [SECOND], [0xF0]])
def test_current_device_is_left_as_found(runtime: CudaRuntime, driver: FakeDriver, current: list[int]) -> None:
    """Calls for a device run in its context; nothing is pushed where it is current already."""
    driver.stack.extend(current)
    runtime.copy(1, 2, 3, ordinal=1, stream=0)
    assert ("cuMemcpyAsync", SECOND, (1, 2, 3, 1)) in driver.calls
    assert driver.names().count("cuCtxPushCurrent") == (current != [SECOND])
    assert driver.stack == current


def test_a_device_is_current_for_libraries(runtime: CudaRuntime, driver: FakeDriver) -> None:
    """Inside the block the device's primary context is the thread's own, after an error no longer."""
    seen: list[list[int]] = []

    def call() -> None:
        with runtime.current(1):
            seen.append(list(driver.stack))
            raise KeyError

    driver.stack.append(FIRST)
    with pytest.raises(KeyError):
        call()
    assert (seen, driver.stack) == ([[FIRST, SECOND]], [FIRST])


def test_current_device_is_restored_after_a_failure(runtime: CudaRuntime, driver: FakeDriver) -> None:
    """Out of memory is a MemoryError with the driver's words, and the thread's device is current again."""
    driver.stack.append(FIRST)
    driver.errors["cuMemAlloc"] = CUresult.CUDA_ERROR_OUT_OF_MEMORY
    with pytest.raises(MemoryError, match="cuMemAlloc failed with CUDA_ERROR_OUT_OF_MEMORY"):
        runtime.device_alloc(1 << 50, 1)
    assert driver.stack == [FIRST]


@pytest.mark.parametrize(("current", "used"), [([SECOND], SECOND), ([0xF1], SECOND), ([], FIRST)])
def test_host_memory_wakes_no_other_device(
    runtime: CudaRuntime, driver: FakeDriver, current: list[int], used: int
) -> None:
    """Pinning uses the device that is current, in its primary context, which outlives others; else the first."""
    driver.stack.extend(current)
    runtime.host_register(0x10000, 4096)
    assert ("cuMemHostRegister", used, (0x10000, 4096, 1)) in driver.calls


def test_host_memory_prefers_a_device_in_use(runtime: CudaRuntime, driver: FakeDriver) -> None:
    """A thread without a context uses that of a device this process already uses, not device 0."""
    runtime.memory_info(1)
    runtime.host_register(0x10000, 4096)
    assert ("cuMemHostRegister", SECOND, (0x10000, 4096, 1)) in driver.calls


# Pointers and copies -------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("kind", "ordinal", "managed", "facts"),
    [
        (2, 1, 0, Pointer("device", 1)),
        (2, 1, 1, Pointer("managed", 1)),
        (1, 0, 1, Pointer("managed", 0)),
        (1, 1, 0, Pointer("pinned", 1)),
        (1, -2, 0, Pointer("pinned", None)),
    ],
)
def test_pointer_facts(
    runtime: CudaRuntime, driver: FakeDriver, kind: int, ordinal: int, managed: int, facts: Pointer
) -> None:
    """What the driver says about an address, in our words."""
    driver.pointers[0x5000] = {"MEMORY_TYPE": kind, "DEVICE_ORDINAL": ordinal, "IS_MANAGED": managed}
    assert runtime.pointer(0x5000) == facts


def test_device_of_a_pointer_by_its_context(runtime: CudaRuntime, driver: FakeDriver) -> None:
    """Some cuda-bindings say device 0 for memory of any device: the primary context of the memory tells."""
    driver.pointers[0x5000] = {"MEMORY_TYPE": 2, "DEVICE_ORDINAL": 0, "CONTEXT": SECOND}
    assert runtime.pointer(0x5000) == Pointer("device", 1)


def test_unknown_pointer_is_pageable_after_one_call(runtime: CudaRuntime, driver: FakeDriver) -> None:
    """Ordinary memory costs one question."""
    assert (runtime.pointer(0x6000), driver.names()) == (Pointer("pageable", None), ["cuPointerGetAttributes"])


def test_pointer_failure_is_no_pageable_memory(runtime: CudaRuntime, driver: FakeDriver) -> None:
    """An error is raised, not taken for memory that CUDA does not know."""
    driver.errors["cuPointerGetAttributes"] = CUresult.CUDA_ERROR_NOT_INITIALIZED
    with pytest.raises(DeviceUnavailableError, match="NOT_INITIALIZED"):
        runtime.pointer(0x6000)


def test_copy_rows_describes_both_sides(runtime: CudaRuntime, driver: FakeDriver) -> None:
    """Pitches, width and rows reach the driver as they are; it finds out where the sides lie."""
    runtime.copy_rows(0x10, 512, 0x20, 640, 500, 7, ordinal=0, stream=SIDE)
    [(name, _, (copy, stream))] = driver.calls
    assert (name, stream) == ("cuMemcpy2DAsync", SIDE)
    unified = "CU_MEMORYTYPE_UNIFIED"
    assert copy == SimpleNamespace(
        dstDevice=0x10, dstPitch=512, srcDevice=0x20, srcPitch=640, WidthInBytes=500, Height=7,
        srcMemoryType=unified, dstMemoryType=unified,
    )  # fmt: skip


def test_empty_copies_make_no_call(runtime: CudaRuntime, driver: FakeDriver) -> None:
    """Nothing to move, nothing asked."""
    runtime.copy(1, 2, 0, ordinal=0, stream=SIDE)
    runtime.copy_rows(1, 4, 2, 4, 4, 0, ordinal=0, stream=SIDE)
    runtime.copy_peer(1, 1, 2, 0, 0, stream=SIDE)
    assert driver.names() == []


def test_failed_copy_is_an_error(runtime: CudaRuntime, driver: FakeDriver) -> None:
    """A copy that the driver refuses raises, and the current device is as it was."""
    driver.stack.append(FIRST)
    driver.errors["cuMemcpyAsync"] = CUresult.CUDA_ERROR_INVALID_VALUE
    with pytest.raises(DeviceUnavailableError, match="cuMemcpyAsync failed with CUDA_ERROR_INVALID_VALUE"):
        runtime.copy(1, 2, 3, ordinal=1, stream=SIDE)
    assert driver.stack == [FIRST]


def test_copy_peer_links_two_devices_once(runtime: CudaRuntime, driver: FakeDriver) -> None:
    """Peer access is enabled both ways at the first copy; that somebody did so before is fine."""
    driver.errors["cuCtxEnablePeerAccess"] = CUresult.CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED
    for _ in range(2):
        runtime.copy_peer(0x10, 1, 0x20, 0, 64, stream=SIDE)
    links = [(context, args[0]) for name, context, args in driver.calls if name == "cuCtxEnablePeerAccess"]
    copies = [(context, args) for name, context, args in driver.calls if name == "cuMemcpyPeerAsync"]
    assert links == [(SECOND, FIRST), (FIRST, SECOND)]
    assert copies == [(0, (0x10, SECOND, 0x20, FIRST, 64, SIDE))] * 2


# Pages that move -----------------------------------------------------------------------------------
def test_virtual_memory_where_the_device_has_it(runtime: CudaRuntime, driver: FakeDriver) -> None:
    """Pages come from the device's own NUMA node; the CPU and every device may touch them."""
    assert runtime.virtual_memory(0) is None
    driver.attributes.update(HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED=1, HOST_NUMA_ID=3)
    memory = runtime.virtual_memory(1)
    assert memory is not None
    memory.map(0x200000, memory.granularity, 77)
    (address, size, access, count) = driver.calls[-1][2]
    places = [(entry.location.type.removeprefix("CU_MEM_LOCATION_TYPE_"), entry.location.id) for entry in access]
    assert (address, size, count) == (0x200000, 1 << 21, 3)
    assert places == [("HOST_NUMA", 3), ("DEVICE", 0), ("DEVICE", 1)]


def test_mapping_without_access_is_undone(runtime: CudaRuntime, driver: FakeDriver) -> None:
    """A mapping that cannot be opened is taken away again."""
    driver.attributes.update(HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED=1)
    driver.errors["cuMemSetAccess"] = CUresult.CUDA_ERROR_NOT_SUPPORTED
    memory = runtime.virtual_memory(0)
    assert memory is not None
    with pytest.raises(DeviceUnavailableError, match="cuMemSetAccess"):
        memory.map(0x200000, memory.granularity, 77)
    assert driver.names()[-1] == "cuMemUnmap"


# Processes and threads -----------------------------------------------------------------------------
def test_child_of_a_fork_makes_no_call(driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    """`load` registers what a forked child does; from then on every call says why it is refused."""
    hooks: list[Callable[[], None]] = []

    def register(*, after_in_child: Callable[[], None]) -> None:
        hooks.append(after_in_child)

    monkeypatch.setattr("os.register_at_fork", register)
    monkeypatch.setitem(sys.modules, "cuda.bindings", SimpleNamespace(driver=driver))
    runtime = cuda.load()
    event = runtime.record(SIDE, 0)
    driver.calls.clear()
    [in_child] = hooks
    in_child()
    calls = [
        lambda: runtime.query(event),
        lambda: runtime.record(SIDE, 0),
        lambda: runtime.record_all(0),
        lambda: runtime.pointer(1),
        lambda: runtime.copy(1, 2, 3, ordinal=0, stream=SIDE),
        lambda: runtime.host_alloc(8),
    ]
    for call in calls:
        with pytest.raises(DeviceUnavailableError, match="CUDA does not survive a fork"):
            call()
    assert driver.calls == []


def test_events_from_many_threads(runtime: CudaRuntime) -> None:
    """No event is in two hands at once."""
    held: set[int] = set()
    clashes: list[int] = []

    def work() -> None:
        for _ in range(200):
            event = runtime.record(SIDE, 0)
            if event in held:
                clashes.append(event)
            held.add(event)
            held.discard(event)
            runtime.release(event)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert clashes == []
