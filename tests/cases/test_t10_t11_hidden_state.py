"""Handed cases T10 and T11: values that are not in memory as they are read."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from matrix_interop import CopyRequiredError, UnsupportedLayoutError, convert, from_tensor, plan, track_copies
from matrix_interop.reasons import Reason


@pytest.mark.parametrize("copy", [None, False])
def test_t10_conjugate_bit(copy: bool | None) -> None:
    """A pending conjugation is carried out by the one copy that it needs, or refused."""
    t = torch.conj(torch.tensor([[1 + 2j]]))
    if copy is False:
        with pytest.raises(CopyRequiredError, match="conjugate"):
            from_tensor(t, copy=False)
        return
    with track_copies() as log:
        assert from_tensor(t).to_tensor("numpy").tolist() == [[1 - 2j]]
    assert log.nbytes == 8
    assert plan(t, "numpy").reasons == (Reason.PENDING,)
    assert t.is_conj()


def test_t10_negative_bit() -> None:
    """So is a pending negation, which DLPack export of torch forgets."""
    t = torch.conj(torch.tensor([[1 + 2j]])).imag
    assert t.is_neg()
    assert convert(t, "numpy").tolist() == [[-2]]
    assert convert(t, "torch").tolist() == [[-2]]
    assert not convert(t).is_neg()


def test_t11_masked_arrays() -> None:
    """Masked entries are refused, or filled by the one copy; a mask that hides nothing is dropped, and data shared."""
    a = np.ma.array([[1, 2], [3, 4]], mask=[[0, 1], [0, 0]])
    with pytest.raises(UnsupportedLayoutError, match=r"hides 1 entries: pass fill="):
        from_tensor(a)
    m = from_tensor(a, fill=0)
    assert m.array.tolist() == [[1, 0], [3, 4]]
    assert a.data.tolist() == [[1, 2], [3, 4]]
    with pytest.raises(CopyRequiredError):
        from_tensor(a, fill=0, copy=False)
    bare = np.ma.array([[1, 2]], mask=False)
    assert from_tensor(bare, copy=False).array.ctypes.data == bare.data.ctypes.data
    assert "mask" in str(plan(bare, "torch"))
