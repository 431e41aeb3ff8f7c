"""JAX: alignment, 64-bit types, what cannot be read."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from frameworks.table import WIDE, address, aligned, dtype_of, x64
from matrix_interop import (
    CopyRequiredError,
    UnsupportedDtypeError,
    UnsupportedTensorError,
    convert,
    forbid_copies,
    from_tensor,
    plan,
    track_copies,
)
from matrix_interop.devices import CPU
from matrix_interop.frameworks.jax import _from_dlpack, _importer
from matrix_interop.reasons import Reason


def test_alignment() -> None:
    """Memory at a multiple of 64 bytes is shared, other memory copied, or refused with that reason."""
    values = np.arange(12, dtype=np.float32).reshape(3, 4)
    assert plan(aligned(values), "jax").zero_copy
    assert plan(aligned(values, 16), "jax").reasons == (Reason.ALIGNMENT,)
    with pytest.raises(CopyRequiredError, match="multiples of 64"):
        convert(aligned(values, 16), "jax", copy=False)


@pytest.mark.parametrize(
    ("shape", "strides", "reason"),
    [
        ((3, 4), (16, 4), None),
        ((4, 3), (4, 16), None),
        ((2, 3, 2), (8, 16, 4), None),
        ((1, 4), (999, 4), None),
        ((3, 2), (16, 8), Reason.STRIDES),
        ((3, 4), (0, 4), Reason.STRIDES),
        ((3, 2), (16, 4), Reason.STRIDES),
    ],
    ids=str,
)
def test_strides(shape: tuple[int, ...], strides: tuple[int, ...], reason: Reason | None) -> None:
    """Dense memory in any order of the axes is shared; gaps, steps and repeats are copied."""
    a = np.ndarray(shape, np.float32, aligned(np.arange(16, dtype=np.float32)), 0, strides)
    made = plan(a, "jax")
    assert made.reasons == (() if reason is None else (reason,))
    j = convert(a, "jax")
    assert np.array_equal(j, a)
    assert (j.unsafe_buffer_pointer() == address(a)) == made.zero_copy


@pytest.mark.parametrize("name", sorted(WIDE))
def test_without_x64(name: str) -> None:
    """64-bit types are refused rather than cut; both ways out of the message work."""
    a = np.array([[1, 2]], name)
    with x64(False):
        for refused in (convert, plan):
            with pytest.raises(UnsupportedDtypeError, match=r"jax_enable_x64") as caught:
                refused(a, "jax")
        narrow = str(caught.value).partition("dtype='")[2].partition("'")[0]
        assert convert(a, "jax", dtype=narrow).dtype == narrow
    with x64(True):
        assert convert(a, "jax").dtype == name


def test_wide_arrays_survive_without_x64() -> None:
    """An array made with x64 keeps its 64 bits through the library after x64 is off."""
    with x64(True):
        x = jnp.array([[1e300, 2.0**40 + 1]])
    with x64(False):
        m = from_tensor(x)
        for made in (m.to_tensor("jax"), convert(x), m.to_tensor("numpy"), m.to_tensor("torch")):
            assert made.tolist() == [[1e300, 2.0**40 + 1]]
        assert plan(x).zero_copy


def test_rows_share_where_aligned() -> None:
    """A row that JAX can share is shared; another is copied, which is counted and can be forbidden."""
    m = from_tensor(jnp.arange(32, dtype=jnp.float32).reshape(2, 16))
    with forbid_copies():
        assert m[1].unsafe_buffer_pointer() == m.array.unsafe_buffer_pointer() + 64
    narrow = from_tensor(jnp.arange(6, dtype=jnp.float32).reshape(3, 2))
    with track_copies() as log:
        assert narrow[1].tolist() == [2, 3]
    assert log.nbytes == 8
    with forbid_copies(), pytest.raises(CopyRequiredError, match="64"):
        narrow[1]


def test_readonly_is_kept() -> None:
    """JAX arrays never change: they come in read-only, and read-only memory goes in shared."""
    m = from_tensor(jnp.ones((2, 16)))
    assert m.readonly
    with pytest.raises(ValueError, match="read-only"):
        np.asarray(m)[...] = 0
    assert m.to_tensor("jax", copy=False).unsafe_buffer_pointer() == m.array.unsafe_buffer_pointer()


@pytest.mark.parametrize("transform", ["jit", "grad", "vmap"])
def test_traced(transform: str) -> None:
    """A traced array has no memory."""

    def inside(x: jax.Array) -> jax.Array:
        with pytest.raises(UnsupportedTensorError, match="traced"):
            convert(x, "numpy")
        return x.sum()

    getattr(jax, transform)(inside)(jnp.ones(3))


def test_no_plain_memory() -> None:
    """Deleted arrays, random keys and types narrower than a byte are refused."""
    x = jnp.ones((2, 2))
    x.delete()
    with pytest.raises(UnsupportedTensorError, match="deleted"):
        from_tensor(x)
    with pytest.raises(UnsupportedTensorError, match="key_data"):
        convert(jax.random.key(0), "numpy")
    with pytest.raises(UnsupportedDtypeError, match="int4"):
        from_tensor(jnp.ones((2, 2), jnp.int4))


def test_two_devices_on_the_host() -> None:
    """What is shared goes to the first, by the C function. An array on both is no plain memory; its message helps."""
    code = """
import jax, numpy, matrix_interop
from matrix_interop.frameworks.jax import CPU, _from_dlpack, _importer
from matrix_interop.memory.host import aligned_empty
shared = matrix_interop.convert(aligned_empty((4, 2), numpy.dtype("f4")), "jax", copy=False)
assert shared.devices() == {jax.devices()[0]} and _importer(CPU) is not _from_dlpack
mesh = jax.sharding.Mesh(jax.devices(), ("x",))
spread = jax.device_put(numpy.ones((4, 2), "f4"), jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x")))
try:
    matrix_interop.from_tensor(spread)
except matrix_interop.UnsupportedTensorError as error:
    assert "2 devices" in str(error) and "device_put" in str(error)
    print(matrix_interop.from_tensor(jax.device_put(spread, jax.devices()[1])))
"""
    flags = {
        **os.environ,
        "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    ran = subprocess.run([sys.executable, "-c", code], env=flags, capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "<HostMatrix 4 x 2 float32, C, jax, read-only, cpu>"


def test_first_in_a_transform() -> None:
    """The C function is found also where the first exchange of a process is inside a transform."""

    def inside(x: jax.Array) -> jax.Array:
        assert _importer(CPU) is not _from_dlpack
        return x

    _importer.cache_clear()
    with jax.transfer_guard("disallow_explicit"):
        jax.jit(inside).lower(jax.ShapeDtypeStruct((), np.float32))


def test_a_deleted_source_leaves_the_matrix() -> None:
    """What was exchanged stays right after the source is deleted."""
    x = jnp.arange(32, dtype=jnp.float32).reshape(2, 16)
    m, made = from_tensor(x), convert(x)
    x.delete()
    assert np.asarray(m)[1, 0] == made[1, 0] == 16


@pytest.mark.parametrize("missing", [AttributeError("gone"), TypeError("other arguments")])
def test_without_the_private_importer(missing: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where JAX's own C function is gone or takes other arguments, the public one shares all the same."""

    def refuse(*_: object) -> None:
        raise missing

    a = aligned(np.arange(12, dtype=np.float32).reshape(3, 4))
    labelled = aligned(np.ones((3, 4), dtype_of("bfloat16")))
    # Where the adapter looks for it; jax.dlpack keeps its own. Python's collector calls into that module too.
    lacking = SimpleNamespace(dlpack_managed_tensor_to_buffer=refuse, collect_garbage=lambda: None)
    monkeypatch.setattr("jax._src.lib._jax", lacking)
    _importer.cache_clear()
    try:
        assert _importer(CPU) is _from_dlpack
        assert from_tensor(a).to_tensor("jax").unsafe_buffer_pointer() == address(a)
        assert convert(labelled, "jax").unsafe_buffer_pointer() == address(labelled)
    finally:
        monkeypatch.undo()
        _importer.cache_clear()
    assert _importer(CPU) is not _from_dlpack
