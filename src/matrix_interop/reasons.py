"""Why memory cannot be shared: the words that adapters, plans and errors have in common."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

__all__ = ["Obstacle", "Reason"]


class Reason(StrEnum):
    """Why a step of a plan is there. The value is the word that plans print."""

    REQUESTED = "requested"  # copy=True, or a method that promises new memory
    DTYPE = "dtype"  # another data type was asked for
    ORDER = "order"  # another memory order was asked for, or is all the target takes
    STRIDES = "strides"  # strides the target cannot describe
    NEGATIVE_STRIDE = "negative stride"
    BYTE_ORDER = "byte order"
    ALIGNMENT = "alignment"
    READONLY = "read-only"  # read-only memory into a framework that cannot keep it so
    PENDING = "pending"  # values that are not in memory yet: conjugate or negative bit, masks, nulls, chunks
    DEVICE = "device"  # other memory
    GRAD = "grad"  # not a copy: the tensor comes in detached from its graph
    PROTOCOL = "protocol"  # the only protocol the object offers makes a copy


class Obstacle(NamedTuple):
    """One reason why sharing is impossible, with a sentence for the reader of a plan or an error."""

    reason: Reason
    text: str
