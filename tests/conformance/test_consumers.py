"""Libraries that take a matrix by themselves, without asking us: what they get is right, or refused."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from hostile import Producer, consume
from matrix_interop import TensorView, convert, from_tensor

SOURCE = Path(__file__).resolve().parent.parent.parent / "src"


def sample() -> np.ndarray:
    """2 x 3 float32."""
    return np.arange(6, dtype=np.float32).reshape(2, 3)


def run(code: str) -> str:
    """What ``code`` prints in an interpreter of its own, which may crash."""
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    ran = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, f"exit code {ran.returncode}: {ran.stderr}"
    return ran.stdout


# torch -------------------------------------------------------------------------------------------
def test_torch_survives_negative_strides() -> None:
    """torch.from_dlpack of such memory ends the process; of our matrix and view it gives the right values."""
    pytest.importorskip("torch")
    code = """
import numpy as np, torch
from matrix_interop import TensorView, from_tensor
a = np.arange(6, dtype="f4").reshape(2, 3)
for b in (a[::-1], a[:, ::-1], a.T[::-1, ::-1], a[::-1].T):
    for x in (from_tensor(b), TensorView(b), from_tensor(a[::-1])[::-1]):
        expected = b if not hasattr(x, "framework") or np.array_equal(np.asarray(x), b) else a
        assert torch.from_dlpack(x).tolist() == expected.tolist()
        assert torch.utils.dlpack.from_dlpack(x.__dlpack__()).tolist() == expected.tolist()
        assert torch.asarray(x).tolist() == expected.tolist()
    for copy in (False,):
        try:
            torch.from_dlpack(from_tensor(b), copy=copy)
        except BufferError as error:
            print(type(error).__name__)
line = a[0, ::-1]
assert torch.from_dlpack(TensorView(line)).tolist() == line.tolist()
"""
    assert run(code).split() == ["CopyRequiredError"] * 4


@pytest.mark.parametrize("take", ["from_dlpack", "asarray", "as_tensor"])
@pytest.mark.parametrize(
    "kind", [np.float32, np.uint16, np.bool, np.complex64, ml_dtypes.bfloat16, ml_dtypes.float8_e5m2]
)
def test_torch_takes_a_matrix(take: str, kind: Any) -> None:
    """Shared, also where NumPy's protocols have no name for the dtype."""
    torch = pytest.importorskip("torch")
    a = sample().astype(kind)
    t = getattr(torch, take)(from_tensor(a))
    assert (t.data_ptr(), str(t.dtype)) == (a.__array_interface__["data"][0], f"torch.{a.dtype}")
    assert t.to(torch.complex64).tolist() == a.astype(complex).tolist()


def test_torch_on_its_own_ignores_the_mark() -> None:
    """A consumer that imports read-only memory itself may drop the flag, as torch does; our conversion copies."""
    torch = pytest.importorskip("torch")
    a = sample()
    a.flags.writeable = False
    m = from_tensor(a)
    assert torch.from_dlpack(m).data_ptr() == a.ctypes.data
    assert m.to_tensor("torch").data_ptr() != a.ctypes.data


def test_tensors_whose_values_are_pending_go_out_resolved() -> None:
    """Conjugate and negative bits: every consumer of the matrix sees true values; the view alone refuses."""
    torch = pytest.importorskip("torch")
    z = torch.tensor([[1 + 2j, 3 - 4j]])
    for tensor in (z.conj(), z.conj().imag, torch._neg_view(torch.ones(1, 2))):
        expected = tensor.resolve_conj().resolve_neg().tolist()
        m = from_tensor(tensor)
        assert np.from_dlpack(m).tolist() == expected
        assert torch.from_dlpack(m).tolist() == expected
        assert torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(torch.from_dlpack(m))).tolist() == expected
        with pytest.raises(BufferError, match="bit"):
            TensorView(tensor).__dlpack__(max_version=(1, 0))


# jax ---------------------------------------------------------------------------------------------
def test_jax_takes_a_matrix() -> None:
    """From a legacy capsule, for it knows no other; read-only memory has none and is converted by us."""
    jax = pytest.importorskip("jax")
    a = sample()
    assert jax.dlpack.from_dlpack(from_tensor(a)).tolist() == a.tolist()
    assert jax.dlpack.from_dlpack(from_tensor(a).T).tolist() == a.T.tolist()
    assert jax.dlpack.from_dlpack(from_tensor(a)[::-1]).tolist() == a[::-1].tolist()
    assert jax.dlpack.from_dlpack(from_tensor(a)[::-1][:1]).tolist() == [[3, 4, 5]]
    assert jax.numpy.asarray(from_tensor(a)).tolist() == a.tolist()
    bf16 = jax.numpy.asarray(from_tensor(a.astype(ml_dtypes.bfloat16)))
    assert (str(bf16.dtype), bf16.tolist()) == ("bfloat16", a.tolist())
    a.flags.writeable = False
    with pytest.raises(BufferError, match="convert with to_tensor"):
        jax.dlpack.from_dlpack(from_tensor(a))
    assert from_tensor(a).to_tensor("jax").tolist() == a.tolist()


def test_a_copy_for_jax_is_one() -> None:
    """JAX's own copy=True aliases aligned memory; ours does not."""
    pytest.importorskip("jax")
    block = np.zeros(64 + 32, np.uint8)
    start = -block.ctypes.data % 64
    a = block[start : start + 24].view(np.float32).reshape(2, 3)
    copied, shared = convert(a, "jax", copy=True), convert(a, "jax")
    a[0, 0] = 9
    assert (copied.tolist()[0][0], shared.tolist()[0][0]) == (0, 9)


# pyarrow, tvm-ffi --------------------------------------------------------------------------------
def test_pyarrow_takes_a_matrix() -> None:
    """From a versioned capsule, for it knows no other; read-only and JAX's memory among them."""
    pa = pytest.importorskip("pyarrow")
    a = sample()
    tensor = pa.Tensor.from_dlpack(from_tensor(a))
    assert (tensor.to_numpy().tolist(), tensor.to_numpy().ctypes.data) == (a.tolist(), a.ctypes.data)
    assert pa.Tensor.from_dlpack(from_tensor(a)[::-1]).to_numpy().tolist() == a[::-1].tolist()
    a.flags.writeable = False
    assert not pa.Tensor.from_dlpack(from_tensor(a)).is_mutable
    jax = pytest.importorskip("jax")
    x = jax.numpy.ones((2, 3))
    assert pa.Tensor.from_dlpack(from_tensor(x)).to_numpy().tolist() == [[1.0] * 3] * 2


def test_tvm_ffi_takes_and_gives() -> None:
    """Its tensors come in by protocol; a matrix of a torch tensor does not lend it torch's table of C functions."""
    tvm_ffi = pytest.importorskip("tvm_ffi")
    a = sample()
    theirs = tvm_ffi.from_dlpack(from_tensor(a))
    back = from_tensor(theirs)
    assert (np.asarray(back).tolist(), np.asarray(back).ctypes.data, back.readonly) == (
        a.tolist(),
        a.ctypes.data,
        False,
    )
    assert np.from_dlpack(tvm_ffi.from_dlpack(from_tensor(a)[::-1])).tolist() == a[::-1].tolist()
    torch = pytest.importorskip("torch")
    z = torch.tensor([[1 + 2j]]).conj()  # through that table it would come out unconjugated
    assert np.from_dlpack(from_tensor(z)).tolist() == [[1 - 2j]]
    assert str(tvm_ffi.from_dlpack(from_tensor(a.astype(ml_dtypes.bfloat16))).dtype) == "bfloat16"


def test_mlx_takes_and_gives() -> None:
    """Its arrays come in read-only by legacy capsules, bfloat16 too; of ours it makes copies, also of flipped ones."""
    mx = pytest.importorskip("mlx.core")
    a = sample()
    for kind, name in ((mx.float32, "float32"), (mx.bfloat16, "bfloat16"), (mx.int16, "int16")):
        m = from_tensor(mx.array(a.tolist()).astype(kind))
        assert (m.dtype.name, m.readonly, np.asarray(m).tolist()) == (name, True, a.tolist())
    for m in (from_tensor(a), from_tensor(a)[::-1], from_tensor(a).T):
        assert mx.array(m).tolist() == np.asarray(m).tolist()


# Polars ------------------------------------------------------------------------------------------
def test_polars_columns_come_in_through_arrow() -> None:
    """A column of arrays is shared; its nulls are seen; a frame goes by ``__array__``."""
    pl = pytest.importorskip("polars")
    pytest.importorskip("pyarrow")
    column = pl.Series("v", [[1.0, 2.0], [3.0, 4.0]], dtype=pl.Array(pl.Float32, 2))
    m = from_tensor(column)
    assert (m.framework, m.readonly, np.asarray(m).tolist()) == ("pyarrow", True, [[1, 2], [3, 4]])
    assert np.shares_memory(np.asarray(m), column.to_numpy(allow_copy=False))
    holes = pl.Series("v", [[1.0, 2.0], None], dtype=pl.Array(pl.Float32, 2))
    with pytest.raises(ValueError, match="nulls"):
        from_tensor(holes)
    assert np.asarray(from_tensor(holes, fill=0)).tolist() == [[1, 2], [0, 0]]
    frame = pl.DataFrame({"a": [1.0, 2.0], "b": [3.0, 4.0]})
    assert np.asarray(from_tensor(frame)).tolist() == [[1, 3], [2, 4]]


# Stubs -------------------------------------------------------------------------------------------
@pytest.mark.parametrize("framework", ["numpy", "torch", "jax", "pyarrow"])
def test_old_and_new_consumers_are_served(framework: str) -> None:
    """A consumer that knows only legacy capsules and one that knows only versioned ones get the same bytes."""
    pytest.importorskip(framework)
    a = sample()
    source = {
        "numpy": lambda: a,
        "torch": lambda: convert(a, "torch"),
        "jax": lambda: convert(a, "jax"),
        "pyarrow": lambda: convert(a, "pyarrow"),
    }[framework]()
    m = from_tensor(source)
    new = consume(m.__dlpack__(max_version=(1, 3), stream=None, dl_device=(1, 0), copy=None))
    assert (new.data, new.version) == (a.tobytes(), (1, 0))
    if m.readonly:  # no old consumer can be told
        with pytest.raises(BufferError):
            m.__dlpack__()
        assert consume(m.__dlpack__(copy=True)).data == a.tobytes()
    else:
        assert consume(m.__dlpack__()) == new._replace(flags=None, version=None)
        assert consume(m.__dlpack__(stream=None)).data == a.tobytes()


@pytest.mark.parametrize("device", [(3, 0), (11, 0)])
@pytest.mark.parametrize("forms", ["legacy", "versioned"])
def test_page_locked_labels_stop_here(device: tuple[int, int], forms: str) -> None:
    """Memory that its producer calls page-locked goes on as host memory, which torch takes, too."""
    torch = pytest.importorskip("torch")
    a = sample()
    m = from_tensor(Producer(a, device=device, forms=forms))
    assert m.device == "cpu"
    assert convert(m, "torch", share_readonly=True).data_ptr() == a.ctypes.data
    assert torch.from_dlpack(m).data_ptr() == a.ctypes.data
    assert torch.from_dlpack(m.to_tensor("numpy")).data_ptr() == a.ctypes.data
    with pytest.raises(BufferError):
        torch.from_dlpack(Producer(a, device=device, forms=forms))  # why this matters


def test_managed_memory_is_a_device_matrix() -> None:
    """Its label is the CUDA device's from then on."""
    m = from_tensor(Producer(sample(), device=(13, 1)))
    assert (type(m).__name__, m.device, m.__dlpack_device__()) == ("DeviceMatrix", "cuda:1", (2, 1))
    assert consume(m.__dlpack__(max_version=(1, 0), stream=-1)).device == (2, 1)
