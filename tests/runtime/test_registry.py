"""Finding the runtime of a device type."""

from __future__ import annotations

import pytest

from matrix_interop import runtime as registry
from matrix_interop.errors import DeviceUnavailableError
from matrix_interop.runtime import Runtime, get_runtime, register_runtime
from simulated.runtime import SimulatedRuntime


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test registers is gone after it."""
    for table in ("_loaders", "_loaded", "_absent"):
        monkeypatch.setattr(registry, table, {})


def test_runtime_is_loaded_once_when_asked_for() -> None:
    """Registering loads nothing; the first question does, and the answer stays."""
    made: list[Runtime] = []

    def load() -> Runtime:
        made.append(SimulatedRuntime())
        return made[0]

    register_runtime("ext", load)
    assert made == []
    assert [get_runtime("ext"), get_runtime("ext")] == made * 2


def test_absent_runtime_is_looked_for_once() -> None:
    """The reason of a failed start is kept, so that asking again costs nothing; registering anew tries again."""
    tries: list[int] = []

    def load() -> Runtime:
        tries.append(1)
        raise DeviceUnavailableError("no driver of that kind")

    register_runtime("ext", load)
    for _ in range(2):
        with pytest.raises(DeviceUnavailableError, match="no driver of that kind"):
            get_runtime("ext")
    assert len(tries) == 1
    simulated = SimulatedRuntime().install()
    assert get_runtime("ext") is simulated


def test_unknown_device_type_lists_those_served() -> None:
    """A type that nobody serves is an error that names the ones that are."""
    with pytest.raises(DeviceUnavailableError, match=r"type 'rocm' \(served: cuda\).*register_runtime"):
        get_runtime("rocm")
