"""Carrying out plans that touch device memory: sharing in stream order, copying there, moving to another memory."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

import numpy as np

from matrix_interop.errors import DeviceUnavailableError, UnsupportedLayoutError
from matrix_interop.exchange.plan import CopyPlan, Order, count_copies, order_of, travels_as
from matrix_interop.frameworks.registry import Framework, device_framework, framework
from matrix_interop.frameworks.streams import (
    LEGACY,
    NO_ORDER,
    handle_of,
    keep_until,
    order_streams,
    producer_stream,
    share,
    wait_for,
)
from matrix_interop.memory import default_arena
from matrix_interop.memory.host import aligned_empty
from matrix_interop.runtime import get_runtime, is_served
from matrix_interop.transfer import Transfer
from matrix_interop.transfer.lanes import start_download, upload
from matrix_interop.view import TensorView, describe

__all__ = ["carry_out", "copied", "fetch", "start_fetch", "to_memory"]

#: Bytes from which on columns are sent as they lie and become rows there.
_TURNED: Final = 4 << 20


def carry_out(view: TensorView, target: Framework, made: CopyPlan, stream: Any) -> Any:
    """What ``made`` promises, as a tensor of ``target`` that is ready on ``stream`` (None: its current stream)."""
    if made.device.is_host:
        return target.wrap(fetch(view, made))
    if made.device != view.device:
        view = to_memory(view, target, made)
    elif not made.zero_copy:
        view = copied(view, target, made.dtype, made.order)
        count_copies(made)
    return share(view, target, stream)


# Copying on a device -----------------------------------------------------------------------------------
def copied(view: TensorView, target: Framework, dtype: np.dtype[Any], order: Order) -> TensorView:
    """The values of a device view in new memory of the same device, made on its framework's current stream.

    ``target`` makes it if it can read the view as it lies, else the view's own framework.
    """
    maker = target if target.computes and _reads(target, view) else _computing(view)
    return maker.view(maker.copy(_readable(view, maker), dtype, order))


def _reads(target: Framework, view: TensorView) -> bool:
    """True where ``target`` can make a tensor over the memory of ``view`` to read from."""
    if view.framework == target.name and view.native is not None:
        return True
    return (
        view.pending is None
        and target.refusal(view.dtype) is None
        and target.obstacle(view.header, share_readonly=True) is None
    )


def _computing(view: TensorView) -> Framework:
    """The view's framework if it computes on devices, else one that does."""
    own = framework(view.framework)
    return own if own.computes else device_framework(view.device.type)


def _readable(view: TensorView, maker: Framework) -> Any:
    """A tensor of ``maker`` with the values of a device view: over its memory if the framework has such a tensor."""
    if _reads(maker, view):
        return view.native if view.native is not None and view.framework == maker.name else share(view, maker)
    backwards = tuple(axis for axis, step in enumerate(view.strides) if step < 0)
    forwards = view.header[tuple(slice(None, None, -1 if axis in backwards else 1) for axis in range(view.ndim))]
    plain = TensorView.of(forwards, view.framework, None, view.device, stream=view.stream)
    native = share(plain, maker) if _reads(maker, plain) else _packed(plain, maker)
    return maker.namespace().flip(native, axis=backwards) if backwards else native


def _packed(view: TensorView, maker: Framework) -> Any:
    """Rows that lie apart, copied one behind the other into new memory of a framework that takes dense rows only."""
    header = view.header
    flipped = header.ndim == 2 and header.strides[1] != header.itemsize
    rows = header.T if flipped else header if header.ndim == 2 else header.reshape(-1, 1)
    refused = maker.refusal(view.dtype)
    if refused is not None or rows.strides[1] != rows.itemsize or rows.strides[0] < rows.shape[1] * rows.itemsize:
        why = refused or "it takes dense rows only"
        raise UnsupportedLayoutError(f"{describe(view)} cannot be read by {maker.name}: {why}; copy it there first")
    device, runtime = view.device, get_runtime(view.device.type)
    native = maker.empty(rows.shape, view.dtype, device)
    stream = maker.current_stream(device)
    order_streams(view, producer_stream(view), stream)
    width = rows.shape[1] * rows.itemsize
    runtime.copy_rows(
        maker.view(native).pointer,
        width,
        view.pointer,
        rows.strides[0],
        width,
        len(rows),
        ordinal=device.index,
        stream=stream,
    )
    packed = maker.written(native, stream, device)
    return packed.T if flipped else packed.reshape(view.shape)


# Moving ------------------------------------------------------------------------------------------------
def to_memory(view: TensorView, target: Framework, made: CopyPlan) -> TensorView:
    """The values of ``view`` in new memory of another device, owned by ``target`` and ready on its current stream."""
    device, flipped = made.device, made.order == "F"
    if _turns_there(view, target, made):
        columns = to_memory(view, target, replace(made, order="F"))
        with suppress(Exception):  # its allocator may have less than the device, and each has an error of its own
            return copied(columns, target, made.dtype, "C")
        del columns
    source = _on_the_way(view, made)
    if view.device.is_host and not is_served(device.type):
        native = target.from_host(source.header.astype(made.dtype, order=made.order, copy=False), device)
        count_copies(made)
        return target.view(native)
    native = target.empty(made.shape[::-1] if flipped else made.shape, made.dtype, device)
    raw = target.view(native)
    stream = target.current_stream(device)
    if view.device.is_host:
        rows = source.header.T if flipped else source.header
        upload(rows, raw.pointer, made.dtype, device, stream)
    else:
        _peer_copy(source, raw, stream)
    count_copies(made)
    written = target.view(target.written(native, stream, device))
    if not flipped:
        return written
    return TensorView.of(written.header.T, target.name, None, device, stream=written.stream)


def _turns_there(view: TensorView, target: Framework, made: CopyPlan) -> bool:
    """True for dense columns on the host that become dense rows faster on the device than while chunks are filled.

    A device transposes in a fiftieth of the time, but holds both for a moment.
    """
    header, device = view.header, made.device
    columns = order_of(header) == "F"
    if not (columns and view.device.is_host and view.pending is None and made.order == "C" and view.ndim == 2):
        return False
    nbytes = view.size * made.dtype.itemsize
    if nbytes < _TURNED or target.orders_itself or not (target.computes and is_served(device.type)):
        return False
    return get_runtime(device.type).memory_info(device.index)[0] > 3 * nbytes


def _on_the_way(view: TensorView, made: CopyPlan) -> TensorView:
    """What is sent: on the host true values, on a device dense memory in the dtype and order in which its bytes go."""
    if not view.device.is_host:
        dtype, packs = travels_as(view, made.device, made.dtype, made.order)
        return copied(view, framework(view.framework), dtype, made.order) if packs else view
    if view.pending is None:
        return view
    out = aligned_empty(view.shape, made.dtype)
    view.pending.write(out)
    return TensorView.of(out, "numpy", out)


def _peer_copy(source: TensorView, raw: TensorView, stream: int) -> None:
    """From one device to another: on a stream of the source, in the order of both sides."""
    here, there = source.device, raw.device
    if here.type != there.type:
        raise DeviceUnavailableError(
            f"no runtime copies from {here} to {there}: go through the host, m.to_host().to_device({str(there)!r})"
        )
    runtime, out = get_runtime(here.type), _queue_of(source)
    wait_for(runtime, stream, there.index, out, here.index)  # until then the new memory belongs to ``stream``
    runtime.copy_peer(raw.pointer, there.index, source.pointer, here.index, source.nbytes, stream=out)
    wait_for(runtime, out, here.index, stream, there.index)
    keep_until(source, out)


def _queue_of(view: TensorView) -> int:
    """A stream on which the data of a device view is there."""
    stream = producer_stream(view)
    return LEGACY if stream == NO_ORDER else stream


def fetch(view: TensorView, made: CopyPlan) -> np.ndarray:
    """The values of a device view in new host memory; there on return."""
    return start_fetch(view, made).result()


def start_fetch(
    view: TensorView,
    made: CopyPlan,
    out: np.ndarray | None = None,
    *,
    pinned: bool = False,
    early: bool = False,
    stream: Any = None,
) -> Transfer[np.ndarray]:
    """The values of a device view in host memory: in ``out``, else in new memory, ``pinned`` or ordinary.

    Returns at once if ``early``, and where the device fills the memory by itself.  ``stream``: read on that one.
    """
    shape, dtype, flipped = made.shape, made.dtype, made.order == "F"
    if out is None:
        rows = shape[::-1] if flipped else shape
        fresh = default_arena().result(rows, dtype) if pinned else aligned_empty(rows, dtype)
        out = fresh.T if flipped else fresh
    dense = _on_the_way(view, made)
    if not is_served(dense.device.type):
        source = framework(dense.framework)
        np.copyto(out, source.to_host(_readable(dense, source)), casting="unsafe")
        count_copies(made)
        return Transfer(out)
    queue = _queue_of(dense)
    if stream is not None and (named := handle_of(stream)) != NO_ORDER:
        order_streams(dense, queue, named)
        queue = named
    landing = out.T if order_of(dense.header) == "F" else out
    moved = start_download(dense.pointer, dense.dtype, landing, dense.device, queue, early=early, keep=dense)
    if early:
        keep_until(dense, queue)
    count_copies(made)
    return moved.then(lambda _: out)
