"""Objects known by protocol only: read as they say, or refused before anything is dereferenced."""

from __future__ import annotations

import array
import ctypes
import mmap
import threading
from typing import Any

import numpy as np
import pytest

from hostile import Producer
from matrix_interop import (
    DeviceUnavailableError,
    FrameworkNotInstalledError,
    UnknownFrameworkError,
    UnsupportedDtypeError,
    UnsupportedLayoutError,
    UnsupportedTensorError,
    convert,
    from_tensor,
    plan,
    track_copies,
)
from matrix_interop.errors import CopyRequiredError, MatrixInteropError
from matrix_interop.frameworks import protocols, registry
from matrix_interop.frameworks.registry import read
from matrix_interop.memory import PinnedArena, use_arena
from matrix_interop.runtime import cuda as real
from matrix_interop.runtime import register_runtime
from matrix_interop.runtime.base import Pointer
from simulated import lateframe
from simulated.runtime import SimulatedRuntime

HUGE = 2**62


def matrix() -> np.ndarray:
    """Six float32 values, 2 x 3."""
    return np.arange(6, dtype=np.float32).reshape(2, 3)


class Offers:
    """An object with the attributes it is given, some of them properties: a callable is called at each access."""

    def __init__(self, **attributes: Any) -> None:
        self.__dict__["attributes"] = attributes
        self.__dict__["asked"] = []

    def __getattr__(self, name: str) -> Any:
        try:
            value = self.attributes[name]
        except KeyError:
            raise AttributeError(name) from None
        self.asked.append(name)
        return value() if callable(value) else value


def fail(error: BaseException) -> Any:
    """A property that raises."""

    def raising() -> Any:
        raise error

    return raising


# DLPack ------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("forms", "calls"), [("both", 1), ("versioned", 1), ("legacy", 2)])
def test_a_producer_is_asked_as_rarely_as_possible(forms: str, calls: int) -> None:
    """Once, with max_version; a producer older than the keyword once more, bare."""
    producer = Producer(matrix(), forms=forms)
    view = read(producer)
    assert (view.pointer, len(producer.calls)) == (producer.array.ctypes.data, calls)
    assert producer.calls[0] == {"max_version": (1, 1)}


@pytest.mark.parametrize(
    "error", [KeyError("x"), ValueError("no"), RuntimeError("no"), BufferError("no"), MemoryError()]
)
def test_what_a_producer_raises_becomes_one_error(error: Exception) -> None:
    """From either method, after one call, with the cause attached."""
    producer = Producer(matrix(), raises=error)
    with pytest.raises(UnsupportedTensorError, match=r"hostile.dlpack.Producer refuses to export") as caught:
        read(producer)
    assert (caught.value.__cause__, len(producer.calls)) == (error, 1)
    with pytest.raises(UnsupportedTensorError, match="refuses to export"):
        read(Producer(matrix(), device_raises=error))


def test_a_type_error_inside_a_producer_is_tried_twice() -> None:
    """It may mean an unknown keyword; the second one is taken at its word."""
    producer = Producer(matrix(), raises=TypeError("of my own"))
    with pytest.raises(UnsupportedTensorError, match="of my own"):
        read(producer)
    assert producer.calls == [{"max_version": (1, 1)}, {}]


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit()])
def test_orders_to_stop_pass_through(error: BaseException) -> None:
    """SystemExit, Ctrl-C and their like are never turned into an error of ours."""
    with pytest.raises(type(error)):
        read(Producer(matrix(), raises=error))
    with pytest.raises(type(error)):
        read(Offers(__array_interface__=fail(error)))


@pytest.mark.parametrize(
    "method", [(1,), (1, 0, 0), 5, None, ("cpu", 0), (1.5, None), (2**70, 0), (19, 0), (2, -1), (2, 2**31)]
)
def test_a_senseless_device_is_refused(method: Any) -> None:
    """``__dlpack_device__`` has to give two whole numbers that exist; nothing is exported before."""
    producer = Producer(matrix(), method=method)
    with pytest.raises(MatrixInteropError):
        read(producer)
    assert producer.calls == []


@pytest.mark.parametrize(
    ("method", "device"), [((1, 0), (2, 0)), ((2, 0), (1, 0)), ((2, 0), (2, 1)), ((2, 0), (3, 0)), ((10, 0), (2, 0))]
)
def test_a_producer_that_contradicts_itself_is_refused(method: tuple[int, int], device: tuple[int, int]) -> None:
    """Nobody can tell which is the lie, and either reading may touch memory that is not there."""
    producer = Producer(matrix(), method=method, device=device)
    with pytest.raises(UnsupportedTensorError, match=r"it says .*, and its capsule says "):
        read(producer)
    assert (producer.made, producer.deleted) == (1, 1)


@pytest.mark.parametrize(
    ("method", "device"), [((3, 0), (1, 0)), ((1, 0), (3, 0)), ((2, 1), (13, 1)), ((13, 0), (2, 0))]
)
def test_labels_of_one_device_agree(method: tuple[int, int], device: tuple[int, int]) -> None:
    """Pinned is host memory, as torch says it; managed memory belongs to its CUDA device."""
    producer = Producer(matrix(), method=method, device=device)
    assert read(producer).device == ("cpu" if method[0] in (1, 3) else f"cuda:{method[1]}")


@pytest.mark.parametrize(
    ("device", "request_"),
    [((2, 0), {"stream": 1}), ((13, 0), {"stream": 1}), ((1, 0), {}), ((3, 0), {}), ((10, 0), {}), ((14, 0), {})],
)
def test_stream_zero_is_never_asked_for(device: tuple[int, int], request_: dict[str, int]) -> None:
    """T24: CUDA producers make ready on the legacy stream, named 1; the others get no stream, whatever they say."""
    for forms in ("both", "legacy"):
        producer = Producer(matrix(), device=device, forms=forms)
        view = read(producer)
        assert producer.calls[-1] == ({"max_version": (1, 1)} if forms == "both" else {}) | request_
        assert view.stream == request_.get("stream")


def test_a_class_is_no_tensor() -> None:
    """A class with protocol methods describes its instances."""
    with pytest.raises(UnknownFrameworkError, match=r"builtins\.type"):
        read(Producer)
    with pytest.raises(UnknownFrameworkError, match=r"builtins\.type"):
        read(np.ndarray)


# Array interface ---------------------------------------------------------------------------------
def interface(a: np.ndarray, **forged: Any) -> dict[str, Any]:
    """The array interface of ``a`` with forged fields."""
    return {**a.__array_interface__, **forged}


def test_array_interface_is_shared_and_asked_for_once() -> None:
    """The memory is that of the object, which stays alive; an answer that changes later does no harm."""
    a = matrix()
    answers = iter([interface(a), interface(a, data=(16, False))])
    x = Offers(__array_interface__=lambda: next(answers))
    view = read(x)
    assert (view.pointer, view.shape, view.readonly, x.asked.count("__array_interface__")) == (
        a.ctypes.data,
        (2, 3),
        False,
        1,
    )
    view.header[0, 0] = 9
    assert a[0, 0] == 9


def test_array_interface_over_a_buffer() -> None:
    """``data`` may be a buffer, or absent where the object is one; whose size is checked."""
    block = bytearray(matrix().tobytes())
    fields = {"shape": (2, 3), "typestr": "<f4", "version": 3}
    view = read(Offers(__array_interface__={**fields, "data": block}))
    assert (view.header.tolist(), view.readonly) == (matrix().tolist(), False)
    view.header[0, 0] = 7
    assert block[:4] == np.float32(7).tobytes()

    class Block(bytearray):
        __array_interface__ = fields

    assert read(Block(matrix().tobytes())).header.tolist() == matrix().tolist()
    with pytest.raises(UnsupportedTensorError, match="cannot be read"):
        read(Block(20))


@pytest.mark.parametrize(
    "forged",
    [
        {"data": bytes(20)},
        {"data": b"\x10\x00"},  # two numbers, were it taken for a pair
        {"data": memoryview(bytes(48))[::2]},
        {"data": bytes(24), "offset": 4},
        {"data": bytes(24), "offset": -4},
        {"data": bytes(24), "offset": 2**64},
        {"data": bytes(24), "offset": "4"},
        {"data": bytes(24), "strides": (24, 4)},
        {"data": bytes(24), "strides": (-12, 4)},
        {"data": bytes(24), "shape": (HUGE, 3)},
        {"data": bytes(24), "shape": (-2, 3)},
        {"data": 16},
    ],
)
def test_a_buffer_that_is_too_small_is_refused(forged: dict[str, Any]) -> None:
    """All fields are checked against its size, which np.asarray does not do."""
    with pytest.raises(UnsupportedTensorError, match="__array_interface__"):
        read(Offers(__array_interface__=interface(matrix(), **forged)))


BAD_FIELDS: list[dict[str, Any]] = [
    {"shape": (2, -3)},
    {"shape": (2.0, 3)},
    {"shape": (True, 3)},
    {"shape": None},
    {"shape": 6},
    {"shape": "23"},
    {"shape": (1,) * 65},
    {"shape": (HUGE, HUGE)},
    {"shape": (0, HUGE, HUGE)},
    {"shape": (2**64, 0)},
    {"typestr": None},  # NumPy would read it as float64
    {"typestr": ""},
    {"typestr": "<f3"},
    {"typestr": 4},
    {"typestr": np.float32},
    {"data": (0, False)},
    {"data": (None, False)},
    {"data": (-16, False)},
    {"data": (2**64, False)},
    {"data": (2**64 - 4, False)},
    {"data": ("0x10", False)},
    {"data": (16,)},
    {"data": (16, False, 0)},
    {"data": (True, False)},
    {"data": (16.0, False)},
    {"data": 16},
    {"data": "16"},
    {"strides": (12,)},
    {"strides": (12, 4, 4)},
    {"strides": (12, "4")},
    {"strides": 4},
    {"strides": (-HUGE, 4)},
    {"strides": (HUGE * 2 - 1, HUGE * 2 - 1)},
    {"shape": (0, 3), "strides": (2**63, 4)},
    {"shape": (0, 3), "data": (2**64, False)},
    {"data": (8, False), "strides": (-12, 4)},
]


@pytest.mark.parametrize("forged", BAD_FIELDS)
@pytest.mark.parametrize("name", ["__array_interface__", "__cuda_array_interface__"])
def test_a_forged_interface_is_refused(name: str, forged: dict[str, Any]) -> None:
    """Before NumPy or the driver sees it."""
    with pytest.raises(UnsupportedTensorError, match=name):
        read(Offers(**{name: interface(matrix(), **forged)}))


@pytest.mark.parametrize("typestr", ["|V4", "|O8", "<U1", "|S4", "<M8[ns]", "f4,f4", "<f16"])
@pytest.mark.parametrize("name", ["__array_interface__", "__cuda_array_interface__"])
def test_an_interface_of_another_kind_of_data_is_refused(name: str, typestr: str) -> None:
    """Text, dates, records, objects: not numbers that frameworks share."""
    with pytest.raises(UnsupportedDtypeError):
        read(Offers(**{name: interface(matrix(), typestr=typestr)}))


@pytest.mark.parametrize("name", ["__array_interface__", "__cuda_array_interface__"])
def test_a_mask_is_not_dropped(name: str) -> None:
    """Entries that the object hides are not shown."""
    with pytest.raises(UnsupportedLayoutError, match="mask"):
        read(Offers(**{name: interface(matrix(), mask=matrix() > 2)}))


@pytest.mark.parametrize("interface_", [3, "text", [1, 2], object(), {}, {"shape": (2, 3)}, b"ab"])
@pytest.mark.parametrize("name", ["__array_interface__", "__cuda_array_interface__"])
def test_something_else_than_an_interface_is_refused(name: str, interface_: Any) -> None:
    """What a wildcard ``__getattr__`` may give."""
    with pytest.raises(UnsupportedTensorError, match=name):
        read(Offers(**{name: lambda: interface_}))


@pytest.mark.parametrize("name", ["__array_interface__", "__cuda_array_interface__"])
def test_a_property_that_fails_is_a_refusal(name: str) -> None:
    """As torch does for a tensor that requires grad; it is not silently passed over."""
    with pytest.raises(UnsupportedTensorError, match=f"{name} of .*Offers cannot be read: RuntimeError: grad"):
        read(Offers(**{name: fail(RuntimeError("grad"))}))


def test_odd_but_true_interfaces() -> None:
    """Zero and negative strides, foreign byte order, and no address behind no entries."""
    a = matrix()
    assert read(Offers(__array_interface__=interface(a, strides=(0, 4)))).header.tolist() == [[0, 1, 2], [0, 1, 2]]
    backwards = interface(a, data=(a.ctypes.data + 12, True), strides=(-12, 4))
    view = read(Offers(__array_interface__=backwards))
    assert (view.header.tolist(), view.readonly) == ([[3, 4, 5], [0, 1, 2]], True)
    swapped = a.astype(">f4")
    assert read(Offers(__array_interface__=interface(swapped))).header.tolist() == a.tolist()
    for address in (0, None):
        assert read(Offers(__array_interface__=interface(a, shape=(0, 3), data=(address, False)))).shape == (0, 3)


# CUDA array interface ----------------------------------------------------------------------------
class Driver:
    """A runtime that only knows what kind of memory an address is."""

    def __init__(self, kind: Any, ordinal: int | None) -> None:
        self.answer = Pointer(kind, ordinal)

    def pointer(self, address: int) -> Pointer:
        """The same for each address."""
        return self.answer


def cuda(**forged: Any) -> Offers:
    """An object with the CUDA array interface, version 3."""
    return Offers(__cuda_array_interface__=interface(matrix(), **{"version": 3, **forged}))


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    """Every address is on device 1."""
    found = Driver("device", 1)
    monkeypatch.setattr("matrix_interop.runtime.get_runtime", lambda kind: found)
    return found


def test_cuda_array_interface(driver: Driver) -> None:
    """The device comes from the driver, the stream from the object: the legacy one where it names none."""
    for stream, ready_on in ((None, 1), (1, 1), (2, 2), (2**47, 2**47)):
        view = read(cuda(stream=stream))
        assert (view.device, view.stream, view.shape, view.strides) == ("cuda:1", ready_on, (2, 3), (12, 4))
    driver.answer = Pointer("managed", 0)
    assert read(cuda(data=(4096, True))).readonly
    assert read(cuda(shape=(0, 3), data=(0, False))).device == "cuda:0"


@pytest.mark.parametrize("stream", [0, -1, -5, True, "1", 1.0, object()])
def test_a_senseless_stream_is_refused(driver: Driver, stream: Any) -> None:
    """Stream 0 is forbidden: it has meant two things."""
    with pytest.raises(UnsupportedTensorError, match="stream"):
        read(cuda(stream=stream))


@pytest.mark.parametrize("version", [4, -1, None, "3", True, 3.0])
def test_an_unknown_version_is_refused(driver: Driver, version: Any) -> None:
    """What a later version means, nobody knows yet."""
    with pytest.raises(UnsupportedTensorError, match="version"):
        read(cuda(version=version))


@pytest.mark.parametrize("kind", ["pageable", "pinned"])
def test_an_address_of_no_device_is_refused(driver: Driver, kind: Any) -> None:
    """The driver knows that this is not a device's memory."""
    driver.answer = Pointer(kind, None)
    with pytest.raises(UnsupportedTensorError, match=f"{kind} memory to CUDA"):
        read(cuda())


def test_without_a_driver_device_memory_is_out_of_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    """An address that nobody can ask about is not believed."""

    def absent(kind: str) -> Any:
        raise DeviceUnavailableError("no driver")

    monkeypatch.setattr("matrix_interop.runtime.get_runtime", absent)
    with pytest.raises(DeviceUnavailableError):
        read(cuda())


# Buffers -----------------------------------------------------------------------------------------
def test_buffers_are_shared() -> None:
    """bytes read-only, the others writable, over their own memory."""
    assert (read(b"abc").header.tolist(), read(b"abc").readonly) == ([97, 98, 99], True)
    assert read(array.array("d", [1, 2])).header.tolist() == [1.0, 2.0]
    grid = ((ctypes.c_int32 * 3) * 2)((1, 2, 3), (4, 5, 6))
    assert read(grid).header.tolist() == [[1, 2, 3], [4, 5, 6]]
    block = bytearray(4)
    view = read(memoryview(block)[::-2])
    view.header[0] = 5
    assert (bytes(block), view.strides) == (b"\0\0\0\5", (-2,))
    with mmap.mmap(-1, 64) as pages:
        assert read(pages).shape == (64,)


@pytest.mark.parametrize("make", [ctypes.c_void_p * 2, ctypes.c_longdouble * 2])
def test_a_buffer_in_a_format_that_numpy_cannot_read_is_refused(make: Any) -> None:
    """One error, whatever NumPy says to it."""
    with pytest.raises(UnsupportedTensorError, match="buffer of"):
        read(make())


@pytest.mark.parametrize("make", [lambda: (ctypes.py_object * 1)(1), lambda: memoryview(b"ab").cast("c")])
def test_a_buffer_of_something_else_is_refused(make: Any) -> None:
    """Object pointers and characters are no numbers."""
    with pytest.raises(UnsupportedDtypeError):
        read(make())


def test_a_released_buffer_is_refused() -> None:
    """There is nothing behind it any more."""
    gone = memoryview(b"abc")
    gone.release()
    with pytest.raises(UnsupportedTensorError, match="released"):
        read(gone)


# __array__ ---------------------------------------------------------------------------------------
class HasArray:
    """An object with ``__array__`` that gives what ``answer(copy)`` gives."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return self.answer(copy)


def test_array_method_shares_where_it_can() -> None:
    """``copy=False`` is tried first, and its array is shared."""
    a = matrix()
    view = read(HasArray(lambda copy: a))
    assert (view.pointer, view.note, view.pending) == (a.ctypes.data, "", None)


@pytest.mark.parametrize("error", [ValueError, RuntimeError])
def test_an_array_method_that_copies_says_so(error: type[Exception]) -> None:
    """A copy that the object makes is announced, counted and can be forbidden."""

    def answer(copy: bool | None) -> np.ndarray:
        if copy is False:
            raise error("must copy")
        return matrix()

    x = HasArray(answer)
    assert (plan(x, "numpy").zero_copy, plan(x, "numpy").nbytes) == (False, 24)
    with track_copies() as log:
        assert convert(x, "numpy").tolist() == matrix().tolist()
    assert log.nbytes == 24
    with pytest.raises(CopyRequiredError, match=r"__array__ of .*HasArray copies"):
        convert(x, "numpy", copy=False)


def test_an_array_method_older_than_the_keyword() -> None:
    """It cannot say whether it copies; the plan's reader is told."""

    class Old:
        def __array__(self, dtype: Any = None) -> np.ndarray:
            return matrix()

    assert "cannot say whether it made a copy" in str(plan(Old(), "numpy"))
    assert from_tensor(Old()).shape == (2, 3)


def test_an_array_method_that_hides_entries() -> None:
    """A masked array that comes out of it needs a fill value like any other."""
    x = HasArray(lambda copy: np.ma.masked_greater(matrix(), 4))
    with pytest.raises(UnsupportedLayoutError, match="hides 1 entries"):
        read(x)
    assert np.asarray(from_tensor(x, fill=0)).tolist() == [[0, 1, 2], [3, 4, 0]]


@pytest.mark.parametrize("answer", [3, None, [[1, 2]], "text"])
def test_an_array_method_that_gives_no_array_is_refused(answer: Any) -> None:
    """NumPy demands the same."""
    with pytest.raises(UnsupportedTensorError, match="not an ndarray"):
        read(HasArray(lambda copy: answer))


def test_an_array_method_that_fails_is_a_refusal() -> None:
    """As a device tensor does that must not be moved silently."""
    x = HasArray(lambda copy: fail(TypeError("on a device"))())
    with pytest.raises(UnsupportedTensorError, match="TypeError: on a device"):
        read(x)
    with pytest.raises(UnsupportedDtypeError):
        read(HasArray(lambda copy: np.array(["text"])))


# Lists -------------------------------------------------------------------------------------------
def test_lists_of_numbers() -> None:
    """They are written into new memory, which counts as a copy."""
    assert np.asarray(from_tensor([[1, 2], [3, 4]])).tolist() == [[1, 2], [3, 4]]
    assert from_tensor(((1.5, 2), (3, 4))).dtype == np.float64
    assert not plan([[1, 2]], "numpy").zero_copy


def endless() -> list[Any]:
    """A list that holds itself."""
    x: list[Any] = []
    x.append(x)
    return x


@pytest.mark.parametrize(
    "make",
    [lambda: [[1, 2], [3]], endless, lambda: [[1, HasArray(fail(RuntimeError("no")))]], lambda: [[10**400, 1.5]]],
)
def test_lists_that_are_no_matrix_are_refused(make: Any) -> None:
    """Ragged, endless, or holding what cannot be read."""
    with pytest.raises((UnsupportedLayoutError, UnsupportedDtypeError)):
        read(make())


def test_masked_rows_in_a_list_are_refused() -> None:
    """NumPy would show what the mask hides."""
    row = np.ma.array([1, 2], mask=[False, True])
    with pytest.raises(UnsupportedLayoutError, match=r"np\.ma\.stack"):
        read([row, row])


def test_an_object_that_answers_with_errors_is_a_refusal() -> None:
    """Whatever attribute it is asked for, it raises something else than AttributeError."""

    class Angry:
        def __getattr__(self, name: str) -> Any:
            raise RuntimeError(f"no {name}")

    with pytest.raises(UnsupportedTensorError, match="RuntimeError: no __cuda_array_interface__"):
        read(Angry())


@pytest.mark.parametrize("x", [None, 3, 2.5, "text", {1: 2}, {1, 2}, object(), iter([1]), lambda: None, Ellipsis])
def test_an_object_without_a_protocol_is_named(x: Any) -> None:
    """The message lists what would have been understood."""
    with pytest.raises(UnknownFrameworkError, match=f"{type(x).__qualname__}.*DLPack.*register_framework"):
        read(x)


# Arrow -------------------------------------------------------------------------------------------
class ArrowColumn:
    """One column behind Arrow's capsule interface, and an ``__array__`` that hides its nulls."""

    def __init__(self, column: Any) -> None:
        self.column = column

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.column.to_pylist(), dtype=float)


class ArrowArray(ArrowColumn):
    """In one piece."""

    def __arrow_c_array__(self, requested_schema: Any = None) -> Any:
        return self.column.__arrow_c_array__(requested_schema)


class ArrowStream(ArrowColumn):
    """In chunks."""

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self.column.__arrow_c_stream__(requested_schema)


def test_arrow_columns_are_shared_and_their_nulls_seen() -> None:
    """pyarrow takes the capsule; the values are shared, and nulls need a fill value."""
    pa = pytest.importorskip("pyarrow")
    rows = pa.array([[1, 2], [3, 4]], pa.list_(pa.int32(), 2))
    for x in (ArrowArray(rows), ArrowStream(pa.chunked_array([rows]))):
        view = read(x)
        assert (view.framework, view.header.tolist(), view.readonly) == ("pyarrow", [[1, 2], [3, 4]], True)
        assert view.pointer == rows.values.buffers()[1].address
    holes = ArrowStream(pa.chunked_array([pa.array([1.0, None])]))
    with pytest.raises(UnsupportedLayoutError, match="1 nulls"):
        read(holes)
    assert np.asarray(from_tensor(holes, fill=0, as_row=True)).tolist() == [[1, 0]]


def test_arrow_tables_go_by_their_array_method() -> None:
    """A table is no column: what it says of itself as an array counts."""
    pa = pytest.importorskip("pyarrow")

    class Frame(ArrowStream):
        def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
            return matrix()

    assert read(Frame(pa.table({"a": [1.0, 2.0]}))).header.tolist() == matrix().tolist()


def test_an_arrow_capsule_that_fails_is_a_refusal() -> None:
    """Whatever pyarrow says to it."""
    pytest.importorskip("pyarrow")

    class Broken:
        def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
            return 3

    with pytest.raises(UnsupportedTensorError, match=r"Arrow capsule of .*Broken"):
        read(Broken())


class OnlyInterface:
    """An array of the simulated device with the CUDA array interface and nothing else."""

    def __init__(self, x: lateframe.Array) -> None:
        self.owner = x
        data = {"shape": x.shape, "strides": x.strides, "typestr": x.dtype.str, "data": (x.pointer, False)}
        self.__cuda_array_interface__ = {**data, "version": 3}


# Not a framework ---------------------------------------------------------------------------------
def test_nothing_is_made_by_protocol() -> None:
    """The reader of last resort is no target."""
    refused = protocols.PROTOCOLS.refusal(np.dtype("f4"))
    assert refused is not None
    assert "name a framework" in refused


def test_device_memory_that_no_framework_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """It can be moved to the host as it lies; what needs a framework says which to install."""
    monkeypatch.setattr(registry, "_OWNERS", ())
    monkeypatch.setattr(registry, "_registered", {})
    runtime = SimulatedRuntime(0)
    register_runtime("cuda", lambda: runtime)
    try:
        with use_arena(PinnedArena(32 << 20, runtime=runtime)):
            lateframe.use(runtime)
            m = from_tensor(OnlyInterface(lateframe.array(matrix())))
            assert (m.framework, m.device) == ("no framework", "cuda:0")
            assert np.array_equal(np.asarray(m.to_host()), matrix())
            assert np.array_equal(np.asarray(m.T.to_host(non_blocking=True).result()), matrix().T)
            for call in (m[::-1].to_host, m.normalized, lambda: m.take([0])):
                with pytest.raises(FrameworkNotInstalledError, match="pip install"):
                    call()
            with pytest.raises(UnsupportedDtypeError, match="name a framework"):
                m.array
    finally:
        register_runtime("cuda", real.load)


def test_reading_from_many_threads_loads_it_once() -> None:
    """Eight threads with types never met before read their own values."""
    results: list[Any] = []
    start = threading.Barrier(8)

    def work(number: int) -> None:
        kind = type(f"Kind{number}", (HasArray,), {})
        start.wait()
        results.append(read(kind(lambda copy: np.full((2, 2), number))).header.sum() == 4 * number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * 8
