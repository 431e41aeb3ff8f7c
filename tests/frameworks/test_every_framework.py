"""What every framework gets, run over all of them, a toy registered from one file among them."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pyarrow as pa
import pytest
import torch

from frameworks.table import JAX, NUMPY, SOURCES, TARGETS, TOY, WIDE, Kind, address, aligned, bits, dtype_of, x64
from matrix_interop import (
    CopyRequiredError,
    Framework,
    HostMatrix,
    Matrix,
    TensorView,
    UnsupportedDtypeError,
    convert,
    forbid_copies,
    from_tensor,
    plan,
    track_copies,
)
from matrix_interop.frameworks.registry import framework

VALUES = np.arange(96, dtype=np.float32).reshape(6, 16)  # rows of 64 bytes: JAX shares each of them

sources = pytest.mark.parametrize("source", SOURCES, ids=str)
targets = pytest.mark.parametrize("target", TARGETS, ids=str)


def make(source: Kind, values: np.ndarray = VALUES) -> Any:
    """A tensor of ``source`` whose memory starts at a multiple of 64, where the framework leaves a choice."""
    return aligned(values) if source is NUMPY else source.make(values)


def reader(m: Matrix) -> Callable[[Any], np.ndarray]:
    """How a test reads the tensors of the matrix's framework."""
    return next(tester.read for tester in TARGETS if tester.name == m.framework)


@sources
def test_from_tensor_shares(source: Kind) -> None:
    """A matrix lies over the memory it was made from, says where and what it is, and gives the tensor back."""
    x = make(source)
    with forbid_copies(), track_copies() as log:
        m = from_tensor(x)
        seen = np.asarray(m)
        native = m.array
    assert isinstance(m, HostMatrix)
    assert (m.shape, m.dtype, m.ndim, m.size, m.itemsize, m.nbytes) == ((6, 16), np.float32, 2, 96, 4, 384)
    assert (m.strides, m.order, m.device, m.framework, len(m)) == ((64, 4), "C", "cpu", source.framework, 6)
    assert m.readonly == source.immutable
    assert m.pinned is False
    assert address(seen) == source.pointer(x)
    assert np.array_equal(reader(m)(native), VALUES)
    assert len(log) == 0


@sources
@targets
def test_to_tensor_as_planned(source: Kind, target: Kind) -> None:
    """Values arrive, and memory is shared exactly where the plan says so."""
    x = make(source)
    m = from_tensor(x)
    announced = m.plan(target.name)
    made = m.to_tensor(target.name)
    assert np.array_equal(target.read(made), VALUES)
    assert (target.pointer(made) == source.pointer(x)) == announced.zero_copy
    assert str(announced) == str(plan(x, target.name))


@sources
@targets
@pytest.mark.parametrize("jax64", [False, True])
@pytest.mark.filterwarnings("ignore:Casting complex values to real")
def test_every_dtype(source: Kind, target: Kind, jax64: bool) -> None:
    """Every dtype that both can hold arrives bit by bit; for the others the error names a dtype that works."""
    for name in sorted(source.dtypes if source is not JAX or jax64 else source.dtypes - WIDE):
        values = (np.arange(128, dtype=np.uint8) % (2 if name == "bool" else 251)).view(dtype_of(name)).reshape(2, -1)
        with x64(jax64):
            x = make(source, values)
            m = from_tensor(x)
            assert m.dtype == dtype_of(name)
            if name in target.dtypes and (target is not JAX or jax64 or name not in WIDE):
                assert bits(target.read(m.to_tensor(target.name))) == bits(values)
            else:
                with pytest.raises(UnsupportedDtypeError, match=name) as caught:
                    m.to_tensor(target.name)
                way_out = str(caught.value).partition("dtype='")[2].partition("'")[0]
                with np.errstate(all="ignore"):
                    made = target.read(m.to_tensor(target.name, dtype=way_out))
                    assert bits(made) == bits(values.astype(way_out))


@sources
@targets
def test_copy_true_is_independent(source: Kind, target: Kind) -> None:
    """copy=True gives memory of its own, counted once, aligned to 256 bytes where it is ours."""
    x = make(source)
    with forbid_copies(), track_copies() as log:
        made = from_tensor(x).to_tensor(target.name, copy=True)
    assert target.pointer(made) != source.pointer(x)
    assert target.pointer(made) % 256 == 0
    assert np.array_equal(target.read(made), VALUES)
    assert [record.nbytes for record in log] == [VALUES.nbytes]


@sources
@targets
def test_two_conversions_give_two_objects(source: Kind, target: Kind) -> None:
    """Each conversion makes a new tensor object, by Matrix and by convert, over one memory where it is shared."""
    x = make(source)
    m = from_tensor(x)
    first, second, third = m.to_tensor(target.name), m.to_tensor(target.name), convert(x, target.name)
    assert first is not second
    assert first is not x
    assert third is not x
    if m.plan(target.name).zero_copy:
        assert target.pointer(first) == target.pointer(second) == target.pointer(third)


@sources
def test_rows_are_the_frameworks_own_vectors(source: Kind) -> None:
    """m[i], m[-i] and iteration give 1-D tensors of the framework over the same memory."""
    m = from_tensor(make(source))
    read = reader(m)
    with forbid_copies():
        rows = [m[2], m[-1], *m]
    assert [read(row).tolist() for row in rows] == [VALUES[i].tolist() for i in (2, -1, *range(6))]
    assert address(read(rows[0])) == address(np.asarray(m)[2])


@sources
@pytest.mark.parametrize("cut", [slice(1, 4), slice(None, None, 2), slice(4, 0, -1), slice(9, 9), slice(None)], ids=str)
def test_slices_are_matrices_over_the_same_memory(source: Kind, cut: slice) -> None:
    """m[a:b:s] is a matrix view; its own tensor is right, copied only where the framework has no such view."""
    m = from_tensor(make(source))
    before = m.array
    with forbid_copies():
        part = m[cut]
    assert part.framework == m.framework
    assert np.array_equal(np.asarray(part), VALUES[cut])
    assert np.shares_memory(np.asarray(part), np.asarray(m)) == (len(VALUES[cut]) > 0)
    assert np.array_equal(reader(m)(part.array), VALUES[cut])
    assert m.array is before


@sources
def test_transpose_shares(source: Kind) -> None:
    """T swaps the axes over the same memory; its tensor is shared where the framework describes columns."""
    m = from_tensor(make(source))
    t = m.T
    assert (t.shape, t.order, address(np.asarray(t))) == ((16, 6), "F", address(np.asarray(m)))
    assert np.array_equal(reader(m)(t.array), VALUES.T)
    assert np.array_equal(np.asarray(t.T), VALUES)


@sources
def test_take_copies_rows_in_the_order_asked(source: Kind) -> None:
    """take is asked for, so forbid_copies lets it through; it copies the taken rows and counts them."""
    m = from_tensor(make(source))
    with forbid_copies(), track_copies() as log:
        taken = m.take([5, 0, 5])
    assert (taken.framework, taken.readonly) == (m.framework, False)
    assert np.array_equal(np.asarray(taken), VALUES[[5, 0, 5]])
    assert np.array_equal(reader(m)(taken.array), VALUES[[5, 0, 5]])
    assert log.nbytes == 3 * 64


@sources
def test_astype(source: Kind) -> None:
    """astype converts by one copy and stays in the framework; to the same dtype it is the matrix itself."""
    m = from_tensor(make(source))
    with forbid_copies(), track_copies() as log:
        made = m.astype("uint8" if source is TOY else "int16")
        same = m.astype("float32")
    assert same is m
    assert np.array_equal(reader(m)(made.array), VALUES.astype(made.dtype))
    assert (log.nbytes, made.framework) == (made.nbytes, m.framework)
    assert not np.shares_memory(np.asarray(m.astype("float32", copy=True)), np.asarray(m))
    with pytest.raises(CopyRequiredError):
        m.astype("float64", copy=False)


@sources
def test_contiguous(source: Kind) -> None:
    """contiguous gives dense rows or columns: itself where it has them, else one copy that can be forbidden."""
    m = from_tensor(make(source))
    assert m.contiguous() is m
    columns = m.contiguous("F")
    assert (columns.order, columns.framework) == ("F", m.framework)
    assert np.array_equal(np.asarray(columns), VALUES)
    assert np.array_equal(np.asarray(m.T.contiguous()), VALUES.T)
    assert not np.shares_memory(np.asarray(m.contiguous(copy=True)), np.asarray(m))
    for forbidden in ({"copy": False}, {}):
        with forbid_copies() if not forbidden else track_copies(), pytest.raises(CopyRequiredError) as caught:
            m.contiguous("F", **forbidden)
        assert caught.value.plan is not None
        assert caught.value.plan.nbytes == VALUES.nbytes


@sources
def test_normalized(source: Kind) -> None:
    """Rows of length one in a new matrix; a row of zeros stays zero and has norm 0; the source is unchanged."""
    values = np.array([[3, 4], [0, 0]], np.float32)
    x = source.make(values)
    made, norms = from_tensor(x).normalized(return_norms=True)
    assert np.array_equal(reader(made)(made.array), np.array([[0.6, 0.8], [0, 0]], np.float32))
    assert norms.tolist() == [5.0, 0.0]
    assert np.array_equal(source.read(x), values)


@sources
def test_repr_is_one_line(source: Kind) -> None:
    """The repr names size, dtype, order, framework, read-only and device, in one line."""
    readonly = ", read-only" if source.immutable else ""
    assert repr(from_tensor(make(source))) == f"<HostMatrix 6 x 16 float32, C, {source.framework}{readonly}, cpu>"


@sources
def test_dlpack_into_every_consumer(source: Kind) -> None:
    """A matrix is taken by the from_dlpack of NumPy, torch, JAX and pyarrow; all but a JAX copy share."""
    m = from_tensor(make(source))
    where = address(np.asarray(m))
    arrived = np.from_dlpack(m)
    assert (address(arrived), arrived.flags.writeable) == (where, not source.immutable)
    assert np.array_equal(arrived, VALUES)
    assert torch.from_dlpack(m).data_ptr() == where
    tensor = pa.Tensor.from_dlpack(m)
    assert address(tensor.to_numpy()) == where
    assert tensor.is_mutable != source.immutable
    if source.immutable:  # JAX asks for the form that cannot say read-only
        with pytest.raises(BufferError, match=r"readonly|read-only"):
            jax.dlpack.from_dlpack(m)
    else:
        assert np.array_equal(jax.dlpack.from_dlpack(m), VALUES)


@sources
def test_both_capsule_forms(source: Kind) -> None:
    """Legacy without max_version, versioned with it; read-only memory has no legacy form. Capsules may go unused."""
    m = from_tensor(make(source))
    versioned = m.__dlpack__(max_version=(1, 0))
    assert "dltensor_versioned" in repr(versioned)
    assert np.array_equal(torch.utils.dlpack.from_dlpack(versioned).numpy(), VALUES)
    m.__dlpack__(max_version=(2, 7))
    if source.immutable:
        with pytest.raises(BufferError):
            m.__dlpack__()
    else:
        legacy = m.__dlpack__()
        assert "dltensor_versioned" not in repr(legacy)
        assert np.array_equal(torch.utils.dlpack.from_dlpack(legacy).numpy(), VALUES)
    assert m.__dlpack_device__() == (1, 0)


@sources
@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("layout", ["rows", "columns", "reversed"])
def test_pickling(source: Kind, protocol: int, layout: str) -> None:
    """Every protocol brings back values, dtype, order and read-only mark, and carries the matrix's own rows only."""
    m = from_tensor(make(source))[2:4]
    m = {"rows": m, "columns": m.T, "reversed": m[::-1]}[layout]
    sent = pickle.dumps(m, protocol)
    back = pickle.loads(sent)
    assert len(sent) < m.nbytes * 2 + 300  # protocol 2 writes bytes as text
    assert (back.shape, back.dtype, back.readonly) == (m.shape, m.dtype, m.readonly)
    assert back.order == ("C" if layout == "reversed" else m.order)
    assert np.array_equal(np.asarray(back), np.asarray(m))


@sources
def test_pickling_out_of_band_shares(source: Kind) -> None:
    """With a buffer callback the bytes stay where they are, and come back over the buffers given."""
    m = from_tensor(make(source))
    buffers: list[pickle.PickleBuffer] = []
    sent = pickle.dumps(m, 5, buffer_callback=buffers.append)
    back = pickle.loads(sent, buffers=buffers)
    assert len(sent) < 300
    assert address(np.asarray(back)) == address(np.asarray(m))
    assert back.readonly == m.readonly


@targets
def test_readonly_is_kept_copied_or_refused(target: Kind) -> None:
    """Read-only memory stays so where the framework can keep it, is copied where not, and refused with copy=False."""
    values = aligned(VALUES)
    values.flags.writeable = False
    m = from_tensor(values)
    keeps = target.name in ("numpy", "jax", "pyarrow", "array_api_strict")
    assert m.readonly
    assert m.plan(target.name).zero_copy == keeps
    made = m.to_tensor(target.name)
    assert (target.pointer(made) == address(values)) == keeps
    if keeps:
        assert target.read(made).flags.writeable is False
        assert target.pointer(m.to_tensor(target.name, copy=False)) == address(values)
    else:
        for refused in (lambda: m.to_tensor(target.name, copy=False), lambda: convert(values, target.name, copy=False)):
            with pytest.raises(CopyRequiredError, match=r"read-only|writable"):
                refused()


@sources
def test_any_rank_by_convert(source: Kind) -> None:
    """convert takes ranks other than 2, and gives the tensor of its own framework when none is named."""
    for shape in [(96,), (2, 3, 16), (2, 3, 4, 2, 2)]:
        x = source.make(VALUES.reshape(shape))
        made = convert(x)
        tester = next(tester for tester in TARGETS if tester.name == source.framework)
        assert tester.read(made).shape == shape
        assert tester.pointer(made) == source.pointer(x)


@sources
def test_like_takes_the_models_framework(source: Kind) -> None:
    """like=tensor converts into that tensor's framework; a Matrix is a model as well."""
    x = make(source)
    made = convert(VALUES, like=x)
    assert TensorView(made).framework == source.framework
    assert TensorView(convert(VALUES, like=from_tensor(x))).framework == source.framework


@sources
def test_a_matrix_is_taken_wherever_a_tensor_is(source: Kind) -> None:
    """convert, plan, TensorView and to_host(out=) read a Matrix as what it is: same framework, same memory."""
    m = from_tensor(make(source))
    assert from_tensor(m) is m
    assert TensorView(m).framework == m.framework
    assert plan(m).zero_copy
    assert np.array_equal(reader(m)(convert(m)), VALUES)


@targets
def test_from_tensor_converts_on_the_way_in(target: Kind) -> None:
    """framework= and dtype= make a matrix of another framework, over the same memory where possible."""
    values = aligned(VALUES)
    m = from_tensor(values, framework=target.name)
    assert (m.framework, m.shape) == (target.name, VALUES.shape)
    assert address(np.asarray(m)) == address(values)
    assert np.array_equal(
        target.read(from_tensor(VALUES.astype("int64"), framework=target.name, dtype="float32").array), VALUES
    )
    assert np.array_equal(target.read(Matrix.from_rows(VALUES, framework=target.name).array), VALUES)
    assert Matrix.empty((3, 2), framework=target.name).framework == target.name


@targets
def test_adapters_are_complete(target: Kind) -> None:
    """Every adapter answers all that a host framework is asked."""
    adapter = framework(target.name)
    assert isinstance(adapter, Framework)
    assert adapter.name == target.name
    assert "cpu" in adapter.devices()
    assert adapter.namespace().__name__
    assert from_tensor(target.make(VALUES)).xp is adapter.namespace()


def test_jax_is_here() -> None:
    """The table's JAX is on the CPU, as the pointers of these tests assume."""
    assert JAX.make(VALUES).devices().pop().platform == "cpu"
