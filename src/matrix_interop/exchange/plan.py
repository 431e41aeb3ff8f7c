"""Deciding how a tensor gets into a framework: share its memory, or copy it once, and why.

`decide` is the only place where that is decided.  `convert` carries a plan out; its fast path may
skip the plan only where the target finds nothing in the way, which is the same question.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from matrix_interop.devices import Device
from matrix_interop.dtypes import as_dtype, name_of
from matrix_interop.errors import CopyRequiredError, UnsupportedDtypeError, UnsupportedLayoutError
from matrix_interop.frameworks.registry import Framework
from matrix_interop.reasons import Reason
from matrix_interop.tracking import copies_forbidden, record_copy
from matrix_interop.view import TensorView, describe, facts_of, in_words

__all__ = ["CopyPlan", "Order", "Step", "decide"]

Order = Literal["C", "F"]


@dataclass(frozen=True, slots=True)
class Step:
    """One step: ``action`` "share" (a new object over the same memory), "copy" (new memory), "move" (another device).

    ``nbytes``: bytes written, 0 for sharing.  ``reasons``: why it is there, with a sentence each in ``text``.
    """

    action: Literal["share", "copy", "move"]
    nbytes: int
    reasons: tuple[Reason, ...]
    text: str


@dataclass(frozen=True, slots=True)
class CopyPlan:
    """What a conversion will do, found without touching the data. ``print(plan)`` shows it as a table."""

    steps: tuple[Step, ...]
    #: What goes in, as `facts_of` gives it.
    given: tuple[Any, ...]
    #: Framework, shape, dtype, order and device of the result.
    framework: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    order: Order
    device: Device

    @property
    def source(self) -> str:
        """The tensor that goes in, in words."""
        return in_words(*self.given)

    @property
    def target(self) -> str:
        """What comes out, in words."""
        return f"{self.framework} {name_of(self.dtype)} on {self.device}"

    @property
    def zero_copy(self) -> bool:
        """True where the result shares the memory of the source."""
        return self.nbytes == 0 and all(step.action == "share" for step in self.steps)

    @property
    def nbytes(self) -> int:
        """Bytes that all steps together write into new memory."""
        return sum(step.nbytes for step in self.steps)

    @property
    def reasons(self) -> tuple[Reason, ...]:
        """Why anything is copied; empty for a plan that shares."""
        return tuple(dict.fromkeys(reason for step in self.steps if step.action != "share" for reason in step.reasons))

    def __str__(self) -> str:
        rows = [("step", "bytes", "why")]
        rows += [(step.action, f"{step.nbytes:,}", step.text) for step in self.steps]
        wide = [max(len(row[column]) for row in rows) for column in (0, 1)]
        table = [f"  {action:<{wide[0]}}  {nbytes:>{wide[1]}}  {text}" for action, nbytes, text in rows]
        verdict = "shares memory" if self.zero_copy else f"copies {self.nbytes:,} bytes"
        return "\n".join([f"{self.source} -> {self.target}: {verdict}", *table])


def decide(
    view: TensorView,
    target: Framework,
    *,
    place: Device | None = None,
    dtype: Any = None,
    order: Order | None = None,
    copy: bool | None = None,
    share_readonly: bool = False,
    requested: bool = False,
) -> CopyPlan:
    """The plan that brings a view into ``target``; nothing is read or written.

    ``place``: the device of the result, None: that of the view.  ``copy``: None if it must, False never,
    True always.  ``requested``: the caller asked for a copy by name (`astype`, `take`), which `forbid_copies`
    allows.  New memory is in native byte order.  Raises `CopyRequiredError` with the plan where a copy is
    forbidden, `UnsupportedDtypeError` where the target cannot hold the dtype and `UnsupportedLayoutError`
    where it has no such order.
    """
    copy = _checked_copy(copy)
    header = view.header
    place = view.device if place is None else place
    wanted = header.dtype if dtype is None else as_dtype(dtype).newbyteorder("=")
    own = view.framework == target.name and view.native is not None  # its tensor is there, so nothing is in its way
    _require_fit(view, target, None if own and wanted == header.dtype else wanted, order)
    found: list[tuple[Reason, str]] = []
    if view.pending is not None:
        found.append((Reason.PENDING, view.pending.text))
    if wanted != header.dtype:
        found.append((Reason.DTYPE, f"{header.dtype} to {wanted} was asked for"))
    if order is not None and not header.flags[order]:
        found.append((Reason.ORDER, f"order {order!r} was asked for"))
    if copy:
        found.append((Reason.REQUESTED, "copy=True"))
    if place != view.device:
        found.insert(0, (Reason.DEVICE, f"{view.device} memory to {place}"))
    if not found and not own:
        obstacle = target.obstacle(header, share_readonly=share_readonly)
        if obstacle is not None:
            found.append((obstacle.reason, obstacle.text))
    result_order = _order_of_copy(header, order, target) if found else order_of(header)
    if found:
        wanted = wanted.newbyteorder("=")
        steps = _copies(view, place, wanted, result_order, found)
    elif view.note:
        grad = (Reason.GRAD,) if "graph" in view.note else ()
        steps = (Step("share", 0, grad, f"{_same(view, target)}; {view.note}"),)
    else:
        steps = (Step("share", 0, (), _same(view, target)),)
    plan = CopyPlan(steps, facts_of(view), target.name, header.shape, wanted, result_order, place)
    allowed = requested or copy or not found
    if not allowed and (copy is False or copies_forbidden()):
        _refuse(plan, "copy=False" if copy is False else "forbid_copies()")
    return plan


def _checked_copy(copy: Any) -> bool | None:
    """``copy`` as None, True or False. Raises ValueError for anything else: a guess may copy what must not be."""
    if copy is None or isinstance(copy, bool | np.bool_):
        return None if copy is None else bool(copy)
    raise ValueError(f"copy={copy!r}: write None (copy if it must be), True (always) or False (never)")


def _require_fit(view: TensorView, target: Framework, dtype: np.dtype[Any] | None, order: Any) -> None:
    """Raise where no tensor of the target has this rank, ``dtype`` (None: its own tensor is there) or ``order``."""
    why_not = None if dtype is None else target.refusal(dtype)
    if why_not is not None:  # before the rank: a reshape would not help
        raise UnsupportedDtypeError(f"{describe(view)} does not fit into {target.name} as {dtype}: {why_not}")
    if view.ndim < target.least_ndim:
        raise UnsupportedLayoutError(f"{target.name} has no scalars like {describe(view)}: reshape it to (1,)")
    if order is not None:
        require_order(order)
        if target.only_order not in (None, order):
            msg = f"{target.name} tensors have order {target.only_order!r} only: leave order={order!r} out"
            raise UnsupportedLayoutError(msg)


def _copies(
    view: TensorView, place: Device, wanted: np.dtype[Any], order: Order, found: list[tuple[Reason, str]]
) -> tuple[Step, ...]:
    """The steps that write new memory: one copy within a memory, or a move, after packing where a device must."""
    reasons, text = tuple([reason for reason, _ in found]), "; ".join([text for _, text in found])
    nbytes = view.size * wanted.itemsize
    if place == view.device:
        return (Step("copy", nbytes, reasons, text),)
    dtype, packs = travels_as(view, place, wanted, order)
    if not packs:
        return (Step("move", nbytes, reasons, text),)
    packing = f"packed on {view.device} into dense {dtype}, order {order!r}, before it moves"
    pack = Step("copy", view.size * dtype.itemsize, reasons[1:] or (Reason.STRIDES,), packing)
    return (pack, Step("move", nbytes, reasons, text))


def travels_as(view: TensorView, place: Device, wanted: np.dtype[Any], order: Order) -> tuple[np.dtype[Any], bool]:
    """In which dtype the bytes of ``view`` go to another memory, and whether its device packs them first.

    The host packs and converts while it fills or empties the chunks of a transfer.  A device packs what is not
    dense in the order of the result or not in memory as it reads, and converts where that makes the bytes fewer or
    the host takes no part.
    """
    if view.device.is_host:
        return wanted, False
    smaller = wanted.itemsize < view.itemsize
    dtype = wanted if smaller or not place.is_host else view.dtype
    return dtype, dtype != view.dtype or not view.header.flags[order] or view.pending is not None


def require_order(order: Any) -> None:
    """Raise `UnsupportedLayoutError` for anything but "C" and "F"."""
    if order not in ("C", "F"):
        raise UnsupportedLayoutError(f"order {order!r}: 'C' for dense rows or 'F' for dense columns is meant")


def count_copies(plan: CopyPlan) -> None:
    """Report a plan that copied to `track_copies`, step by step."""
    for step in plan.steps:
        record_copy(step.nbytes, step.reasons[0], step.text)


def _refuse(plan: CopyPlan, who: str) -> None:
    """Raise `CopyRequiredError` for ``plan``."""
    why = "; ".join(step.text for step in plan.steps if step.action != "share")
    way_out = "ask for the copy with copy=True" if copies_forbidden() else "allow the copy with copy=None"
    msg = (
        f"{plan.source} cannot become {plan.target} without copying {plan.nbytes:,} bytes ({why}), "
        f"and {who} forbids that: {way_out}"
    )
    raise CopyRequiredError(msg, plan)


def _same(view: TensorView, target: Framework) -> str:
    return (
        "a second object over the same memory"
        if view.framework == target.name
        else f"{target.name} describes the same memory"
    )


def order_of(header: np.ndarray) -> Order:
    """The order in which new memory holds the same layout: "F" for dense columns, else "C"."""
    return "F" if header.flags.f_contiguous and not header.flags.c_contiguous else "C"


def _order_of_copy(header: np.ndarray, order: Order | None, target: Framework) -> Order:
    """New memory keeps Fortran order where the source has it and the target can say it."""
    if order is not None:
        return order
    return "C" if target.only_order == "C" else order_of(header)
