"""cuda.core: the real one, which describes memory of any device and touches none; buffers as its class shows them."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from cuda.core.utils import StridedMemoryView

from hostile import NULL, Producer
from matrix_interop import (
    CopyRequiredError,
    DeviceMatrix,
    HostMatrix,
    UnsupportedDtypeError,
    convert,
    from_tensor,
    plan,
)
from matrix_interop.frameworks import cuda_core
from matrix_interop.frameworks.registry import framework
from matrix_interop.reasons import Reason
from matrix_interop.runtime import Pointer, cuda, register_runtime

ADAPTER = framework("cuda.core")


def numbers() -> np.ndarray:
    """Distinct values."""
    return np.arange(12, dtype=np.float32).reshape(3, 4)


def shown(a: np.ndarray, **forged: Any) -> StridedMemoryView:
    """cuda.core's view of an array, or of one whose capsule says something else."""
    return StridedMemoryView.from_dlpack(Producer(a, **forged) if forged else a, -1)


def test_host_memory_is_shared_both_ways() -> None:
    """Any layout comes in as it lies; what goes out points to the same memory and says read-only where that is so."""
    a = numbers()
    for cut in (a, a.T, a[:, 1:3], a[::2], a[1:2]):
        m = from_tensor(shown(cut))
        assert (type(m), m.framework, m.device, m.readonly) == (HostMatrix, "cuda.core", "cpu", False)
        assert np.shares_memory(np.asarray(m), cut)
        assert np.asarray(m).tolist() == cut.tolist()
        out = from_tensor(cut).to_tensor("cuda.core")
        assert (out.ptr, tuple(out.shape), out.readonly) == (cut.ctypes.data, cut.shape, False)
    a.flags.writeable = False
    out = convert(a, "cuda.core")
    assert (out.readonly, from_tensor(out).readonly) == (True, True)
    m = from_tensor(shown(numbers()))
    assert m.to_tensor("cuda.core").ptr == m._view.pointer == m[:2].to_tensor("cuda.core").ptr


@pytest.mark.parametrize("ordinal", [0, 1])
@pytest.mark.parametrize("null", [True, False])
def test_device_memory_is_described(ordinal: int, null: bool) -> None:
    """Address, layout, device; without strides the rows are dense; the legacy stream counts as the producer's."""
    a = numbers()
    x = shown(a, device=(2, ordinal), **({"strides": NULL} if null else {}))
    assert (x.strides is None) == null
    m = from_tensor(x)
    assert (type(m), m.device, m.strides, m._view.pointer) == (DeviceMatrix, f"cuda:{ordinal}", (16, 4), a.ctypes.data)
    assert (m.shape, m.dtype, m._view.stream) == ((3, 4), np.float32, 1)
    again = m.to_tensor("cuda.core", stream=-1)
    assert (again.ptr, again.device_id, again.is_device_accessible) == (x.ptr, ordinal, True)
    assert m[1:].to_tensor("cuda.core", stream=-1).ptr == x.ptr + 16


def test_host_memory_without_strides() -> None:
    """Dense rows, as DLPack had it before version 1.2."""
    x = shown(numbers(), strides=NULL)
    assert x.strides is None
    assert np.array_equal(np.asarray(from_tensor(x)), numbers())


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda a: a[::-1], Reason.NEGATIVE_STRIDE),
        (lambda a: a.astype(">f4"), Reason.BYTE_ORDER),
        (lambda a: np.ndarray((3,), np.float32, a, 0, (6,)), Reason.STRIDES),
    ],
)
def test_what_dlpack_cannot_describe_is_copied(make: Any, reason: Reason) -> None:
    """The values arrive all the same, and the plan says why they were copied."""
    a = make(numbers())
    assert plan(a, "cuda.core").reasons == (reason,)
    assert np.array_equal(np.from_dlpack(convert(a, "cuda.core")), a)
    with pytest.raises(CopyRequiredError):
        convert(a, "cuda.core", copy=False)


def test_dtypes() -> None:
    """What DLPack has a code for is taken; a view that was given no type is refused with what to call."""
    assert ADAPTER.refusal(np.dtype(">f4")) is None
    assert "cuda.core has no" in (ADAPTER.refusal(np.dtype("U3")) or "")
    with pytest.raises(UnsupportedDtypeError, match=r"x\.view\(dtype="):
        ADAPTER.view(StridedMemoryView.__new__(StridedMemoryView))
    assert from_tensor(shown(numbers(), dtype=(4, 16, 1))).dtype == ml_dtypes.bfloat16


class Buffer:
    """What `cuda.core.Buffer` shows; the real one is made by memory resources, which need a driver."""

    def __init__(self, a: np.ndarray, host: bool, device: bool, managed: bool = False, device_id: int = -1) -> None:
        self.a, self.size, self.handle = a, a.nbytes, a.ctypes.data
        self.is_host_accessible, self.is_device_accessible, self.is_managed = host, device, managed
        self.device_id = device_id


@pytest.fixture
def buffers(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Our buffers in the place of theirs, and a runtime that says that managed memory lies on the second device."""

    class Driver:
        def pointer(self, address: int) -> Pointer:
            return Pointer("managed", 1)

        def device_count(self) -> int:
            return 2

    register_runtime("cuda", Driver)
    monkeypatch.setattr(cuda_core, "Buffer", Buffer)
    yield Buffer
    register_runtime("cuda", cuda.load)


@pytest.mark.parametrize(
    ("access", "device"),
    [
        ({"host": True, "device": False}, "cpu"),
        ({"host": True, "device": True}, "cpu"),
        ({"host": False, "device": True, "device_id": 1}, "cuda:1"),
        ({"host": True, "device": True, "managed": True}, "cuda:1"),
    ],
)
def test_buffers_are_bytes(buffers: Any, access: dict[str, Any], device: str) -> None:
    """Memory that the host reaches is the host's, unless it moves between both: then it is a device's."""
    a = np.arange(5, dtype=np.uint8)
    assert ADAPTER.owns(buffers(a, **access))
    view = ADAPTER.view(buffers(a, **access))
    facts = view.pointer, view.shape, view.strides, view.dtype, view.device, view.readonly
    assert facts == (a.ctypes.data, (5,), (1,), np.uint8, device, False)
    if device == "cpu":
        assert np.asarray(view).tolist() == [0, 1, 2, 3, 4]


def test_devices(buffers: Any) -> None:
    """The host and what the driver sees; without a stream of its own the legacy one is current."""
    assert ADAPTER.devices() == ("cpu", "cuda:0", "cuda:1")
    assert ADAPTER.current_stream(ADAPTER.devices()[1]) == 1
    assert ADAPTER.item(shown(numbers()), 0) is None
