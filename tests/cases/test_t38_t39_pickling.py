"""Handed cases T38 and T39: pickling."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch

from matrix_interop import from_tensor


def test_t38_own_rows_only() -> None:
    """One row of a large tensor is pickled as one row."""
    big = torch.zeros((1024, 1024))
    assert len(pickle.dumps(from_tensor(big[:1]))) < 8192
    assert len(pickle.dumps(from_tensor(big)[:1])) < 8192


@pytest.mark.parametrize("order", ["C", "F"])
def test_t39_equal_after_a_round_trip(order: str) -> None:
    """Shape, dtype and values come back through separate frames, whatever the strides of length 1."""
    a = np.zeros((2, 1), np.float16, order=order)
    frames: list[pickle.PickleBuffer] = []
    sent = pickle.dumps(from_tensor(a), 5, buffer_callback=frames.append)
    back = pickle.loads(sent, buffers=[bytes(frame.raw()) for frame in frames])
    assert (back.shape, back.dtype) == ((2, 1), np.float16)
    assert np.array_equal(np.asarray(back), a)
    assert not back.readonly
