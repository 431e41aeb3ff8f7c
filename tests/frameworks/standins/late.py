"""What the stand-ins share: arrays of the simulated device under CUDA's label, and a framework's own streams."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, ClassVar, Self

import numpy as np

from simulated import lateframe
from simulated.runtime import LEGACY, SimulatedRuntime

CUDA, MANAGED = 2, 13


def runtime() -> SimulatedRuntime:
    """The simulated devices that stand for CUDA's now."""
    return lateframe._runtime


class Streams:
    """The current stream of one framework on each device; another framework has others."""

    def __init__(self) -> None:
        self.current: dict[int, int] = {}

    def of(self, ordinal: int) -> int:
        """The handle; 1 for the legacy default stream."""
        return self.current.get(ordinal, LEGACY)

    @contextmanager
    def use(self, stream: int, ordinal: int) -> Iterator[None]:
        """Make a stream current."""
        before = self.of(ordinal)
        self.current[ordinal] = stream or LEGACY
        try:
            yield
        finally:
            self.current[ordinal] = before

    def here(self, ordinal: int) -> AbstractContextManager[None]:
        """Let the simulated device work on the framework's current stream."""
        return lateframe.stream(self.of(ordinal), ordinal)


def dense(shape: tuple[int, ...], dtype: Any) -> tuple[int, ...]:
    """Strides of dense rows, in bytes."""
    return tuple(np.dtype(dtype).itemsize * math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


class CudaArray(lateframe.Array):
    """An array whose operations run late, on the current stream of its framework."""

    streams: ClassVar[Streams]

    @classmethod
    def over(cls, x: lateframe.Array) -> Self:
        """The same memory as an array of this framework."""
        return cls(x.pointer, x.shape, x.strides, x.dtype, x.ordinal, x.owner)

    @classmethod
    def made(cls, shape: tuple[int, ...], dtype: Any, ordinal: int) -> Self:
        """New memory, whose allocator belongs to the current stream."""
        with cls.streams.here(ordinal):
            return cls.over(lateframe.empty(shape, dtype, ordinal))

    @classmethod
    def holding(cls, values: np.ndarray, ordinal: int) -> Self:
        """A copy of host values, taken at the call."""
        with cls.streams.here(ordinal):
            return cls.over(lateframe.array(values, ordinal))

    def apply(self, function: Callable[..., Any], *operands: Any, **keywords: Any) -> Self:
        """A NumPy function of this array and others."""
        with self.streams.here(self.ordinal):
            return self.over(lateframe.apply(function, self, *operands, **keywords))

    def host(self) -> np.ndarray:
        """The values, once the framework's stream is done."""
        with self.streams.here(self.ordinal):
            return lateframe.Array.numpy(self)

    def __getitem__(self, key: Any) -> Self:
        return self.over(super().__getitem__(key))

    @property
    def T(self) -> Self:  # noqa: N802  the name every framework has
        """The transpose, a view."""
        return self.over(super().T)

    def __add__(self, other: Any) -> Self:
        return self.apply(np.add, other)

    def __mul__(self, other: Any) -> Self:
        return self.apply(np.multiply, other)

    def __truediv__(self, other: Any) -> Self:
        return self.apply(np.divide, other)

    def __gt__(self, other: Any) -> Self:
        return self.apply(np.greater, other)

    def __dlpack_device__(self) -> tuple[int, int]:
        managed = bool(self.size) and runtime().pointer(self.pointer).kind == "managed"
        return (MANAGED, 0) if managed else (CUDA, self.ordinal)

    def capsule(self, max_version: Any = None) -> Any:
        """A DLPack capsule of the memory as it lies; nothing is waited for."""
        return lateframe._relabelled(self._header().__dlpack__(max_version=max_version), self)


#: Bytes before the flags of a versioned capsule.
_FLAGS_AT = 24


def imported(kind: type[CudaArray], capsule: Any, *, labels: tuple[int, ...], error: type[Exception]) -> Any:
    """The memory behind a capsule as an array of that kind. ``error`` is raised for other labels than these."""
    tensor = lateframe._tensor_in(capsule)
    if tensor.device_type not in labels:
        raise error(f"no import from DLPack device type {tensor.device_type}")
    made = kind.over(lateframe._from_capsule(capsule))
    if tensor.device_type == MANAGED:
        made.ordinal = runtime().pointer(made.pointer).ordinal or 0
    return made


def is_versioned(capsule: Any) -> bool:
    """True for a capsule of the form that has flags."""
    return bool(lateframe._valid(capsule, b"dltensor_versioned"))


def is_readonly(capsule: Any) -> bool:
    """True where the producer says that its memory must not be written."""
    if not is_versioned(capsule):
        return False
    start = lateframe._pointer(capsule, b"dltensor_versioned") or 0
    return bool(ctypes.c_uint64.from_address(start + _FLAGS_AT).value & 1)
