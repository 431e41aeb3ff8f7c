"""`DeviceMatrix`: what it says about itself and offers to other libraries, on simulated devices shown as CUDA's."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from matrix_interop import DeviceMatrix, DeviceUnavailableError, HostMatrix, Matrix, TensorView, from_tensor
from matrix_interop.errors import UnsupportedLayoutError
from matrix_interop.memory import PinnedArena, use_arena
from matrix_interop.runtime import register_runtime
from simulated import lateframe
from simulated.adapter import as_cuda
from simulated.runtime import SimulatedRuntime

SEEDS = range(4)


@pytest.fixture(params=SEEDS)
def cuda(request: pytest.FixtureRequest) -> Iterator[SimulatedRuntime]:
    """Two devices called cuda:0 and cuda:1, lateframe on side streams of both."""
    with (
        as_cuda(request.param) as runtime,
        use_arena(PinnedArena(32 << 20, runtime=runtime)),
        lateframe.stream(lateframe.new_stream(0), 0),
        lateframe.stream(lateframe.new_stream(1), 1),
    ):
        yield runtime


def late(values: Any, ordinal: int = 0) -> lateframe.Array:
    """A device array that a slow kernel fills."""
    values = np.asarray(values)
    return lateframe.copy_late(lateframe.empty(values.shape, values.dtype, ordinal), lateframe.array(values, ordinal))


VALUES = np.arange(1.0, 13.0, dtype=np.float32).reshape(3, 4)


class OnlyInterface:
    """An object that has the CUDA array interface and nothing else."""

    def __init__(self, x: lateframe.Array, **fields: Any) -> None:
        self.owner = x
        data = {"shape": x.shape, "strides": x.strides, "typestr": x.dtype.str, "data": (x.pointer, False)}
        self.__cuda_array_interface__ = {**data, "version": 3, **fields}


def consume(offer: Any, stream: int | None) -> lateframe.Array:
    """What another library does with a DLPack export."""
    return lateframe._from_capsule(offer.__dlpack__(stream=stream, max_version=(1, 1)))


def test_facts(cuda: SimulatedRuntime) -> None:
    """Facts cost no call to the device; NumPy does not take the matrix for one of its own."""
    x, before = late(VALUES, 1), cuda.calls.total()
    m = from_tensor(x)
    facts = m.shape, m.dtype, m.strides, m.order, m.nbytes, m.device, m.framework, m.readonly, m.pinned, len(m)
    assert facts == ((3, 4), np.float32, (16, 4), "C", 48, "cuda:1", "lateframe", False, False, 3)
    assert repr(m) == "<DeviceMatrix 3 x 4 float32, C, lateframe, cuda:1>"
    assert (type(m), m.pin() is m, m.to_device() is m, m.array is x) == (DeviceMatrix, True, True, True)
    assert cuda.calls.total() == before
    with pytest.raises(TypeError, match=r"to_host\(\)"):
        np.asarray(m)
    assert not hasattr(m, "__array_interface__")


def test_rows(cuda: SimulatedRuntime) -> None:
    """A row is the framework's own array, over the same memory; a slice is a matrix."""
    m = from_tensor(late(VALUES))
    assert (m[1].pointer, m[1].numpy().tolist()) == (m.array.pointer + 16, VALUES[1].tolist())
    assert [type(m[::2]), type(m.T), m[::-1].order] == [DeviceMatrix, DeviceMatrix, None]
    assert m.T.array.pointer == m.array.pointer
    with pytest.raises(IndexError, match="row 3"):
        m[3]


def test_making_matrices_on_a_device(cuda: SimulatedRuntime) -> None:
    """empty, from_rows and from_tensor with a device; DeviceMatrix and HostMatrix mean one."""
    assert (Matrix.empty((2, 3), device="cuda:1", order="F").order) == "F"
    rows = Matrix.from_rows([VALUES[0], late(VALUES[1]), [9, 9, 9, 9]], dtype="float32", device="cuda:0")
    assert rows.array.numpy().tolist() == [*VALUES[:2].tolist(), [9.0] * 4]
    assert (DeviceMatrix.from_tensor(VALUES).device, HostMatrix.from_tensor(late(VALUES)).device) == ("cuda:0", "cpu")
    with lateframe.device(1):
        assert DeviceMatrix.from_tensor(VALUES).device == "cuda:1"
        assert type("Mine", (DeviceMatrix,), {}).from_tensor(VALUES).device == "cuda:1"
        assert DeviceMatrix.empty((2, 3)).device == DeviceMatrix.from_rows(VALUES).device == "cuda:1"
    assert HostMatrix.empty((2, 3)).device == HostMatrix.from_rows([late(VALUES[0])]).device == "cpu"
    with pytest.raises(UnsupportedLayoutError, match="ndim 1"):
        from_tensor(late(VALUES[0]))
    assert from_tensor(late(VALUES[0]), as_row=True).to_host().array.tolist() == [VALUES[0].tolist()]


@pytest.mark.parametrize("device", [0, 1])
def test_dlpack_streams(cuda: SimulatedRuntime, device: int) -> None:
    """T24: None and 1 are the legacy stream, 2 the thread's own; handles and objects that have one name it."""
    side = lateframe.new_stream(device)

    class Stream:
        cuda_stream = side

    for asked, used in ((None, 1), (1, 1), (2, 2), (side, side), (Stream(), side)):
        y = consume(from_tensor(late(VALUES, device)), asked)
        with lateframe.stream(used, device):
            assert (y.numpy().tolist(), y.ordinal) == (VALUES.tolist(), device)
    m, before = from_tensor(late(VALUES, device)), cuda.calls["record"]
    m.__dlpack__(stream=-1)
    assert cuda.calls["record"] == before


@pytest.mark.parametrize(
    ("keywords", "text"),
    [
        ({"stream": 0}, "stream=0"),
        ({"stream": -2}, "stream=-2"),
        ({"stream": "side"}, "not a stream"),
        ({"dl_device": (1, 0)}, "to_host"),
        ({"dl_device": (2, 1)}, "to_device"),
        ({"copy": True}, "copy=True"),
    ],
)
def test_dlpack_refusals(cuda: SimulatedRuntime, keywords: dict[str, Any], text: str) -> None:
    """Always a BufferError, which consumers take as final."""
    with pytest.raises(BufferError, match=text):
        from_tensor(late(VALUES)).__dlpack__(**keywords)


def test_dlpack_of_odd_layouts(cuda: SimulatedRuntime) -> None:
    """Backwards rows are refused, since torch ends the process on them; read-only memory goes versioned only."""
    m = from_tensor(late(VALUES))
    with pytest.raises(BufferError, match="negative strides"):
        m[::-1].__dlpack__()
    frozen = from_tensor(OnlyInterface(late(VALUES), data=(late(VALUES).pointer, True)))
    assert frozen.readonly
    with pytest.raises(BufferError, match="read-only"):
        frozen.__dlpack__()
    assert (m.__dlpack_device__(), from_tensor(late(VALUES, 1)).__dlpack_device__()) == ((2, 0), (2, 1))


def test_cuda_array_interface(cuda: SimulatedRuntime) -> None:
    """Version 3, with the stream after which the data is there; absent where there is no code for the type."""
    stream = lateframe.current_stream(0)
    m = from_tensor(late(VALUES))
    interface = m.T.__cuda_array_interface__
    assert (interface["version"], interface["stream"], interface["typestr"]) == (3, stream, "<f4")
    assert (interface["shape"], interface["strides"], interface["data"]) == ((4, 3), (4, 16), (m.array.pointer, False))
    assert not hasattr(from_tensor(late(VALUES.astype(ml_dtypes.bfloat16))), "__cuda_array_interface__")
    assert not hasattr(TensorView(VALUES), "__cuda_array_interface__")


def test_objects_known_by_protocol(cuda: SimulatedRuntime) -> None:
    """T32, T33: memory and device from the pointer, ordered after the stream they name, whatever device is current."""
    for ordinal in (0, 1):
        x = late(VALUES, ordinal)
        m = from_tensor(OnlyInterface(x, stream=lateframe.current_stream(ordinal)))
        assert (m.device, m._view.pointer, m.framework) == (f"cuda:{ordinal}", x.pointer, "lateframe")
        assert np.array_equal(m.to_host().array, VALUES)
        assert m.to_tensor("lateframe").numpy().tolist() == VALUES.tolist()
        assert np.array_equal(m[::-1].astype("int8").to_host().array, VALUES[::-1])
    m = from_tensor(OnlyInterface(lateframe.array(VALUES), strides=None, version=2))
    assert (m.order, m._view.stream) == ("C", 1)


def test_bfloat16(cuda: SimulatedRuntime) -> None:
    """It goes there, comes back, and is exported under its own code."""
    values = VALUES.astype(ml_dtypes.bfloat16)
    m = from_tensor(values).to_device("cuda:1")
    assert (m.dtype, m.to_host().array.tobytes()) == (values.dtype, values.tobytes())
    assert consume(m, lateframe.current_stream(1)).numpy().tobytes() == values.tobytes()


def test_a_deleter_runs_once(cuda: SimulatedRuntime) -> None:
    """T35: each source is let go exactly once, when the last matrix, view or consumer is gone."""
    gone: list[int] = []

    class Watched(lateframe.Array):
        def __del__(self) -> None:
            gone.append(self.pointer)

    from matrix_interop import register_framework
    from simulated.adapter import CudaLateframe

    class WatchedFramework(CudaLateframe):
        name = "watched"

        def owns(self, x: Any) -> bool:
            return type(x) is Watched

    register_framework("watched", WatchedFramework)
    for turn in range(1, 101):
        x = late(VALUES)
        m = from_tensor(Watched(x.pointer, x.shape, x.strides, x.dtype, 0, x))
        holders = [m[1:], m.T, consume(m, -1)]
        del m
        while holders:
            assert len(gone) == turn - 1
            del holders[-1]
        assert len(gone) == turn


def test_pickles(cuda: SimulatedRuntime) -> None:
    """T40: alone and in tuples, small and large, they arrive equal, as host matrices."""
    one = from_tensor(late(np.ones((5, 1), np.float32)))
    buffers: list[Any] = []
    text = pickle.dumps((from_tensor(late(VALUES)), one), 5, buffer_callback=buffers.append)
    a, b = pickle.loads(text, buffers=buffers)
    assert (a.array.tolist(), b.array.sum(), a.device) == (VALUES.tolist(), 5, "cpu")


def test_without_a_driver() -> None:
    """Device memory that nobody can reach is refused by the reason for which the driver is absent."""

    def absent() -> Any:
        raise DeviceUnavailableError("no CUDA driver on this machine")

    register_runtime("cuda", absent)
    try:
        with pytest.raises(DeviceUnavailableError, match="no CUDA driver"):
            from_tensor(OnlyInterface(lateframe.Array(4096, (1, 1), (4, 4), np.float32, 0, None)))
        with pytest.raises(DeviceUnavailableError, match="no CUDA driver"):
            from_tensor(VALUES).to_device("cuda:0", framework="torch")
    finally:
        from matrix_interop.runtime import cuda as real

        register_runtime("cuda", real.load)
