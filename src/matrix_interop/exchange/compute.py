"""What a matrix computes itself: rows by index, normalised rows. NumPy does it on the host, the framework elsewhere."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from matrix_interop.devices import CPU, Device
from matrix_interop.dtypes import as_dtype
from matrix_interop.errors import UnknownFrameworkError
from matrix_interop.exchange.convert import carry_out, copy_to, native_of, resolve, to_framework
from matrix_interop.exchange.plan import Order, decide
from matrix_interop.frameworks.registry import Framework, device_framework, framework, read
from matrix_interop.memory.host import aligned_empty
from matrix_interop.reasons import Reason
from matrix_interop.tracking import record_copy
from matrix_interop.view import TensorView

__all__ = ["copied", "normalized", "row_indices", "take"]

#: Entries that are worked on at a time, so that no step needs a second matrix.
_BLOCK_ENTRIES: Final = 1 << 20


def copied(
    view: TensorView, *, dtype: Any = None, order: Order | None = None, copy: bool | None, requested: bool
) -> TensorView:
    """The view in another dtype or order, or copied, in its own framework. ``requested``: `forbid_copies` allows it."""
    target = framework("numpy" if view.device.is_host else view.framework)
    requested = requested and (copy is None or bool(copy))
    made = decide(view, target, dtype=dtype, order=order, copy=copy, requested=requested)
    if view.device.is_host:
        return TensorView.of(resolve(view, made), view.framework)
    return target.view(carry_out(view, target, made))


def row_indices(indices: Any, count: int) -> np.ndarray:
    """``indices`` (k,) as int64 on the host, each checked to be one of ``count`` rows. Raises IndexError."""
    try:
        # A longer range has numbers beyond the rows, the first of them among these.
        view = read(np.asarray(indices[: count + 1]) if isinstance(indices, range) else indices)
    except UnknownFrameworkError as error:
        msg = f"row numbers are meant, in a list or a tensor, as in [0, 2], not {indices!r}"
        raise UnknownFrameworkError(msg) from error
    if view.device.is_host:
        found = aligned_empty(view.shape, view.dtype.newbyteorder("="))
        copy_to(found, view)
    else:
        found = _brought(view, framework("numpy"), CPU)
    if found.ndim != 1 or (found.dtype.kind not in "iu" and found.size):
        hint = ": np.flatnonzero(mask) gives those of a mask" if found.dtype == bool else ""
        msg = f"indices must be whole numbers along one axis, not {found.dtype} of shape {found.shape}{hint}"
        raise IndexError(msg)
    bad = (found < 0) | (found >= count) if found.size else np.zeros(0, bool)
    if bad.any():
        first = int(np.argmax(bad))
        hint = " (-1 marks a missing neighbour: drop it first)" if int(found[first]) == -1 else ""
        raise IndexError(f"index {int(found[first])} at position {first} for a matrix of {count} rows{hint}")
    return found.astype(np.int64)


def _brought(view: TensorView, target: Framework, place: Device) -> Any:
    """Row numbers where they are needed, which who names rows asks for."""
    return carry_out(view, target, decide(view, target, place=place, requested=True))


def take(view: TensorView, indices: Any) -> TensorView:
    """The rows ``indices`` of a 2-D view in new memory of its framework and device."""
    wanted = row_indices(indices, len(view))
    header = view.header
    text = f"take of {wanted.size} rows"
    if not view.device.is_host:
        target, rows = _computable(view)
        if target.refusal(wanted.dtype) is not None and len(view) < 2**31:  # JAX, where 64-bit types are off
            wanted = wanted.astype(np.int32)
        where = _brought(TensorView.of(wanted, "numpy", wanted), target, view.device)
        native = target.namespace().take(rows, where, axis=0)
        record_copy(wanted.size * header.shape[1] * header.itemsize, Reason.REQUESTED, text)
        return target.view(native)
    out = aligned_empty((wanted.size, header.shape[1]), header.dtype.newbyteorder("="))
    if header.flags.c_contiguous and header.flags.aligned and header.dtype.isnative:
        np.take(header, wanted, axis=0, out=out, mode="clip")
    else:  # np.take would first copy all of the matrix
        block = max(1, _BLOCK_ENTRIES // max(header.shape[1], 1))
        for start in range(0, wanted.size, block):
            out[start : start + block] = header[wanted[start : start + block]]
    record_copy(out.nbytes, Reason.REQUESTED, text)
    return TensorView.of(out, view.framework)


def normalized(view: TensorView) -> tuple[TensorView, Any]:
    """Rows divided by their Euclidean norm, and the norms: see `Matrix.normalized`."""
    kind = view.dtype.newbyteorder("=") if view.dtype.kind not in "biu" else np.dtype(np.float32)
    made, norms = (_normalized_on_host if view.device.is_host else _normalized_on_device)(view, kind)
    record_copy(made.nbytes, Reason.REQUESTED, "normalised rows")
    return made, norms


def _normalized_on_host(view: TensorView, kind: np.dtype[Any]) -> tuple[TensorView, np.ndarray]:
    header = view.header
    out = aligned_empty(header.shape, kind)
    norms = np.empty(len(header), np.float64)
    block = max(1, _BLOCK_ENTRIES // max(header.shape[1], 1))
    for start in range(0, len(header), block):
        rows = header[start : start + block]
        wide = rows.astype(np.complex128 if rows.dtype.kind == "c" else np.float64)
        largest = np.abs(wide).max(axis=1, initial=0.0, keepdims=True)
        scale = np.where((largest > 0) & np.isfinite(largest), largest, 1.0)
        wide /= scale
        lengths = np.sqrt(np.sum(np.abs(wide) ** 2, axis=1, keepdims=True))
        with np.errstate(over="ignore", invalid="ignore"):  # infinite entries, or a norm beyond float64
            norms[start : start + block] = (lengths * scale)[:, 0]
            out[start : start + block] = wide / np.where(lengths == 0, 1.0, lengths)
    return TensorView.of(out, view.framework), norms


def _computable(view: TensorView) -> tuple[Framework, Any]:
    """A framework that computes on the view's device, and its tensor over the same memory where it has such a one."""
    own = framework(view.framework)
    if own.computes:
        return own, native_of(view)
    other = device_framework(view.device.type)
    return other, to_framework(view, other)


def _normalized_on_device(view: TensorView, kind: np.dtype[Any]) -> tuple[TensorView, Any]:
    """In float64 where the framework has it: that holds every sum of squares of the narrower types."""
    target, native = _computable(view)
    xp = target.namespace()
    wide = as_dtype("float64")
    if target.refusal(wide) is not None:
        wide = as_dtype("float32")
    rows = target.copy(native, wide, "C")
    norms = xp.sqrt(xp.sum(rows * rows, axis=1, keepdims=True))
    divided = rows / xp.where(norms > 0, norms, norms + 1)
    return target.view(target.copy(divided, kind, "C")), norms[:, 0]
