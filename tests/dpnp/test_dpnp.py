"""A second device type, served by no runtime: dpnp's arrays on a SYCL device, which may be the CPU."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from matrix_interop import (
    CopyRequiredError,
    DeviceUnavailableError,
    MatrixBuilder,
    UnsupportedDtypeError,
    convert,
    forbid_copies,
    from_tensor,
    plan,
    track_copies,
)
from matrix_interop.frameworks.registry import framework
from matrix_interop.reasons import Reason

pytestmark = pytest.mark.dpnp

dpnp = pytest.importorskip("dpnp")


def numbers(dtype: Any = np.float32) -> np.ndarray:
    """Distinct values."""
    return np.arange(1, 36).reshape(7, 5).astype(dtype)


LAYOUTS: dict[str, Callable[[Any], Any]] = {
    "whole": lambda x: x,
    "transposed": lambda x: x.T,
    "rows": lambda x: x[2:5],
    "stepped": lambda x: x[::2],
    "backwards": lambda x: x[::-1],
    "columns": lambda x: x[:, 1:3],
    "both": lambda x: x[::-2, ::-2],
    "empty": lambda x: x[3:3],
}
layouts = pytest.mark.parametrize("layout", LAYOUTS)


def test_facts() -> None:
    """Device, framework and dtype come from the array, and NumPy does not take it for its own."""
    m = from_tensor(dpnp.asarray(numbers()))
    assert (m.device, m.framework, m.dtype, m.shape) == ("oneapi:0", "dpnp", np.float32, (7, 5))
    assert m.__dlpack_device__() == (14, 0)
    assert not hasattr(m, "__cuda_array_interface__")
    with pytest.raises(TypeError, match="to_host"):
        np.asarray(m)


@layouts
def test_to_host(layout: str) -> None:
    """Any layout, into new memory and into one's own."""
    cut = LAYOUTS[layout]
    m = from_tensor(cut(dpnp.asarray(numbers())))
    assert np.array_equal(m.to_host().array, cut(numbers()))
    out = np.zeros(m.shape, np.float64)
    m.to_host(out=out)
    assert np.array_equal(out, cut(numbers()))
    assert np.array_equal(m.to_host(non_blocking=True).result().array, cut(numbers()))


@layouts
@pytest.mark.parametrize("dtype", [None, "int32"])
def test_to_device(layout: str, dtype: Any) -> None:
    """The values of the call arrive, converted on the way; the source may change afterwards."""
    source = LAYOUTS[layout](numbers())
    m = from_tensor(source).to_device("oneapi:0", framework="dpnp", dtype=dtype)
    expected = source.astype(dtype or np.float32)
    source[...] = 0
    assert (m.device, m.framework, m.dtype) == ("oneapi:0", "dpnp", expected.dtype)
    assert np.array_equal(dpnp.asnumpy(m.array), expected)


def test_sharing() -> None:
    """A view of a matrix shares, and an export is taken by dpnp without a copy."""
    x = dpnp.asarray(numbers())
    m = from_tensor(x)
    again = m.to_tensor("dpnp")
    m[2:4].array[...] = 0
    assert dpnp.asnumpy(x)[2:4].sum() == dpnp.asnumpy(again)[2:4].sum() == 0
    assert np.array_equal(dpnp.asnumpy(dpnp.from_dlpack(m)), dpnp.asnumpy(x))
    with forbid_copies():
        assert from_tensor(m.T.array).to_tensor("dpnp").shape == (5, 7)


@layouts
def test_computing(layout: str) -> None:
    """astype, contiguous, take and normalized stay on the device."""
    cut = LAYOUTS[layout]
    m, values = from_tensor(cut(dpnp.asarray(numbers()))), cut(numbers())
    assert np.array_equal(m.astype("int64").to_host().array, values)
    assert np.array_equal(m.contiguous(copy=True).to_host().array, values)
    assert {m.astype("int64").device, m.normalized().device} == {"oneapi:0"}
    assert np.allclose(m.normalized().to_host().array, values / np.linalg.norm(values, axis=1, keepdims=True))
    if len(values):
        assert np.array_equal(m.take([1, 0, 1]).to_host().array, values[[1, 0, 1]])


def test_plans_and_refusals() -> None:
    """Bytes are announced and counted; what is forbidden or not there is refused by name."""
    x = dpnp.asarray(numbers())
    announced = plan(x, "numpy")
    with track_copies() as log:
        convert(x, "numpy")
    assert log.nbytes == announced.nbytes == numbers().nbytes
    with pytest.raises(CopyRequiredError, match=r"oneapi:0.*cpu"):
        convert(x, "numpy", copy=False)
    with pytest.raises(DeviceUnavailableError, match="oneapi:0"):
        from_tensor(x).to_device("oneapi:99")
    with pytest.raises(UnsupportedDtypeError, match="dpnp"):
        convert(numbers(), "dpnp", dtype="bfloat16")
    with pytest.raises(DeviceUnavailableError, match="dpnp has tensors on oneapi only"):
        convert(x, "dpnp", device="cpu")


def test_pickling() -> None:
    """Host bytes travel."""
    back = pickle.loads(pickle.dumps(from_tensor(dpnp.asarray(numbers()))[::2]))
    assert (back.device, np.array_equal(back.array, numbers()[::2])) == ("cpu", True)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda a: a, None),
        (lambda a: a.astype(">f4"), Reason.BYTE_ORDER),
        (lambda a: np.ndarray((3,), np.float32, a, 0, (6,)), Reason.STRIDES),
        (lambda a: a[::-1], Reason.NEGATIVE_STRIDE),
        (lambda a: np.broadcast_to(a[0], (3, 5)), Reason.READONLY),
    ],
)
def test_what_is_in_the_way_of_sharing(make: Any, reason: Any) -> None:
    """Each layout that dpnp does not take over DLPack is named; read-only memory is shared where that is promised."""
    found = framework("dpnp").obstacle(make(numbers()))
    assert (found and found.reason) == reason
    if reason == Reason.READONLY:
        assert framework("dpnp").obstacle(make(numbers()), share_readonly=True) is None


def test_repeated_rows() -> None:
    """Entries that share memory come in read-only, and are copied for dpnp when they are to be written."""
    m = from_tensor(dpnp.broadcast_to(dpnp.asarray(numbers()[0]), (3, 5)))
    assert (m.readonly, np.array_equal(m.to_host().array, [numbers()[0]] * 3)) == (True, True)


def test_devices() -> None:
    """The devices of SYCL; there are no arrays on the host, and "oneapi" without a number is the current one."""
    adapter = framework("dpnp")
    assert adapter.current_device() in adapter.devices()
    assert convert(numbers(), "dpnp", device="oneapi").sycl_device is not None
    with pytest.raises(DeviceUnavailableError, match="no arrays on the host"):
        adapter.wrap(numbers())


def test_rows_blocks_and_a_builder() -> None:
    """They come, go and are gathered as dpnp copies them."""
    m = from_tensor(dpnp.asarray(numbers()))
    assert np.array_equal(np.stack(list(m.rows())), numbers())
    assert np.array_equal(np.stack(list(m.rows([3, 0, 3]))), numbers()[[3, 0, 3]])
    for source in (m, from_tensor(numbers())):
        for target in ("cpu", "oneapi:0"):
            blocks = [block.to_host() for block in source.blocks(3, device=target)]
            assert np.array_equal(np.concatenate([np.asarray(block) for block in blocks]), numbers())
    builder = MatrixBuilder(5, device="oneapi:0")
    builder.extend(numbers()[:3])
    builder.extend(m[3:])
    made = builder.finish()
    assert (made.device, made.framework) == ("oneapi:0", "dpnp")
    assert np.array_equal(np.asarray(made.to_host()), numbers())
