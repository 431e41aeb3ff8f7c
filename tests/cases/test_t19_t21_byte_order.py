"""Handed cases T19 to T21: byte order, alignment, and strides between whole entries."""

from __future__ import annotations

import numpy as np
import pytest

from frameworks.table import TARGETS, Kind
from matrix_interop import CopyRequiredError, from_tensor
from matrix_interop.reasons import Reason

others = pytest.mark.parametrize("target", [kind for kind in TARGETS if kind.name != "numpy"], ids=str)


@others
def test_t19_foreign_byte_order(target: Kind) -> None:
    """Swapped bytes are converted by copy, or refused."""
    m = from_tensor(np.array([[1, 2, 3]], ">f4"))
    assert target.read(m.to_tensor(target.name)).tolist() == [[1, 2, 3]]
    assert m.plan(target.name).reasons == (Reason.BYTE_ORDER,)
    with pytest.raises(CopyRequiredError, match=r"endian|native"):
        m.to_tensor(target.name, copy=False)


@pytest.mark.parametrize(
    ("target", "dtype"), [("torch", "c16"), ("torch", "f4"), ("jax", "f4"), ("pyarrow", "f8"), ("toy", "f4")]
)
def test_t20_misaligned(target: str, dtype: str) -> None:
    """Data that starts between addresses of its type goes to aligned memory, or is refused."""
    values = np.array([[1, -2]], dtype)
    a = np.frombuffer(bytearray(b"sixsix" + values.tobytes()), dtype, offset=6).reshape(1, 2)
    if a.flags.aligned:  # by the luck of the allocator
        a = np.frombuffer(bytearray(b"seven77" + values.tobytes()), dtype, offset=7).reshape(1, 2)
    kind = next(kind for kind in TARGETS if kind.name == target)
    m = from_tensor(a)
    assert kind.read(m.to_tensor(target)).tolist() == values.tolist()
    assert m.plan(target).reasons == (Reason.ALIGNMENT,)
    with pytest.raises(CopyRequiredError):
        m.to_tensor(target, copy=False)


@others
def test_t21_strides_between_entries(target: Kind) -> None:
    """One field of records, 9 bytes apart, arrives by copy; on an axis of length 1 the stride is in nobody's way."""
    records = np.zeros(3, [("id", "i1"), ("v", "f4", (2,))])
    a = records["v"]
    a[...] = np.arange(6).reshape(3, 2)
    assert a.strides[0] == 9
    m = from_tensor(a)
    assert target.read(m.to_tensor(target.name)).tolist() == [[0, 1], [2, 3], [4, 5]]
    with pytest.raises(CopyRequiredError):
        m.to_tensor(target.name, copy=False)
    single = np.lib.stride_tricks.as_strided(np.zeros(64, np.uint8)[:8].view("f4"), (1, 2), (9, 4))
    assert target.read(from_tensor(single).to_tensor(target.name)).tolist() == [[0, 0]]
    assert from_tensor(single).plan("torch").zero_copy
