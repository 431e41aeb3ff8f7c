"""Plans: what they say, how they print, and the errors that carry them."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch

from matrix_interop import (
    CopyPlan,
    CopyRequiredError,
    DeviceUnavailableError,
    convert,
    forbid_copies,
    from_tensor,
    plan,
    track_copies,
)
from matrix_interop.reasons import Reason

A = np.arange(6, dtype=np.float32).reshape(2, 3)


def test_a_plan_that_shares() -> None:
    """No bytes, no reasons; the table names source, target and verdict."""
    made = plan(A, "torch")
    assert isinstance(made, CopyPlan)
    assert (made.zero_copy, made.nbytes, made.reasons) == (True, 0, ())
    assert (made.shape, made.dtype, made.order, made.device) == ((2, 3), np.float32, "C", "cpu")
    assert [step.action for step in made.steps] == ["share"]
    assert str(made).splitlines() == [
        "numpy float32 (2, 3), strides (12, 4) bytes, on cpu -> torch float32 on cpu: shares memory",
        "  step   bytes  why",
        "  share      0  torch describes the same memory",
    ]


@pytest.mark.parametrize(
    ("x", "how", "reasons", "nbytes"),
    [
        (A, {"dtype": "float64"}, (Reason.DTYPE,), 48),
        (A, {"dtype": "float64", "order": "F"}, (Reason.DTYPE, Reason.ORDER), 48),
        (A, {"order": "F"}, (Reason.ORDER,), 24),
        (A.T, {"order": "F"}, (), 0),
        (A[:, ::-1], {}, (Reason.NEGATIVE_STRIDE,), 24),
        (A.astype(">f4"), {}, (Reason.BYTE_ORDER,), 24),
        (np.broadcast_to(A, (2, 2, 3)), {}, (Reason.READONLY,), 48),
        (np.broadcast_to(A, (2, 2, 3)), {"share_readonly": True}, (), 0),
        ([[1, 2]], {"dtype": "int8"}, (Reason.PENDING, Reason.DTYPE), 2),
    ],
)
def test_reasons_and_bytes(x: object, how: dict[str, object], reasons: tuple[Reason, ...], nbytes: int) -> None:
    """Every reason is named once, in order, and the bytes are those of the result."""
    made = plan(x, "torch", **how)
    assert (made.reasons, made.nbytes, made.zero_copy) == (reasons, nbytes, nbytes == 0)
    for reason in reasons:
        assert reason in (*made.steps[0].reasons,)
    assert f"{nbytes:,}" in str(made)
    with track_copies() as log:
        convert(x, "torch", **how)
    assert [(record.nbytes, record.reason) for record in log] == ([(nbytes, reasons[0])] if reasons else [])


def test_order_is_kept() -> None:
    """A copy of columns stays columns where the target can say it, and becomes what was asked for."""
    columns = np.asfortranarray(A)
    assert convert(columns, "torch", copy=True).stride() == (1, 2)
    assert plan(columns, "torch", dtype="f8").order == "F"
    assert plan(columns, "pyarrow").order == "C"
    assert convert(columns, "numpy", order="C").flags.c_contiguous
    assert convert(A, "torch", order="F").stride() == (1, 2)


def test_copy_is_none_true_or_false() -> None:
    """NumPy's booleans count as Python's; anything else is refused, never taken for one of them."""
    m = from_tensor(A)
    assert not np.shares_memory(convert(A, "numpy", copy=np.True_), A)
    assert np.shares_memory(convert(A, "numpy", copy=np.False_), A)
    for call in (lambda: convert(A[::-1], "torch", copy=np.False_), lambda: m.astype("f8", copy=np.False_)):
        with pytest.raises(CopyRequiredError):
            call()
    for copy in ("never", 0, 1):
        for again in (convert, from_tensor):
            with pytest.raises(ValueError, match=r"write None .* True .* or False"):
                again(A, copy=copy)
    for again in (m.to_host, lambda copy: m.astype("f4", copy=copy)):
        with pytest.raises(ValueError, match="'never'"):
            again(copy="never")


def test_refusals_carry_the_plan() -> None:
    """The error says source, target, bytes, reason, who forbade it and what to write; the plan is the same object's."""
    for who, context, way_out in (
        ("copy=False", track_copies(), "copy=None"),
        ("forbid_copies()", forbid_copies(), "copy=True"),  # inside, copy=None is refused all the same
    ):
        with context, pytest.raises(CopyRequiredError) as caught:
            convert(A.astype(">f4"), "torch", copy=False if who == "copy=False" else None)
        assert caught.value.plan == plan(A.astype(">f4"), "torch")
        for words in ("numpy >f4 (2, 3)", "torch", "24 bytes", "endian", who, way_out):
            assert words in str(caught.value)
    assert CopyRequiredError("no plan at hand").plan is None


def test_plans_look_and_do_not_touch() -> None:
    """plan raises nothing for copies that are forbidden, counts nothing, and reads nothing."""
    with forbid_copies(), track_copies() as log:
        assert not plan(A, "torch", dtype="f8").zero_copy
        assert not from_tensor(A).plan("numpy", dtype="f8").zero_copy
    assert len(log) == 0


def test_what_is_asked_for_is_not_forbidden() -> None:
    """copy=True, take, astype, normalized, from_rows and to_host(copy=True) pass forbid_copies; all are counted."""
    m = from_tensor(A)
    with forbid_copies(), track_copies() as log:
        m.to_tensor("torch", copy=True)
        m.take([0])
        m.astype("f8")
        m.normalized()
        type(m).from_rows([[1, 2], torch.ones(2)])
        m.to_host(copy=True)
        m.to_host(out=np.empty((2, 3)))
    assert [record.nbytes for record in log] == [24, 12, 48, 24, 32, 24, 48]
    assert all(record.reason in (Reason.REQUESTED, Reason.DTYPE) for record in log)


@pytest.mark.parametrize("device", ["cuda", "cuda:3", "rocm"])
def test_devices_that_are_not_here(device: str) -> None:
    """A device without a driver is refused, naming it."""
    if torch.cuda.is_available():
        pytest.skip("a CUDA device is here")
    for call in (lambda: convert(A, "torch", device=device), lambda: plan(A, "torch", device=device)):
        with pytest.raises(DeviceUnavailableError, match=device.partition(":")[0]):
            call()


def test_new_memory_is_native() -> None:
    """dtype= names a kind of number: what is written is in native byte order."""
    assert convert(A, "numpy", dtype=">f8").dtype.str == "<f8"
    assert convert(A.astype(">f4"), "numpy", dtype="f4").dtype.str == "<f4"
    assert convert(A.astype(">f4"), "numpy").dtype.str == ">f4"


def test_a_type_that_is_there_already() -> None:
    """Asking for the dtype or the order that a tensor has copies nothing, and gives a second object."""
    x = torch.ones((2, 3))
    for made in (convert(x, dtype="float32"), convert(x, order="C"), convert(x, "torch", dtype=np.float32)):
        assert (made is x, made.data_ptr()) == (False, x.data_ptr())


@pytest.mark.parametrize(("source", "target"), [("float8_e4m3fn", "float8_e8m0fnu"), ("float8_e8m0fnu", "float8_e5m2")])
def test_floats_that_do_not_know_each_other(source: str, target: str) -> None:
    """Powers of two go from one 8-bit float into another for which NumPy has no rule."""
    powers = np.array([0.5, 1, 2, 8, 64], np.float32)
    made = convert(powers.astype(getattr(ml_dtypes, source)), dtype=target)
    assert (made.dtype.name, made.astype(np.float32).tolist()) == (target, powers.tolist())
