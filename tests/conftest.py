"""What every test may use: the shared real data and the Hypothesis profiles."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from matrix_interop.frameworks import registry
from matrix_interop.memory import current
from matrix_interop.runtime import running_runtimes

# quick: the same few examples each time, so that `make test` is a steady gate.
# wide: many, new each time (`make test-all`); a failure prints how to reproduce it.
settings.register_profile("quick", max_examples=30, deadline=None, derandomize=True)
settings.register_profile(
    "wide", max_examples=500, deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile(os.environ.get("MATRIX_INTEROP_HYPOTHESIS", "quick"))

REPOSITORY = Path(__file__).resolve().parent.parent


def pytest_collection_finish() -> None:
    """Leave what the imports made to no collector: many tests ask for a collection, which then takes milliseconds."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real data: MATRIX_INTEROP_SHARED, or ../shared/data beside the checkout.

    Absent, the test is skipped; under CI it fails, because there the data is promised.
    """
    path = Path(os.environ.get("MATRIX_INTEROP_SHARED", REPOSITORY.parent / "shared" / "data"))
    if not path.is_dir():
        reason = f"no real data at {path}: set MATRIX_INTEROP_SHARED to the folder that holds sift/, digits/ and text/"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    return path


@pytest.fixture(autouse=True)
def _no_arena_of_another_device() -> Iterator[None]:
    """The arena of the process, where a test made it over a device that it put in CUDA's place, ends with that test."""
    yield
    made = current._default
    if made is not None and made.runtime is not None and made.runtime not in running_runtimes():
        current._forget()


@pytest.fixture(autouse=True)
def _frameworks_as_before() -> Iterator[None]:
    """What a test registers ends with it: tests share a process, and a framework owns device memory."""
    before = dict(registry._registered)
    yield
    changed = {
        name for name in {*before, *registry._registered} if before.get(name) is not registry._registered.get(name)
    }
    for name in changed:
        registry._registered.pop(name, None)
        registry._adapters.pop(name, None)
    if changed:
        registry._registered.update(before)
        registry._by_type.clear()
