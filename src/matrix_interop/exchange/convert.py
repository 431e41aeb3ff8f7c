"""Carrying plans out: from a view into any framework."""

from __future__ import annotations

from typing import Any

import numpy as np

from matrix_interop.devices import CPU, Device, as_device
from matrix_interop.errors import DeviceUnavailableError
from matrix_interop.exchange.plan import CopyPlan, Order, count_copies, decide
from matrix_interop.frameworks.registry import Framework, framework, loaded_framework, read
from matrix_interop.frameworks.streams import share
from matrix_interop.memory.host import aligned_empty
from matrix_interop.runtime import get_runtime, is_served
from matrix_interop.view import TensorView

# Device code is imported where a device comes in, so that host work does not wait for it.

__all__ = ["carry_out", "convert", "copy_to", "native_of", "place_of", "plan", "quickly", "resolve", "to_framework"]


def convert(
    x: Any,
    framework: Any = None,
    *,
    like: Any = None,
    device: Any = None,
    dtype: Any = None,
    order: Order | None = None,
    copy: bool | None = None,
    stream: Any = None,
    share_readonly: bool = False,
) -> Any:
    """``x``, of any rank, as a tensor of another framework: over the same memory where that is possible.

    ``framework``: a name or module; ``like``: a tensor whose framework and device to take; neither:
    the framework of ``x``.  ``dtype`` and ``order`` ("C", "F") ask for a conversion, which copies.
    ``copy``: None copies if it must, False never, True always.  ``stream``: where the caller will use
    device data.  ``share_readonly``: share read-only memory with a framework that cannot keep it so;
    you promise not to write.

    The result keeps the shared memory alive.  Raises `CopyRequiredError` (with the plan) where a copy
    is needed and forbidden, `UnsupportedTensorError`, `UnsupportedDtypeError`, `UnknownFrameworkError`,
    `FrameworkNotInstalledError`, `DeviceUnavailableError`.
    """
    view = read(x)
    if dtype is None and order is None and copy is None and like is None and device is None:
        native = quickly(view, framework, share_readonly, stream)
        if native is not None:
            return native
    target, device = destination(view, framework, like, device)
    return to_framework(
        view, target, device=device, dtype=dtype, order=order, copy=copy, stream=stream, share_readonly=share_readonly
    )


def plan(
    x: Any,
    framework: Any = None,
    *,
    like: Any = None,
    device: Any = None,
    dtype: Any = None,
    order: Order | None = None,
    share_readonly: bool = False,
) -> CopyPlan:
    """What `convert` with these arguments will do: nothing is read, written or moved. Raises as `convert`."""
    view = read(x)
    target, device = destination(view, framework, like, device)
    return plan_for(view, target, device=device, dtype=dtype, order=order, share_readonly=share_readonly)


def quickly(view: TensorView, which: Any, share_readonly: bool, stream: Any) -> Any:
    """The fast path between two frameworks: ``view``'s memory as a tensor of the one named ``which``.

    None where that is not the case, or something may be in the way: then `to_framework` decides, with reasons.
    """
    target = loaded_framework(which) if type(which) is str else None
    if target is None or which == view.framework or view.pending is not None:
        return None
    if view.device is CPU:
        return target.quick(view.header, share_readonly)
    if view.device.type in target.device_types and target.fits(view, share_readonly):
        return share(view, target, stream)
    return None


def destination(view: TensorView, which: Any, like: Any, device: Any) -> tuple[Framework, Any]:
    """The target framework and device that the arguments of a conversion mean."""
    if like is not None:
        model = read(like)
        which = model.framework if which is None else which
        device = model.device if device is None else device
    return framework(view.framework if which is None else which), device


def plan_for(
    view: TensorView,
    target: Framework,
    *,
    device: Any = None,
    dtype: Any = None,
    order: Order | None = None,
    share_readonly: bool = False,
) -> CopyPlan:
    """`plan` for a view and an adapter."""
    place = place_of(view, target, device)
    return decide(view, target, place=place, dtype=dtype, order=order, share_readonly=share_readonly, requested=True)


def place_of(view: TensorView, target: Framework, device: Any) -> Device:
    """The device of the result of a conversion: the one named, else the view's, else the target's current one.

    Raises `DeviceUnavailableError` where the target has no tensors on it, or it is not there.
    """
    types = target.device_types
    if device is None:
        if view.device.type in types:
            return view.device
        return CPU if types == ("cpu",) else target.current_device()
    place = as_device(device)
    if place.type not in types:
        raise DeviceUnavailableError(f"{target.name} has tensors on {', '.join(types)} only, not on {place}")
    if place == view.device:
        return place
    if str(device) == place.type and not place.is_host:  # "cuda" without a number
        current = target.current_device()
        place = current if current.type == place.type else place
    if place not in (seen := target.devices()):
        if is_served(place.type):
            get_runtime(place.type)  # it may know why
        raise DeviceUnavailableError(f"there is no device {place}: {target.name} sees {', '.join(seen) or 'none'} here")
    return place


def to_framework(
    view: TensorView,
    target: Framework,
    *,
    device: Any = None,
    dtype: Any = None,
    order: Order | None = None,
    copy: bool | None = None,
    stream: Any = None,
    share_readonly: bool = False,
) -> Any:
    """`convert` for a view and an adapter."""
    place = place_of(view, target, device)
    on_host = place is CPU and view.device is CPU
    as_it_is = dtype is None and order is None and (copy is None or copy is False)
    if as_it_is and view.pending is None and place == view.device:
        # The fast path asks what the plan asks, without collecting reasons.
        if view.framework == target.name and view.native is not None:
            if on_host:
                return target.alias(view.native)
            return share(view, target, stream)
        if on_host:
            native = target.quick(view.header, share_readonly)
            if native is not None:
                return native
        elif target.fits(view, share_readonly):
            return share(view, target, stream)
    made = decide(view, target, place=place, dtype=dtype, order=order, copy=copy, share_readonly=share_readonly)
    return carry_out(view, target, made, stream)


def carry_out(view: TensorView, target: Framework, made: CopyPlan, stream: Any = None) -> Any:
    """What ``made`` promises, as a tensor of ``target``; on a device ready on ``stream`` (None: its current one)."""
    if made.device is not CPU or view.device is not CPU:
        from matrix_interop.exchange import moves

        return moves.carry_out(view, target, made, stream)
    if made.zero_copy and view.framework == target.name and view.native is not None:
        return target.alias(view.native)
    return target.wrap(resolve(view, made))


def resolve(view: TensorView, made: CopyPlan) -> np.ndarray:
    """The host memory that ``made`` ends with: that of the view itself, or the one copy, aligned to 256 bytes."""
    if made.zero_copy:
        return view.header
    out = aligned_empty(made.shape, made.dtype, made.order)
    copy_to(out, view)
    count_copies(made)
    return out


def copy_to(out: np.ndarray, view: TensorView) -> None:
    """The true values of any view, in the dtype of host memory ``out``; what does not fit wraps or rounds."""
    if view.pending is not None:
        view.pending.write(out)
    elif not view.device.is_host:
        from matrix_interop.exchange.moves import start_fetch

        start_fetch(view, decide(view, framework("numpy"), place=CPU, requested=True), out).wait()
    else:
        values = view.header
        if not np.can_cast(values.dtype, out.dtype, "unsafe"):  # 8-bit floats that do not know each other
            values = values.astype(np.float32)
        np.copyto(out, values, casting="unsafe")


def native_of(view: TensorView) -> Any:
    """The tensor of the view's own framework; made on demand, by sharing where that framework can.

    Only a shared one is kept: a copy would go its own way when the memory changes.
    """
    if view.native is not None:
        return view.native
    target = framework(view.framework)
    made = decide(view, target)
    native = carry_out(view, target, made)
    if made.zero_copy:
        view.native = native
    return native
