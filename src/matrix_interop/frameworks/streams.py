"""Stream order between frameworks: by events, never blocking the host.

Streams are written as in the CUDA part of the array API: None, -1 (no ordering), 1 (the legacy
default stream), 2 (the per-thread one), a driver handle, or an object that knows its handle.  0 is
refused, since it has meant both 1 and 2.
"""

from __future__ import annotations

from typing import Any, Final

from matrix_interop.frameworks.registry import framework
from matrix_interop.runtime import get_runtime
from matrix_interop.view import TensorView

__all__ = ["LEGACY", "NO_ORDER", "handle_of", "make_ready", "order_streams", "producer_stream"]

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
    return framework(view.framework).current_stream(view.device)


def order_streams(view: TensorView, producer: int, consumer: int) -> None:
    """Make ``consumer`` wait for all that ``producer`` holds now, and keep the memory until ``consumer`` is done."""
    if producer == consumer or NO_ORDER in (producer, consumer):
        return
    runtime, ordinal = get_runtime(view.device.type), view.device.index
    event = runtime.record(producer, ordinal)
    try:
        runtime.wait(consumer, event, ordinal)
    finally:
        runtime.release(event)
    if view.native is not None:
        framework(view.framework).keep_until(view.native, consumer, view.device)


def make_ready(view: TensorView, stream: Any) -> int:
    """Make the data of a device view ready on ``stream`` (None: the legacy default stream); its handle."""
    consumer = LEGACY if stream is None else handle_of(stream)
    if consumer != NO_ORDER:
        order_streams(view, producer_stream(view), consumer)
    return consumer
