"""Exchange on GPUs: shared pointers, stream order against slow kernels, moves, accounting, and what failures leave."""

from __future__ import annotations

import gc
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from matrix_interop import (
    CopyRequiredError,
    DeviceMatrix,
    DeviceUnavailableError,
    UnsupportedDtypeError,
    UnsupportedTensorError,
    convert,
    from_tensor,
    track_copies,
)
from matrix_interop.memory import default_arena
from matrix_interop.runtime import get_runtime

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore")]  # other libraries' remarks are not the concern

#: Clock cycles of a slow kernel: about 50 ms.
SLOW = 90_000_000
RACES = 100
NAMES = ("torch", "cupy", "jax", "numba.cuda", "cuda.core")
PROTOCOL = "only the CUDA array interface"


@pytest.fixture(scope="module", autouse=True)
def runtime() -> Any:
    """The runtime, or skip with its own reason."""
    try:
        return get_runtime("cuda")
    except DeviceUnavailableError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def torch() -> Any:
    """torch, which also runs the slow kernels."""
    module = pytest.importorskip("torch")
    if not module.cuda.is_available():
        pytest.skip("this torch sees no CUDA device")
    return module


@pytest.fixture(scope="module")
def cupy() -> Any:
    """CuPy."""
    return pytest.importorskip("cupy")


class OnlyInterface:
    """Nothing but ``__cuda_array_interface__``, with the stream on which the data was written."""

    def __init__(self, x: Any, stream: int | None = None) -> None:
        self.x = x
        self.stream = stream

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        interface = dict(self.x.__cuda_array_interface__)
        interface.pop("stream", None)
        return interface if self.stream is None else {**interface, "version": 3, "stream": self.stream}


def values(dtype: Any = np.float32) -> np.ndarray:
    """Distinct values."""
    return np.arange(1, 129).reshape(8, 16).astype(dtype)


def make(name: str, data: np.ndarray, device: int = 0) -> Any:
    """A tensor of that framework, made without the library, finished."""
    if name == "torch":
        torch = pytest.importorskip("torch")
        label = data.view(np.int16) if data.dtype.name == "bfloat16" else data
        x = torch.from_numpy(label.copy()).to(f"cuda:{device}")
        torch.cuda.synchronize(device)
        return x.view(torch.bfloat16) if data.dtype.name == "bfloat16" else x
    if name in {"cupy", PROTOCOL}:
        cupy = pytest.importorskip("cupy")
        with cupy.cuda.Device(device):
            x = cupy.array(data)
            cupy.cuda.Device(device).synchronize()
        return x if name == "cupy" else OnlyInterface(x)
    if name == "jax":
        jax = pytest.importorskip("jax")
        return jax.device_put(data, jax.devices("gpu")[device]).block_until_ready()
    if name == "numba.cuda":
        cuda = pytest.importorskip("numba.cuda")
        with cuda.gpus[device]:
            return cuda.to_device(data)
    pytest.importorskip("cuda.core")
    from cuda.core.utils import StridedMemoryView

    return StridedMemoryView.from_dlpack(make("cupy", data, device), -1)


def pointer(x: Any) -> int:
    """Where the memory starts, asked of the framework."""
    kind = type(x).__module__
    if kind.startswith("torch"):
        return int(x.data_ptr())
    if kind.startswith("cuda.core"):
        return int(x.ptr)
    if hasattr(x, "unsafe_buffer_pointer"):
        return int(x.unsafe_buffer_pointer())
    if kind.startswith("cupy"):
        return int(x.data.ptr)
    return int(x.__cuda_array_interface__["data"][0])


def read(x: Any) -> np.ndarray:
    """The values, read by the framework itself on its own stream."""
    kind = type(x).__module__
    if kind.startswith("torch"):
        import torch

        x = x.cpu()
        return x.view(torch.int16).numpy().view(ml_dtypes.bfloat16) if x.dtype == torch.bfloat16 else x.numpy()
    if kind.startswith("cupy"):
        return x.get()
    if kind.startswith("numba"):
        return x.copy_to_host()
    if kind.startswith("cuda.core"):
        import cupy

        return cupy.asarray(cupy.from_dlpack(x)).get()
    return np.asarray(x)


# Sharing -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "int32", "uint8", "bool", "complex64"])
@pytest.mark.parametrize("target", NAMES)
@pytest.mark.parametrize("source", [*NAMES, PROTOCOL])
def test_every_pair_shares(torch: Any, source: str, target: str, dtype: str) -> None:
    """Pointers are equal, values too, and nothing is counted as a copy."""
    data = values(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    if dtype == "bfloat16" and {source, target} & {"numba.cuda", "cuda.core", PROTOCOL}:
        pytest.skip("no bfloat16 there")
    x = make(source, data)
    with track_copies() as log:
        m = from_tensor(x)
        made = m.to_tensor(target, share_readonly=source == "jax")  # torch and CuPy cannot keep it from being written
        assert (m.device, type(m)) == ("cuda:0", DeviceMatrix)
    start = pointer(x.x if source == PROTOCOL else x)
    assert (pointer(made), len(log)) == (start, 0)
    assert np.array_equal(read(made).astype(np.complex128), data.astype(np.complex128))
    assert np.array_equal(np.asarray(m.to_host()), data)


@pytest.mark.parametrize("source", [*NAMES, PROTOCOL])
def test_host_is_never_reached_by_sharing(torch: Any, source: str) -> None:
    """T05: one kind of error for every source, naming both devices."""
    m = from_tensor(make(source, values()))
    with pytest.raises(CopyRequiredError, match=r"cuda:0.*cpu") as caught:
        m.to_tensor("numpy", copy=False)
    assert isinstance(caught.value, BufferError)
    with pytest.raises(TypeError, match="to_host"):
        np.asarray(m)


def test_bfloat16_into_cupy(torch: Any, cupy: Any) -> None:
    """T06: as ml_dtypes' type, and as float32 where that is asked for; float8 is refused by name."""
    t = torch.tensor([[1, 2, 3]], dtype=torch.bfloat16, device="cuda:0")
    m = from_tensor(t)
    assert m.to_tensor("cupy").get().tolist() == [[1, 2, 3]]
    assert m.to_tensor("cupy", dtype="float32").get().tolist() == [[1, 2, 3]]
    with pytest.raises(UnsupportedDtypeError, match="cupy"):
        from_tensor(t.to(torch.float8_e4m3fn)).to_tensor("cupy")


@pytest.mark.parametrize("source", ["torch", "cupy", "jax"])
def test_layouts(torch: Any, source: str) -> None:
    """T14, T15: stepped, reversed, transposed and repeated rows have the right values everywhere."""
    data = np.arange(24, dtype=np.float32).reshape(6, 4)
    m = from_tensor(make(source, data))
    for cut in (lambda x: x[::2], lambda x: x[::-1], lambda x: x[1:5], lambda x: x.T, lambda x: x[::2].T):
        view = cut(m)
        assert np.array_equal(np.asarray(view.to_host()), cut(data))
        for target in ("torch", "cupy", "jax"):
            assert np.array_equal(read(view.to_tensor(target)), cut(data)), (cut(data).strides, target)
    assert np.array_equal(np.asarray(m.contiguous("C").to_host()), data)
    repeated = from_tensor(torch.tensor([[7.0, 8.0]], device="cuda").expand(4, 2))
    assert repeated.readonly
    with track_copies() as log:
        assert read(repeated.to_tensor("cupy")).tolist() == [[7, 8]] * 4
    assert len(log) == 1


@pytest.mark.parametrize("source", ["torch", "cupy", "jax", PROTOCOL])
def test_computing_on_the_device(torch: Any, source: str) -> None:
    """astype, take, normalized and contiguous stay on the device."""
    data = values()
    data[3] = 0
    m = from_tensor(make(source, data))
    unit, norms = m.normalized(return_norms=True)
    expected = np.linalg.norm(data.astype(np.float64), axis=1)
    assert np.allclose(read(norms), expected, rtol=1e-5)
    assert np.allclose(np.asarray(unit.to_host()), data / np.maximum(expected, 1e-30)[:, None], rtol=1e-5)
    assert np.array_equal(np.asarray(m.take([5, 0, 5]).to_host()), data[[5, 0, 5]])
    assert np.array_equal(np.asarray(m.astype("float16").to_host()), data.astype(np.float16))
    assert {m.take([0]).device, m.astype("float16").device, unit.device} == {"cuda:0"}


def test_pending_bits_of_torch(torch: Any) -> None:
    """Conjugate and negative bits are resolved on the device; a graph is left behind."""
    x = torch.tensor([[1 + 2j, 3 - 4j]], device="cuda")
    assert np.asarray(from_tensor(x.conj()).to_host()).tolist() == [[1 - 2j, 3 + 4j]]
    assert read(convert(x.conj().imag, "cupy")).tolist() == [[-2, 4]]
    grad = torch.ones((2, 2), device="cuda", requires_grad=True)
    assert (from_tensor(grad).array.requires_grad, grad.requires_grad) == (False, True)


def test_not_a_number(torch: Any) -> None:
    """Every bit of NaNs and infinities arrives."""
    data = np.array([[np.nan, np.inf, -np.inf, -0.0]], np.float32)
    data.view(np.uint32)[0, 0] = 0x7FC12345
    there = from_tensor(data).to_device("cuda:0", framework="torch").to_tensor("cupy")
    assert np.asarray(from_tensor(there).to_host()).tobytes() == data.tobytes()


# Order ---------------------------------------------------------------------------------------------------
@pytest.fixture
def sides(torch: Any) -> Iterator[tuple[Any, Any]]:
    """A side stream for torch and one for CuPy, both current."""
    cupy = pytest.importorskip("cupy")
    ours, theirs = torch.cuda.Stream(), cupy.cuda.Stream(non_blocking=True)
    with torch.cuda.stream(ours), theirs:
        yield ours, theirs
    torch.cuda.synchronize()


def slow_fill(torch: Any, x: Any, value: float) -> None:
    """A slow kernel, then one that writes, on torch's current stream."""
    torch.cuda._sleep(SLOW)
    x.fill_(value)


def races(torch: Any, consume: Callable[[Any], Any], count: int = RACES) -> int:
    """How often the consumer saw what a slow kernel on torch's current stream had yet to write."""
    right = 0
    for turn in range(count):
        x = torch.zeros((64, 64), device="cuda")
        slow_fill(torch, x, turn + 1)
        right += bool((consume(x) == turn + 1).all())
    return right


def test_torch_to_cupy_waits(torch: Any, sides: Any) -> None:
    """A slow kernel on torch's side stream is done before CuPy's side stream reads."""
    assert races(torch, lambda x: from_tensor(x).to_tensor("cupy").get()) == RACES


def test_torch_to_jax_waits(torch: Any, sides: Any) -> None:
    """Nor does JAX read before it."""
    pytest.importorskip("jax")
    assert races(torch, lambda x: np.asarray(from_tensor(x).to_tensor("jax") + 0)) == RACES


def test_torch_to_host_waits(torch: Any, sides: Any) -> None:
    """T23: to_host returns data that is there, and so does the result of a transfer."""
    assert races(torch, lambda x: np.asarray(from_tensor(x).to_host())) == RACES
    assert races(torch, lambda x: np.asarray(from_tensor(x).to_host(non_blocking=True).result()), 20) == 20


def test_export_waits(torch: Any, sides: Any) -> None:
    """Another library that imports our DLPack or our CUDA array interface reads after the slow kernel."""
    import cupy

    assert races(torch, lambda x: cupy.from_dlpack(from_tensor(x)).get(), 30) == 30
    assert races(torch, lambda x: cupy.asarray(from_tensor(x)).get(), 30) == 30


def test_cupy_to_torch_waits(torch: Any, sides: Any) -> None:
    """The other direction: a slow kernel on CuPy's stream, then torch's."""
    import cupy

    right = 0
    for turn in range(RACES):
        x = cupy.zeros((64, 64), cupy.float32)
        with torch.cuda.stream(torch.cuda.ExternalStream(cupy.cuda.get_current_stream().ptr)):
            torch.cuda._sleep(SLOW)
        x.fill(turn + 1)
        right += bool((from_tensor(x).to_tensor("torch").cpu() == turn + 1).all())
    assert right == RACES


def test_interface_only_to_torch_waits(torch: Any, sides: Any) -> None:
    """An object that names its stream in the CUDA array interface is waited for on that one."""
    import cupy

    right = 0
    for turn in range(RACES):
        x, stream = cupy.zeros((64, 64), cupy.float32), cupy.cuda.get_current_stream().ptr
        with torch.cuda.stream(torch.cuda.ExternalStream(stream)):
            torch.cuda._sleep(SLOW)
        x.fill(turn + 1)
        right += bool((from_tensor(OnlyInterface(x, stream)).to_tensor("torch").cpu() == turn + 1).all())
    assert right == RACES


def test_jax_to_the_others_waits(torch: Any, sides: Any) -> None:
    """A JAX computation that is still running is waited for by torch, CuPy and the host."""
    jax = pytest.importorskip("jax")
    work = jax.jit(lambda x: jax.lax.fori_loop(0, 30, lambda _, y: y @ y / 4096.0, x).mean() * 0 + x[:64, :64])
    x = jax.numpy.ones((4096, 4096))
    work(x).block_until_ready()
    right = 0
    for _ in range(10):
        for consume in (
            lambda y: from_tensor(y).to_tensor("torch").cpu().numpy(),
            lambda y: from_tensor(y).to_tensor("cupy").get(),
            lambda y: np.asarray(from_tensor(y).to_host()),
        ):
            right += bool((consume(work(x)) == 1).all())
    assert right == 30


def test_streams_that_are_named(torch: Any, cupy: Any) -> None:
    """T24: None, -1, 1, 2, a handle and stream objects are taken; 0 is refused as ambiguous, with a BufferError."""
    m = from_tensor(torch.ones((4, 4), device="cuda"))
    side, theirs = torch.cuda.Stream(), cupy.cuda.Stream(non_blocking=True)
    for stream in (None, -1, 1, 2, side.cuda_stream, side, theirs):
        m.__dlpack__(stream=stream)
        assert m.to_tensor("cupy", stream=stream).get().sum() == 16
    with pytest.raises(BufferError, match="stream=0"):
        m.__dlpack__(stream=0)
    with pytest.raises(BufferError, match="not a stream"):
        m.__dlpack__(stream="side")


def test_producers_are_never_asked_for_stream_0(torch: Any, cupy: Any) -> None:
    """T24: what a producer is asked for is 1, 2 or a handle."""
    asked: list[Any] = []

    class Producer:
        def __init__(self) -> None:
            self.x = cupy.ones((2, 2))

        def __dlpack_device__(self) -> Any:
            return self.x.__dlpack_device__()

        def __dlpack__(self, *, stream: Any = None, **keywords: Any) -> Any:
            asked.append(stream)
            return self.x.__dlpack__(stream=stream)

    assert from_tensor(Producer()).to_tensor("torch").sum().item() == 4
    assert asked == [1]


def test_memory_is_kept_for_the_consumer(torch: Any, sides: Any) -> None:
    """A torch source that dies is not given out anew while CuPy's stream still reads it."""
    for turn in range(20):
        x = torch.full((1 << 20,), float(turn), device="cuda")
        y = convert(x, "cupy")
        with torch.cuda.stream(torch.cuda.ExternalStream(sides[1].ptr)):
            torch.cuda._sleep(SLOW // 4)
        z = y + 0
        del x, y
        torch.full((1 << 20,), -1.0, device="cuda")
        assert (z.get() == turn).all()


# Moving --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("framework", ["torch", "cupy", "jax", "numba.cuda"])
def test_there_and_back(torch: Any, framework: str) -> None:
    """T16 and large ones: what goes to a device comes back, the source may change at once."""
    pytest.importorskip(framework)
    for shape in ((0, 128), (5, 0), (3, 7), (5000, 700)):
        data = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
        source = data.copy()
        m = from_tensor(source).to_device("cuda:0", framework=framework)
        source[...] = 0
        back = np.asarray(m.to_host())
        assert (m.framework, back.shape, back.dtype) == (framework, shape, np.float32)
        assert np.array_equal(back, data)
    if framework in {"torch", "cupy"}:
        f = from_tensor(np.asfortranarray(data)).to_device("cuda:0", framework=framework)
        assert (f.order, np.array_equal(np.asarray(f.to_host()), data)) == ("F", True)


def test_past_two_to_the_31(torch: Any) -> None:
    """T62: row slices and to_host are right past 2**31 elements."""
    if torch.cuda.mem_get_info()[0] < 6 << 30:
        pytest.skip("too little device memory")
    x = torch.zeros((33_554_433, 64), dtype=torch.float16, device="cuda")
    x[-1] = 3
    m = from_tensor(x)
    assert m.size > 2**31
    last = m[len(m) - 1 : len(m)]
    assert np.asarray(last.to_host()).tolist() == [[3] * 64]
    assert read(last.to_tensor("cupy")).tolist() == [[3] * 64]
    assert read(m[len(m) - 1]).tolist() == [3] * 64


def test_pinning_a_device_matrix(torch: Any) -> None:
    """T27: a documented no-op."""
    m = from_tensor(torch.ones((4, 4), device="cuda"))
    assert (m.pin() is m, m.pinned) == (True, False)
    host = m.to_host()
    assert host.pinned
    assert host.pin() is host


def test_labels_of_pinned_and_managed_memory(torch: Any, cupy: Any) -> None:
    """Pinned memory of any library is the host's; managed memory is a device's and goes everywhere."""
    pinned = torch.ones((4, 4)).pin_memory()
    m = from_tensor(pinned)
    assert (m.device, m.pinned, m.__dlpack_device__()) == ("cpu", True, (1, 0))
    assert np.from_dlpack(m).sum() == 16
    managed = cupy.ndarray((4, 4), cupy.float32, memptr=cupy.cuda.malloc_managed(64))
    managed.fill(2)
    m = from_tensor(managed)
    assert m.device == "cuda:0"
    assert (m.to_tensor("torch").sum().item(), m.to_tensor("torch").data_ptr()) == (32, managed.data.ptr)
    assert np.asarray(m.to_host()).sum() == 32


def test_objects_known_by_protocol(torch: Any, cupy: Any) -> None:
    """T32: they stay on their device and share; an address that CUDA does not know is refused by name."""
    x = cupy.arange(6, dtype=cupy.float32).reshape(2, 3)
    m = from_tensor(OnlyInterface(x))
    assert (m.device, m._view.pointer) == ("cuda:0", x.data.ptr)
    host = np.ones((2, 3), np.float32)

    class Liar:
        @property
        def __cuda_array_interface__(self) -> dict[str, Any]:
            return {**host.__array_interface__, "version": 3}

    with pytest.raises(UnsupportedTensorError, match="pageable memory to CUDA"):
        from_tensor(Liar())


def test_interface_that_we_offer(torch: Any) -> None:
    """Version 3 with a stream; not offered for bfloat16, which has no code."""
    m = from_tensor(torch.ones((4, 4), device="cuda"))
    interface = m.__cuda_array_interface__
    assert (interface["version"], interface["stream"], interface["data"][0]) == (3, 1, m._view.pointer)
    assert not hasattr(from_tensor(torch.ones((2, 2), device="cuda", dtype=torch.bfloat16)), "__cuda_array_interface__")


# Accounting and failures -----------------------------------------------------------------------------------
@pytest.mark.parametrize("source", ["torch", "cupy", "jax"])
def test_memory_stays_flat(torch: Any, cupy: Any, runtime: Any, source: str) -> None:
    """T35: after 10,000 exchanges no device memory, no event and no pinned block more than before."""
    targets = [name for name in ("torch", "cupy", "jax") if name != source]
    x = make(source, values())

    def exchange() -> None:
        m = from_tensor(x)
        for target in targets:
            m.to_tensor(target)

    def held() -> tuple[Any, ...]:
        gc.collect()
        torch.cuda.synchronize()
        pool = cupy.get_default_memory_pool()
        return torch.cuda.memory_allocated(), pool.used_bytes(), len(runtime._events), default_arena().stats().live

    exchange()
    before = held()
    for _ in range(10_000):
        exchange()
    assert held() == before
    for _ in range(300):
        from_tensor(make("torch", values())).to_host()
    assert held() == before


def test_out_of_memory(torch: Any) -> None:
    """An error of Python, and the device goes on working."""
    big = from_tensor(np.broadcast_to(np.float32(1), (1 << 18, 1 << 18)))
    for framework in ("torch", "cupy"):
        with pytest.raises((MemoryError, RuntimeError), match=r"(?i)memory"):
            big.to_device("cuda:0", framework=framework)
    assert np.array_equal(np.asarray(from_tensor(values()).to_device("cuda:0").to_host()), values())


def test_devices_that_are_not_there(torch: Any) -> None:
    """The message lists those that are."""
    for call in (
        lambda: from_tensor(values()).to_device("cuda:99", framework="torch"),
        lambda: convert(values(), "cupy", device="cuda:99"),
        lambda: from_tensor(make("torch", values())).to_device("cuda:99"),
    ):
        with pytest.raises(DeviceUnavailableError, match="cuda:0"):
            call()


FORKED = """
import os, sys, warnings
warnings.simplefilter("ignore")
import numpy as np, torch
from matrix_interop import from_tensor
m = from_tensor(torch.ones((4, 4), device="cuda"))
h = m.to_host()
pid = os.fork()
if not pid:
    code = 1
    try:
        t = from_tensor(np.arange(6.0).reshape(2, 3)).to_tensor("torch")
        assert t.sum().item() == 15 and np.asarray(h).sum() == 16
        assert from_tensor(np.ones((3, 3))).normalized().to_host().pinned is False
        try:
            m.to_host()
        except Exception as error:
            assert "fork" in str(error), error
            code = 0
    finally:
        os._exit(code)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""

PICKLES = """
import sys, pickle, torch
from matrix_interop import from_tensor
big, small = torch.ones((5, 800_000), device="cuda"), torch.ones((5, 1), device="cuda")
torch.cuda._sleep(100_000_000)
big += 1
sys.stdout.buffer.write(pickle.dumps((from_tensor(big), from_tensor(small))))
"""


def run(code: str) -> bytes:
    """What a fresh interpreter prints; it must end well."""
    path = os.pathsep.join(p for p in sys.path if p)
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path}, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


def test_a_forked_child_works_on_the_host(torch: Any) -> None:
    """It makes no CUDA call for host work, and device work is refused by an error that says why."""
    run(FORKED)


def test_pickles_outlive_their_process(torch: Any) -> None:
    """T40, T41: host bytes travel, written after a slow kernel, and are read once the sender is gone."""
    big, small = pickle.loads(run(PICKLES))
    assert (np.asarray(big).sum(), np.asarray(small).sum(), big.device) == (8_000_000, 5, "cpu")


def test_the_short_script(torch: Any) -> None:
    """The script that compute-sanitizer runs (see its text) ends well."""
    script = Path(__file__).with_name("short_script.py")
    assert b"ok" in run(script.read_text())


# Two GPUs --------------------------------------------------------------------------------------------------
@pytest.fixture
def two(runtime: Any, torch: Any) -> None:
    """Skip where there is one."""
    if runtime.device_count() < 2:
        pytest.skip("one GPU only")


@pytest.mark.parametrize("source", ["torch", "cupy", PROTOCOL])
def test_the_device_is_the_pointers(two: None, torch: Any, source: str) -> None:
    """T33: memory of cuda:1 while cuda:0 is current: found, shared, exported and read back."""
    x = make(source, values(), 1)
    m = from_tensor(x)
    assert m.device == "cuda:1"
    assert np.array_equal(np.asarray(m.to_host()), values())
    assert torch.from_dlpack(m).device == torch.device("cuda:1")
    assert np.array_equal(read(m.to_tensor("cupy")), values())


@pytest.mark.parametrize("framework", ["torch", "cupy", "jax"])
def test_from_device_to_device(two: None, torch: Any, framework: str) -> None:
    """Slow work of the source is waited for, and the values arrive, dense or not."""
    for turn in range(20):
        x = torch.zeros((512, 512), device="cuda:0")
        slow_fill(torch, x, turn + 1)
        m = from_tensor(x).to_device("cuda:1", framework=framework)
        x.fill_(-1)
        assert (m.device, (np.asarray(m.to_host()) == turn + 1).all()) == ("cuda:1", True)
    data = values()
    assert np.array_equal(np.asarray(from_tensor(make("torch", data)).T.to_device("cuda:1").to_host()), data.T)
