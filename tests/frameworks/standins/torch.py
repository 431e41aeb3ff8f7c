"""torch 2.13 on CUDA.

Facts copied (``tests/gpu`` proves them on the real one): the raw current stream is 0 for the legacy default stream,
which is no external stream; memory that died is given out anew in the order of its own stream, unless `record_stream`
told of another; `to_dlpack` orders nothing and checks nothing; the importer of capsules takes CUDA memory and no
managed one, ignores READ_ONLY and ends the process on negative strides; conjugate and negative bits are resolved by
`copy_`; no negative steps; types are objects of torch's own, and NumPy's in their place an error.
Not copied: autograd, what its functions compute (NumPy's do it), array-api-compat's wrapping of its namespace. Host
tensors are here only to be sent to a device; the tests of the real torch look at those.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np

from frameworks.standins import late
from simulated import lateframe
from simulated.runtime import LEGACY, SLOW

__version__ = "2.13.0"
_streams = late.Streams()
strided = "torch.strided"


class dtype:  # noqa: N801  torch's name
    """A type of torch's own."""

    def __init__(self, name: str, kind: Any) -> None:
        self.name, self.kind = name, np.dtype(kind)
        self.itemsize, self.is_complex = self.kind.itemsize, self.kind.kind == "c"

    def __repr__(self) -> str:
        return f"torch.{self.name}"


_FLOAT8 = ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu")
_DTYPES = {
    name: dtype(name, getattr(ml_dtypes, name, name))
    for name in (
        *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float16", "float32", "float64", "complex64", "complex128", "bfloat16", *_FLOAT8),
    )
}
#: A type that NumPy lacks: known by name, without values here.
complex32 = dtype("complex32", "c8")
_OF_NUMPY = {kind.kind: kind for kind in _DTYPES.values()}


def __getattr__(name: str) -> Any:
    """The types, one of which is called `bool`."""
    if name in _DTYPES:
        return _DTYPES[name]
    raise AttributeError(name)


class device:  # noqa: N801  torch's name
    """A device."""

    def __init__(self, kind: Any, index: int | None = None) -> None:
        name, _, number = str(kind).partition(":")
        self.type, self.index = name, int(number) if number else index

    def __eq__(self, other: object) -> bool:
        return isinstance(other, device) and str(self) == str(other)

    def __hash__(self) -> int:
        return hash(str(self))

    def __str__(self) -> str:
        return self.type if self.index is None else f"{self.type}:{self.index}"


def _ordinal(place: Any) -> int:
    """The number of a CUDA device; the current one where none is named."""
    place = place if isinstance(place, device) else device(place)
    assert place.type == "cuda", "host tensors are not stood in"
    return lateframe.current_device() if place.index is None else place.index


class _Memory(late.CudaArray):
    """Device memory, with the bits of a tensor that are pending on it."""

    streams = _streams
    conjugate = negative = False

    def bare(self) -> _Memory:
        plain = _Memory(self.pointer, self.shape, self.strides, self.dtype, self.ordinal, None)
        plain.conjugate, plain.negative = self.conjugate, self.negative
        return plain

    def values(self) -> np.ndarray:
        values = super().values()
        values = values.conj() if self.conjugate else values
        return -values if self.negative else values


class Tensor:
    """A tensor on a device."""

    is_cuda = True
    is_cpu = is_nested = is_meta = is_quantized = requires_grad = False
    layout = strided
    #: States of real tensors that are asked for: storage resized away, inside a transform, a type without NumPy's form.
    freed = transformed = False
    label: Any = None

    def __init__(self, memory: lateframe.Array, like: Tensor | None = None) -> None:
        self.memory = _Memory.over(memory)
        if like is not None:
            self.memory.conjugate, self.memory.negative = like.is_conj(), like.is_neg()

    @property
    def dtype(self) -> Any:
        """The type, torch's."""
        return self.label or _OF_NUMPY[self.memory.dtype]

    @property
    def shape(self) -> tuple[int, ...]:
        """Lengths of the axes."""
        return self.memory.shape

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return self.memory.ndim

    @property
    def device(self) -> Any:
        """Where the memory is."""
        return device("cuda", self.memory.ordinal)

    def get_device(self) -> int:
        """The number of its device."""
        return self.memory.ordinal

    def data_ptr(self) -> int:
        """The address; 0 where nothing is behind it. Without a storage there is none to give."""
        if self.transformed or self.layout != strided:
            raise RuntimeError("Cannot access data pointer of Tensor that doesn't have storage")
        return self.memory.pointer if self.memory.size and not self.freed else 0

    def stride(self) -> tuple[int, ...]:
        """Entries, not bytes, from one entry to the next."""
        return tuple(step // self.memory.dtype.itemsize for step in self.memory.strides)

    def numel(self) -> int:
        """Number of entries."""
        return self.memory.size

    def is_conj(self) -> bool:
        """True where a conjugation is pending."""
        return self.memory.conjugate

    def is_neg(self) -> bool:
        """True where a negation is pending."""
        return self.memory.negative

    def _is_zerotensor(self) -> bool:
        return False

    def is_contiguous(self) -> bool:
        """True for dense rows."""
        return bool(self.memory._header().flags.c_contiguous)

    def detach(self) -> Tensor:
        """The same memory outside the graph."""
        return Tensor(self.memory, self)

    def conj(self) -> Tensor:
        """The conjugate, pending."""
        made = Tensor(self.memory, self)
        made.memory.conjugate = not self.is_conj()
        return made

    @property
    def imag(self) -> Tensor:
        """The imaginary part, a view; of a conjugate, pending."""
        x, size = self.memory, self.memory.dtype.itemsize // 2
        made = Tensor(_Memory(x.pointer + size, x.shape, x.strides, f"f{size}", x.ordinal, x.owner))
        made.memory.negative = self.is_conj()
        return made

    def permute(self, axes: tuple[int, ...]) -> Tensor:
        """The axes in another order, a view."""
        x = self.memory
        shape, strides = (tuple(facts[axis] for axis in axes) for facts in (x.shape, x.strides))
        return Tensor(_Memory(x.pointer, shape, strides, x.dtype, x.ordinal, x.owner), self)

    def expand(self, *shape: int) -> Tensor:
        """Rows that are one row."""
        x = self.memory
        strides = tuple(0 if n != m else step for n, m, step in zip(shape, x.shape, x.strides, strict=True))
        return Tensor(_Memory(x.pointer, shape, strides, x.dtype, x.ordinal, x.owner), self)

    def view(self, kind: Any) -> Tensor:
        """The same bytes as another type of that size."""
        x = self.memory
        return Tensor(_Memory(x.pointer, x.shape, x.strides, kind.kind, x.ordinal, x.owner))

    def __getitem__(self, key: Any) -> Tensor:
        steps = [part.step for part in (key if isinstance(key, tuple) else (key,)) if isinstance(part, slice)]
        if any(step is not None and step < 0 for step in steps):
            raise ValueError("step must be greater than zero")
        return Tensor(self.memory[key], self)

    def copy_(self, source: Tensor) -> Tensor:
        """Write the values of another tensor, late."""
        with _streams.here(self.memory.ordinal):
            lateframe.copy_late(self.memory, source.memory)
        return self

    def fill_(self, value: Any) -> Tensor:
        """Write one value everywhere, late."""
        with _streams.here(self.memory.ordinal):
            lateframe.fill_late(self.memory, value)
        return self

    def record_stream(self, stream: Stream) -> None:
        """Tell the allocator that another stream reads the memory."""
        assert stream.ordinal == self.memory.ordinal
        lateframe.record_stream(self.memory, stream.cuda_stream or LEGACY)

    def to(self, kind: Any) -> Tensor:
        """The values in another type."""
        return empty(self.shape, dtype=kind, device=self.device).copy_(self)

    def cpu(self) -> HostTensor:
        """The values on the host."""
        return HostTensor(self.memory.host())

    def sum(self) -> Any:
        """The sum, on the host."""
        return self.memory.host().sum()

    def _computed(self, function: Any, *others: Any, **keywords: Any) -> Tensor:
        operands = [x.memory if isinstance(x, Tensor) else x for x in others]
        return Tensor(self.memory.apply(function, *operands, **keywords))

    def __add__(self, other: Any) -> Tensor:
        return self._computed(np.add, other)

    def __mul__(self, other: Any) -> Tensor:
        return self._computed(np.multiply, other)

    def __truediv__(self, other: Any) -> Tensor:
        return self._computed(np.divide, other)

    def __gt__(self, other: Any) -> Tensor:
        return self._computed(np.greater, other)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        x = self.memory
        return {
            "shape": x.shape,
            "strides": x.strides,
            "typestr": x.dtype.str,
            "data": (x.pointer, False),
            "version": 2,
        }

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() first")


class HostTensor:
    """Values on their way to or from a device."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    @property
    def dtype(self) -> Any:
        """The type, torch's."""
        return _OF_NUMPY[self.array.dtype]

    def to(self, place: Any) -> Tensor:
        """The values on a device."""
        return Tensor(_Memory.holding(self.array, _ordinal(place)))

    def view(self, kind: Any) -> HostTensor:
        """The same bytes as another type."""
        return HostTensor(self.array.view(kind.kind))

    def numpy(self) -> np.ndarray:
        """The values."""
        return self.array

    def copy_(self, source: Tensor) -> HostTensor:
        """Write the values of a tensor on a device; they are there on return."""
        np.copyto(self.array, source.memory.host(), casting="unsafe")
        return self

    def __eq__(self, other: object) -> Any:
        return self.array == other

    __hash__ = None  # type: ignore[assignment]


from_numpy = HostTensor


def empty(shape: Any, *, dtype: Any = _DTYPES["float32"], device: Any = "cuda") -> Tensor:
    """New memory."""
    return Tensor(_Memory.made(tuple(shape), dtype.kind, _ordinal(device)))


def tensor(values: Any, *, dtype: Any = None, device: Any = "cuda") -> Tensor:
    """A tensor of Python's numbers."""
    array = np.array(values)
    kind = dtype.kind if dtype else {"f": np.float32, "c": np.complex64}.get(array.dtype.kind, array.dtype)
    return Tensor(_Memory.holding(array.astype(kind), _ordinal(device)))


def full(
    shape: Any, value: Any, *, dtype: Any = _DTYPES["float32"], device: Any = "cuda", requires_grad: bool = False
) -> Tensor:
    """The same value everywhere."""
    made = Tensor(_Memory.holding(np.full(shape, value, dtype.kind), _ordinal(device)))
    made.requires_grad = requires_grad
    return made


def zeros(shape: Any, **keywords: Any) -> Tensor:
    """Zeros."""
    return full(shape, 0, **keywords)


def ones(shape: Any, **keywords: Any) -> Tensor:
    """Ones."""
    return full(shape, 1, **keywords)


def get_num_threads() -> int:
    """One: it copies no host memory for others here."""
    return 1


def from_dlpack(x: Any) -> Tensor:
    """The memory of ``x``, shared, ready on the current stream."""
    _, ordinal = x.__dlpack_device__()
    return _from_capsule(x.__dlpack__(stream=_streams.of(ordinal), max_version=(1, 0)))


def _from_capsule(capsule: Any) -> Tensor:
    memory = late.imported(_Memory, capsule, labels=(late.CUDA,), error=BufferError)
    assert min(memory.strides, default=0) >= 0, "here torch ends the process"
    if memory.dtype not in _OF_NUMPY:
        raise RuntimeError(f"Unsupported type {memory.dtype}")
    return Tensor(memory)


class Stream:
    """A stream of the current device."""

    def __init__(self, ordinal: int | None = None, handle: int | None = None) -> None:
        self.ordinal = lateframe.current_device() if ordinal is None else ordinal
        self.cuda_stream = late.runtime().stream_create(self.ordinal) if handle is None else handle


def _external(handle: int, device: Any = None) -> Stream:
    if handle in {0, LEGACY}:
        raise RuntimeError("the legacy default stream is no external one")
    return Stream(_ordinal(device) if device is not None else None, handle)


@contextmanager
def _stream(stream: Stream) -> Iterator[None]:
    with _streams.use(stream.cuda_stream, stream.ordinal):
        yield


def _raw_stream(ordinal: int) -> int:
    handle = _streams.of(ordinal)
    return 0 if handle == LEGACY else handle


def _sleep(_cycles: int) -> None:
    """A slow kernel that does nothing."""
    here = lateframe.current_device()
    late.runtime().launch(lambda: None, ordinal=here, stream=_streams.of(here), ticks=SLOW)


def _module(name: str, **attributes: Any) -> ModuleType:
    module = ModuleType(name)
    vars(module).update(attributes)
    return module


class FakeTensor(Tensor):
    """A tensor without values."""


cuda = _module(
    "torch.cuda",
    ExternalStream=_external,
    Stream=Stream,
    _sleep=_sleep,
    current_device=lateframe.current_device,
    default_stream=lambda device: Stream(_ordinal(device), 0),
    device=lateframe.device,
    device_count=lateframe.device_count,
    is_available=lambda: True,
    stream=_stream,
    synchronize=lambda _=None: late.runtime().quiesce(),
)
version = _module("torch.version", cuda="13.0", hip=None)
_functorch = _module("torch._C._functorch", is_functorch_wrapped_tensor=lambda _: False)
_C = _module("torch._C", _cuda_getCurrentRawStream=_raw_stream, _from_dlpack=_from_capsule, _functorch=_functorch)
_dlpack = _module("torch.utils.dlpack", from_dlpack=_from_capsule, to_dlpack=lambda x: x.memory.capsule())
utils = _module("torch.utils", dlpack=_dlpack)
_fakes = _module("torch._subclasses.fake_tensor", FakeTensor=FakeTensor)
_subclasses = _module("torch._subclasses", fake_tensor=_fakes)
SUBMODULES = {
    module.__name__: module for module in (cuda, version, _C, _functorch, _dlpack, utils, _fakes, _subclasses)
}


def _take(x: Tensor, indices: Tensor, *, axis: int) -> Tensor:
    assert indices.dtype.name in {"int32", "int64"}
    return x._computed(np.take, indices, axis=axis)


_namespace = _module(
    "array_api_compat.torch",
    flip=lambda x, *, axis: x._computed(np.flip, axis=axis),
    sqrt=lambda x: x._computed(np.sqrt),
    sum=lambda x, *, axis, keepdims: x._computed(np.sum, axis=axis, keepdims=keepdims),
    take=_take,
    where=lambda condition, x, y: condition._computed(np.where, x, y),
)
SUBMODULES["array_api_compat.torch"] = _namespace
