"""Carrying out plans that touch device memory: sharing in stream order, copying there, moving to another memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from matrix_interop.errors import DeviceUnavailableError, UnsupportedLayoutError
from matrix_interop.exchange.plan import CopyPlan, Order, travels_as
from matrix_interop.frameworks.registry import Framework, device_framework, framework
from matrix_interop.frameworks.streams import NO_ORDER, handle_of, order_streams, producer_stream
from matrix_interop.memory import default_arena, is_pinned
from matrix_interop.memory.host import aligned_empty
from matrix_interop.runtime import get_runtime
from matrix_interop.tracking import record_copy
from matrix_interop.transfer import Transfer
from matrix_interop.transfer.lanes import download, upload
from matrix_interop.view import TensorView, describe

__all__ = ["carry_out", "copied", "fetch", "share", "to_memory"]


def carry_out(view: TensorView, target: Framework, made: CopyPlan, stream: Any) -> Any:
    """What ``made`` promises, as a tensor of ``target`` that is ready on ``stream`` (None: its current stream)."""
    if made.device.is_host:
        return target.wrap(fetch(view, made))
    if made.device != view.device:
        moved = to_memory(view, target, made)
        return _handed_over(moved, target, stream)
    if not made.zero_copy:
        view = copied(view, made.dtype, made.order)
        _count(made)
    return share(view, target, stream)


def share(view: TensorView, target: Framework, stream: Any = None) -> Any:
    """A tensor of ``target`` over the device memory of ``view``, which ``target`` can describe as it lies."""
    if view.framework == target.name and view.native is not None:
        return _handed_over(view, target, stream)
    if not target.orders_itself:
        consumer = target.current_stream(view.device) if stream is None else handle_of(stream)
        if consumer != NO_ORDER:
            order_streams(view, producer_stream(view), consumer)
    return target.wrap(view.header, view.device, view)


def _handed_over(view: TensorView, target: Framework, stream: Any) -> Any:
    if stream is not None:
        consumer = handle_of(stream)
        if consumer != NO_ORDER:
            order_streams(view, producer_stream(view), consumer)
    return target.alias(view.native)


def copied(view: TensorView, dtype: np.dtype[Any], order: Order) -> TensorView:
    """The values of a device view in new memory of the same device, made by its framework on its current stream."""
    source = _computing(view)
    native = source.copy(native_on_device(view, source), dtype, order)
    return source.view(native)


def native_on_device(view: TensorView, source: Framework) -> Any:
    """A tensor of ``source`` with the values of a device view: over its memory, unless its strides run backwards."""
    if view.native is not None and view.framework == source.name:
        return view.native
    order_streams(view, producer_stream(view), source.current_stream(view.device))
    if source.obstacle(view.header, share_readonly=True) is None:
        return source.wrap(_writeable(view), view.device, view)
    backwards = tuple(axis for axis, step in enumerate(view.strides) if step < 0)
    forwards = view.header[tuple(slice(None, None, -1 if axis in backwards else 1) for axis in range(view.ndim))]
    obstacle = source.obstacle(forwards, share_readonly=True)
    if obstacle is not None:
        msg = f"{describe(view)} cannot be read by {source.name}: {obstacle.text}; copy it in its own framework first"
        raise UnsupportedLayoutError(msg)
    plain = TensorView.of(forwards, view.framework, None, view.device, stream=view.stream)
    return source.namespace().flip(source.wrap(_writeable(plain), view.device, plain), axis=backwards)


def _writeable(view: TensorView) -> np.ndarray:
    """The header of read-only memory that is only going to be read, for a framework without read-only tensors."""
    from matrix_interop.dlpack import header_of

    header = view.header
    if header.flags.writeable:
        return header
    return header_of(view.pointer, header.shape, header.strides, header.dtype, readonly=False, owner=header)


def _computing(view: TensorView) -> Framework:
    """The view's framework if it computes on devices, else one that does."""
    own = framework(view.framework)
    return own if own.computes else device_framework(view.device.type)


def to_memory(view: TensorView, target: Framework, made: CopyPlan) -> TensorView:
    """The values of ``view`` in new memory of another device, owned by ``target`` and ready on its current stream."""
    device, flipped = made.device, made.order == "F"
    shape = made.shape[::-1] if flipped else made.shape
    native = target.empty(shape, made.dtype, device)
    raw = target.view(native)
    stream = target.current_stream(device)
    if view.device.is_host:
        source = view.header if view.pending is None else _resolved(view, made.dtype)
        upload(source.T if flipped else source, raw.pointer, made.dtype, device, stream)
    else:
        dense = _dense(view, made)
        _peer_copy(dense, raw, made.dtype, stream)
    _count(made)
    native = target.written(native, stream, device)
    if not flipped:
        return TensorView.of(raw.header, target.name, native, device)
    header = raw.header.T
    owner = TensorView.of(header, target.name, None, device)
    return TensorView.of(header, target.name, target.wrap(header, device, owner), device)


def _resolved(view: TensorView, dtype: np.dtype[Any]) -> np.ndarray:
    out = aligned_empty(view.shape, dtype)
    if view.pending is not None:
        view.pending.write(out)
    return out


def _dense(view: TensorView, made: CopyPlan) -> TensorView:
    """The device view, packed on its device into the dtype and order in which its bytes travel."""
    dtype, packs = travels_as(view, made.device, made.dtype, made.order)
    return copied(view, dtype, made.order) if packs else view


def _peer_copy(source: TensorView, raw: TensorView, dtype: np.dtype[Any], stream: int) -> None:
    """From one device to another: on a stream of the source, in the order of both sides."""
    here, there = source.device, raw.device
    runtime = get_runtime(here.type)
    if here.type != there.type:
        raise DeviceUnavailableError(
            f"no runtime copies from {here} to {there}: go through the host, m.to_host().to_device({str(there)!r})"
        )
    out = producer_stream(source)
    ready = runtime.record(stream, there.index)  # the new memory belongs to ``stream`` until then
    runtime.wait(out, ready, here.index)
    runtime.release(ready)
    nbytes = source.size * dtype.itemsize
    runtime.copy_peer(raw.pointer, there.index, source.pointer, here.index, nbytes, stream=out)
    event = runtime.record(out, here.index)
    runtime.wait(stream, event, there.index)
    runtime.release(event)


def fetch(view: TensorView, made: CopyPlan, out: np.ndarray | None = None, *, pinned: bool = False) -> np.ndarray:
    """The values of a device view in host memory: in ``out``, else in new memory; there on return."""
    return start_fetch(view, made, out, pinned=pinned).result()


def start_fetch(
    view: TensorView, made: CopyPlan, out: np.ndarray | None = None, *, pinned: bool = False, stream: Any = None
) -> Transfer[np.ndarray]:
    """`fetch` that returns early where ``out`` is page-locked and dense, so that the device fills it by itself."""
    shape, dtype, flipped = made.shape, made.dtype, made.order == "F"
    if out is None:
        rows = shape[::-1] if flipped else shape
        fresh = default_arena().result(rows, dtype) if pinned else aligned_empty(rows, dtype)
        out = fresh.T if flipped else fresh
    dense = _dense(view, made)
    device, kind = dense.device, dense.dtype
    queue = producer_stream(dense)
    if stream is not None and handle_of(stream) != NO_ORDER:
        order_streams(dense, queue, handle_of(stream))
        queue = handle_of(stream)
    header, landing = (dense.header.T, out.T) if _is_flipped(dense) else (dense.header, out)
    _count(made)
    if is_pinned(landing) and landing.flags.c_contiguous and landing.dtype == kind:
        runtime = get_runtime(device.type)
        address = int(landing.__array_interface__["data"][0])
        runtime.copy(address, dense.pointer, header.nbytes, ordinal=device.index, stream=queue)
        event = runtime.record(queue, device.index)

        def finish() -> None:
            try:
                runtime.synchronize(event)
            finally:
                runtime.release(event)

        return Transfer(out, lambda: runtime.query(event), finish, keep=dense)
    download(dense.pointer, kind, landing, device, queue)
    return Transfer(out, lambda: True, lambda: None)


def _is_flipped(view: TensorView) -> bool:
    flags = view.header.flags
    return bool(flags.f_contiguous and not flags.c_contiguous)


def _count(made: CopyPlan) -> None:
    for step in made.steps:
        if step.action != "share":
            record_copy(step.nbytes, step.reasons[0], step.text)
