"""`Matrix`: making, facts, rows, converting, protocols. What holds for every framework is in tests/frameworks."""

from __future__ import annotations

import array
import copy
import inspect
import pickle
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

from frameworks.table import EVERY, aligned, bits, dtype_of
from matrix_interop import (
    CopyRequiredError,
    DeviceMatrix,
    DeviceUnavailableError,
    HostMatrix,
    Matrix,
    UnknownFrameworkError,
    UnsupportedDtypeError,
    UnsupportedLayoutError,
    convert,
    forbid_copies,
    from_tensor,
    track_copies,
)
from matrix_interop.dtypes import is_extension


def numbers(rows: int = 4, columns: int = 3, dtype: Any = np.float32) -> np.ndarray:
    """0, 1, 2, ... by rows."""
    return np.arange(rows * columns).reshape(rows, columns).astype(dtype)


# Making ------------------------------------------------------------------------------------------
def test_no_constructor() -> None:
    """The classes are made by functions, which the error names."""
    for kind in (Matrix, HostMatrix, DeviceMatrix):
        with pytest.raises(TypeError, match="from_tensor"):
            kind()
        with pytest.raises(TypeError, match="from_tensor"):
            kind(numbers())  # type: ignore[call-arg]


@pytest.mark.parametrize("x", [np.zeros(3), np.zeros((2, 2, 2)), torch.zeros(2, 2, 2), [1, 2], [[[1]]], b"abc"])
def test_other_ranks(x: Any) -> None:
    """Vectors and 3-D tensors are refused, naming their rank; as_row takes a vector and nothing larger."""
    ndim = np.ndim(np.asarray(x)) if not isinstance(x, bytes) else 1
    with pytest.raises(UnsupportedLayoutError, match=f"ndim {ndim}"):
        from_tensor(x)
    if ndim == 1:
        assert from_tensor(x, as_row=True).shape == (1, 3 if not isinstance(x, list) else 2)
    else:
        with pytest.raises(UnsupportedLayoutError, match="reshape"):
            from_tensor(x, as_row=True)


def test_as_row_shares() -> None:
    """A vector becomes a row over its own memory; a matrix stays as it is."""
    x = np.arange(3.0)
    with forbid_copies():
        m = from_tensor(x, as_row=True)
    assert (m.shape, m.array.ctypes.data) == ((1, 3), x.ctypes.data)
    assert from_tensor(numbers(), as_row=True).shape == (4, 3)


def test_lists() -> None:
    """Nested lists are written into new memory, once, in the dtype asked for; copy=False refuses; so do ragged ones."""
    with track_copies() as log:
        m = from_tensor([[1, 2], [3, 4]], dtype="float32")
    assert (m.array.tolist(), m.dtype, log.nbytes) == ([[1, 2], [3, 4]], np.float32, 16)
    assert from_tensor(((1, 2),)).dtype == np.int64
    for how in ({}, {"as_row": True}):
        with pytest.raises(CopyRequiredError, match="lists"):
            from_tensor([1, 2] if how else [[1, 2]], copy=False, **how)
    with pytest.raises(UnsupportedLayoutError, match="rectangular"):
        from_tensor([[1, 2], [3]])
    with pytest.raises(UnsupportedDtypeError):
        from_tensor([["a"]])


@pytest.mark.parametrize(
    "x", [None, 5, "text", object(), {1: 2}, {1, 2}, (n for n in [1]), int], ids=lambda x: type(x).__name__
)
def test_no_tensor(x: Any) -> None:
    """What offers no protocol is refused by its type."""
    with pytest.raises((UnknownFrameworkError, UnsupportedLayoutError, UnsupportedDtypeError)):
        from_tensor(x)


def test_host_matrix_is_on_the_host() -> None:
    """HostMatrix.from_tensor means device="cpu"; a matrix that fits is given back itself."""
    m = HostMatrix.from_tensor(numbers())
    assert isinstance(m, HostMatrix)
    assert HostMatrix.from_tensor(m) is m
    assert isinstance(type("Named", (HostMatrix,), {}).from_tensor([[1, 2]]), HostMatrix)
    assert from_tensor(m, copy=True) is not m
    assert from_tensor(m, dtype="float64").dtype == np.float64
    assert from_tensor(m, framework="torch").framework == "torch"


def test_from_rows() -> None:
    """Vectors of any framework and lists become one matrix, in the dtype that holds them all."""
    rows = [np.array([1, 2], np.int8), torch.tensor([3.5, 4]), [5, 6], array.array("f", [7, 8])]
    m = Matrix.from_rows(iter(rows))
    assert (m.dtype, m.array.tolist()) == (np.float64, [[1, 2], [3.5, 4], [5, 6], [7, 8]])
    assert Matrix.from_rows(rows, dtype="int16", framework="torch").array.dtype is torch.int16
    assert Matrix.from_rows([np.array([1], ">f4")]).dtype.isnative
    assert Matrix.from_rows([torch.ones(2, dtype=torch.bfloat16)] * 2).dtype == ml_dtypes.bfloat16
    assert Matrix.from_rows(from_tensor(numbers())).array.tolist() == numbers().tolist()


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([[1, 2], [3]], "row 1 has shape .* length 2"),
        ([[1], [[2]]], "row 1"),
        ([np.array(1)], "row 0 .* one axis"),
        ([], "no rows"),
    ],
)
def test_from_rows_that_make_no_matrix(rows: Any, words: str) -> None:
    """The first row of another length is named; without rows there is no width."""
    with pytest.raises(UnsupportedLayoutError, match=words):
        Matrix.from_rows(rows)


def test_from_rows_without_a_common_type() -> None:
    """Types that NumPy cannot join are refused by name; dtype= says what is meant."""
    rows = [np.ones(2, np.float16), np.ones(2, ml_dtypes.bfloat16)]
    with pytest.raises(UnsupportedDtypeError, match=r"bfloat16 and float16 .* dtype="):
        Matrix.from_rows(rows)
    assert Matrix.from_rows(rows, dtype="float32").array.tolist() == [[1, 1], [1, 1]]


def test_empty() -> None:
    """New memory: aligned to 256 bytes, writable, in the order asked for."""
    m = Matrix.empty((3, 5), dtype="bfloat16", order="F")
    assert (m.shape, m.dtype, m.order, m.readonly) == ((3, 5), ml_dtypes.bfloat16, "F", False)
    assert np.asarray(m).__array_interface__["data"][0] % 256 == 0
    assert Matrix.empty((0, 5)).shape == (0, 5)
    for shape in ((-1, 2), (2,), (1, 2, 3), ()):
        with pytest.raises(UnsupportedLayoutError, match="rows, columns"):
            Matrix.empty(shape)
    for shape in ((1.5, 2), 5, "23", None):
        with pytest.raises(TypeError, match="rows, columns"):
            Matrix.empty(shape)
    for shape in ((2**62, 4), (0, 2**61), (2**63, 0)):
        with pytest.raises(UnsupportedLayoutError, match="no array"):
            Matrix.empty(shape)
    for order in ("K", "f", None, 1):
        with pytest.raises(UnsupportedLayoutError, match="'C' for dense rows"):
            Matrix.empty((2, 3), order=order)


# Facts -------------------------------------------------------------------------------------------
def test_truth_and_equality() -> None:
    """As for any container bool() asks for rows; == compares identity, so that a matrix can be a key."""
    m = from_tensor(numbers())
    assert (bool(m), bool(m[:0])) == (True, False)
    assert (m == m, m == from_tensor(m.array)) == (True, False)
    assert hash(m) == hash(m)


@pytest.mark.parametrize(
    ("x", "order", "words"),
    [
        (numbers(), "C", "C, numpy"),
        (numbers().T, "F", "F, numpy"),
        (numbers()[:, ::2], None, "strides (12, 8), numpy"),
        (numbers(1, 3).T, "C", "C, numpy"),
        (np.zeros((0, 3))[:, ::2], "C", "C, numpy"),
    ],
)
def test_order(x: np.ndarray, order: str | None, words: str) -> None:
    """Dense rows, dense columns, neither; axes of length 1 and empty matrices count as dense."""
    m = from_tensor(x)
    assert m.order == order
    assert words in repr(m)


# Rows --------------------------------------------------------------------------------------------
@pytest.mark.parametrize("key", [1.0, "1", None, (0, 1), ..., [0, 1], np.array([0, 1]), np.array([True] * 4)], ids=repr)
def test_wrong_index_types(key: Any) -> None:
    """A matrix takes row numbers and slices; the error points to take, and for columns to the array."""
    with pytest.raises(TypeError, match=r"take\(indices\) .* m\.array for columns"):
        from_tensor(numbers())[key]


@pytest.mark.parametrize("row", [4, -5, 2**63, -(2**70)])
def test_rows_out_of_range(row: int) -> None:
    """The error names the row and how many there are."""
    with pytest.raises(IndexError, match=f"row {row} of a matrix of 4 rows"):
        from_tensor(numbers())[row]


def test_row_numbers_of_any_kind() -> None:
    """NumPy integers and 0-d tensors number rows."""
    m = from_tensor(numbers())
    for key in (np.int32(2), np.uint64(2), torch.tensor(2), np.array(2)):
        assert m[key].tolist() == [6, 7, 8]


def test_rows_are_views() -> None:
    """What is written into a row is in the matrix and in its source."""
    x = numbers()
    m = from_tensor(x)
    m[1][...] = 9
    m[2:][0][0] = 8
    m.T[0][3] = 7
    assert x.tolist() == [[0, 1, 2], [9, 9, 9], [8, 7, 8], [7, 10, 11]]


@pytest.mark.parametrize(
    "indices",
    [
        [2, 0],
        (2, 0),
        np.array([2, 0], np.uint8),
        np.array([2, 0], ">i4"),
        torch.tensor([2, 0]),
        range(2, -1, -2),
        array.array("q", [2, 0]),
        from_tensor([[2, 0]])[0],
    ],
    ids=lambda x: type(x).__name__,
)
def test_take(indices: Any) -> None:
    """Indices of any integer type and framework."""
    for x in (
        numbers(),
        numbers().T.copy().T,
        numbers().astype(">f4"),
        np.ndarray((4, 3), "f4", aligned(np.zeros(16, "f4")).view("u1"), 1),
    ):
        x[...] = numbers()
        assert from_tensor(x).take(indices).array.tolist() == [[6, 7, 8], [0, 1, 2]]


def test_take_nothing() -> None:
    """No indices, no rows, the same width and dtype."""
    for nothing in ([], np.zeros(0, np.int64), range(0)):
        taken = from_tensor(numbers()).take(nothing)
        assert (taken.shape, taken.dtype) == ((0, 3), np.float32)


@pytest.mark.parametrize("indices", [[4], [0, -5], [2**63 - 1], np.array([2**64 - 1], np.uint64)], ids=str)
def test_take_out_of_range(indices: Any) -> None:
    """The first wrong index is named with its place."""
    with track_copies() as log, pytest.raises(IndexError, match=r"index -?\d+ at position \d for a matrix of 4 rows"):
        from_tensor(numbers()).take(indices)
    assert len(log) == 0


def test_take_refuses_missing_neighbours() -> None:
    """-1 stands for a missing neighbour and is never read as the last row."""
    with pytest.raises(IndexError, match=r"index -1 at position 2.*missing neighbour"):
        from_tensor(numbers()).take([0, 1, -1])


@pytest.mark.parametrize(
    "indices", [[True, False, True, True], [1.0], [[0, 1]], 1, [2**70], ["a"], None, slice(2)], ids=str
)
def test_take_of_no_indices(indices: Any) -> None:
    """Masks, fractions, tables of indices and other things are refused."""
    with pytest.raises((IndexError, TypeError)):
        from_tensor(numbers()).take(indices)


def test_take_of_a_mask_says_what_gives_its_rows() -> None:
    """The error names the call that makes row numbers of a mask."""
    with pytest.raises(IndexError, match="flatnonzero"):
        from_tensor(numbers()).take([True, False, True, True])


@pytest.mark.parametrize("indices", [1, None, slice(2), {0, 1}, "01"], ids=str)
def test_take_says_what_is_meant(indices: Any) -> None:
    """What holds no numbers at all gets an example of what does."""
    with pytest.raises(UnknownFrameworkError, match=r"row numbers are meant, .* as in \[0, 2\]"):
        from_tensor(numbers()).take(indices)


# Converting --------------------------------------------------------------------------------------
@pytest.mark.parametrize("call", [from_tensor, convert, from_tensor(numbers()).to_tensor])
def test_keywords_are_known(call: Any) -> None:
    """The signature shows every keyword, and an unknown one is named, whatever else is asked for."""
    parameters = inspect.signature(call).parameters.values()
    assert {"device", "dtype", "order", "copy", "stream"} <= {p.name for p in parameters if p.kind is p.KEYWORD_ONLY}
    first = numbers() if call in (from_tensor, convert) else "torch"
    with pytest.raises(TypeError, match="unexpected keyword argument 'devise'"):
        call(first, devise="cpu")


@pytest.mark.parametrize("name", sorted(EVERY))
@pytest.mark.filterwarnings("ignore:Casting complex values to real")
def test_astype(name: str) -> None:
    """Every dtype is reached from float32 and back, in native byte order."""
    m = from_tensor(np.array([[0, 1], [1, 0]], np.float32)).astype(name)
    assert m.dtype == dtype_of(name)
    if name != "float8_e8m0fnu":  # has no zero
        assert m.astype("float32").array.tolist() == [[0, 1], [1, 0]]


def test_astype_refuses() -> None:
    """Unknown types and no type."""
    for dtype in ("float33", None, object, "U5"):
        with pytest.raises(UnsupportedDtypeError):
            from_tensor(numbers()).astype(dtype)


@pytest.mark.parametrize("order", ["A", "K", "c", None, 1])
def test_orders_there_are(order: Any) -> None:
    """Order is "C" or "F"."""
    with pytest.raises((ValueError, TypeError)):
        from_tensor(numbers()).contiguous(order)
    if order is not None:
        with pytest.raises((ValueError, TypeError)):
            from_tensor(numbers()).to_tensor("torch", order=order)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "complex64", "int8", "bool", "uint64"])
def test_normalized(dtype: str) -> None:
    """Length one in the matrix's own dtype; integers and booleans become float32."""
    x = from_tensor(np.array([[3, 4, 0], [0, 0, 0], [1, 0, 0]])).astype(dtype)
    made, norms = x.normalized(return_norms=True)
    length = 2**0.5 if dtype == "bool" else 5
    assert made.dtype == (np.float32 if np.dtype(x.dtype).kind in "biu" else x.dtype)
    expected = (
        np.array([[1 if dtype == "bool" else 3, 1 if dtype == "bool" else 4, 0], [0, 0, 0], [length, 0, 0]]) / length
    )
    assert np.array_equal(np.asarray(made), expected.astype(made.dtype))
    assert norms.tolist() == [length, 0, 1]


def test_normalized_neither_overflows_nor_vanishes() -> None:
    """Rows near the limits of float64 come out of length one; infinite entries come out as NaN, without a warning."""
    for scale in (1e300, 1e-300, 5e-324):
        made = from_tensor(np.array([[3 * scale, 4 * scale]])).normalized()
        assert np.allclose(made.array, [[0.6, 0.8]], rtol=1e-15 if scale != 5e-324 else 1e-2)
    made, norms = from_tensor(np.array([[np.inf, 1], [np.nan, 1], [1.7e308, 1.7e308]])).normalized(return_norms=True)
    assert np.isnan(made.array[:2, 0]).all()
    assert norms[2] == np.inf
    assert np.allclose(made.array[2], 0.5**0.5)


def test_to_host() -> None:
    """A host matrix is there already: itself, a copy for copy=True, out filled in its own dtype and order."""
    m = from_tensor(numbers())
    assert m.to_host() is m
    assert not np.shares_memory(m.to_host(copy=True).array, m.array)
    transfer = m.to_host(non_blocking=True)
    assert (transfer.done(), transfer.result()) == (True, m)
    out = torch.zeros(4, 3, dtype=torch.float64).T.contiguous().T
    filled = m.to_host(out=out)
    assert (filled.framework, filled.dtype, out.tolist()) == ("torch", np.float64, numbers().tolist())
    assert m.to_host(out=np.zeros((4, 3)), non_blocking=True).result().array.tolist() == numbers().tolist()


@pytest.mark.parametrize(
    ("out", "how", "error"),
    [
        (np.zeros((3, 4)), {}, UnsupportedLayoutError),
        (np.zeros(12), {}, UnsupportedLayoutError),
        (np.broadcast_to(np.zeros(3), (4, 3)), {}, CopyRequiredError),
        (np.zeros((4, 3)), {"copy": False}, CopyRequiredError),
        (b"bytes", {}, UnsupportedLayoutError),
        ([[0] * 3] * 4, {}, CopyRequiredError),
        (torch.zeros(4, 3, dtype=torch.complex64).conj(), {}, CopyRequiredError),
    ],
)
def test_to_host_into_what_does_not_fit(out: Any, how: dict[str, Any], error: type[Exception]) -> None:
    """Another shape, read-only memory and copy=False are refused before anything is written."""
    with pytest.raises(error):
        from_tensor(numbers() + 1).to_host(out=out, **how)
    assert not np.frombuffer(out, np.uint8).any() if isinstance(out, np.ndarray) and out.flags.c_contiguous else True


def test_pinning_without_a_device() -> None:
    """Without a device memory is ordinary: pin() gives the matrix itself."""
    m = from_tensor(numbers())
    if torch.cuda.is_available():
        pytest.skip("a CUDA device is here")
    assert m.pin() is m
    assert m.pinned is False
    assert Matrix.empty((2, 2), pinned=True).pinned is False
    assert Matrix.empty((2, 3), pinned=True, order="F").order == "F"


def test_devices_that_are_not_here() -> None:
    """Moves name the device that there is none of; nothing else changes."""
    if torch.cuda.is_available():
        pytest.skip("a CUDA device is here")
    m = from_tensor(torch.ones(2, 2))
    for move in (
        m.to_device,
        lambda: m.to_device("cuda:0"),
        lambda: from_tensor(m, device="cuda"),
        lambda: DeviceMatrix.from_tensor(m),
        lambda: Matrix.empty((2, 2), device="cuda"),
        lambda: m.to_tensor("torch", device="cuda:1"),
    ):
        with pytest.raises(DeviceUnavailableError):
            move()
    with pytest.raises(DeviceUnavailableError, match="numpy has tensors on cpu only"):
        m.to_tensor("numpy", device="cuda:0")


# Protocols ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", sorted(EVERY))
def test_numpy_reads_every_dtype(name: str) -> None:
    """np.asarray gives the shared array whatever the dtype; the array interface is there where it tells the truth."""
    x = numbers(2, 2).astype(dtype_of(name))
    m = from_tensor(x)
    seen = np.asarray(m)
    assert (seen.dtype, seen.ctypes.data) == (x.dtype, x.ctypes.data)
    assert hasattr(m, "__array_interface__") == (not is_extension(x.dtype))
    assert not hasattr(m, "__cuda_array_interface__")


def test_array_method() -> None:
    """np.array copies, np.asarray with a dtype converts, copy=False refuses to."""
    m = from_tensor(numbers())
    assert not np.shares_memory(np.array(m), m.array)
    assert np.asarray(m, dtype="f8").dtype == np.float64
    assert np.array(m, dtype="f4", copy=False) is not None
    with pytest.raises(ValueError, match="copy"):
        np.array(m, dtype="f8", copy=False)
    assert np.sum(m) == 66
    with track_copies() as log:
        m.__array__(copy=True)
        m.__array__(np.float64)
        m.__array__()
    assert [record.nbytes for record in log] == [48, 96]
    assert (np.asarray(m) + m.array)[3, 2] == 22


@pytest.mark.parametrize("name", sorted(EVERY))
@pytest.mark.parametrize("protocol", [2, 5])
def test_pickles_every_dtype(name: str, protocol: int) -> None:
    """Bits survive, NaN payloads too; swapped bytes come back native; copies of a matrix are independent."""
    raw = np.random.default_rng(0).bytes(12 * dtype_of(name).itemsize)
    x = np.frombuffer(raw, np.uint8) & 1 if name == "bool" else np.frombuffer(raw, np.uint8)
    m = from_tensor(x.view(dtype_of(name)).reshape(4, 3).copy())
    back = pickle.loads(pickle.dumps(m, protocol))
    assert (back.dtype, back.readonly, bits(back.array)) == (m.dtype, False, bits(m.array))
    for again in (copy.copy(m), copy.deepcopy(m)):
        assert bits(again.array) == bits(m.array)
        assert not np.shares_memory(again.array, m.array)


def test_copies_stay_where_they_are() -> None:
    """copy and deepcopy keep framework, device and order, are writable, and are counted as asked for."""
    m = from_tensor(torch.arange(6.0).reshape(3, 2).T)
    with forbid_copies(), track_copies() as log:
        for again in (copy.copy(m), copy.deepcopy([m])[0]):
            assert (again.framework, again.device, again.order, again.readonly) == ("torch", m.device, "F", False)
            assert again.array.tolist() == m.array.tolist()
            assert again.array.data_ptr() != m.array.data_ptr()
    assert log.nbytes == 2 * m.nbytes


def test_pickles_swapped_bytes_and_gaps() -> None:
    """What is not dense is packed, what is swapped comes back in native order."""
    x = numbers(4, 6).astype(">f4")[::2, ::-2]
    for protocol in (2, 5):
        back = pickle.loads(pickle.dumps(from_tensor(x), protocol))
        assert (back.dtype.str, back.order, back.array.tolist()) == ("<f4", "C", x.tolist())


def test_unpickled_memory_follows_its_buffer() -> None:
    """Read-only buffers under a writable matrix are copied; a read-only matrix stays so over writable ones."""
    frames: list[pickle.PickleBuffer] = []
    sent = pickle.dumps(from_tensor(numbers()), 5, buffer_callback=frames.append)
    writable = pickle.loads(sent, buffers=[bytes(frames[0])])
    writable.array[0, 0] = 5
    assert not writable.readonly
    frozen = numbers()
    frozen.flags.writeable = False
    frames.clear()
    sent = pickle.dumps(from_tensor(frozen), 5, buffer_callback=frames.append)
    assert pickle.loads(sent, buffers=[bytearray(frames[0])]).readonly
