"""array-api-strict: what its adapter adds to the suite over all frameworks."""

from __future__ import annotations

import array_api_strict
import numpy as np
import pytest

from matrix_interop import UnsupportedDtypeError, convert, from_tensor, plan
from matrix_interop.reasons import Reason


@pytest.mark.parametrize("device", ["CPU_DEVICE", "device1", "no_float64"])
def test_its_devices_are_host_memory(device: str) -> None:
    """As its own DLPack says; a tensor of any of them is shared, and new ones are on the host."""
    x = array_api_strict.ones((2, 3), dtype=array_api_strict.float32, device=array_api_strict.Device(device))
    m = from_tensor(x)
    assert (m.framework, m.device, m.array is x, m.readonly) == ("array_api_strict", "cpu", True, False)
    np.asarray(m)[0, 0] = 5
    assert float(x[0, 0]) == 5
    assert m[1:].array.device == array_api_strict.Device("CPU_DEVICE")


def test_layouts_are_shared() -> None:
    """It lets NumPy do the work, so flipped and misaligned memory is shared, read-only or not."""
    block = np.zeros(25, np.uint8)
    a = block[1:].view(np.float32).reshape(2, 3)[::-1, ::-1]
    shared = convert(a, "array_api_strict", copy=False)
    a[0, 0] = 9
    assert np.asarray(from_tensor(shared)).tolist() == a.tolist()
    assert not np.shares_memory(np.asarray(convert(a, "array_api_strict", copy=True)), a)
    a.flags.writeable = False
    assert from_tensor(convert(a, "array_api_strict", copy=False)).readonly


def test_odd_strides_are_copied() -> None:
    """They could not leave it again over DLPack; on an axis of length 1 they do not count."""
    records = np.zeros(3, [("id", "i1"), ("v", "f4", (2,))])
    assert plan(records["v"], "array_api_strict").reasons == (Reason.STRIDES,)
    assert plan(records["v"][:1], "array_api_strict").zero_copy


def test_foreign_byte_order_is_copied() -> None:
    """The standard knows native numbers only."""
    a = np.ones((2, 3), ">f4")
    assert plan(a, "array_api_strict").reasons == (Reason.BYTE_ORDER,)
    assert convert(a, "array_api_strict").dtype == array_api_strict.float32


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float8_e5m2"])
def test_dtypes_that_the_standard_lacks(dtype: str) -> None:
    """Refused with the way out."""
    m = from_tensor(np.ones((2, 3))).astype(dtype)
    with pytest.raises(UnsupportedDtypeError, match=f"no {dtype}: ask for dtype='float32'"):
        m.to_tensor("array_api_strict")
    assert m.to_tensor("array_api_strict", dtype="float32").dtype == array_api_strict.float32


def test_namespace() -> None:
    """`xp` is the module itself."""
    assert from_tensor(array_api_strict.ones((2, 3))).xp is array_api_strict
