"""Handed cases T16 to T18: axes of length 0 and 1, and scalars."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from frameworks.table import TARGETS, Kind
from hostile.dlpack import NULL, Producer
from matrix_interop import UnsupportedLayoutError, convert, forbid_copies, from_tensor


@pytest.mark.parametrize("target", TARGETS, ids=str)
@pytest.mark.parametrize("shape", [(0, 128), (5, 0), (0, 0)], ids=str)
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("turned", [False, True])
def test_t16_empty_matrices(target: Kind, shape: tuple[int, int], order: str, turned: bool) -> None:
    """Shape and dtype survive into every framework and back, shared: empty counts as dense in either order."""
    a = np.zeros(shape, np.float32, order=order)
    m = from_tensor(a[::-1, ::-1] if turned else a)
    assert (m.order, m.nbytes) == ("C", 0)
    with forbid_copies():
        made = m.to_tensor(target.name)
        back = from_tensor(made)
        assert target.read(made).shape == shape
        assert (back.shape, back.dtype, back.array.shape if target.name != "pyarrow" else shape) == (shape, "f4", shape)
        assert back.contiguous() is back
    assert pickle.loads(pickle.dumps(m)).shape == shape
    assert m.normalized().shape == m.take(range(shape[0])).shape == shape
    assert (len(list(m)), m.T.shape) == (shape[0], shape[::-1])


def test_t17_scalars() -> None:
    """A scalar is refused, naming ndim 0, or becomes 1 x 1 where asked for."""
    for x in (np.array(3.0), np.float64(3.0), Producer(np.array(3.0), strides=NULL, shape=NULL)):
        with pytest.raises(UnsupportedLayoutError, match="ndim 0"):
            from_tensor(x)
        assert from_tensor(x, as_row=True).array.tolist() == [[3.0]]
    m = from_tensor(np.array(3.0), as_row=True)
    assert (m.shape, m.array.tolist()) == ((1, 1), [[3.0]])
    assert from_tensor(np.array([1, 2]), as_row=True).array.tolist() == [[1, 2]]
    assert from_tensor(np.ma.array([1, 2], mask=[0, 1]), as_row=True, fill=9).array.tolist() == [[1, 9]]


@pytest.mark.parametrize(
    ("shape", "strides"), [((1, 4), (0, 1)), ((4, 1), (1, 0)), ((1, 4), (7, 1)), ((4, 1), (1, -3))]
)
@pytest.mark.parametrize("target", TARGETS, ids=str)
def test_t18_strides_of_length_1(target: Kind, shape: tuple[int, int], strides: tuple[int, int]) -> None:
    """An axis of length 1 may carry any stride, in and out: it counts as dense, and every framework takes it."""
    values = np.arange(4, dtype=np.float32)
    a = np.lib.stride_tricks.as_strided(values, shape, tuple(4 * step for step in strides))
    m = from_tensor(a)
    assert m.order == "C"
    assert m.contiguous() is m
    assert target.read(m.to_tensor(target.name)).tolist() == values.reshape(shape).tolist()
    assert target.read(convert(m.T, target.name)).tolist() == values.reshape(shape).T.tolist()


@pytest.mark.parametrize(("shape", "strides"), [((1, 4), (0, 1)), ((4, 1), (1, 0))])
@pytest.mark.parametrize("forms", ["legacy", "versioned"])
def test_t18_strides_of_length_1_over_dlpack(shape: tuple[int, int], strides: tuple[int, int], forms: str) -> None:
    """So it may in a producer's capsule."""
    m = from_tensor(Producer(np.arange(4, dtype=np.float32), forms=forms, shape=shape, strides=strides))
    assert m.order == "C"
    assert m.array.tolist() == np.arange(4).reshape(shape).tolist()
