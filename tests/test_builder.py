"""`MatrixBuilder`: rows from anywhere, where they belong, or refused before anything is added."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from matrix_interop import MatrixBuilder, forbid_copies, from_tensor
from matrix_interop.errors import ClosedError, DeviceUnavailableError, UnsupportedDtypeError, UnsupportedLayoutError
from matrix_interop.frameworks.registry import Framework
from matrix_interop.io import open_rows
from matrix_interop.memory import Region
from simulated import lateframe
from simulated.adapter import LateframeFramework, device_with_arena
from simulated.runtime import SimulatedRuntime
from simulated.unserved import unserved_device

PLACES: list[dict[str, Any]] = [
    {},
    {"capacity": 500},
    {"device": "ext:0"},
    {"device": "ext:1", "capacity": 300},
    {"device": "ext:0", "capacity": 500, "check": "finite"},
    {"check": "finite"},
]


@pytest.fixture(params=range(4))
def device(request: pytest.FixtureRequest) -> Iterator[SimulatedRuntime]:
    """A fresh device for each seed, and an arena over its pinned memory."""
    with device_with_arena(request.param) as runtime:
        yield runtime


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of 64 rows, so that a few hundred fill several."""
    monkeypatch.setattr("matrix_interop.builder._BLOCK", 64 * 64)


def numbers(rows: int = 300) -> np.ndarray:
    """(rows, 16) values that are all different."""
    return np.arange(rows * 16, dtype=np.float32).reshape(rows, 16)


def values(builder: MatrixBuilder) -> list[list[float]]:
    """What the finished matrix holds."""
    return np.asarray(builder.finish().to_host()).tolist()  # type: ignore[no-any-return]


@pytest.mark.parametrize("place", PLACES, ids=str)
def test_rows_from_everywhere(device: SimulatedRuntime, tmp_path: Path, place: dict[str, Any]) -> None:
    """Arrays, lists, generators, files, other types and devices, one by one and in bulk, come out in order."""
    a = numbers()
    np.save(tmp_path / "a.npy", a[150:170])
    builder = MatrixBuilder(16, **place)
    buffer = np.empty(16, np.float32)
    for row in a[:70]:
        buffer[:] = row
        builder.append(buffer)
    buffer[:] = -1
    builder.append(a[70].tolist())
    builder.append(from_tensor(a[71:72]).to_device("ext:0")[0])
    builder.extend(a[72:100])
    builder.extend(a[100:110].tolist())
    builder.extend(list(a[110:120]))
    builder.extend(row for row in a[120:130])
    builder.extend(iter([a[130:140], a[140].tolist(), a[141:150]]))
    with open_rows(tmp_path / "a.npy") as source:
        builder.extend(source)
    builder.extend(from_tensor(a[170:180].astype(np.float16)))
    builder.extend(np.asfortranarray(a[180:200])[::-1][::-1])
    builder.extend(from_tensor(a[200:290]).to_device("ext:1"))
    builder.extend(np.empty((0, 16), np.float32))
    builder.extend([])
    builder.extend(from_tensor(a[290:300]).to_device("ext:0").T.T)
    assert (len(builder), builder.shape) == (300, (300, 16))
    made = builder.finish()
    a[170:180] = a[170:180].astype(np.float16)
    assert (made.shape, str(made.device), made.dtype) == ((300, 16), place.get("device", "cpu"), np.float32)
    assert np.asarray(made.to_host()).tolist() == a.tolist()


def test_the_source_may_change_at_once(device: SimulatedRuntime) -> None:
    """What was added is what it was at the call, on a slow device too."""
    builder = MatrixBuilder(16, device="ext:0", capacity=640)
    block = np.empty((128, 16), np.float32)
    for number in range(5):
        block.fill(number)
        builder.extend(block)
    block.fill(-1)
    assert [row[0] for row in values(builder)] == [float(number) for number in range(5) for _ in range(128)]


def test_rows_that_the_device_still_reads_are_left_alone(device: SimulatedRuntime) -> None:
    """Two buffers take turns: each is filled again once the device has read it, however late that is."""
    builder = MatrixBuilder(16, device="ext:0", capacity=640)
    device.launch(lambda: None, ordinal=0, stream=lateframe.current_stream(0), ticks=200)
    for row in numbers(640):
        builder.append(row)
    assert values(builder) == numbers(640).tolist()


def test_device_rows_come_after_the_kernels_that_make_them(device: SimulatedRuntime) -> None:
    """Rows of a device tensor are those that its stream leaves; its memory may be reused at once."""
    builder = MatrixBuilder(16, device="ext:0", capacity=400)
    side = lateframe.new_stream(0)
    for number in range(4):
        with lateframe.stream(side, 0):
            x = lateframe.empty((100, 16))
            lateframe.fill_late(x, number)
            builder.extend(x)
            del x
    assert [row[0] for row in values(builder)] == [float(number) for number in range(4) for _ in range(100)]


def test_the_matrix_is_ready_on_the_stream_of_finish(device: SimulatedRuntime) -> None:
    """Another current stream at the end than at the start changes nothing."""
    builder = MatrixBuilder(16, device="ext:0", capacity=300)
    builder.extend(numbers())
    with lateframe.stream(lateframe.new_stream(0), 0):
        made = builder.finish()
        total = lateframe.sum(made.array)
        assert float(total.numpy()) == float(numbers().sum(dtype=np.float32))


def test_rows_go_to_memory_that_nobody_uses_any_more(device: SimulatedRuntime) -> None:
    """What is taken on another current stream than the builder's may still be written there, as memory freed late."""
    builder, side = MatrixBuilder(16, device="ext:0"), lateframe.new_stream(0)
    from_tensor(numbers()).to_device(
        "ext:0"
    )  # the first one has the arena try its memory, which waits for all there is
    with lateframe.stream(side, 0):
        lateframe.fill_late(lateframe.empty((300, 16)), -1)  # freed at once, used late, and taken next
        builder.extend(numbers())
    device.run_all_but(side)
    device.quiesce()
    assert values(builder) == numbers().tolist()


def test_memory_is_held_until_it_is_written(device: SimulatedRuntime) -> None:
    """A builder that is dropped may still be sending rows, to memory that goes back to another stream."""
    builder, own = MatrixBuilder(16, device="ext:0"), lateframe.current_stream(0)
    with lateframe.stream(lateframe.new_stream(0), 0):
        for _ in range(3):
            builder.extend(numbers(100))
        device.quiesce()
        device.launch(lambda: None, ordinal=0, stream=own, ticks=200)
        for row in numbers(65):  # one more than the buffer takes, and no more than the memory
            builder.append(row)
        del builder
        taken = lateframe.fill_late(lateframe.empty((400, 16)), 7)
        device.run_all_but(own)
        device.quiesce()
        assert {value for row in taken.numpy().tolist() for value in row} == {7.0}


def test_the_matrix_is_held_until_the_stream_of_finish_has_read_it(device: SimulatedRuntime) -> None:
    """Its memory goes back to the stream that was current when it was taken."""
    builder, side = MatrixBuilder(16, device="ext:0", capacity=300), lateframe.new_stream(0)
    builder.extend(numbers())
    with lateframe.stream(side, 0):
        made = builder.finish()
        total = lateframe.empty((300, 16))
        lateframe.copy_late(total, made.array)
        del made
        device.run_all_but(side)
        assert total.numpy().tolist() == numbers().tolist()


def test_memory_that_became_too_small_is_read_before_it_goes_back(
    device: SimulatedRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes back to the stream that was current when it was taken, where others may write it at once.

    Not every framework can be told that another one reads it.
    """
    monkeypatch.setattr(LateframeFramework, "keep_until", Framework.keep_until)
    builder, own = MatrixBuilder(16, device="ext:0"), lateframe.current_stream(0)
    with lateframe.stream(lateframe.new_stream(0), 0):
        builder.extend(numbers()[:100])
        device.quiesce()
        device.launch(lambda: None, ordinal=0, stream=own, ticks=50)
        builder.extend(numbers()[100:])
    device.run_all_but(own)
    assert values(builder) == numbers().tolist()


def test_pages_of_the_host_beyond_the_end_go_back() -> None:
    """What was fetched ahead of the rows is given back at the end, and all of the address space."""
    builder = MatrixBuilder(1024)
    builder.append(np.ones(1024, np.float32))
    rows = weakref.ref(builder._rows)
    made = builder.finish().array
    memory = made.base
    assert (float(made.sum()), memoryview(memory).nbytes < 4 << 20, rows()) == (1024.0, True, None)


def test_few_rows_take_few_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many are fetched ahead as there are rows, so that many small builders fit."""
    touched: list[int] = []
    monkeypatch.setattr(Region, "touch", lambda self, nbytes: touched.append(nbytes >> 20))
    builder = MatrixBuilder(1 << 18)  # 1 MiB a row
    for _ in range(100):
        builder.append(np.zeros(1 << 18, np.float32))
    assert touched == [3, 8, 18, 38, 71, 104]


def test_host_rows_stay_where_they_are_written() -> None:
    """Growing does not move them."""
    builder = MatrixBuilder(4096, capacity=None)
    row = np.ones(4096, np.float32)
    builder.append(row)
    address = builder._rows.ctypes.data
    for _ in range(3000):
        builder.append(row)
    assert builder._rows.ctypes.data == address
    made = np.asarray(builder.finish())
    assert (made.shape, float(made.min()), float(made.max())) == ((3001, 4096), 1.0, 1.0)


@pytest.mark.parametrize("place", [{}, {"device": "ext:0"}, {"device": "ext:0", "capacity": 10}], ids=str)
@pytest.mark.parametrize(
    ("rows", "error", "match"),
    [
        (np.zeros((2, 15), np.float32), UnsupportedLayoutError, r"shape \(n, 16\) is needed"),
        (np.zeros(16, np.float32), UnsupportedLayoutError, r"shape \(n, 16\) is needed"),
        (np.zeros((2, 16)), UnsupportedDtypeError, "would lose values as float32"),
        (np.zeros((2, 16), np.int64), UnsupportedDtypeError, "would lose values as float32"),
        ([np.zeros(16, np.float32), np.zeros(15, np.float32)], UnsupportedLayoutError, "row 1: .* does not fit"),
        ([[1.0] * 16, [1.0] * 15], UnsupportedLayoutError, "several lengths"),
        ([[1e300] * 16], UnsupportedDtypeError, r"1e\+300, which float32 cannot hold"),
        ([["a"] * 16], UnsupportedDtypeError, "no numbers"),
    ],
    ids=range(8),
)
def test_refused_before_anything_is_added(
    device: SimulatedRuntime, place: dict[str, Any], rows: Any, error: type[Exception], match: str
) -> None:
    """The builder is as it was, and goes on."""
    builder = MatrixBuilder(16, **place)
    builder.append(numbers()[0])
    with pytest.raises(error, match=match):
        builder.extend(rows)
    with pytest.raises((UnsupportedLayoutError, UnsupportedDtypeError)):
        builder.append(np.zeros(15, np.float32))
    builder.append(numbers()[1])
    assert values(builder) == numbers(2).tolist()


@pytest.mark.parametrize("where", ["cpu", "ext:0"])
def test_more_rows_than_declared(device: SimulatedRuntime, where: str) -> None:
    """They are refused; fewer give just those."""
    builder = MatrixBuilder(16, capacity=5, device=where)
    builder.extend(numbers(4))
    with pytest.raises(UnsupportedLayoutError, match="2 rows more than the 4 that are there exceed capacity=5"):
        builder.extend(numbers(2))
    assert values(builder) == numbers(4).tolist()


@pytest.mark.parametrize("place", PLACES[4:], ids=str)
def test_rows_that_are_not_finite(device: SimulatedRuntime, place: dict[str, Any]) -> None:
    """They are named by number; the block they came in is not kept, and the rest is."""
    a = numbers()
    a[[70, 99], 3] = np.nan, np.inf
    builder = MatrixBuilder(16, **place)
    builder.extend(a[:64])
    with pytest.raises(ValueError, match="2 of the rows 64 to 103, namely 70, 99"):
        builder.extend(a[64:104])
    with pytest.raises(ValueError, match=r"1 of the rows 64 to 1\d\d, namely 70"):
        builder.extend(from_tensor(np.concatenate([a[64:99], a[100:165]])).to_device("ext:0"))
    assert len(builder) == 64
    for row in a[64:80]:
        builder.append(row)
    with pytest.raises(ValueError, match="1 of the rows 64 to 79, namely 70"):
        builder.finish()
    builder.extend(a[100:110])
    assert values(builder) == np.concatenate([a[:64], a[100:110]]).tolist()


def test_appended_rows_are_checked_by_the_block(device: SimulatedRuntime) -> None:
    """Not each by itself, but before many more come."""
    builder = MatrixBuilder(16, check="finite")
    bad = np.full(16, np.nan, np.float32)
    for _ in range(64):
        builder.append(bad)
    with pytest.raises(ValueError, match="64 of the rows 0 to 63"):
        builder.append(bad)
    assert len(builder) == 0


def test_finish_may_fail(device: SimulatedRuntime) -> None:
    """The builder is open then, and holds what it held: another attempt gives the matrix."""
    for name in ("record", "wait"):
        for calls in range(3):
            builder = MatrixBuilder(16, device="ext:0")
            builder.extend(iter(numbers(100)))
            with lateframe.stream(lateframe.new_stream(0), 0):
                device.fail(name, DeviceUnavailableError("the cable is out"), after=calls)
                try:
                    made = builder.finish()
                except DeviceUnavailableError:
                    assert len(builder) == 100
                    made = builder.finish()
                device._faults.clear()
                assert np.asarray(made.to_host()).tolist() == numbers(100).tolist()


def test_a_device_that_is_nearly_full(device: SimulatedRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where twice the memory is not there, less is taken; where none is, the rows stay, and more may come later."""
    whole, asked, most = LateframeFramework.empty, [], 700

    def limited(self: Any, shape: tuple[int, ...], *where: Any) -> Any:
        asked.append(shape[0])
        if shape[0] > most:
            raise MemoryError("full")
        return whole(self, shape, *where)

    monkeypatch.setattr(LateframeFramework, "empty", limited)
    builder = MatrixBuilder(16, device="ext:0")
    for count in (400, 20, 200):
        builder.extend(iter([numbers(1000)[len(builder) : len(builder) + count]]))
    assert asked == [0, 400, 800, 450, 900, 620]
    with pytest.raises(MemoryError, match="full"):
        builder.extend(numbers(100))
    builder.append(numbers(1000)[620])
    most = 620
    with pytest.raises(MemoryError, match="full"):
        builder.finish()
    most = 1000
    assert values(builder) == numbers(621).tolist()


def test_a_device_without_a_runtime() -> None:
    """Its framework takes the whole matrix in the end."""
    with unserved_device() as there:
        builder = MatrixBuilder(16, device=there)
        builder.extend(numbers(90))
        builder.extend(from_tensor(numbers()[90:]).to_device(there))
        made = builder.finish()
        assert (made.device, made.framework) == (there, "unserved")
        assert np.asarray(made.to_host()).tolist() == numbers().tolist()


@pytest.mark.parametrize("where", ["cpu", "ext:0"])
@pytest.mark.parametrize("count", [10, 200])
def test_rows_are_asked_for(device: SimulatedRuntime, where: str, count: int) -> None:
    """So `forbid_copies` has nothing against their copies, however many there are and wherever they come from."""
    torch = pytest.importorskip("torch")
    builder = MatrixBuilder(16, dtype="complex64", device=where)
    turned = torch.from_numpy(numbers(1).astype(np.complex64)).conj()
    with forbid_copies():
        for x in (numbers(200).astype(np.float16), numbers(400)[::2]):
            for there in ("ext:0", "ext:1"):
                builder.extend(from_tensor(x[:count]).to_device(there)[::2])
        builder.extend(turned.expand(count, 16))
        builder.append(turned[0])
        assert len(builder.finish()) == 3 * count + 1


@pytest.mark.parametrize("where", ["cpu", "ext:0"])
def test_closed_after_finish(device: SimulatedRuntime, where: str) -> None:
    """Every later use is refused; the matrix and the counts stay."""
    builder = MatrixBuilder(16, device=where)
    row = numbers()[0]
    builder.append(row)
    made = builder.finish()
    for use in (lambda: builder.append(row), lambda: builder.extend([row]), builder.finish):
        with pytest.raises(ClosedError, match="takes no more rows"):
            use()
    assert (len(builder), len(made)) == (1, 1)
    assert repr(builder).endswith("finished>")


def test_types() -> None:
    """Integers, bfloat16, big-endian arrays and torch come in where nothing is lost."""
    torch = pytest.importorskip("torch")
    builder = MatrixBuilder(2, dtype="int64", framework="torch")
    builder.append(np.array([1, 2], np.uint8))
    builder.append(np.array([3, 4], ">i4"))
    builder.append([5, 6])
    builder.extend(torch.tensor([[7, 8]]))
    made = builder.finish()
    assert (type(made.array), made.array.tolist()) == (torch.Tensor, [[1, 2], [3, 4], [5, 6], [7, 8]])
    small = MatrixBuilder(2, dtype="bfloat16")
    small.append([1.5, 2.5])
    assert small.finish().dtype == ml_dtypes.bfloat16
    pairs = MatrixBuilder(1, dtype="complex64")
    pairs.append([0.1j])
    assert pairs.finish().array[0, 0] == np.complex64(0.1j)
    with pytest.raises(UnsupportedDtypeError, match=r"2\.5, which int64 cannot hold"):
        MatrixBuilder(2, dtype="int64").append([1, 2.5])


def test_no_rows_and_no_columns(device: SimulatedRuntime) -> None:
    """Empty matrices have their shape."""
    assert MatrixBuilder(16).finish().shape == (0, 16)
    assert MatrixBuilder(16, device="ext:0").finish().shape == (0, 16)
    flat = MatrixBuilder(0)
    flat.extend(np.empty((3, 0), np.float32))
    assert flat.finish().shape == (3, 0)


@pytest.mark.parametrize("arguments", [{"dim": -1}, {"dim": 2, "capacity": -1}, {"dim": 2, "check": "nan"}], ids=str)
def test_arguments(arguments: dict[str, Any]) -> None:
    """Nonsense is refused at the call."""
    with pytest.raises(ValueError, match="write"):
        MatrixBuilder(**arguments)
