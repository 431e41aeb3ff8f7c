"""Arrow: lists, tensors, nulls, chunks, bits."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from matrix_interop import (
    CopyRequiredError,
    UnsupportedDtypeError,
    UnsupportedLayoutError,
    convert,
    from_tensor,
    plan,
    track_copies,
)

ROWS = [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]


def column(rows: list[list[float | None] | None], kind: str = "float32") -> pa.FixedSizeListArray:
    """A column of fixed-size lists."""
    return pa.array(rows, pa.list_(pa.type_for_alias(kind), 2))


@pytest.mark.parametrize(
    ("rows", "filled"),
    [
        ([[1, 2], None, [5, 6]], [[1, 2], [9, 9], [5, 6]]),
        ([[1, None], [3, 4], [None, 6]], [[1, 9], [3, 4], [9, 6]]),
        ([None, [1, None], None], [[9, 9], [1, 9], [9, 9]]),
    ],
)
@pytest.mark.parametrize("chunks", [1, 2])
def test_nulls(rows: list[list[float | None] | None], filled: list[list[float]], chunks: int) -> None:
    """Null rows and entries are refused, or filled by the one copy; slices without them share."""
    x = column(rows)
    x = pa.chunked_array([x[:1], x[1:]]) if chunks == 2 else x
    with pytest.raises(UnsupportedLayoutError, match=r"nulls: pass fill=value"):
        from_tensor(x)
    with track_copies() as log:
        m = from_tensor(x, fill=9)
    assert m.to_tensor("numpy").tolist() == filled
    assert (log.nbytes, m.readonly, m.framework) == (24, False, "pyarrow")
    with pytest.raises(CopyRequiredError):
        from_tensor(x, fill=9, copy=False)


def test_nulls_outside_the_slice() -> None:
    """Only the nulls of the slice count."""
    x = column([None, [3, 4], [5, 6]])[1:]
    assert from_tensor(x, copy=False).to_tensor("numpy").tolist() == [[3, 4], [5, 6]]


def test_chunks() -> None:
    """One chunk is shared; several are joined by one copy; none is an empty matrix."""
    x = column(ROWS)
    assert plan(pa.chunked_array([x]), "numpy").zero_copy
    joined = from_tensor(pa.chunked_array([x[:2], x[2:]]))
    assert joined.to_tensor("numpy").tolist() == ROWS
    assert joined.array.to_pylist() == ROWS
    with pytest.raises(CopyRequiredError, match="2 chunks"):
        from_tensor(pa.chunked_array([x, x]), copy=False)
    assert from_tensor(pa.chunked_array([], x.type)).shape == (0, 2)


def test_bits() -> None:
    """Packed booleans are unpacked by one copy; there is no way in for booleans but bytes."""
    x = column([[True, False], [False, True]], "bool")
    m = from_tensor(x)
    assert (m.framework, m.to_tensor("numpy").tolist()) == ("numpy", [[True, False], [False, True]])
    with pytest.raises(CopyRequiredError, match="bits to unpack"):
        from_tensor(x, copy=False)
    assert convert(pa.array([True, False, True]), "numpy").tolist() == [True, False, True]
    with pytest.raises(UnsupportedDtypeError, match="dtype='uint8'"):
        convert(np.array([[True]]), "pyarrow")
    assert convert(np.array([[True]]), "pyarrow", dtype="uint8").to_pylist() == [[1]]


def test_vectors_and_deeper_lists() -> None:
    """Primitive arrays are vectors, nested fixed-size lists have one axis a level, all shared."""
    assert convert(pa.array([1, 2, 3]), "numpy", copy=False).tolist() == [1, 2, 3]
    deep = pa.array([[[1, 2], [3, 4]]], pa.list_(pa.list_(pa.int32(), 2), 2))
    assert convert(deep, "numpy", copy=False).tolist() == [[[1, 2], [3, 4]]]
    assert convert(np.arange(8).reshape(2, 2, 2), "pyarrow").to_pylist() == [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]


def test_fixed_shape_tensors() -> None:
    """The tensor extension type is read through its storage, rows and slices too; a permuted one is refused."""
    x = pa.FixedShapeTensorArray.from_numpy_ndarray(np.array(ROWS, np.float32))
    m = from_tensor(x, copy=False)
    assert m.to_tensor("numpy").tolist() == ROWS
    assert m[1].to_pylist() == ROWS[1]
    assert [row.to_pylist() for row in m[1:]] == ROWS[1:]
    assert convert(pa.FixedShapeTensorArray.from_numpy_ndarray(np.zeros((2, 3, 4))), "numpy").shape == (2, 3, 4)
    turned = pa.fixed_shape_tensor(pa.float32(), (2, 3), permutation=[1, 0])
    permuted = pa.ExtensionArray.from_storage(turned, pa.array([[1.0] * 6], pa.list_(pa.float32(), 6)))
    with pytest.raises(UnsupportedLayoutError, match="to_numpy_ndarray"):
        convert(permuted, "numpy")


def test_tensors() -> None:
    """pyarrow.Tensor comes in shared, with its strides and read-only mark, and gives a new object back."""
    values = np.asfortranarray(np.array(ROWS, np.float32))
    x = pa.Tensor.from_numpy(values, ["row", "column"])
    m = from_tensor(x)
    assert (m.order, m.readonly, m[2].to_pylist()) == ("F", False, ROWS[2])
    assert m[1:].array.to_pylist() == ROWS[1:]
    made = m.to_tensor("pyarrow")
    assert made is not x
    assert made.equals(x)
    assert list(made.dim_names) == ["row", "column"]
    assert m.plan("pyarrow").zero_copy
    values.flags.writeable = False
    assert from_tensor(pa.Tensor.from_numpy(values)).readonly


@pytest.mark.parametrize("rows", [[], [[1, 2]]])
def test_arrow_never_changes(rows: list[list[float]]) -> None:
    """Arrow memory comes in read-only, empty or not."""
    assert from_tensor(column(rows)).readonly


@pytest.mark.parametrize(
    ("x", "error", "way_out"),
    [
        (pa.table({"a": [1], "b": [2]}), UnsupportedLayoutError, "a, b"),
        (pa.record_batch({"a": [1]}), UnsupportedLayoutError, r"x\['name'\]"),
        (
            pa.array([[1, 2], [3]]),
            UnsupportedLayoutError,
            r"any length.*x\.cast\(pa\.list_\(x\.type\.value_type, d\)\)",
        ),
        (pa.array([[1, 2]], pa.large_list(pa.int8())), UnsupportedLayoutError, "any length"),
        (pa.array(["a"]), UnsupportedDtypeError, "string"),
        (pa.array([1], pa.timestamp("s")), UnsupportedDtypeError, "timestamp"),
        (pa.array([[1, 2]], pa.list_(pa.decimal128(5), 2)), UnsupportedDtypeError, "decimal"),
        (pa.array([None, None]), UnsupportedDtypeError, "null"),
    ],
)
def test_no_matrix(x: object, error: type[Exception], way_out: str) -> None:
    """Tables, ragged lists and what holds no numbers are refused, naming what they are."""
    with pytest.raises(error, match=way_out):
        convert(x, "numpy")


def test_scalars_and_columns_have_no_form() -> None:
    """Arrow has no rank 0 and no order but rows: both are refused with the way out."""
    for how in ({}, {"copy": True}, {"dtype": "int8"}):
        with pytest.raises(UnsupportedLayoutError, match=r"reshape it to \(1,\)"):
            convert(np.array(3.0), "pyarrow", **how)
    with pytest.raises(UnsupportedLayoutError, match="order='F'"):
        convert(np.ones((2, 2)), "pyarrow", order="F")
