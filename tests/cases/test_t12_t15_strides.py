"""Handed cases T12 to T15: strides and memory order, on the host."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from frameworks.table import TARGETS, Kind
from matrix_interop import CopyRequiredError, convert, from_tensor, plan, track_copies
from matrix_interop.reasons import Reason

targets = pytest.mark.parametrize("target", TARGETS, ids=str)


@targets
def test_t12_negative_strides(target: Kind) -> None:
    """A reversed view is shared by NumPy and what rests on it, copied for the others, or refused."""
    a = np.arange(6, dtype=np.float32).reshape(2, 3)[:, ::-1]
    m = from_tensor(a)
    assert target.read(m.to_tensor(target.name)).tolist() == [[2, 1, 0], [5, 4, 3]]
    if target.name in ("numpy", "array_api_strict"):
        assert m.plan(target.name).zero_copy
    else:
        with pytest.raises(CopyRequiredError):
            m.to_tensor(target.name, copy=False)


def test_t12_negative_strides_over_dlpack() -> None:
    """torch, which would end the process over them, gets a copy over DLPack."""
    m = from_tensor(np.arange(6, dtype=np.float32).reshape(2, 3)[:, ::-1])
    with track_copies() as log:
        assert torch.from_dlpack(m).tolist() == [[2, 1, 0], [5, 4, 3]]
    assert log.nbytes == 24
    with pytest.raises(BufferError):
        np.from_dlpack(m, copy=False)


@targets
def test_t13_logical_order(target: Kind) -> None:
    """A transposed array arrives transposed, as a whole and entry by entry."""
    made = target.read(from_tensor(np.arange(4, dtype=np.int32).reshape(2, 2).T).to_tensor(target.name))
    assert made.tolist() == [[0, 2], [1, 3]]
    assert made[0, 1] == 2


@targets
def test_t14_steps_and_repeats(target: Kind) -> None:
    """Stepped and repeated rows arrive right; repeated rows stay read-only until they are copied."""
    x = np.arange(12, dtype=np.float32).reshape(6, 2)[::2]
    y = np.broadcast_to(np.array([[7, 8]], np.float32), (4, 2))
    assert target.read(convert(x, target.name)).tolist() == [[0, 1], [4, 5], [8, 9]]
    assert target.read(convert(y, target.name)).tolist() == [[7, 8]] * 4
    assert from_tensor(y).readonly
    assert not from_tensor(y).contiguous().readonly


def test_t14_repeats_from_torch() -> None:
    """Rows that torch repeats without memory come in read-only as well."""
    m = from_tensor(torch.tensor([[7.0, 8.0]]).expand(4, 2))
    assert m.readonly
    assert m.to_tensor("jax").tolist() == [[7, 8]] * 4


@pytest.mark.parametrize("target", ["pyarrow", "toy"])
def test_t15_row_major_targets(target: str) -> None:
    """Columns go into a framework of rows by a copy that plan and log tell of, or are refused."""
    a = np.asfortranarray(np.arange(10, dtype=np.float32).reshape(5, 2))
    kind = next(kind for kind in TARGETS if kind.name == target)
    m = from_tensor(a)
    assert plan(a, target).reasons == (Reason.ORDER,)
    with track_copies() as log:
        assert kind.read(m.to_tensor(target)).tolist() == a.tolist()
    assert [(record.nbytes, record.reason) for record in log] == [(40, Reason.ORDER)]
    with pytest.raises(CopyRequiredError, match="dense rows"):
        m.to_tensor(target, copy=False)
