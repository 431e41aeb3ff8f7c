"""PyTorch: what comes in, what has no memory, what it cannot describe."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from matrix_interop import (
    CopyRequiredError,
    TensorView,
    UnsupportedDtypeError,
    UnsupportedTensorError,
    convert,
    forbid_copies,
    from_tensor,
    plan,
    track_copies,
)
from matrix_interop.dtypes import as_dtype
from matrix_interop.reasons import Reason


def fake() -> torch.Tensor:
    """A tensor of shapes only."""
    with FakeTensorMode():
        return torch.ones(2, 2)


def freed() -> torch.Tensor:
    """A tensor whose storage is gone."""
    t = torch.ones(2, 2)
    t.untyped_storage().resize_(0)
    return t


def nested() -> torch.Tensor:
    """Rows of two lengths."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])


def quantised() -> torch.Tensor:
    """Steps of 0.1 in bytes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.quantize_per_tensor(torch.ones(2, 2), 0.1, 0, torch.quint8)


def sparse_rows() -> torch.Tensor:
    """Compressed rows."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.eye(2).to_sparse_csr()


@pytest.mark.parametrize(
    ("make", "way_out"),
    [
        (lambda: torch.empty(2, 2, device="meta"), "materialise"),
        (fake, "for real"),
        (freed, "freed"),
        (nested, "to_padded_tensor"),
        (quantised, "dequantize"),
        (lambda: torch.eye(2).to_sparse(), "to_dense"),
        (sparse_rows, "to_dense"),
        (lambda: torch._efficientzerotensor((2, 2)), "clone"),
    ],
)
def test_no_plain_memory(make: Callable[[], torch.Tensor], way_out: str) -> None:
    """A tensor without values in memory is refused with the way out, by every entry, before anything happens."""
    t = make()
    for entry in (from_tensor, TensorView, plan, lambda t: convert(t, "numpy")):
        with pytest.raises(UnsupportedTensorError, match=way_out) as caught:
            entry(t)
    assert "torch" in str(caught.value)
    assert isinstance(caught.value, BufferError)


@pytest.mark.parametrize("transform", ["vmap", "grad", "jvp"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")
def test_inside_transforms(transform: str) -> None:
    """A tensor that belongs to a torch.func transform has no memory of its own: converting is refused there."""
    caught: list[UnsupportedTensorError] = []

    def inside(t: torch.Tensor) -> torch.Tensor:
        with pytest.raises(UnsupportedTensorError, match=r"torch.func transform") as error:
            convert(t, "numpy")
        caught.append(error.value)
        return (t * t).sum()

    x = torch.ones(3, 2)
    if transform == "vmap":
        torch.func.vmap(inside)(x)
    elif transform == "grad":
        torch.func.grad(inside)(x)
    else:
        torch.func.jvp(inside, (x,), (x,))
    assert len(caught) == 1


@pytest.mark.parametrize("leaf", [True, False])
def test_graphs_are_left_behind(leaf: bool) -> None:
    """A tensor that requires grad comes in detached and shared; its own flags stay, and the plan says so."""
    t = torch.ones(2, 2, requires_grad=True)
    t = t if leaf else t * 2
    with forbid_copies():
        m = from_tensor(t)
        results = [m.array, m.to_tensor("torch"), convert(t), m[0]]
    assert t.requires_grad
    assert not any(result.requires_grad for result in results)
    assert {result.data_ptr() for result in results} == {t.data_ptr()}
    assert np.asarray(m).ctypes.data == t.data_ptr()
    made = plan(t, "numpy")
    assert made.zero_copy
    assert "detached" in str(made)
    assert made.steps[0].reasons == (Reason.GRAD,)


def test_subclasses_and_modes() -> None:
    """Parameters, subclasses and inference tensors share like plain ones."""

    class Mine(torch.Tensor):
        pass

    with torch.inference_mode():
        inference = torch.ones(2, 2)
    for t in (torch.nn.Parameter(torch.ones(2, 2)), torch.ones(2, 2).as_subclass(Mine), inference):
        assert np.asarray(from_tensor(t)).ctypes.data == t.data_ptr()
        assert from_tensor(t).to_tensor("torch").tolist() == [[1, 1], [1, 1]]


def test_dtypes_that_numpy_lacks() -> None:
    """complex32 and packed types are refused, and the conversion that the message names works."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        t = torch.ones(2, 2, dtype=torch.complex32)
    with pytest.raises(UnsupportedDtypeError, match=r"x\.to\(torch\.complex64\)"):
        from_tensor(t)
    assert from_tensor(t.to(torch.complex64)).dtype == np.complex64
    with pytest.raises(UnsupportedDtypeError, match="convert it first"):
        from_tensor(torch.zeros(2, 2, dtype=torch.uint8).view(torch.bits8))


@pytest.mark.parametrize("name", ["float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz"])
def test_dtypes_that_torch_lacks(name: str) -> None:
    """The error names float32, which works."""
    m = from_tensor(np.ones((2, 2), np.float32)).astype(name)
    with pytest.raises(UnsupportedDtypeError, match="dtype='float32'"):
        m.to_tensor("torch")
    assert m.to_tensor("torch", dtype="float32").tolist() == [[1, 1], [1, 1]]


def test_dtype_objects_are_taken() -> None:
    """dtype= takes torch's own."""
    m = from_tensor(np.array([[1, 2]], np.int64))
    assert m.to_tensor("torch", dtype=torch.bfloat16).dtype is torch.bfloat16
    assert m.astype(torch.float16).dtype == np.float16


@pytest.mark.parametrize("dtype", ["complex64", "complex128", "float32", "float8_e4m3", "bfloat16"])
@pytest.mark.filterwarnings("ignore:Casting complex values to real")
def test_pending_conjugation_into_any_dtype(dtype: str) -> None:
    """The copy that carries a conjugation out also converts, by one step."""
    t = torch.tensor([[1 + 2j, 3 - 4j]]).conj()
    with track_copies() as log:
        made = convert(t, "numpy", dtype=dtype)
    assert made.astype(np.complex64).tolist() == ([[1 - 2j, 3 + 4j]] if "complex" in dtype else [[1, 3]])
    assert [record.nbytes for record in log] == [made.nbytes]


def test_share_readonly() -> None:
    """share_readonly=True shares read-only memory, in any dtype, and the source stays read-only."""
    a = np.arange(6, dtype=np.float32).reshape(2, 3)
    a.flags.writeable = False
    for values in (a, a.astype("f4").view("u4"), from_tensor(a).astype("bfloat16").array):
        values.flags.writeable = False
        assert plan(values, "torch", share_readonly=True).zero_copy
        t = convert(values, "torch", share_readonly=True, copy=False)
        assert t.data_ptr() == values.ctypes.data
        assert not values.flags.writeable
    with pytest.raises(CopyRequiredError, match="share_readonly=True"):
        convert(a, "torch", copy=False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e5m2], ids=str)
@pytest.mark.parametrize("grad", [False, True])
def test_storage_is_not_pulled_away(dtype: torch.dtype, grad: bool) -> None:
    """While a matrix shares a tensor's memory, nobody can resize the storage under it."""
    t = torch.ones(2, 2, dtype=dtype, requires_grad=grad)
    m = from_tensor(t)
    pulls = (lambda: t.data.resize_(100, 100), lambda: t.detach().resize_(0), lambda: t.untyped_storage().resize_(0))
    for pull in pulls[:1] + pulls[2:]:
        with pytest.raises(RuntimeError, match="resiz"):
            pull()
    pulls[1]()  # another tensor object becomes shorter; the storage stays
    assert np.asarray(m).astype(float).tolist() == [[1, 1], [1, 1]]


def test_empty_memory_may_run_backwards() -> None:
    """Where nothing is, no stride counts: the tensor has that shape and stays writable."""
    for name in ("float32", "bfloat16"):
        x = np.empty((3, 0), as_dtype(name))[::-1]
        assert plan(x, "torch").zero_copy
        assert convert(x, "torch", copy=False).shape == (3, 0)
        assert not from_tensor(from_tensor(x).to_tensor("torch")).readonly


def test_negative_steps_have_no_tensor_of_their_own() -> None:
    """A reversed slice is a shared matrix; its torch tensor is a copy, made anew each time, as the plan says."""
    t = torch.arange(6.0).reshape(3, 2)
    m = from_tensor(t)[::-1]
    assert np.asarray(m).tolist() == [[4, 5], [2, 3], [0, 1]]
    with track_copies() as log:
        first = m.array
    assert log.nbytes == m.nbytes
    assert not m.plan("torch").zero_copy
    t[0, 0] = 9
    assert m.array.tolist() == m.to_tensor("torch").tolist() == [[4, 5], [2, 3], [9, 1]]
    assert first.tolist() == [[4, 5], [2, 3], [0, 1]]
    assert m[2].data_ptr() == t.data_ptr()
