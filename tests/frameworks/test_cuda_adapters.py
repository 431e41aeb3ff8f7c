"""What the adapters of CUDA frameworks decide by themselves, over stand-ins: types, obstacles, streams, odd tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from ctypes import c_void_p
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from frameworks.standins import adapter, on_cuda
from gpu.test_exchange import OnlyInterface, make, pointer, read
from hostile import Producer
from matrix_interop import (
    CopyRequiredError,
    DeviceUnavailableError,
    Matrix,
    UnsupportedDtypeError,
    UnsupportedLayoutError,
    UnsupportedTensorError,
    convert,
    from_tensor,
    plan,
    register_framework,
    track_copies,
)
from matrix_interop.devices import Device
from matrix_interop.frameworks.registry import framework
from matrix_interop.frameworks.streams import producer_stream
from matrix_interop.reasons import Reason
from matrix_interop.view import TensorView
from simulated import lateframe
from simulated.adapter import LateframeFramework
from simulated.runtime import SimulatedRuntime

FLOAT8 = np.dtype(ml_dtypes.float8_e4m3fn)
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
EVERY = ("torch", "cupy", "jax", "numba.cuda")


@pytest.fixture(params=range(3), autouse=True)
def runtime(request: pytest.FixtureRequest) -> Iterator[SimulatedRuntime]:
    """Two simulated devices as CUDA's."""
    with on_cuda(request.param) as found:
        yield found


@pytest.fixture
def torch() -> Any:
    """torch's stand-in."""
    return pytest.importorskip("torch")


@pytest.fixture
def cupy() -> Any:
    """CuPy's."""
    return pytest.importorskip("cupy")


@pytest.fixture
def jax() -> Any:
    """JAX's."""
    return pytest.importorskip("jax")


@pytest.fixture
def numba() -> Any:
    """Numba's."""
    return pytest.importorskip("numba.cuda")


def numbers(dtype: Any = np.float32) -> np.ndarray:
    """Distinct values."""
    return np.arange(1, 25).reshape(4, 6).astype(dtype)


def readonly(x: Any) -> OnlyInterface:
    """The same memory, which must not be written."""
    shown = OnlyInterface(x)
    interface = {**shown.__cuda_array_interface__, "data": (pointer(x), True)}

    class ReadOnly:
        owner = x
        __cuda_array_interface__ = interface

    return ReadOnly()  # type: ignore[return-value]


# What a framework can hold ---------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["cupy", "numba.cuda"])
def test_types_that_it_lacks(name: str) -> None:
    """8-bit floats are refused with a type that is there; byte order is no question of type."""
    x = make("torch", numbers(np.uint8))
    with pytest.raises(UnsupportedDtypeError, match=r"dtype='float32' or 'float16'"):
        convert(x.view(pytest.importorskip("torch").float8_e4m3fn), name)
    assert framework(name).refusal(np.dtype(">f4")) is None


def test_bfloat16_of_numba() -> None:
    """Numba has no such arrays."""
    with pytest.raises(UnsupportedDtypeError, match="numba 0"):
        convert(make("torch", numbers(BFLOAT16)), "numba.cuda")


def test_bfloat16_of_an_older_cupy(cupy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Version 13 has it in parts only, and one that does not know the type refuses it."""
    x = make("torch", numbers(BFLOAT16))
    assert pointer(convert(x, "cupy")) == pointer(x)
    monkeypatch.setattr(cupy, "__version__", "13.6.0")
    with pytest.raises(UnsupportedDtypeError, match="install cupy 14"):
        convert(x, "cupy")
    monkeypatch.setattr(cupy, "__version__", "14.2.0")

    def unknown(dtype: Any) -> None:
        raise TypeError(f"Unsupported type {dtype}")

    monkeypatch.setattr(cupy, "dtype", unknown)
    with pytest.raises(UnsupportedDtypeError, match="no bfloat16"):
        convert(x, "cupy")


def test_types_that_cupy_does_not_check(cupy: Any) -> None:
    """Over given memory CuPy makes arrays of any type: other byte orders are read, what is no number is refused."""
    x = cupy.array(numbers())
    swapped = cupy.ndarray(x.shape, ">f4", x.data, x.strides)
    assert np.array_equal(np.asarray(from_tensor(swapped).to_host()), numbers().view(">f4"))
    with pytest.raises(UnsupportedDtypeError, match="datetime64"):
        from_tensor(cupy.ndarray((2, 2), "M8[s]", x.data))


def test_a_type_that_numpy_lacks(torch: Any) -> None:
    """The message says to which type to convert."""
    x = torch.ones((2, 2))
    x.label = torch.complex32
    with pytest.raises(UnsupportedDtypeError, match=r"x\.to\(torch\.complex64\)"):
        from_tensor(x)


@pytest.mark.parametrize("name", EVERY)
def test_what_is_in_the_way_of_sharing(name: str) -> None:
    """Each layout that a framework cannot describe is named; read-only memory is shared where that is promised."""
    reader, a = framework(name), np.zeros((4, 64), np.float32)
    frozen = a.view()
    frozen.flags.writeable = False
    misaligned = np.ndarray((4, 4), np.float32, a, 2)

    def found(header: np.ndarray, **keywords: Any) -> Any:
        obstacle = reader.obstacle(header, **keywords)
        return obstacle and obstacle.reason

    assert (found(a[:2]), found(a.astype(">f4"))) in [(None, Reason.BYTE_ORDER), (Reason.ALIGNMENT, Reason.BYTE_ORDER)]
    assert found(a[::-1]) == (None if name == "cupy" else Reason.NEGATIVE_STRIDE)
    assert found(misaligned) == Reason.ALIGNMENT or name == "jax"
    if name != "jax":
        assert (found(frozen), found(frozen, share_readonly=True)) == (Reason.READONLY, None)


@pytest.mark.parametrize("name", ["torch", "cupy", "numba.cuda"])
def test_readonly_device_memory(name: str) -> None:
    """Copied once where the framework could write it, shared where the caller promises not to, and refused."""
    x = make("cupy", numbers())
    m = from_tensor(readonly(x))
    assert m.readonly
    with pytest.raises(CopyRequiredError, match="read-only"):
        m.to_tensor(name, copy=False)
    assert m.plan(name).reasons == (Reason.READONLY,)
    with track_copies() as log:
        copied, shared = m.to_tensor(name), m.to_tensor(name, share_readonly=True)
    assert (pointer(copied) != pointer(x), pointer(shared), log.nbytes) == (True, pointer(x), numbers().nbytes)
    assert np.array_equal(read(copied), numbers())


@pytest.mark.parametrize("name", EVERY)
def test_no_arrays_on_the_host(name: str) -> None:
    """Host values go to the current device; asked for the host, the framework says what it has."""
    if name in {"cupy", "numba.cuda"}:
        with pytest.raises(DeviceUnavailableError, match=f"{name} has tensors on cuda only"):
            convert(numbers(), name, device="cpu")
        with pytest.raises(DeviceUnavailableError, match="no arrays on the host"):
            framework(name).wrap(numbers())
        assert framework(name).devices() == ("cuda:0", "cuda:1")
    else:
        assert framework(name).devices()[-2:] == ("cuda:0", "cuda:1")
    assert framework(name).current_device() == "cuda:0"
    if name in {"cupy", "numba.cuda"}:
        assert np.array_equal(read(convert(numbers(), name)), numbers())


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("ordinal", [0, 1])
def test_new_memory_lies_where_it_was_asked_for(name: str, ordinal: int) -> None:
    """Whatever device is current."""
    m = Matrix.empty((3, 5), dtype="float32", device=f"cuda:{ordinal}", framework=name)
    assert (m.device, m.framework, m.shape, m.order) == (f"cuda:{ordinal}", name, (3, 5), "C")


@pytest.mark.parametrize("source", EVERY)
@pytest.mark.parametrize("target", [*EVERY, "cuda.core"])
def test_the_second_device(source: str, target: str) -> None:
    """While the first is current: what is shared is there by its own word, and is worked on there."""
    x = make(source, numbers(), 1)
    made = convert(x, target, share_readonly=True)
    assert (from_tensor(made).device, pointer(made)) == ("cuda:1", pointer(x))
    assert np.array_equal(np.asarray(from_tensor(made).astype("float16").to_host()), numbers(np.float16))


# Objects of its own -------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", EVERY)
def test_a_second_object(name: str) -> None:
    """A conversion into its own framework is another object over the same memory, and a row lies in it."""
    x = make(name, numbers(), 1)
    m = from_tensor(x)
    again = m.to_tensor()
    assert (again is x, pointer(again)) == (False, pointer(x))
    assert np.array_equal(read(again), numbers())
    if name != "jax":
        assert pointer(m[2]) == pointer(x) + 48
    assert np.array_equal(read(m[2]), numbers()[2])
    assert np.array_equal(np.asarray(m[::-1].to_host()), numbers()[::-1])
    assert np.array_equal(read(m[3:0:-1][0]), numbers()[3])


@pytest.mark.parametrize("target", [*EVERY, "cuda.core"])
@pytest.mark.parametrize("source", ["torch", "cupy"])
def test_layouts_of_its_own(source: str, target: str) -> None:
    """A stepped, cut, reversed or transposed tensor has the right values everywhere: shared, or copied once."""
    x, cuts = make(source, numbers()), [lambda x: x[::2], lambda x: x[:, 1:3], lambda x: x[1:2]]
    cuts += [lambda x: x[::-1], lambda x: x[:, ::-2], lambda x: x.T] if source == "cupy" else []
    for cut in cuts:
        announced = plan(cut(x), target)
        with track_copies() as log:
            made = convert(cut(x), target)
        assert np.array_equal(read(made), cut(numbers()))
        assert (pointer(made) == pointer(cut(x)), log.nbytes) == (announced.zero_copy, announced.nbytes)


@pytest.mark.parametrize("name", ["torch", "cupy"])
def test_fortran_order(name: str) -> None:
    """Dense columns are made on the device, of dense rows and of any other layout, in another type too."""
    m = from_tensor(make(name, numbers()))
    for cut in (lambda x: x, lambda x: x[::2], lambda x: x.T):
        made = cut(m).contiguous("F", copy=True)
        assert (made.order, made.framework) == ("F", name)
        assert np.array_equal(np.asarray(made.to_host()), cut(numbers()))
        assert np.asarray(cut(m).astype("int32").to_host()).tolist() == cut(numbers()).tolist()
    assert convert(make(name, np.float32(3)), order="F", copy=True).shape == ()


def test_fortran_order_of_jax() -> None:
    """JAX's arrays have no order of their own: said, and another framework is named."""
    with pytest.raises(UnsupportedLayoutError, match="dense rows"):
        from_tensor(make("jax", numbers())).contiguous("F")


@pytest.mark.parametrize("name", EVERY)
def test_nothing_in_it(name: str) -> None:
    """Empty tensors come in, whatever they say of an address."""
    m = from_tensor(make(name, np.empty((0, 6), np.float32), 0))
    assert (m.shape, m.device) == ((0, 6), "cuda:0")
    assert np.asarray(m.to_host()).shape == (0, 6)


# torch ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("state", "way_out"),
    [
        ({"is_meta": True, "is_cuda": False, "freed": True}, "materialise"),
        ({"is_nested": True, "transformed": True}, "pad it"),
        ({"layout": "torch.sparse_csr"}, "to_dense"),
        ({"is_quantized": True, "label": "torch.qint8"}, "dequantize"),
        ({"freed": True}, "freed or resized"),
        ({"transformed": True}, "gives no address"),
    ],
)
def test_tensors_without_memory(torch: Any, state: dict[str, Any], way_out: str) -> None:
    """The careful look that follows where the fast one finds no address says what is the matter."""
    x = torch.ones((2, 2))
    vars(x).update(state)
    with pytest.raises(UnsupportedTensorError, match=way_out):
        from_tensor(x)


def test_a_graph_is_left_behind(torch: Any) -> None:
    """The plan says so; the memory is shared."""
    x = torch.ones((2, 3), requires_grad=True)
    announced = plan(x, "cupy")
    assert (announced.zero_copy, "detached" in str(announced)) == (True, True)
    made = convert(x, "cupy")
    assert (pointer(made), read(made).tolist(), x.requires_grad) == (pointer(x), [[1] * 3] * 2, True)


@pytest.mark.parametrize("target", ["torch", "cupy", "numpy"])
def test_pending_bits(torch: Any, target: str) -> None:
    """The true values arrive, in new memory, and are written into memory of the host that is given."""
    values = np.array([[1 + 2j, 3 - 4j]], np.complex64)
    x = make("torch", values)
    for tensor, expected in ((x.conj(), values.conj()), (x.conj().imag, values.conj().imag)):
        made, announced = convert(tensor, target), plan(tensor, target)
        assert np.array_equal(made if target == "numpy" else read(made), expected)
        assert (announced.zero_copy, Reason.PENDING in announced.reasons) == (False, True)
        assert np.array_equal(np.asarray(from_tensor(tensor).to_device("cuda:1").to_host()), expected)
        rows = Matrix.from_rows([tensor[0], tensor[0]])
        assert np.array_equal(np.asarray(rows), np.concatenate([expected, expected]))


def test_backwards_on_an_axis_that_does_not_count(torch: Any, cupy: Any) -> None:
    """torch would end the process on a negative stride, even of an axis of one entry: it is shown another."""
    x = make("cupy", numbers())
    header = TensorView(x).header[1:2]
    odd = np.lib.stride_tricks.as_strided(header, (1, 6), (-24, 4))
    view = TensorView.of(odd, "cupy", None, Device("cuda", 0))
    own = cupy.ndarray((1, 6), np.float32, x[1:2].data, (-24, 4))
    for source in (view, own):
        made = convert(source, "torch")
        assert (pointer(made), read(made).tolist()) == (pointer(x) + 24, [numbers()[1].tolist()])


def test_managed_memory(cupy: Any, torch: Any, jax: Any) -> None:
    """torch and JAX take it under the label of its device only, and it is found on the device it was made on."""
    with cupy.cuda.Device(1):
        x = cupy.ndarray((2, 16), np.float32, cupy.cuda.malloc_managed(128))
        x.fill(2)
        assert x.__dlpack_device__() == (13, 0)
        m = from_tensor(x)
        assert (m.device, m.framework) == ("cuda:1", "cupy")
        for target in ("torch", "jax", "numba.cuda"):
            made = m.to_tensor(target)
            assert (pointer(made), read(made).tolist()) == (pointer(x), [[2] * 16] * 2)


def test_streams_of_other_device_types(torch: Any) -> None:
    """torch's streams are CUDA's: for another kind of device there is none to order by."""
    with pytest.raises(DeviceUnavailableError, match="no streams on oneapi:0"):
        framework("torch").current_stream(Device("oneapi", 0))


def test_the_legacy_stream_uses_what_torch_allocated(torch: Any, cupy: Any, runtime: SimulatedRuntime) -> None:
    """torch's allocator hears of a consumer on the legacy stream too, which is none of the external ones."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        x = make("torch", numbers())
        block = x.memory.owner
        assert pointer(convert(x, "cupy")) == pointer(x)
    assert block.readers == {1}
    with torch.cuda.stream(side):
        other = cupy.cuda.Stream(non_blocking=True)
        convert(x, "cupy", stream=other)
    assert block.readers == {1, other.ptr}


@pytest.mark.parametrize("source", ["torch", "cupy", "numba.cuda"])
@pytest.mark.parametrize("target", ["torch", "cupy", "numba.cuda", "cuda.core"])
def test_no_order_is_no_call(torch: Any, cupy: Any, runtime: SimulatedRuntime, source: str, target: str) -> None:
    """With stream=-1, and between frameworks on one stream, sharing records nothing and waits for nothing."""
    x = make(source, numbers())
    before = runtime.calls["record"], runtime.calls["wait"]
    convert(x, target)
    assert (runtime.calls["record"], runtime.calls["wait"]) == before
    with torch.cuda.stream(torch.cuda.Stream()), cupy.cuda.Stream(non_blocking=True):
        convert(x, target, stream=-1)
    assert (runtime.calls["record"], runtime.calls["wait"]) == before


# JAX -------------------------------------------------------------------------------------------------------------
def test_an_array_that_is_ready_is_waited_for_by_nobody(jax: Any, runtime: SimulatedRuntime) -> None:
    """Its address is asked for and no stream; one that is still computed is ready on the legacy stream."""
    x = jax.device_put(numbers(), jax.devices()[1])
    assert (TensorView(x).stream, x.is_ready()) == (1, False)
    assert read(convert(x, "torch", stream=-1).to(pytest.importorskip("torch").float32)).shape == (4, 6)
    x.block_until_ready()
    view, before = TensorView(x), runtime.calls.total()
    assert (view.stream, view.device, view.readonly, view.pointer) == (-1, "cuda:1", True, x.pointer)
    convert(view, "torch", share_readonly=True)
    assert (runtime.calls["record"], runtime.calls.total()) == (runtime.calls["record"], before)


def test_zeros_of_new_memory_come_first(jax: Any, runtime: SimulatedRuntime) -> None:
    """JAX fills new memory with zeros on a stream of its own: that is over before anything else is written there."""
    m = from_tensor(numbers()).to_device("cuda:0", framework="jax")
    runtime.stream_synchronize(1, 0)  # the values were written on the legacy stream
    assert np.array_equal(read(m.array), numbers())


def test_spread_over_devices(jax: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """An array on several devices is no plain memory."""
    monkeypatch.setattr(jax.Array, "sharding", object())
    monkeypatch.setattr(jax.Array, "devices", lambda _: set(jax.devices()))
    with pytest.raises(UnsupportedTensorError, match="spread over 2 devices"):
        from_tensor(make("jax", numbers()))


@pytest.mark.parametrize("layout", ["bfloat16", "transposed"])
def test_a_ready_array_that_the_interface_does_not_show(jax: Any, layout: str) -> None:
    """A type without a code and columns first go by DLPack."""
    data = numbers(BFLOAT16 if layout == "bfloat16" else np.float32)
    source = from_tensor(make("torch", data))
    x = (source.T if layout == "transposed" else source).to_tensor("jax").block_until_ready()
    assert x.is_ready()
    view = TensorView(x)
    assert (view.pointer, view.stream, view.strides) == (x.pointer, 1, x.strides)
    assert np.array_equal(np.asarray(from_tensor(x).to_host()), data.T if layout == "transposed" else data)


@pytest.mark.parametrize("dtype", ["int64", "float64"])
def test_wide_types(jax: Any, dtype: str) -> None:
    """64 bits are refused while JAX would cut them, and taken, shared and written while it does not."""
    x = make("torch", numbers(dtype))
    with pytest.raises(UnsupportedDtypeError, match="32 bits"):
        convert(x, "jax")
    assert np.array_equal(np.asarray(from_tensor(x).take([2, 0]).to_host()), numbers(dtype)[[2, 0]])
    jax.config.jax_enable_x64 = True
    try:
        made = convert(x, "jax")
        assert (pointer(made), made.dtype) == (pointer(x), dtype)
        assert from_tensor(numbers(dtype)).to_device("cuda:0", framework="jax").dtype == dtype
    finally:
        jax.config.jax_enable_x64 = False
    assert (pointer(convert(made)), convert(made).dtype) == (pointer(x), dtype)  # it stays wide, as an object of JAX


def test_take_by_narrow_indices(jax: Any) -> None:
    """JAX without 64-bit types is given 32-bit indices."""
    m = from_tensor(make("jax", numbers()))
    assert np.array_equal(np.asarray(m.take(np.array([3, 0, 3])).to_host()), numbers()[[3, 0, 3]])
    assert np.array_equal(np.asarray(m.take(make("torch", np.array([1, 2]))).to_host()), numbers()[[1, 2]])


def test_wide_norms_where_there_are_no_wide_types(jax: Any) -> None:
    """In float32 where JAX has no float64."""
    unit, norms = from_tensor(make("jax", numbers())).normalized(return_norms=True)
    expected = np.linalg.norm(numbers(), axis=1)
    assert (norms.dtype, np.allclose(read(norms), expected, rtol=1e-5)) == (np.float32, True)
    assert np.allclose(np.asarray(unit.to_host()), numbers() / expected[:, None], rtol=1e-5)


# Numba -----------------------------------------------------------------------------------------------------------
def test_the_stream_of_a_numba_array(numba: Any, torch: Any) -> None:
    """Its own counts as the producer's, else Numba's default one, which is the legacy stream."""
    side = torch.cuda.Stream()
    x = numba.to_device(numbers(), stream=numba.external_stream(side.cuda_stream))
    assert producer_stream(TensorView(x)) == side.cuda_stream
    assert producer_stream(TensorView(numba.to_device(numbers()))) == 1
    with torch.cuda.stream(torch.cuda.Stream()):
        assert np.array_equal(read(convert(x, "torch")), numbers())
    older = SimpleNamespace(handle=c_void_p(side.cuda_stream)), SimpleNamespace(handle=c_void_p(0))
    assert [adapter("numba")._handle(stream) for stream in older] == [side.cuda_stream, 1]  # by ctypes


def test_computing_for_numba() -> None:
    """Numba's arrays are memory for kernels: another framework computes, and the result is its own."""
    m = from_tensor(make("numba.cuda", numbers()))
    assert np.array_equal(np.asarray(m.astype("float16").to_host()), numbers(np.float16))
    assert np.array_equal(np.asarray(m.take([1, 1]).to_host()), numbers()[[1, 1]])
    assert np.allclose(np.asarray(m.normalized().to_host()), numbers() / np.linalg.norm(numbers(), axis=1)[:, None])


# Devices ---------------------------------------------------------------------------------------------------------
def test_without_devices(torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A torch that sees no device has the host alone."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    adapter = type(framework("torch"))()  # one that has seen none before
    assert (adapter.devices(), adapter.current_device()) == (("cpu",), "cpu")
    with pytest.raises(DeviceUnavailableError, match="sees none here"):
        from_tensor(numbers()).to_device(framework="torch")


def test_from_one_kind_of_device_to_another(runtime: SimulatedRuntime) -> None:
    """No driver copies between them: refused with the way by the host, which works."""
    register_framework(LateframeFramework.name, LateframeFramework)
    m = from_tensor(lateframe.array(numbers()))
    assert m.device == "ext:0"
    with pytest.raises(DeviceUnavailableError, match=r"from ext:0 to cuda:1.*m\.to_host\(\)\.to_device\('cuda:1'\)"):
        m.to_device("cuda:1", framework="torch")
    there = m.to_host().to_device("cuda:1", framework="torch")
    assert np.array_equal(read(there.array), numbers())


@pytest.mark.parametrize("name", EVERY)
def test_the_module_is_a_name_too(name: str) -> None:
    """Its own module, and what array-api-compat makes of it, name a framework."""
    module = pytest.importorskip(name)
    assert framework(module) is framework(name)
    assert adapter(name.partition(".")[0]).__name__.startswith("matrix_interop.frameworks.")
    if name in {"torch", "cupy"}:
        assert framework(framework(name).namespace()) is framework(name)


def producers() -> dict[str, Callable[[], Any]]:
    """Device memory in the form of each protocol."""
    x = make("cupy", numbers())
    header = TensorView(x).header
    return {"dlpack": lambda: Producer(header, device=(2, 0)), "interface": lambda: OnlyInterface(x)}


@pytest.mark.parametrize("protocol", ["dlpack", "interface"])
@pytest.mark.parametrize("target", EVERY)
def test_objects_known_by_protocol(protocol: str, target: str) -> None:
    """They are torch's from now on, the first framework that holds device memory, and shared with every other."""
    x = producers()[protocol]()
    m = from_tensor(x)
    assert (m.framework, m.device) == ("torch", "cuda:0")
    made = m.to_tensor(target)
    assert pointer(made) == m._view.pointer
    assert np.array_equal(read(made), numbers())
