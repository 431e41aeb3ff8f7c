"""What comes into a matrix: rank, conversions on the way in, loose rows, pickled bytes."""

from __future__ import annotations

import operator
import pickle
from typing import Any

import numpy as np

from matrix_interop.devices import CPU, as_device
from matrix_interop.dtypes import as_dtype, carrier
from matrix_interop.errors import (
    CopyRequiredError,
    DeviceUnavailableError,
    UnsupportedDtypeError,
    UnsupportedLayoutError,
)
from matrix_interop.exchange.convert import carry_out, copy_to, destination, place_of, resolve
from matrix_interop.exchange.plan import Order, decide, order_of
from matrix_interop.frameworks.registry import device_framework, framework, read
from matrix_interop.memory.host import aligned_empty
from matrix_interop.reasons import Reason
from matrix_interop.tracking import record_copy
from matrix_interop.view import TensorView, describe

__all__ = [
    "as_matrix",
    "converted",
    "device_meant",
    "empty_on_device",
    "fillable",
    "gathered",
    "lengths_of",
    "pack",
    "unpack",
]


def as_matrix(view: TensorView, *, as_row: bool) -> TensorView:
    """A view of other rank as one of rank 2: one row where that is asked for. Raises `UnsupportedLayoutError`."""
    header = view.header
    if not as_row or header.ndim > 2:
        hint = (
            "pass as_row=True for one row"
            if header.ndim < 2
            else "reshape it to (rows, columns), or use convert() for other ranks"
        )
        raise UnsupportedLayoutError(f"a matrix has 2 axes, {describe(view)} has ndim {header.ndim}: {hint}")
    pending = view.pending
    if pending is not None:
        write = pending.write
        pending = pending._replace(write=lambda out: write(out.reshape(header.shape)))  # one row: always a view
    return TensorView.of(
        header.reshape((1,) * (2 - header.ndim) + header.shape),
        view.framework,
        None,
        view.device,
        pending=pending,
        note=view.note,
        stream=view.stream,
    )


def converted(
    view: TensorView,
    device: Any,
    which: Any,
    dtype: Any,
    order: Order | None,
    copy: bool | None,
    stream: Any,
    *,
    requested: bool = False,
) -> TensorView:
    """The view after the conversions that were asked for: in the framework named, else its own if that lives there."""
    if which is None and device is not None and as_device(device).type not in framework(view.framework).device_types:
        which = "numpy" if as_device(device).is_host else device_framework(as_device(device).type).name
    target, device = destination(view, which, None, device)
    place = place_of(view, target, device)
    made = decide(view, target, place=place, dtype=dtype, order=order, copy=copy, requested=requested)
    if made.zero_copy and view.framework == target.name:
        return view
    if place is CPU and view.device is CPU and view.framework == target.name:
        return TensorView.of(resolve(view, made), target.name)
    return read(carry_out(view, target, made, stream))


def device_meant(view: TensorView, device: Any) -> Any:
    """``device``, or where a matrix goes that is to be on any device: where it is, else where new tensors are made."""
    if device is not None:
        return device
    if not view.device.is_host:
        return view.device
    own = framework(view.framework)
    target = own if any(kind != "cpu" for kind in own.device_types) else device_framework("cuda")
    found = target.current_device()
    if found.is_host:
        raise DeviceUnavailableError(f"{describe(view)} cannot go to a device: {target.name} sees none here")
    return found


def gathered(rows: Any, dtype: Any) -> np.ndarray:
    """Vectors of one length, from any framework, in new memory (n, d): see `Matrix.from_rows`."""
    views: list[TensorView] = []
    for number, row in enumerate(rows):
        view = read(row)
        if view.ndim != 1 or (views and view.shape != views[0].shape):
            wanted = f"length {views[0].shape[0]}" if views else "one axis"
            raise UnsupportedLayoutError(
                f"row {number} has shape {view.shape}, {wanted} is needed: pass vectors of one length"
            )
        views.append(view)
    if not views:
        raise UnsupportedLayoutError("no rows, so no width: use Matrix.empty((0, d), dtype=...)")
    kind = _common_type(views) if dtype is None else as_dtype(dtype)
    out = aligned_empty((len(views), views[0].shape[0]), kind.newbyteorder("="))
    for row, view in zip(out, views, strict=True):
        copy_to(row, view)
    record_copy(out.nbytes, Reason.REQUESTED, "rows copied into one matrix")
    return out


def lengths_of(shape: Any, dtype: np.dtype[Any]) -> tuple[int, ...]:
    """``shape`` as two lengths that an array can have. Raises TypeError for others than whole numbers."""
    try:
        lengths = tuple(operator.index(n) for n in shape)
    except TypeError:
        raise TypeError(f"shape {shape!r}: (rows, columns) is meant, both whole numbers") from None
    if len(lengths) != 2 or min(lengths) < 0:
        raise UnsupportedLayoutError(f"shape {lengths}: (rows, columns) is meant, each 0 or more")
    if max(lengths[0], 1) * max(lengths[1], 1) * dtype.itemsize >= 2**63:
        raise UnsupportedLayoutError(f"shape {lengths} of {dtype}: no array can be as large as that")
    return lengths


def empty_on_device(shape: tuple[int, ...], dtype: np.dtype[Any], device: Any, which: Any, order: Order) -> TensorView:
    """Uninitialised memory of framework ``which`` on ``device``; either may be None: see `Matrix.empty`."""
    blank = np.empty((0, 0), dtype)
    device = device_meant(TensorView.of(blank, "numpy" if which is None else framework(which).name), device)
    target = device_framework(as_device(device).type) if which is None else framework(which)
    place = place_of(TensorView.of(blank, "numpy"), target, device)
    view = target.view(target.empty(shape if order == "C" else shape[::-1], dtype, place))
    if order == "C":
        return view
    return TensorView.of(view.header.T, view.framework, None, view.device, stream=view.stream)


def fillable(out: Any, view: TensorView, copy: bool | None) -> TensorView:
    """``out`` as a view, if the values of ``view`` can be written into it. Raises as `Matrix.to_host`."""
    target = read(out)
    if target.shape != view.shape or not target.device.is_host:
        raise UnsupportedLayoutError(f"out is {describe(target)}; a host matrix of shape {view.shape} is needed")
    why = "out is read-only" if target.readonly else "copy=False forbids to fill out" if copy is False else ""
    if target.pending is not None:
        why = f"out has {target.pending.text}"  # its memory would not be what it shows
    if why:
        raise CopyRequiredError(f"{describe(view)} cannot be written into out: {why}")
    return target


def _common_type(views: list[TensorView]) -> np.dtype[Any]:
    """The dtype that NumPy promotes those of all views to. Raises `UnsupportedDtypeError` where there is none."""
    kinds = {view.dtype for view in views}
    try:
        return np.result_type(*kinds)
    except TypeError:
        named = " and ".join(sorted(map(str, kinds)))
        msg = f"rows of {named} have no type in common: say which is meant, as in dtype='float32'"
        raise UnsupportedDtypeError(msg) from None


def pack(header: np.ndarray, protocol: Any) -> tuple[Any, tuple[int, ...], str, Order]:
    """(bytes, shape, dtype name, order) of host memory for pickle: own rows only; a buffer from protocol 5 on."""
    order = order_of(header)
    native = header.dtype.newbyteorder("=")
    dense = np.asarray(header, dtype=native, order=order)
    flat: Any = dense.view(carrier(native)).reshape(-1, order=order)
    return pickle.PickleBuffer(flat) if protocol >= 5 else flat.tobytes(), dense.shape, native.name, order


def unpack(data: Any, shape: tuple[int, ...], dtype: str, order: Order, *, readonly: bool) -> np.ndarray:
    """The array that `pack` took apart; over ``data`` itself, unless that is immutable and the array was not."""
    kind = as_dtype(dtype)
    header = np.frombuffer(data, carrier(kind)).view(kind).reshape(shape, order=order)
    if header.flags.writeable or readonly:
        header.flags.writeable = not readonly
        return header
    return header.copy(order="K")
