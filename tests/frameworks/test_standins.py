"""The tests of the real frameworks on a GPU, run here over their stand-ins and late devices."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from frameworks.standins import on_cuda
from gpu import test_exchange as real
from simulated.runtime import SimulatedRuntime

SEEDS = range(3)
#: Left out: those that start processes, need gigabytes, count what a real allocator holds, or read pinned host memory,
#: which the tests of the room `memory` do.
SHARED = (
    "test_every_pair_shares",
    "test_host_is_never_reached_by_sharing",
    "test_bfloat16_into_cupy",
    "test_layouts",
    "test_computing_on_the_device",
    "test_pending_bits_of_torch",
    "test_not_a_number",
    "test_torch_to_cupy_waits",
    "test_torch_to_jax_waits",
    "test_torch_to_host_waits",
    "test_export_waits",
    "test_cupy_to_torch_waits",
    "test_interface_only_to_torch_waits",
    "test_streams_that_are_named",
    "test_producers_are_never_asked_for_stream_0",
    "test_memory_is_kept_for_the_consumer",
    "test_there_and_back",
    "test_objects_known_by_protocol",
    "test_interface_that_we_offer",
    "test_devices_that_are_not_there",
    "test_the_device_is_the_pointers",
    "test_from_device_to_device",
)
globals().update({name: getattr(real, name) for name in (*SHARED, "sides", "two")})


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Seeds decide the order of work: the many pairs, of which none waits for work, need one."""
    if "runtime" in metafunc.fixturenames:
        many = metafunc.function is real.test_every_pair_shares
        metafunc.parametrize("runtime", SEEDS[:1] if many else SEEDS, indirect=True)


@pytest.fixture
def runtime(request: pytest.FixtureRequest) -> Iterator[SimulatedRuntime]:
    """Two simulated devices as CUDA's."""
    with on_cuda(request.param) as found:
        yield found


@pytest.fixture
def torch(runtime: SimulatedRuntime) -> Any:
    """torch's stand-in."""
    return pytest.importorskip("torch")


@pytest.fixture
def cupy(runtime: SimulatedRuntime) -> Any:
    """CuPy's."""
    return pytest.importorskip("cupy")
