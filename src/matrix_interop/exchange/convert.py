"""Carrying plans out: from a view into any framework."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

import numpy as np

from matrix_interop.devices import CPU, Device, as_device
from matrix_interop.errors import DeviceUnavailableError
from matrix_interop.exchange.plan import CopyPlan, Order, count_copies, decide
from matrix_interop.frameworks.registry import Framework, adapter_of_name, framework, read
from matrix_interop.frameworks.streams import share
from matrix_interop.memory.host import aligned_empty
from matrix_interop.runtime import get_runtime, is_served
from matrix_interop.view import HostView, TensorView

# Device code is imported where a device comes in, so that host work does not wait for it.

__all__ = [
    "carry_out",
    "convert",
    "copy_to",
    "native_of",
    "place_of",
    "plain_targets_first",
    "plan",
    "resolve",
    "to_framework",
]

_Function = TypeVar("_Function", bound=Callable[..., Any])


def plain_targets_first(view_of: Callable[[Any], TensorView] | None) -> Callable[[_Function], _Function]:
    """Decorates `convert` and the like, and answers what most calls are: a framework that is loaded, and nothing else.

    All others go on to the function itself, which would come to the same, but whose keywords alone take CPython as
    long as reading an array.  ``view_of`` gives the view of the first argument; None: a matrix, which holds its view.
    """

    def decorate(function: _Function) -> _Function:
        @wraps(function)
        def plainly(x: Any, framework: Any = None, *, share_readonly: bool = False, **how: Any) -> Any:
            try:
                target = adapter_of_name[framework]
            except (KeyError, TypeError):
                target = None
            if target is None or how:
                return function(x, framework, share_readonly=share_readonly, **how)
            view = x._view if view_of is None else view_of(x)
            if type(view) is HostView and framework != view.framework:  # as in `quickly`, without the call
                native = target.quick(view.header, share_readonly)
            else:
                native = quickly(view, target, share_readonly)
            return function(x, framework, share_readonly=share_readonly) if native is None else native

        return cast(_Function, plainly)

    return decorate


@plain_targets_first(read)
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
    target, device = destination(view, framework, like, device)
    return to_framework(view, target, device, dtype, order, copy, stream, share_readonly)


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


def quickly(view: TensorView, target: Framework, share_readonly: bool = False, stream: Any = None) -> Any:
    """A tensor of ``target`` over the memory of ``view``, wherever that is; None where something may be in the way.

    It asks what `decide` asks, without collecting reasons.
    """
    if view.pending is not None:
        return None
    on_host = view.device is CPU
    if view.framework == target.name and view.native is not None:
        return target.alias(view.native) if on_host else share(view, target, stream)
    if on_host:
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
    device: Any = None,
    dtype: Any = None,
    order: Order | None = None,
    copy: bool | None = None,
    stream: Any = None,
    share_readonly: bool = False,
) -> Any:
    """`convert` for a view and an adapter."""
    place = place_of(view, target, device)
    if dtype is None and order is None and (copy is None or copy is False) and place == view.device:
        native = quickly(view, target, share_readonly, stream)
        if native is not None:
            return native
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
