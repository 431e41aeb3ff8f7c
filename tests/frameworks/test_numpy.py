"""NumPy: subclasses, scalars, masks, and the types that are no numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from matrix_interop import UnsupportedDtypeError, UnsupportedLayoutError, convert, from_tensor, plan


def test_subclasses_share(tmp_path: Path) -> None:
    """Memory maps and matrices come in as plain arrays over the same memory."""
    mapped = np.memmap(tmp_path / "map", np.float32, "w+", shape=(2, 2))
    for x in (mapped, np.ones((2, 2)).view(np.matrix), np.rec.array(np.ones((2, 2)))):
        m = from_tensor(x, copy=False)
        assert type(m.array) is np.ndarray
        assert m.array.ctypes.data == x.ctypes.data
        assert type(convert(x)) is np.ndarray


def test_scalars() -> None:
    """A NumPy scalar is a read-only tensor of rank 0."""
    made = convert(np.float32(1.5))
    assert (made.shape, made.dtype, float(made), made.flags.writeable) == ((), np.float32, 1.5, False)
    assert convert(np.float32(1.5), "torch").item() == 1.5


@pytest.mark.parametrize("target", ["numpy", "torch", "pyarrow"])
def test_masks_of_any_rank(target: str) -> None:
    """fill reaches every hidden entry, whatever was asked for besides."""
    x = np.ma.masked_greater(np.arange(6, dtype=np.int16), 3)
    m = from_tensor(x, as_row=True, fill=-1, framework=target, dtype="float32")
    assert (m.framework, m.to_tensor("numpy").tolist()) == (target, [[0, 1, 2, 3, -1, -1]])
    with pytest.raises(UnsupportedLayoutError, match="hides 2 entries"):
        plan(x, target)


@pytest.mark.parametrize(
    "x",
    [
        np.array([[1, "a"]], object),
        np.zeros((2, 2), [("a", "f4")]),
        np.array([["a", "b"]]),
        np.array([["2020-01-01"]], "M8[D]"),
        np.zeros((2, 2), np.longdouble),
        np.ma.array(np.zeros((1, 1), object), mask=True),
    ],
    ids=lambda x: str(x.dtype),
)
def test_no_numbers(x: np.ndarray) -> None:
    """Other types are refused by their name."""
    for entry in (from_tensor, plan, convert):
        with pytest.raises(UnsupportedDtypeError) as caught:
            entry(x)
        assert str(x.dtype) in str(caught.value)
