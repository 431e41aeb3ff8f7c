"""What plan() says is what happens: random tensors of every framework into every framework, by pointers and bytes."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, event, given
from hypothesis import strategies as st

from frameworks.table import (
    EVERY,
    FLOAT8,
    JAX,
    NUMPY,
    PYARROW,
    SOURCES,
    TARGETS,
    TORCH,
    WIDE,
    Kind,
    address,
    aligned,
    bits,
    dtype_of,
    x64,
)
from matrix_interop import (
    CopyRequiredError,
    UnsupportedDtypeError,
    UnsupportedLayoutError,
    convert,
    forbid_copies,
    from_tensor,
    plan,
    track_copies,
)

LAYOUTS = (
    "C",
    "C at 16",
    "F",
    "transposed",
    "stepped",
    "negative",
    "repeated",
    "misaligned",
    "swapped",
    "odd stride",
    "odd stride on length 1",
)


@dataclass(frozen=True)
class Example:
    """A tensor to convert, what it holds, and how."""

    source: Kind
    target: Kind
    x: Any
    values: np.ndarray
    readonly: bool
    dtype: str | None
    copy: bool | None
    forbidden: bool
    jax64: bool


def as_bytes(a: np.ndarray) -> np.ndarray:
    """The bytes of dense rows."""
    return a.reshape(-1).view(np.uint8)


def lay_out(values: np.ndarray, layout: str) -> np.ndarray:
    """An array with those values in that layout; where a layout repeats entries, the values follow it."""
    shape, size = values.shape, values.itemsize
    if layout == "C" or not shape:
        return aligned(values)
    if layout == "C at 16":
        return aligned(values, 16)
    if layout == "F":
        return aligned(values.T).T
    if layout == "transposed":
        return aligned(values).T
    if layout == "stepped":
        wide = aligned(np.zeros(tuple(2 * n + 1 for n in shape), values.dtype))
        made = wide[tuple(slice(1, None, 2) for _ in shape)]
        made[...] = values
        return made
    if layout == "negative":
        turned = (slice(None, None, -1),) * len(shape)
        return aligned(values[turned])[turned]
    if layout == "repeated" and shape[0]:
        return np.ndarray(shape, values.dtype, as_bytes(aligned(values[:1])), 0, (0, *values.strides[1:]))
    if layout == "misaligned":
        return aligned(values, 1)
    if layout == "swapped":
        return aligned(values.byteswap()).view(values.dtype.newbyteorder())
    if layout == "odd stride":
        record = np.dtype({"names": ["v"], "formats": [values.dtype], "offsets": [0], "itemsize": size + 1})
        made = np.zeros(shape, record)["v"]
        made[...] = values
        return made
    if layout == "odd stride on length 1" and 1 in shape:
        strides = tuple(3 if n == 1 else step for n, step in zip(shape, aligned(values).strides, strict=True))
        return np.ndarray(shape, values.dtype, as_bytes(aligned(values)), 0, strides)
    return aligned(values)


@st.composite
def examples(draw: st.DrawFn, ranks: st.SearchStrategy[int]) -> Example:
    """A random tensor of a random framework, dtype and layout, a target, and how to convert."""
    source, target = draw(st.sampled_from(SOURCES)), draw(st.sampled_from(TARGETS))
    jax64 = draw(st.booleans())
    dtypes = source.dtypes - WIDE if source is JAX and not jax64 else source.dtypes
    kind = dtype_of(draw(st.sampled_from(sorted(dtypes))))
    shape = tuple(draw(st.lists(st.sampled_from((0, 1, 1, 2, 3, 16)), min_size=(n := draw(ranks)), max_size=n)))
    assume(source is not PYARROW or shape)
    raw = np.random.default_rng(draw(st.integers(0, 2**32 - 1))).bytes(int(np.prod(shape, dtype=int)) * kind.itemsize)
    values = np.frombuffer(raw, kind).reshape(shape)
    if kind == np.bool_:
        values = (values.view(np.uint8) & 1).view(np.bool_)
    readonly = False
    if source is NUMPY:
        layout = draw(st.sampled_from(LAYOUTS))
        if layout == "swapped" and (kind.itemsize == 1 or kind.name == "bfloat16"):
            layout = "C"
        x = lay_out(values, layout)
        event(f"layout {layout}")
        readonly = draw(st.booleans())
        x.flags.writeable = not readonly
        values = x
    else:
        with x64(jax64):
            x = source.make(values)
        readonly = source.immutable
        if source is TORCH and shape:
            cut = draw(st.sampled_from(("whole", "transposed", "stepped", "repeated")))
            if cut == "transposed":
                x = x.movedim(0, -1)
            elif cut == "stepped":
                x = x[::2]
            elif cut == "repeated":
                x = x[:1].expand(x.shape)
                readonly = shape[0] > 1 and x.numel() > 0
            values = source.read(x)
        elif source is PYARROW and draw(st.booleans()):
            x, values = x[1:], values[1:]
    return Example(
        source,
        target,
        x,
        values,
        readonly,
        draw(st.sampled_from((None, None, None, *sorted(EVERY)))),
        draw(st.sampled_from((None, None, False, True))),
        draw(st.booleans()),
        jax64,
    )


@contextmanager
def lossy() -> Iterator[None]:
    """Conversions between any two types: NumPy's remarks on what does not fit are not of interest here."""
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", np.exceptions.ComplexWarning)
        yield


def check(e: Example, announce: Any, convert_: Any) -> None:
    """One conversion against its plan."""
    wanted = e.values.dtype.newbyteorder("=") if e.dtype is None else dtype_of(e.dtype)
    same_framework = e.source.framework == e.target.name
    can_hold = wanted.name in e.target.dtypes and (e.target is not JAX or e.jax64 or wanted.name not in WIDE)
    if not can_hold:
        for refused in (announce, convert_):
            with pytest.raises(UnsupportedDtypeError, match="dtype="):
                refused(dtype=e.dtype)
        return
    if e.target is PYARROW and e.values.ndim == 0:
        for refused in (announce, convert_):
            with pytest.raises(UnsupportedLayoutError, match="scalars"):
                refused(dtype=e.dtype)
        return
    before = e.values.tobytes()
    announced = announce(dtype=e.dtype)
    copies = e.copy is True or not announced.zero_copy
    nbytes = e.values.size * wanted.itemsize if copies else 0
    event(f"{'copied' if copies else 'shared'} {e.source} -> {e.target}")
    assert announced.nbytes == (0 if announced.zero_copy else nbytes)
    assert announced.shape == e.values.shape
    context: AbstractContextManager[Any] = forbid_copies() if e.forbidden else nullcontext()
    with track_copies() as log, context, lossy():
        if copies and e.copy is not True and (e.copy is False or e.forbidden):
            with pytest.raises(CopyRequiredError) as caught:
                convert_(dtype=e.dtype, copy=e.copy)
            assert caught.value.plan == announced
            assert (len(log), log.nbytes) == (0, 0)
            return
        made = convert_(dtype=e.dtype, copy=e.copy)
    seen = e.target.read(made)
    assert (seen.shape, seen.dtype) == (e.values.shape, wanted if copies else e.values.dtype)
    if wanted == e.values.dtype.newbyteorder("="):
        assert bits(seen) == bits(e.values)
    else:
        with lossy():
            both_8_bits = e.values.dtype.name in FLOAT8 and wanted.name in FLOAT8
            by_way = e.values.astype(np.float32) if both_8_bits else e.values
            assert bits(seen) == bits(by_way.astype(wanted))
    assert (len(log), log.nbytes) == (int(copies), nbytes)
    if e.values.size:
        assert (e.target.pointer(made) == e.source.pointer(e.x)) == (not copies)
        if e.readonly and not copies:
            assert e.target.immutable or same_framework or not seen.flags.writeable
        if copies and e.target is NUMPY:
            assert seen.flags.writeable
    elif same_framework and e.dtype is None:
        assert announced.zero_copy
    assert e.values.tobytes() == before


@given(examples(st.integers(0, 5)))
def test_convert_at_any_rank(e: Example) -> None:
    """convert does what plan announces: values to the bit, shared or copied, bytes counted, refused with the plan."""
    with x64(e.jax64):
        check(
            e,
            lambda **how: plan(e.x, e.target.name, **how),
            lambda **how: convert(e.x, e.target.name, **how),
        )


@given(examples(st.just(2)))
def test_to_tensor(e: Example) -> None:
    """So does a Matrix, and its facts are those of the tensor it was made from."""
    with x64(e.jax64):
        m = from_tensor(e.x)
        assert (m.shape, m.dtype, m.readonly) == (e.values.shape, e.values.dtype, e.readonly)
        if e.values.size:
            assert address(np.asarray(m)) == e.source.pointer(e.x)
        check(
            e,
            lambda **how: m.plan(e.target.name, **how),
            lambda **how: m.to_tensor(e.target.name, **how),
        )
