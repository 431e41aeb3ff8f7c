"""Exchange on devices that run late: values are right in stream order for every seed, and nothing is left behind."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from matrix_interop import (
    CopyRequiredError,
    DeviceUnavailableError,
    UnsupportedLayoutError,
    convert,
    forbid_copies,
    from_tensor,
    plan,
    track_copies,
)
from matrix_interop.memory import default_arena
from matrix_interop.view import TensorView
from simulated import lateframe
from simulated.adapter import LateframeFramework, StrictFramework, exchange_on, strict_stream
from simulated.runtime import SimulatedRuntime

SEEDS = range(2)
FRAMEWORKS = ("lateframe", "strictframe")


@pytest.fixture(params=SEEDS)
def device(request: pytest.FixtureRequest) -> Iterator[SimulatedRuntime]:
    """Two fresh devices for each seed; both frameworks work on side streams of their own."""
    with exchange_on(request.param) as runtime:
        default_arena().release(default_arena().block(1))  # an arena's first block waits for all there is
        for ordinal in (0, 1):
            StrictFramework.streams[ordinal] = lateframe.new_stream(ordinal)
        with lateframe.stream(lateframe.new_stream(0), 0), lateframe.stream(lateframe.new_stream(1), 1):
            yield runtime


def numbers(rows: int = 7, columns: int = 5, dtype: Any = np.float32) -> np.ndarray:
    """Distinct values."""
    return np.arange(1, rows * columns + 1).reshape(rows, columns).astype(dtype)


def late(values: np.ndarray, ordinal: int = 0) -> lateframe.Array:
    """A device array that a slow kernel fills; until then it holds something else."""
    out = lateframe.empty(values.shape, values.dtype, ordinal)
    return lateframe.copy_late(out, lateframe.array(values, ordinal))


#: Layouts of a device array, and what the host sees in the same place.
LAYOUTS: dict[str, Callable[[Any], Any]] = {
    "whole": lambda x: x,
    "transposed": lambda x: x.T,
    "rows": lambda x: x[2:5],
    "stepped": lambda x: x[::2],
    "backwards": lambda x: x[::-1],
    "columns": lambda x: x[:, 1:3],
    "columns backwards": lambda x: x[:, ::-1],
    "both": lambda x: x[::-2, ::-2],
    "one row": lambda x: x[3:4],
    "empty": lambda x: x[3:3],
}
layouts = pytest.mark.parametrize("layout", LAYOUTS)


# To the host -------------------------------------------------------------------------------------------
@layouts
def test_to_host(device: SimulatedRuntime, layout: str) -> None:
    """What a slow kernel of the current stream writes is there on return, in any layout."""
    cut = LAYOUTS[layout]
    m = from_tensor(cut(late(numbers())))
    assert (m.device, m.framework) == ("ext:0", "lateframe")
    host = m.to_host()
    assert np.array_equal(host.array, cut(numbers()))
    assert (host.device, host.framework, host.shape) == ("cpu", "numpy", m.shape)


@pytest.mark.parametrize("rank", [0, 1, 3])
def test_convert_to_numpy_at_any_rank(device: SimulatedRuntime, rank: int) -> None:
    """`convert` reads back tensors of every rank."""
    values = np.arange(8.0).reshape((2, 2, 2))[(0,) * (3 - rank)]
    assert convert(late(values), "numpy").tolist() == values.tolist()


def test_to_host_of_views_of_a_matrix(device: SimulatedRuntime) -> None:
    """Slices, T and rows of a matrix read the same memory."""
    values = numbers()
    m = from_tensor(late(values))
    assert np.array_equal(m[::-2].to_host().array, values[::-2])
    assert np.array_equal(m.T.to_host().array, values.T)
    assert np.array_equal(m.T[1:3].to_host().array, values.T[1:3])
    assert m[2].numpy().tolist() == values[2].tolist()
    assert [row.numpy().tolist() for row in m] == values.tolist()


def test_to_host_in_chunks(device: SimulatedRuntime) -> None:
    """More than a chunk, dense and strided."""
    values = np.arange(900_000, dtype=np.int32).reshape(3000, 300)
    m = from_tensor(late(values))
    assert np.array_equal(m.to_host(pinned=False).array, values)
    assert np.array_equal(m[::3].to_host(pinned=False).array, values[::3])
    assert np.array_equal(m.T.to_host(pinned=False).array, values.T)


@pytest.mark.parametrize("dtype", ["float64", "float16", "int8"])
def test_to_host_converts(device: SimulatedRuntime, dtype: str) -> None:
    """Into another dtype, packed on the device where that makes the bytes fewer."""
    assert np.array_equal(convert(late(numbers()), "numpy", dtype=dtype), numbers().astype(dtype))


OUTS: dict[str, Callable[[tuple[int, int]], np.ndarray]] = {
    "ordinary": lambda shape: np.zeros(shape, np.float32),
    "pinned": lambda shape: default_arena().empty(shape, np.float32),
    "Fortran order": lambda shape: np.zeros(shape, np.float32, order="F"),
    "pinned, Fortran order": lambda shape: default_arena().empty(shape, np.float32, order="F"),
    "strided": lambda shape: np.zeros((shape[0] * 2, shape[1] * 2), np.float32)[::2, ::2],
    "backwards": lambda shape: np.zeros(shape, np.float32)[::-1],
    "other dtype": lambda shape: np.zeros(shape, np.int64),
    "other byte order": lambda shape: np.zeros(shape, ">f8"),
}


@pytest.mark.parametrize("kind", OUTS)
@pytest.mark.parametrize("layout", ["whole", "transposed", "stepped"])
def test_to_host_fills_out(device: SimulatedRuntime, layout: str, kind: str) -> None:
    """``out`` is filled in its own dtype and becomes the result's memory."""
    cut = LAYOUTS[layout]
    out = OUTS[kind](cut(numbers()).shape)
    host = from_tensor(cut(late(numbers()))).to_host(out=out)
    assert np.array_equal(out, cut(numbers()))
    assert np.shares_memory(host.array, out)


@pytest.mark.parametrize("pinned", [True, False])
@layouts
def test_to_host_without_blocking(device: SimulatedRuntime, layout: str, pinned: bool) -> None:
    """The transfer's result is right although the source died meanwhile; done() becomes true without waiting."""
    cut = LAYOUTS[layout]
    m = from_tensor(cut(late(numbers())))
    moved = m.to_host(non_blocking=True, pinned=pinned)
    del m
    lateframe.fill_late(lateframe.empty((7, 5)), -1)  # whoever gets the memory next
    while pinned and not moved.done():  # each question lets the device run on for a bit
        pass
    assert np.array_equal(moved.result().array, cut(numbers()))


def test_a_large_matrix_without_blocking(device: SimulatedRuntime) -> None:
    """A thread fills ordinary memory meanwhile, after what the current stream held at the call."""
    values = np.arange(800 * 700, dtype=np.float32).reshape(800, 700)
    from_tensor(late(values)).to_host(pinned=False)  # the first one measures, which waits for all there is
    moved = from_tensor(late(values)).to_host(non_blocking=True, pinned=False)
    assert np.array_equal(moved.result().array, values)


def test_a_small_matrix_that_the_driver_stages(device: SimulatedRuntime) -> None:
    """Where the driver takes small moves without a chunk of ours, the values are there on return all the same."""
    device.captured_bytes = 1 << 16
    assert np.array_equal(from_tensor(late(numbers())).to_host(pinned=False).array, numbers())


@pytest.mark.parametrize("after", [0, 1])
def test_no_chunk_is_reused_under_a_failed_move(device: SimulatedRuntime, after: int) -> None:
    """A copy that was enqueued when recording failed is waited for before its chunk goes to somebody else."""
    values = np.arange(800 * 700, dtype=np.float32).reshape(800, 700)
    from_tensor(late(values)).to_host(pinned=False)
    m = from_tensor(late(values))
    device.fail("record", DeviceUnavailableError("lost"), after=after)
    with pytest.raises(DeviceUnavailableError, match="lost"):
        m.to_host(pinned=False)
    next_users = [default_arena().empty(1 << 18, np.uint8) for _ in range(64)]
    for block in next_users:
        block.fill(9)
    device.quiesce()
    assert {int(block.min()) for block in next_users} | {int(block.max()) for block in next_users} == {9}


def test_a_dropped_transfer_fills_what_the_caller_keeps(device: SimulatedRuntime) -> None:
    """The source's memory is kept for the stream that reads it, although another one owns it."""
    x, out = late(numbers()), default_arena().empty((7, 5), np.float32)
    owner, side = lateframe.current_stream(), lateframe.new_stream()
    lateframe.order(owner, side, 0)
    device.launch(lambda: None, ordinal=0, stream=side, ticks=50)
    with lateframe.stream(side):
        from_tensor(x).to_host(out=out, non_blocking=True)
    del x
    device.stream_synchronize(owner, 0)
    device.stream_synchronize(side, 0)
    assert np.array_equal(out, numbers())


def test_a_dropped_transfer_leaves_nothing(device: SimulatedRuntime) -> None:
    """Nobody waits for it, and its event, its block and the source's memory come back: the fixture looks."""
    for _ in range(20):
        from_tensor(late(numbers(40, 40))).to_host(non_blocking=True)


def test_to_host_on_a_named_stream(device: SimulatedRuntime) -> None:
    """The device is read there, after what the source's current stream holds, and the memory is kept until then."""
    side = lateframe.new_stream()
    device.launch(lambda: None, ordinal=0, stream=side, ticks=50)
    x = late(numbers())
    moved = from_tensor(x).to_host(stream=side, non_blocking=True)
    del x
    lateframe.fill_late(lateframe.empty((7, 5)), -1)
    assert np.array_equal(moved.result().array, numbers())


# To a device -------------------------------------------------------------------------------------------
SOURCES: dict[str, Callable[[np.ndarray], Any]] = {
    "rows": lambda a: a.copy(),
    "Fortran order": np.asfortranarray,
    "backwards": lambda a: a[::-1, ::-1].copy()[::-1, ::-1],
    "byte order": lambda a: a.astype(a.dtype.newbyteorder()),
    "read-only": lambda a: np.frombuffer(a.tobytes(), a.dtype).reshape(a.shape),
}


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("kind", SOURCES)
def test_to_device(device: SimulatedRuntime, kind: str, framework: str) -> None:
    """The values of the call arrive although the source changes right after it."""
    source = SOURCES[kind](numbers())
    m = from_tensor(source).to_device("ext:1", framework=framework)
    if source.flags.writeable:
        source[...] = -1
    assert (m.device, m.framework, m.dtype) == ("ext:1", framework, np.float32)
    assert np.array_equal(m.array.numpy(), numbers())


def test_to_device_of_pending_values(device: SimulatedRuntime) -> None:
    """Masked entries are filled, lists become arrays; dtypes are converted on the way."""
    masked = np.ma.masked_equal(numbers(), 3.0)
    filled = convert(masked.filled(0), "lateframe", dtype="int16")
    assert filled.numpy().tolist() == masked.filled(0).astype(int).tolist()
    assert from_tensor(masked, fill=9, device="ext:0", framework="lateframe").array.numpy()[0, 2] == 9
    assert convert([[1.0, 2.0]], "strictframe", device="ext:1", dtype="float32").numpy().tolist() == [[1.0, 2.0]]


def test_to_device_in_chunks(device: SimulatedRuntime) -> None:
    """More than a chunk, dense and transposed, into memory that queued work still uses."""
    values = np.arange(900_000, dtype=np.int32).reshape(3000, 300)
    for source in (values.copy(), values.T.copy().T):
        lateframe.fill_late(lateframe.empty(values.shape, np.int32), 5)  # freed at once, used late
        m = from_tensor(source).to_device("ext:0", framework="lateframe")
        source[...] = 0
        assert np.array_equal(m.array.numpy(), values)


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("room", [True, False], ids=["room for both", "room for one"])
def test_columns_become_rows_on_the_device(
    device: SimulatedRuntime, monkeypatch: pytest.MonkeyPatch, framework: str, room: bool
) -> None:
    """Where it has room for both, else while they are sent; the source may change at once, one copy is counted."""
    monkeypatch.setattr("matrix_interop.exchange.moves._TURNED", 1)
    if not room:
        monkeypatch.setattr(device, "memory_info", lambda _: (5000, 1 << 30))
    source = np.asfortranarray(numbers(40, 30).astype(np.float64))
    with track_copies() as copies:
        x = from_tensor(source, device="ext:0", framework=framework, order="C", dtype="float32")
        source[...] = 0
    assert [copy.nbytes for copy in copies] == [40 * 30 * 4]
    assert (x.order, x.strides) == ("C", (120, 4))
    assert np.array_equal(x.array.numpy(), numbers(40, 30))


def test_columns_that_cannot_become_rows_on_the_device(
    device: SimulatedRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A framework may have less room than its device: then rows are sent."""

    def full(*_: Any) -> Any:
        raise MemoryError("full")

    monkeypatch.setattr("matrix_interop.exchange.moves._TURNED", 1)
    monkeypatch.setattr(LateframeFramework, "copy", full)
    x = convert(np.asfortranarray(numbers(40, 30)), "lateframe", device="ext:0", order="C")
    assert (x.strides, x.numpy().tolist()) == ((120, 4), numbers(40, 30).tolist())


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_to_device_on_a_named_stream(device: SimulatedRuntime, framework: str) -> None:
    """The new memory is ready on the stream where the caller will use it."""
    side = lateframe.new_stream()
    x = convert(numbers(), framework, device="ext:0", stream=side)
    assert read_on(device, side, x) == numbers().tolist()


def read_on(device: SimulatedRuntime, stream: int, x: lateframe.Array) -> Any:
    """What a kernel of ``stream`` sees in dense ``x``."""
    out = np.empty(x.shape, x.dtype)
    bare = x.bare()
    device.launch(lambda: np.copyto(out, bare.values()), ordinal=x.ordinal, stream=stream)
    device.stream_synchronize(stream, x.ordinal)
    return out.tolist()


# From device to device -----------------------------------------------------------------------------------
@pytest.mark.parametrize("framework", FRAMEWORKS)
@layouts
def test_peer_copy(device: SimulatedRuntime, layout: str, framework: str) -> None:
    """Slow work of both devices is waited for, whichever is current; the source may change or die after the call."""
    cut = LAYOUTS[layout]
    with lateframe.device(1):
        x = late(numbers(), ordinal=0)
        lateframe.fill_late(lateframe.empty(cut(numbers()).shape, device=1), 7)  # its memory comes next, used late
        moved = from_tensor(cut(x)).to_device("ext:1", framework=framework)
        device.stream_synchronize(lateframe.current_stream(0), 0)  # the source's side may well be done first
        lateframe.fill_late(x, -1)
        del x
        assert (moved.device, moved.framework) == ("ext:1", framework)
        assert np.array_equal(moved.array.numpy(), cut(numbers()))


def test_peer_copy_converts(device: SimulatedRuntime) -> None:
    """The source's device packs and converts before the bytes go."""
    moved = convert(late(numbers()), "lateframe", device="ext:1", dtype="float64", order="F")
    assert (moved.strides, moved.numpy().tolist()) == ((8, 56), numbers().tolist())


# Between frameworks --------------------------------------------------------------------------------------
@pytest.mark.parametrize("ordinal", [0, 1])
def test_sharing_is_ordered_both_ways(device: SimulatedRuntime, ordinal: int) -> None:
    """The consumer's next operation sees what the producer queued before the call; the pointer is the same."""
    x = late(numbers(), ordinal)
    there = from_tensor(x).to_tensor("strictframe")
    assert (there.pointer, there.numpy().tolist()) == (x.pointer, numbers().tolist())
    with strict_stream(ordinal):
        lateframe.fill_late(there, 4)
    back = from_tensor(there).to_tensor("lateframe")
    assert (back.pointer, back.numpy().tolist()) == (x.pointer, np.full((7, 5), 4).tolist())


def test_each_export_is_ordered_anew(device: SimulatedRuntime) -> None:
    """One matrix handed on twice: the second time with what its framework queued since."""
    x = late(numbers())
    m = from_tensor(x)
    m.to_tensor("strictframe")
    lateframe.fill_late(x, 6)
    assert set(m.to_tensor("strictframe").numpy().ravel()) == {6}


@pytest.mark.parametrize("form", [int, "object", "__cuda_stream__"])
def test_stream_of_the_consumer(device: SimulatedRuntime, form: Any) -> None:
    """``stream=`` names where the result will be used: a handle, or an object that knows its own."""
    side = lateframe.new_stream()

    class Stream:
        ptr = side

    class Newer:
        def __cuda_stream__(self) -> tuple[int, int]:
            return 0, side

    stream = {int: side, "object": Stream(), "__cuda_stream__": Newer()}[form]
    for framework in FRAMEWORKS:
        assert read_on(device, side, convert(late(numbers()), framework, stream=stream)) == numbers().tolist()


def test_one_stream_or_none_needs_no_event(device: SimulatedRuntime) -> None:
    """Where both sides use one stream, or the caller wants no order, no event is recorded."""
    StrictFramework.streams[0] = lateframe.current_stream(0)
    m = from_tensor(late(numbers()))
    before = device.calls["record"]
    m.to_tensor("strictframe")
    m.to_tensor("strictframe", stream=-1)
    m.to_tensor("lateframe", stream=-1)
    m.to_tensor("lateframe")
    assert device.calls["record"] == before


@pytest.mark.parametrize("stream", [0, -2, "1", 1.0, True])
def test_what_is_no_stream_is_refused(device: SimulatedRuntime, stream: Any) -> None:
    """0 has meant two different streams; other things are none."""
    m = from_tensor(late(numbers()))
    with pytest.raises((ValueError, TypeError), match="stream"):
        m.to_tensor("strictframe", stream=stream)


@pytest.mark.parametrize("layout", ["whole", "rows", "one row"])
def test_shared_memory_outlives_its_source(device: SimulatedRuntime, layout: str) -> None:
    """The source's allocator hears of the consumer's stream, also through a slice: memory is not reused under it."""
    x = late(numbers())
    there = LAYOUTS[layout](from_tensor(x)).to_tensor("strictframe")
    bare, out = there.bare(), np.empty(there.shape, there.dtype)
    device.launch(lambda: None, ordinal=0, stream=StrictFramework.streams[0], ticks=50)
    device.launch(lambda: np.copyto(out, bare.values()), ordinal=0, stream=StrictFramework.streams[0])
    del x, there
    lateframe.fill_late(lateframe.empty((7, 5)), -1)
    device.stream_synchronize(lateframe.current_stream(), 0)
    device.stream_synchronize(StrictFramework.streams[0], 0)
    assert np.array_equal(out, LAYOUTS[layout](numbers()))


@layouts
def test_what_cannot_be_shared_is_copied_once(device: SimulatedRuntime, layout: str) -> None:
    """As plan() says, and refused where copies are forbidden, before anything is queued."""
    cut = LAYOUTS[layout]
    m = from_tensor(cut(late(numbers())))
    announced = m.plan("strictframe")
    with track_copies() as log:
        there = m.to_tensor("strictframe")
    assert there.numpy().tolist() == cut(numbers()).tolist()
    assert (len(log), log.nbytes) == ((0, 0) if announced.zero_copy else (1, announced.nbytes))
    assert announced.zero_copy == cut(numbers()).flags.c_contiguous
    if not announced.zero_copy:
        work = device.calls.total()
        with forbid_copies(), pytest.raises(CopyRequiredError) as caught:
            m.to_tensor("strictframe")
        assert caught.value.plan == announced
        assert device.calls.total() == work


# Computing on a device -----------------------------------------------------------------------------------
@pytest.mark.parametrize("framework", FRAMEWORKS)
@layouts
def test_new_matrices_of_a_matrix(device: SimulatedRuntime, layout: str, framework: str) -> None:
    """astype, contiguous, take and normalized: the values that NumPy computes, in the matrix's framework and device."""
    cut, m = LAYOUTS[layout], from_tensor(late(numbers(), 1))
    if framework == "strictframe":  # it has dense rows only, of which a matrix can be cut along its rows
        m = m.to_tensor(framework, copy=True)
        m = from_tensor(m).T if layout == "transposed" else from_tensor(m)
        cut = (lambda x: x) if layout in {"transposed", "columns", "columns backwards", "both"} else cut
    else:
        m = m.array
    m = from_tensor(cut(m))
    values = cut(numbers().T if (framework, layout) == ("strictframe", "transposed") else numbers())
    indices = [0, 0, len(values) - 1] if len(values) else np.empty(0, int)
    made = {
        "astype": (m.astype("float64"), values.astype(np.float64)),
        "contiguous": (m.contiguous(copy=True), values),
        "take": (m.take(indices), values[indices]),
    }
    for name, (matrix, expected) in made.items():
        assert (matrix.framework, matrix.device) == (framework, "ext:1"), name
        assert np.array_equal(matrix.array.numpy(), expected), name
    unit, norms = m.normalized(return_norms=True)
    assert np.allclose(norms.numpy(), np.linalg.norm(values, axis=1))
    assert np.allclose(unit.array.numpy(), values / np.linalg.norm(values, axis=1, keepdims=True))


def test_take_by_device_indices(device: SimulatedRuntime) -> None:
    """Indices may be computed late on a device too; one that does not exist is refused. Rows named are asked for."""
    m = from_tensor(late(numbers()))
    with forbid_copies():
        for indices in (late(np.array([6, 0, 6])), [6, 0, 6]):
            assert np.array_equal(m.take(indices).array.numpy(), numbers()[[6, 0, 6]])
    with pytest.raises(IndexError, match="7 rows"):
        m.take(late(np.array([0, 7])))


def test_fortran_order_on_a_device(device: SimulatedRuntime) -> None:
    """contiguous("F") and the way there and back keep the order."""
    m = from_tensor(late(numbers())).contiguous("F")
    assert (m.order, np.array_equal(m.array.numpy(), numbers())) == ("F", True)
    host = m.to_host()
    assert (host.order, np.array_equal(host.array, numbers())) == ("F", True)
    assert host.to_device("ext:1", framework="lateframe").order == "F"


@layouts
def test_memory_whose_producer_named_a_stream(device: SimulatedRuntime, layout: str) -> None:
    """What an object known by protocol wrote on its own stream is waited for, whoever reads, copies or packs it."""
    cut = LAYOUTS["stepped" if layout in {"columns", "columns backwards", "both"} else layout]

    def matrix() -> Any:
        view = TensorView(late(numbers()))
        named = TensorView.of(view.header, "strictframe", None, view.device, stream=lateframe.current_stream())
        m = from_tensor(named)
        return m.T if layout == "transposed" else cut(m)

    assert np.array_equal(matrix().to_host().array, cut(numbers()))
    assert np.array_equal(matrix().to_tensor("strictframe").numpy(), cut(numbers()))
    assert np.array_equal(matrix().to_device("ext:1").array.numpy(), cut(numbers()))


# Plans ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("layout", ["whole", "transposed", "stepped", "both", "empty"])
@pytest.mark.parametrize("dtype", [None, "float64", "float16"])
@pytest.mark.parametrize(
    "target", [("numpy", None), ("lateframe", "ext:0"), ("lateframe", "ext:1"), ("strictframe", "ext:1")]
)
def test_plan_and_deed_agree(device: SimulatedRuntime, layout: str, dtype: Any, target: Any) -> None:
    """Bytes, number of steps and refusals of every move and copy are those announced."""
    x = LAYOUTS[layout](late(numbers()))
    framework, place = target
    announced = plan(x, framework, device=place, dtype=dtype)
    with track_copies() as log:
        made = convert(x, framework, device=place, dtype=dtype)
    steps = [step.nbytes for step in announced.steps if step.action != "share"]
    assert [record.nbytes for record in log] == steps
    host = made if framework == "numpy" else made.numpy()
    assert np.array_equal(host, LAYOUTS[layout](numbers()).astype(dtype or np.float32))
    if steps:
        with pytest.raises(CopyRequiredError) as caught:
            convert(x, framework, device=place, dtype=dtype, copy=False)
        assert caught.value.plan == announced


# Pickling ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
@layouts
def test_pickling_carries_host_bytes(device: SimulatedRuntime, layout: str, protocol: int) -> None:
    """A slow kernel is waited for; only the matrix's own rows travel."""
    cut = LAYOUTS[layout]
    text = pickle.dumps((from_tensor(cut(late(numbers(70)))), 1), protocol)
    back, _ = pickle.loads(text)
    assert (back.device, np.array_equal(back.array, cut(numbers(70)))) == ("cpu", True)
    assert len(text) < cut(numbers(70)).nbytes + 600


# Refusals and failures -------------------------------------------------------------------------------------
def test_devices_that_are_not_there(device: SimulatedRuntime) -> None:
    """The message lists those that are."""
    m = from_tensor(late(numbers()))
    for call in (
        lambda: m.to_device("ext:2"),
        lambda: from_tensor(numbers()).to_device("ext:7", framework="lateframe"),
        lambda: m.plan("lateframe", device="ext:2"),
    ):
        with pytest.raises(DeviceUnavailableError, match="ext:0, ext:1"):
            call()
    with pytest.raises(DeviceUnavailableError, match="lateframe has tensors on ext only"):
        m.to_device("cuda:0", framework="lateframe")


def test_out_that_does_not_fit(device: SimulatedRuntime) -> None:
    """Another shape, another place and read-only memory are refused before anything moves."""
    m, before = from_tensor(late(numbers())), device.calls["copy"]
    frozen = np.zeros((7, 5), np.float32)
    frozen.flags.writeable = False
    for out, error in (
        (np.zeros((5, 7)), UnsupportedLayoutError),
        (lateframe.empty((7, 5)), UnsupportedLayoutError),
        (frozen, CopyRequiredError),
    ):
        with pytest.raises(error, match="out"):
            m.to_host(out=out)
    with pytest.raises(CopyRequiredError, match="copy=False"):
        m.to_host(copy=False)
    assert device.calls["copy"] == before


def moved(source: Any, ordinal: int) -> np.ndarray:
    """There, and read back by the framework."""
    return from_tensor(source).to_device(f"ext:{ordinal}", framework="lateframe").array.numpy()


OPERATIONS: dict[str, Callable[[Any], np.ndarray]] = {
    "to_host": lambda x: from_tensor(x).to_host().array,
    "to_host, early": lambda x: from_tensor(x).to_host(non_blocking=True).result().array,
    "to_host, early, ordinary": lambda x: from_tensor(x).to_host(non_blocking=True, pinned=False).result().array,
    "to_host, strided": lambda x: from_tensor(x).T.to_host(pinned=False).array.T,
    "to_device": lambda x: moved(numbers(), 0),
    "peer": lambda x: moved(x, 1),
    "share": lambda x: convert(x, "strictframe").numpy(),
    "pack": lambda x: from_tensor(convert(x, "strictframe"))[::-1].contiguous().array.numpy()[::-1],
    "export": lambda x: lateframe.from_dlpack(from_tensor(x)).numpy(),
}
CALLS = ("record", "wait", "copy", "copy_rows", "copy_peer", "device_alloc", "synchronize", "query", "host_register")


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("error", [DeviceUnavailableError, MemoryError])
@pytest.mark.filterwarnings("ignore:pinned memory is refused")
def test_a_call_that_fails(operation: str, call: str, error: type[Exception]) -> None:
    """Its error comes through or nobody needed the call; nothing is lost, and the next try is right."""
    run = OPERATIONS[operation]
    for after in range(3):
        with exchange_on(after) as device, lateframe.stream(lateframe.new_stream(), 0):
            x = late(numbers())
            device.fail(call, error("lost"), after=after)
            try:
                run(x)
            except (DeviceUnavailableError, MemoryError, BufferError) as caught:
                assert "lost" in str(caught)  # noqa: PT017 - not every operation makes every call
            device._faults.clear()
            assert np.array_equal(run(x), numbers())


def test_out_of_device_memory() -> None:
    """MemoryError says so, and the device goes on working."""
    with exchange_on(0, device_bytes=1 << 20):
        m = from_tensor(np.zeros((1000, 1000), np.float32))
        with pytest.raises(MemoryError):
            m.to_device("ext:0", framework="lateframe")
        assert np.array_equal(convert(numbers(), "lateframe").numpy(), numbers())


def test_accounting_stays_flat(device: SimulatedRuntime) -> None:
    """A thousand exchanges of each kind: no event, no block and no array more than after ten."""

    def exchange() -> None:
        m = from_tensor(x)
        m.to_tensor("strictframe")
        m.to_host()
        m.to_device("ext:1")

    x = late(numbers())
    for _ in range(10):
        exchange()
    device.quiesce()
    before = len(device._events), len(device._allocations)
    for _ in range(100):
        exchange()
        device.quiesce()
    assert (len(device._events), len(device._allocations)) == before


def test_entries_that_lie_apart_in_rows_that_lie_apart(device: SimulatedRuntime) -> None:
    """A framework of dense rows cannot read them, and the device copies rows only: refused with what to do."""
    x = StrictFramework().copy(late(numbers()), np.dtype(np.float32), "C")
    with pytest.raises(UnsupportedLayoutError, match=r"dense rows only; copy it there first"):
        convert(TensorView.of(TensorView(x).header[::2, ::2], "strictframe", None, TensorView(x).device), copy=True)
