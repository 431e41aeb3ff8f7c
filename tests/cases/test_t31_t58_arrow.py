"""Handed cases T31 and T58: Arrow columns."""

from __future__ import annotations

import pyarrow as pa
import pytest

from matrix_interop import from_tensor


def column(rows: list[list[float]]) -> pa.FixedSizeListArray:
    """A column of float32 lists of one length."""
    return pa.FixedSizeListArray.from_arrays(pa.array([x for row in rows for x in row], pa.float32()), len(rows[0]))


def test_t31_fixed_size_list_shares() -> None:
    """A column of fixed-size lists is a matrix inside the Arrow buffer."""
    x = column([[1, 2], [3, 4], [5, 6]])
    m = from_tensor(x, copy=False)
    buffer = x.values.buffers()[1]
    assert m.shape == (3, 2)
    assert m.to_tensor("numpy").tolist() == [[1, 2], [3, 4], [5, 6]]
    assert buffer.address <= m.to_tensor("numpy").ctypes.data < buffer.address + buffer.size


@pytest.mark.parametrize("chunked", [False, True])
def test_t58_slices_are_honoured(chunked: bool) -> None:
    """A sliced column gives the rows of the slice."""
    x = column([[1], [2], [3]])
    x = pa.chunked_array([x]) if chunked else x
    assert from_tensor(x[2:]).to_tensor("numpy").tolist() == [[3]]
    assert from_tensor(x[1:][1:]).to_tensor("torch").tolist() == [[3]]
    assert from_tensor(x[:2])[1:].to_tensor("numpy").tolist() == [[2]]
