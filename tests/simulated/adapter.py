"""The adapter of lateframe: what a framework on a device has to bring, and nothing more; and what tests do with it."""

from __future__ import annotations

import gc
import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, ClassVar

import numpy as np

from matrix_interop.devices import Device
from matrix_interop.errors import DeviceUnavailableError
from matrix_interop.frameworks.registry import Framework, Order, register_framework
from matrix_interop.memory import PinnedArena, use_arena
from matrix_interop.reasons import Obstacle, Reason
from matrix_interop.runtime import cuda, register_runtime
from matrix_interop.transfer.staging import staging_of
from matrix_interop.view import DeviceView, TensorView
from simulated import lateframe
from simulated.runtime import DEVICE_TYPE, LEGACY, SimulatedRuntime


class LateframeFramework(Framework):
    """`lateframe.Array`. It has strides of any sign, and like torch no read-only arrays."""

    name = "lateframe"
    device_types = (DEVICE_TYPE,)

    def owns(self, x: Any) -> bool:
        return type(x) is lateframe.Array

    def view(self, x: lateframe.Array, fill: Any = None) -> TensorView:
        device = Device(self.device_types[0], x.ordinal)
        return DeviceView.of_tensor(x, self.name, device, x.pointer, x.shape, x.strides, x.dtype)

    def refusal(self, dtype: np.dtype[Any]) -> str | None:
        return "lateframe holds numbers and booleans: ask for dtype='float32'" if dtype.kind in "OSUMm" else None

    def obstacle(self, header: np.ndarray, *, share_readonly: bool = False) -> Obstacle | None:
        if not header.dtype.isnative:
            return Obstacle(Reason.BYTE_ORDER, f"lateframe has no {header.dtype.byteorder}-endian numbers")
        if not header.flags.writeable and not share_readonly:
            return Obstacle(Reason.READONLY, "lateframe cannot keep memory read-only; share_readonly=True shares it")
        return None

    def wrap(self, header: np.ndarray) -> lateframe.Array:
        raise DeviceUnavailableError("lateframe has no arrays on the host")

    def wrap_device(self, view: TensorView) -> lateframe.Array:
        return lateframe.Array(view.pointer, view.shape, view.strides, view.dtype, view.device.index, view)

    def alias(self, native: lateframe.Array) -> lateframe.Array:
        return native[...]

    def namespace(self) -> Any:
        return lateframe

    def devices(self) -> tuple[Device, ...]:
        return tuple(Device(self.device_types[0], index) for index in range(lateframe.device_count()))

    def current_device(self) -> Device:
        return Device(self.device_types[0], lateframe.current_device())

    def current_stream(self, device: Device) -> int:
        return lateframe.current_stream(device.index)

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any], device: Device) -> lateframe.Array:
        return lateframe.empty(shape, dtype, device.index)

    def copy(self, native: lateframe.Array, dtype: np.dtype[Any], order: Order) -> lateframe.Array:
        flip = order == "F"
        out = lateframe.empty(native.shape[::-1] if flip else native.shape, dtype, native.ordinal)
        return lateframe.copy_late(out.T if flip else out, native)

    def keep_until(self, native: lateframe.Array, stream: int, device: Device) -> None:
        lateframe.record_stream(native, stream)


class StrictArray(lateframe.Array):
    """An array of the second framework."""

    def numpy(self) -> np.ndarray:
        """The values, copied to the host once the framework's stream is done."""
        with strict_stream(self.ordinal):
            return super().numpy()

    def __getitem__(self, key: Any) -> StrictArray:
        return _strict(super().__getitem__(key))

    def __add__(self, other: Any) -> StrictArray:
        return _strictly(lateframe.Array.__add__, self, other)

    def __gt__(self, other: Any) -> StrictArray:
        return _strictly(lateframe.Array.__gt__, self, other)

    def __mul__(self, other: Any) -> StrictArray:
        return _strictly(lateframe.Array.__mul__, self, other)

    def __truediv__(self, other: Any) -> StrictArray:
        return _strictly(lateframe.Array.__truediv__, self, other)

    def reshape(self, shape: tuple[int, ...]) -> StrictArray:
        """Dense rows, in another shape."""
        strides = tuple(self.dtype.itemsize * math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
        return StrictArray(self.pointer, shape, strides, self.dtype, self.ordinal, self.owner)


class StrictFramework(LateframeFramework):
    """A second framework on the same devices: current streams of its own, and dense rows only, as in JAX."""

    name = "strictframe"
    only_order = "C"
    #: Device -> current stream.
    streams: ClassVar[dict[int, int]] = {}

    def owns(self, x: Any) -> bool:
        return isinstance(x, StrictArray)

    def obstacle(self, header: np.ndarray, *, share_readonly: bool = False) -> Obstacle | None:
        if header.flags.c_contiguous:
            return super().obstacle(header, share_readonly=share_readonly)
        return Obstacle(Reason.STRIDES, "strictframe takes dense rows only")

    def wrap_device(self, view: TensorView) -> StrictArray:
        return _strict(super().wrap_device(view))

    def alias(self, native: lateframe.Array) -> StrictArray:
        return _strict(native)

    def item(self, native: lateframe.Array, key: Any) -> None:
        return None

    def current_stream(self, device: Device) -> int:
        return self.streams.get(device.index, LEGACY)

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any], device: Device) -> StrictArray:
        with strict_stream(device.index):
            return _strict(super().empty(shape, dtype, device))

    def copy(self, native: lateframe.Array, dtype: np.dtype[Any], order: Order) -> StrictArray:
        with strict_stream(native.ordinal):
            return _strict(super().copy(native, dtype, "C"))

    def namespace(self) -> Any:
        return _StrictNamespace()


class _StrictNamespace:
    """`lateframe`'s functions, run on the second framework's stream."""

    def __getattr__(self, name: str) -> Any:
        return partial(_strictly, getattr(lateframe, name))


def strict_stream(ordinal: int) -> AbstractContextManager[None]:
    """Let what follows run where the second framework's operations run."""
    return lateframe.stream(StrictFramework.streams.get(ordinal, LEGACY), ordinal)


def _strictly(function: Any, *arguments: Any, **keywords: Any) -> StrictArray:
    (ordinal,) = {x.ordinal for x in arguments if isinstance(x, lateframe.Array)}
    with strict_stream(ordinal):
        return _strict(function(*arguments, **keywords))


def _strict(x: lateframe.Array) -> StrictArray:
    return StrictArray(x.pointer, x.shape, x.strides, x.dtype, x.ordinal, x.owner)


class CudaLateframe(LateframeFramework):
    """lateframe with its devices shown as CUDA's, for what only CUDA has."""

    device_types = ("cuda",)


def install(seed: int, devices: int = 2, *, device_bytes: int = 1 << 30) -> SimulatedRuntime:
    """Simulated devices whose order follows from ``seed``, and two frameworks on them, known to matrix_interop."""
    register_framework(LateframeFramework.name, LateframeFramework)
    register_framework(StrictFramework.name, StrictFramework)
    StrictFramework.streams.clear()
    return lateframe.use(SimulatedRuntime(seed, devices, device_bytes))


@contextmanager
def as_cuda(seed: int) -> Iterator[SimulatedRuntime]:
    """The simulated devices in the place of CUDA's."""
    runtime = install(seed)
    register_framework(CudaLateframe.name, CudaLateframe)
    register_runtime("cuda", lambda: runtime)
    try:
        yield runtime
    finally:
        register_runtime("cuda", cuda.load)
        register_framework(LateframeFramework.name, LateframeFramework)


@contextmanager
def device_with_arena(seed: int) -> Iterator[SimulatedRuntime]:
    """A fresh device, and an arena over its pinned memory."""
    runtime = install(seed)
    arena = PinnedArena(1 << 24, runtime=runtime, upstream="host_alloc", decay_s=None)
    arena.release(arena.block(1))  # it tries its memory at the first block, which waits for all there is
    with use_arena(arena):
        yield runtime
    gc.collect()
    runtime.quiesce()
    arena.close()  # an arena that the collector finds would ask the device in the middle of anything


@contextmanager
def exchange_on(seed: int, device_bytes: int = 1 << 30) -> Iterator[SimulatedRuntime]:
    """Simulated devices and an arena of their own; at the end every event and every block must be back."""
    runtime = install(seed, device_bytes=device_bytes)
    with use_arena(PinnedArena(64 << 20, runtime=runtime, staging_bytes=16 << 20)) as arena:
        yield runtime
        assert_all_is_back(runtime, arena)


def assert_all_is_back(runtime: SimulatedRuntime, arena: PinnedArena) -> None:
    """No block of the arena is live or pending, and no event is out."""
    left = _left(runtime, arena)
    if any(left):
        gc.collect()  # frames of exceptions hold each other
        left = _left(runtime, arena)
    assert left == (0, 0, 0)


def _left(runtime: SimulatedRuntime, arena: PinnedArena) -> tuple[int, int, int]:
    """Live and pending bytes of the arena and events that are out, once all work is done."""
    arena.stats()  # blocks that died are noted
    runtime.quiesce()
    staging_of(arena)._settle()  # it notes the end of its last move when it makes the next
    stats = arena.stats()
    return stats.live, stats.pending, runtime.events_out()
