"""Handed cases T03 and T04: the DLPack handshake."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from hostile.dlpack import Producer
from matrix_interop import from_tensor


def test_t03_exported_any_number_of_times() -> None:
    """A matrix goes to the same and to other frameworks again and again; it and its source stay usable."""
    x = jnp.array([[1, 1]], jnp.int32)
    m = from_tensor(x)
    for made in (m.to_tensor("torch"), m.to_tensor("torch"), m.to_tensor("numpy"), m.array, x):
        assert np.asarray(made).tolist() == [[1, 1]]


@pytest.mark.parametrize("forms", ["legacy", "versioned"])
def test_t04_byte_offset(forms: str) -> None:
    """The byte offset is added to the address, in either form of the capsule."""
    x = Producer(np.arange(8, dtype=np.float32), forms=forms, byte_offset=8, shape=(2, 3), strides=(3, 1))
    for target in ("numpy", "torch", "jax", "pyarrow"):
        made = from_tensor(x).to_tensor(target)
        values = made.to_pylist() if target == "pyarrow" else made.tolist()
        assert values == [[2, 3, 4], [5, 6, 7]]
