"""A framework in one file, as a user would add one: dense rows only, no read-only memory, four number types."""

from __future__ import annotations

from typing import Any

import numpy as np

from matrix_interop import Framework, TensorView, register_framework
from matrix_interop.reasons import Obstacle, Reason

KINDS = ("float32", "float64", "int32", "uint8")


class ToyTensor:
    """Numbers of one kind in a flat block of bytes. It speaks no protocol at all."""

    def __init__(self, memory: memoryview, kind: str, shape: tuple[int, ...]) -> None:
        self.memory = memory
        self.kind = kind
        self.shape = shape


class ToyFramework(Framework):
    """`ToyTensor`."""

    name = "toy"
    only_order = "C"

    def owns(self, x: Any) -> bool:
        return isinstance(x, ToyTensor)

    def view(self, x: ToyTensor, fill: Any = None) -> TensorView:
        return TensorView.of(np.ndarray(x.shape, x.kind, x.memory), self.name, x)

    def refusal(self, dtype: np.dtype[Any]) -> str | None:
        return None if dtype.name in KINDS else f"toy holds {', '.join(KINDS)}: ask for dtype='float32'"

    def obstacle(self, header: np.ndarray, *, share_readonly: bool = False) -> Obstacle | None:
        if not header.flags.c_contiguous:
            return Obstacle(Reason.ORDER, "toy takes dense rows only")
        if not header.dtype.isnative:
            return Obstacle(Reason.BYTE_ORDER, "toy is native")
        if not header.flags.aligned:
            return Obstacle(Reason.ALIGNMENT, "toy wants whole addresses")
        if not header.flags.writeable:
            return Obstacle(Reason.READONLY, "toy tensors are writable")
        return None

    def wrap(self, header: np.ndarray) -> ToyTensor:
        return ToyTensor(memoryview(header.reshape(-1).view(np.uint8)), header.dtype.name, header.shape)

    def alias(self, native: ToyTensor) -> ToyTensor:
        return ToyTensor(native.memory, native.kind, native.shape)

    def item(self, native: ToyTensor, key: Any) -> None:
        return None


register_framework("toy", ToyFramework)
