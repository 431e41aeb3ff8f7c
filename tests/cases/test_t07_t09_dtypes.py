"""Handed cases T07 to T09: dtype gaps and narrowing."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch

from matrix_interop import UnsupportedDtypeError, from_tensor


def test_t07_bfloat16_from_torch() -> None:
    """bfloat16 arrives in NumPy with its bit patterns, float32 where asked; arrow, which has none, names that way."""
    m = from_tensor(torch.tensor([[1.0, -2.5]], dtype=torch.bfloat16))
    a = m.to_tensor("numpy")
    assert a.dtype == ml_dtypes.bfloat16
    assert a.view(np.uint16).tolist() == [[0x3F80, 0xC020]]
    assert m.to_tensor("numpy", dtype="float32").tolist() == [[1.0, -2.5]]
    with pytest.raises(UnsupportedDtypeError, match="dtype='float32'"):
        m.to_tensor("pyarrow")
    assert m.to_tensor("pyarrow", dtype="float32").to_pylist() == [[1.0, -2.5]]


@pytest.mark.parametrize("dtype", ["float32", "int32", "int64"])
def test_t08_uint16_to_torch_keeps_values(dtype: str) -> None:
    """uint16 becomes a wider type without passing through int16."""
    m = from_tensor(np.array([[1, 40000], [65535, 0]], np.uint16))
    t = m.to_tensor("torch", dtype=dtype)
    assert str(t.dtype) == f"torch.{dtype}"
    assert t.tolist() == [[1, 40000], [65535, 0]]


@pytest.mark.parametrize(("values", "dtype"), [([[True, False]], "bool"), ([[1, 0]], "uint8")])
def test_t09_bool_stays_bool(values: list[list[int]], dtype: str) -> None:
    """NumPy, torch, JAX and NumPy again: each stop has the dtype, and the values end as they began."""
    x = np.array(values, dtype)
    for target in ("torch", "jax", "numpy"):
        x = from_tensor(x).to_tensor(target)
        assert str(x.dtype).removeprefix("torch.") == dtype
        assert from_tensor(x).dtype == dtype
    assert x.tolist() == values
