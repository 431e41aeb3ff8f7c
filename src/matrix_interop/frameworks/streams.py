"""Stream order between frameworks: by events, never blocking the host.

Streams are written as in the CUDA part of the array API: None, -1 (no ordering), 1 (the legacy
default stream), 2 (the per-thread one), a driver handle, or an object that knows its handle.  0 is
refused, since it has meant both 1 and 2.
"""

from __future__ import annotations

from typing import Any, Final

from matrix_interop.dlpack import owner_of
from matrix_interop.frameworks.registry import Framework, framework, loaded_framework
from matrix_interop.runtime import Runtime, get_runtime
from matrix_interop.view import TensorView

__all__ = [
    "LEGACY",
    "NO_ORDER",
    "handle_of",
    "keep_until",
    "make_ready",
    "order_streams",
    "producer_stream",
    "share",
    "wait_for",
]

NO_ORDER: Final = -1
LEGACY: Final = 1


def handle_of(stream: Any) -> int:
    """The driver handle of ``stream``: an int as in DLPack, a ``__cuda_stream__`` object, one of torch, CuPy, numba.

    Raises ValueError for 0 and for numbers below -1, TypeError for what is no stream.
    """
    if isinstance(stream, int) and not isinstance(stream, bool):
        if stream == 0 or stream < NO_ORDER:
            meant = "1 for the legacy default stream, 2 for the per-thread one, -1 for no ordering"
            msg = f"stream={stream} is not a stream: write {meant}, or a stream's handle"
            raise ValueError(msg)
        return stream
    if hasattr(stream, "__cuda_stream__"):
        return int(stream.__cuda_stream__()[1]) or LEGACY
    for name in ("cuda_stream", "ptr", "handle"):  # torch, CuPy, numba
        handle = getattr(stream, name, None)
        if handle is not None:
            return int(getattr(handle, "value", handle) or 0) or LEGACY
    msg = f"{type(stream).__qualname__} is not a stream: pass an int as in DLPack, a framework's stream, or None"
    raise TypeError(msg)


def producer_stream(view: TensorView) -> int:
    """The stream after which the data of a device view is there: the one its producer named, else the current one."""
    if view.stream is not None:
        return view.stream
    return (loaded_framework(view.framework) or framework(view.framework)).current_stream(view.device)


def order_streams(view: TensorView, producer: int, consumer: int) -> None:
    """Make ``consumer`` wait for all that ``producer`` holds now, and keep the memory until ``consumer`` is done."""
    if producer == consumer or NO_ORDER in (producer, consumer):
        return
    ordinal = view.device.index
    wait_for(get_runtime(view.device.type), producer, ordinal, consumer, ordinal)
    keep_until(view, consumer)


def wait_for(runtime: Runtime, producer: int, there: int, consumer: int, here: int) -> None:
    """Make stream ``consumer`` of device ``here`` wait for all that ``producer`` of device ``there`` holds now."""
    event = runtime.record(producer, there)
    try:
        runtime.wait(consumer, event, here)
    finally:
        runtime.release(event)


def keep_until(view: TensorView, stream: int) -> None:
    """Tell the allocator behind a view that ``stream`` uses its memory, where it is one that can be told."""
    source = framework(view.framework)
    native = owner_of(view.header) if view.native is None else view.native
    if source.owns(native):
        source.keep_until(native, stream, view.device)


def share(view: TensorView, target: Framework, stream: Any = None) -> Any:
    """A tensor of ``target`` over the device memory of ``view``, which it can describe as it lies, ready on ``stream``.

    None: the target's current stream.
    """
    if view.native is not None and view.framework == target.name:
        if stream is not None:
            make_ready(view, stream)
        return target.alias(view.native)
    if not target.orders_itself:
        consumer = target.current_stream(view.device) if stream is None else handle_of(stream)
        producer = producer_stream(view)
        if producer != consumer:
            order_streams(view, producer, consumer)
    return target.wrap_device(view)


def make_ready(view: TensorView, stream: Any) -> int:
    """Make the data of a device view ready on ``stream`` (None: the legacy default stream); its handle."""
    consumer = LEGACY if stream is None else handle_of(stream)
    if consumer != NO_ORDER:  # the question for the producer's stream may be dear, or have no answer
        order_streams(view, producer_stream(view), consumer)
    return consumer
