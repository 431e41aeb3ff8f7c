"""`TensorView`: the protocols it speaks, and what it refuses to say."""

from __future__ import annotations

import sys
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from hostile import Producer, consume
from matrix_interop import (
    CopyRequiredError,
    TensorView,
    UnknownFrameworkError,
    forbid_copies,
    from_tensor,
    track_copies,
)
from matrix_interop.devices import Device
from matrix_interop.errors import MatrixInteropError
from matrix_interop.reasons import Reason

BACKWARDS = {
    "rows": lambda a: a[::-1],
    "columns": lambda a: a[:, ::-1],
    "both": lambda a: a[::-1, ::-1],
    "every other": lambda a: a[::-2],
    "transposed": lambda a: a.T[::-1],
    "three axes": lambda a: a.reshape(2, 3, 2)[:, ::-1],
}


def matrix() -> np.ndarray:
    """Twelve float32 values, 4 x 3."""
    return np.arange(12, dtype=np.float32).reshape(4, 3)


def frozen() -> np.ndarray:
    """The same, read-only."""
    a = matrix()
    a.flags.writeable = False
    return a


def on_device(**forged: Any) -> TensorView:
    """A view of memory that claims to be on cuda:1, ready on the legacy stream."""
    return TensorView(Producer(matrix(), device=(2, 1), **forged))


# Facts -------------------------------------------------------------------------------------------
@pytest.mark.parametrize("shape", [(), (0,), (5,), (0, 3), (2, 0), (2, 3, 4), (1,) * 8])
def test_a_view_describes_any_rank(shape: tuple[int, ...]) -> None:
    """Shape, dtype, strides, sizes, address and flag are those of the array."""
    a = np.ones(shape, np.int16)
    view = TensorView(a)
    facts = (view.shape, view.dtype, view.strides, view.ndim, view.size, view.itemsize, view.nbytes, view.readonly)
    assert facts == (a.shape, a.dtype, a.strides, a.ndim, a.size, 2, a.nbytes, False)
    assert view.pointer == a.__array_interface__["data"][0]
    if shape:
        assert len(view) == shape[0]


def test_a_view_is_one_line() -> None:
    """Framework, dtype, shape, strides, device and flag."""
    expected = "<TensorView numpy float32 (4, 3), strides (12, 4) bytes, on cpu, read-only>"
    assert repr(TensorView(frozen())) == expected


def test_a_view_of_a_view_is_of_the_same_memory() -> None:
    """As is that of a matrix."""
    a = matrix()
    assert [TensorView(x).pointer for x in (TensorView(a), from_tensor(a))] == [a.ctypes.data] * 2


# DLPack ------------------------------------------------------------------------------------------
def test_sharing_gives_references_back() -> None:
    """Exports, consumed or dropped, hold the array as long as they live."""
    a = matrix()
    view = TensorView(a)
    before = sys.getrefcount(a)
    for keywords in ({}, {"max_version": (1, 0)}, {"max_version": (1, 0), "copy": False}, {"copy": True}):
        capsule = view.__dlpack__(**keywords)
        assert sys.getrefcount(a) == before + (not keywords.get("copy"))
        del capsule
        assert sys.getrefcount(a) == before
    shared = np.from_dlpack(view)
    assert (shared.ctypes.data, sys.getrefcount(a)) == (a.ctypes.data, before + 1)
    del shared
    assert sys.getrefcount(a) == before


@pytest.mark.parametrize("max_version", [(1, 0), (1, 3), (2, 0), (100, 3), [1, 0], np.array([1, 0])])
def test_any_version_from_one_on_is_answered(max_version: Any) -> None:
    """With our own, which is 1.0, whatever sequence of numbers the consumer writes it as."""
    assert consume(TensorView(matrix()).__dlpack__(max_version=max_version)).version == (1, 0)


@pytest.mark.parametrize("make", [matrix, frozen])
def test_a_copy_is_marked_and_may_be_written(make: Any) -> None:
    """copy=True: IS_COPIED, not READ_ONLY, other memory, counted; it has a legacy form, too."""
    a = make()
    with track_copies() as log:
        received = consume(TensorView(a).__dlpack__(max_version=(1, 0), copy=True))
        assert consume(TensorView(a).__dlpack__(copy=True)).data == a.tobytes()
    assert (received.flags, received.data) == (2, a.tobytes())
    assert [(record.nbytes, record.reason) for record in log] == [(48, Reason.REQUESTED)] * 2
    assert not np.shares_memory(np.from_dlpack(TensorView(a), copy=True), a)


def test_read_only_memory_has_no_legacy_capsule() -> None:
    """The refusal names what to ask for; the versioned form carries the mark."""
    view = TensorView(frozen())
    for max_version in (None, (0, 8)):
        with pytest.raises(BufferError, match=r"max_version=\(1, 0\), or convert"):
            view.__dlpack__(max_version=max_version)
    assert consume(view.__dlpack__(max_version=(1, 0))).flags == 1


@pytest.mark.parametrize("flip", BACKWARDS.values(), ids=BACKWARDS)
def test_negative_strides_are_copied_for_consumers(flip: Any) -> None:
    """torch ends the process on them: they go out as a marked, counted copy, or not at all."""
    a = flip(matrix())
    view = TensorView(a)
    with track_copies() as log:
        received = np.from_dlpack(view)
    assert (received.tolist(), min(received.strides) > 0) == (a.tolist(), True)
    assert [(record.nbytes, record.reason) for record in log] == [(a.nbytes, Reason.NEGATIVE_STRIDE)]
    with pytest.raises(CopyRequiredError, match="negative strides"):
        view.__dlpack__(max_version=(1, 0), copy=False)
    with forbid_copies(), pytest.raises(CopyRequiredError, match="negative strides"):
        view.__dlpack__(max_version=(1, 0))
    with forbid_copies():  # which allows what is asked for
        assert np.from_dlpack(view, copy=True).tolist() == a.tolist()


@pytest.mark.parametrize(
    "a", [matrix()[::-1][:1], matrix()[:, ::-1][:, :1], matrix()[:0, ::-1], frozen()[::-1][:1]], ids=str
)
def test_strides_that_do_not_count_are_no_reason_to_copy(a: np.ndarray) -> None:
    """T18: an axis of length 1 may have any stride; it goes out as a positive one, shared."""
    with forbid_copies():
        received = np.from_dlpack(TensorView(a), copy=False)
    assert (received.tolist(), received.ctypes.data, received.flags.writeable) == (
        a.tolist(),
        a.ctypes.data,
        a.flags.writeable,
    )
    assert min(consume(TensorView(a).__dlpack__(max_version=(1, 0))).strides) >= 0


@pytest.mark.parametrize(
    "a",
    [
        matrix().astype(">f4"),
        np.zeros(3, [("id", "i1"), ("v", "f4", (2,))])["v"],
        np.zeros((2, 3), [("id", "i1"), ("v", "f8")])["v"],
    ],
    ids=["byte order", "odd row stride", "odd stride"],
)
def test_what_dlpack_cannot_describe_is_a_buffer_error(a: np.ndarray) -> None:
    """As the standard demands, and never a TypeError, which consumers take for an unknown keyword."""
    for max_version in (None, (1, 0)):
        with pytest.raises(BufferError):
            TensorView(a).__dlpack__(max_version=max_version)


@pytest.mark.parametrize(
    "keywords",
    [
        {"stream": 0},
        {"stream": 1},
        {"stream": 2**47},
        {"stream": "cuda"},
        {"stream": np.zeros(2)},
        {"dl_device": (2, 0)},
        {"dl_device": (19, 0)},
        {"dl_device": 1},
        {"dl_device": ()},
        {"dl_device": "cpu"},
        {"max_version": 1},
        {"max_version": (1,)},
        {"max_version": "1.0"},
        {"max_version": (None, None)},
        {"copy": np.zeros(2)},
    ],
    ids=str,
)
def test_senseless_requests_are_buffer_errors(keywords: dict[str, Any]) -> None:
    """Whatever the consumer asks for, it is answered with a capsule or a BufferError."""
    for x in (TensorView(matrix()), from_tensor(matrix())):
        with pytest.raises(BufferError):
            x.__dlpack__(**keywords)


@pytest.mark.parametrize(
    "keywords", [{"stream": -1}, {"dl_device": (1, 0)}, {"dl_device": (3, 0)}, {"dl_device": [1, 0]}]
)
def test_requests_that_host_memory_meets(keywords: dict[str, Any]) -> None:
    """No ordering, and the host under any of its labels."""
    assert consume(TensorView(matrix()).__dlpack__(max_version=(1, 0), **keywords)).device == (1, 0)


def test_unknown_keywords_and_positions_are_refused() -> None:
    """The array API allows keywords only."""
    for x in (TensorView(matrix()), from_tensor(matrix())):
        with pytest.raises(TypeError):
            x.__dlpack__(None)
        with pytest.raises(TypeError):
            x.__dlpack__(colour="red")


def test_pending_values_are_not_exported() -> None:
    """The memory does not hold them yet; a matrix does."""
    view = TensorView([[1, 2], [3, 4]])
    with pytest.raises(BufferError, match=r"nested lists.*from_tensor"):
        view.__dlpack__(max_version=(1, 0))
    with pytest.raises(TypeError, match=r"nested lists.*from_tensor"):
        np.asarray(view)
    assert not hasattr(view, "__array_interface__")
    assert np.from_dlpack(from_tensor([[1, 2], [3, 4]])).tolist() == [[1, 2], [3, 4]]


# Devices -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("stream", [None, 1, -1])
def test_device_memory_is_exported_under_its_label(stream: int | None) -> None:
    """T24: None and 1 mean the legacy stream, on which this data is ready; -1 asks for no order."""
    view = on_device()
    for max_version in (None, (1, 0)):
        received = consume(on_device(flags=0, forms="versioned").__dlpack__(stream=stream, max_version=max_version))
        assert (received.device, received.dtype, received.shape) == ((2, 1), (2, 32, 1), (4, 3))
    assert view.__dlpack_device__() == (2, 1)


@pytest.mark.parametrize("keywords", [{"stream": 0}, {"stream": -2}, {"stream": True}, {"stream": "x"}, {"copy": True}])
def test_device_requests_without_sense_are_buffer_errors(keywords: dict[str, Any]) -> None:
    """T24: stream 0 has meant two things."""
    with pytest.raises(BufferError):
        on_device().__dlpack__(max_version=(1, 0), **keywords)


@pytest.mark.parametrize("dl_device", [(1, 0), (2, 0), (3, 0), (13, 1)])
def test_device_memory_does_not_move_by_itself(dl_device: tuple[int, int]) -> None:
    """A transfer over the bus should be seen in the code: the error names the method."""
    with pytest.raises(BufferError, match=r"to_host\(\) or to_device\(\)"):
        on_device().__dlpack__(max_version=(1, 0), dl_device=dl_device)


def test_backwards_device_memory_is_not_exported() -> None:
    """torch would end the process; nothing here copies on a device for a consumer."""
    with pytest.raises(BufferError, match="negative strides"):
        on_device(strides=(-3, 1), byte_offset=36).__dlpack__(max_version=(1, 0))


def test_device_memory_is_not_shown_to_the_host() -> None:
    """No host interface offers it, and ``np.asarray`` names to_host."""
    view = on_device()
    assert not hasattr(view, "__array_interface__")
    with pytest.raises(TypeError, match=r"to_host\(\)"):
        np.asarray(view)


def test_cuda_array_interface_of_a_stub() -> None:
    """Version 3 with the stream the data is ready on; no host view, no other device and no unnamed dtype has one."""
    interface = on_device().__cuda_array_interface__
    assert (interface["version"], interface["stream"], interface["shape"], interface["typestr"]) == (
        3,
        1,
        (4, 3),
        "<f4",
    )
    unnamed = TensorView(Producer(np.zeros((2, 2), np.uint16), device=(2, 0), dtype=(4, 16, 1)))
    elsewhere = TensorView(Producer(matrix(), device=(14, 0)))
    for view in (TensorView(matrix()), unnamed, elsewhere):
        assert not hasattr(view, "__cuda_array_interface__")


# NumPy's protocols -------------------------------------------------------------------------------
@pytest.mark.parametrize("make", [matrix, frozen, lambda: matrix()[::-1, ::2], lambda: matrix().astype(">i8")])
def test_numpy_shares(make: Any) -> None:
    """Both ways into NumPy see the same memory with its flag and strides."""
    a = make()
    view = TensorView(a)
    for b in (np.asarray(view), np.array(view, copy=False), view.__array__()):
        assert (b.dtype, b.strides, b.flags.writeable) == (a.dtype, a.strides, a.flags.writeable)
        assert b.__array_interface__["data"] == a.__array_interface__["data"]
    assert view.__array_interface__["data"] == a.__array_interface__["data"]


def test_array_method_follows_its_arguments() -> None:
    """dtype converts, copy=True copies, copy=False refuses a conversion with ValueError."""
    view = TensorView(matrix())
    assert np.asarray(view, dtype=np.int64).tolist() == matrix().tolist()
    assert view.__array__("i8").tolist() == matrix().tolist()
    assert not np.shares_memory(view.__array__(copy=True), view.header)
    with pytest.raises(ValueError, match="float64 needs a copy of 96 bytes"):
        view.__array__(np.float64, copy=False)


@pytest.mark.parametrize("kind", [ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e8m0fnu])
def test_numpy_gets_the_true_dtype(kind: Any) -> None:
    """The array interface would call it V1 or V2, so it is not offered; ``__array__`` shares the array itself."""
    a = np.ones((2, 3), kind)
    for x in (TensorView(a), from_tensor(a)):
        assert not hasattr(x, "__array_interface__")
        shared = np.asarray(x)
        assert (shared.dtype, np.shares_memory(shared, a), shared.astype(float).sum()) == (a.dtype, True, 6)


# What is not there -------------------------------------------------------------------------------
FOREIGN = [
    "__dlpack_c_exchange_api__",
    "__c_dlpack_exchange_api__",
    "__tvm_ffi_object__",
    "__torch_function__",
    "__torch_dispatch__",
    "__jax_array__",
    "__array_namespace__",
    "__array_function__",
    "__array_ufunc__",
    "__array_struct__",
    "__array_finalize__",
    "__cuda_stream__",
    "__arrow_c_array__",
    "__cuda_array_interface__",
    "__missing__",
    "data_ptr",
]


@pytest.mark.parametrize("name", FOREIGN)
def test_no_attribute_is_forwarded(name: str) -> None:
    """A table of functions for torch tensors, handed out by what is none, would crash who uses it."""
    torch = pytest.importorskip("torch")
    for x in (np.ones((2, 2)), torch.ones(2, 2)):
        for wrapped in (TensorView(x), from_tensor(x)):
            assert not hasattr(wrapped, name)
            assert not hasattr(type(wrapped), name) or name.startswith("__cuda_array")


@pytest.mark.parametrize("x", [None, object(), "text", 3])
def test_a_view_of_nothing_is_refused(x: Any) -> None:
    """The constructor raises what from_tensor raises."""
    with pytest.raises(UnknownFrameworkError):
        TensorView(x)


def test_every_refusal_is_of_one_family() -> None:
    """One except clause catches them all."""
    with pytest.raises(MatrixInteropError):
        TensorView(np.array(["text"]))
    assert Device("cuda", 1).dlpack == (2, 1)
