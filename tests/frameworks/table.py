"""The frameworks that the suites run over: how a test makes a tensor and reads it back without our library."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import array_api_strict
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pyarrow as pa
import torch

from frameworks.toy import KINDS, ToyTensor

INTEGERS = frozenset({"int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"})
REALS = frozenset({"float32", "float64"})
COMPLEX = frozenset({"complex64", "complex128"})
FLOAT8_OF_TORCH = frozenset({"float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"})
FLOAT8 = FLOAT8_OF_TORCH | {"float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz"}
EVERY = INTEGERS | REALS | COMPLEX | FLOAT8 | {"bool", "float16", "bfloat16"}
WIDE = frozenset({"int64", "uint64", "float64", "complex128"})  # what JAX has only with x64


@dataclass(frozen=True, repr=False)
class Kind:
    """One framework: ``make`` a tensor with the values of an ndarray, ``read`` it, its ``pointer`` (None if empty)."""

    name: str
    dtypes: frozenset[str]
    make: Callable[[np.ndarray], Any]
    read: Callable[[Any], np.ndarray]
    pointer: Callable[[Any], int]
    #: Tensors whose memory cannot be written through them.
    immutable: bool = False
    #: Name under which the library knows it.
    framework: str = ""
    only_c: bool = False

    def __repr__(self) -> str:
        return self.name


def dtype_of(name: str) -> np.dtype[Any]:
    """The NumPy dtype of that name, ml_dtypes included."""
    return np.dtype(getattr(ml_dtypes, name) if name in FLOAT8 or name == "bfloat16" else name)


def address(a: np.ndarray) -> int:
    """Address of the first entry."""
    return int(a.__array_interface__["data"][0])


def bits(a: np.ndarray) -> bytes:
    """The values of ``a`` in C order and native byte order, every bit of them."""
    return np.ascontiguousarray(a).astype(a.dtype.newbyteorder("="), copy=False).tobytes()


def aligned(a: np.ndarray, offset: int = 0) -> np.ndarray:
    """A copy of ``a``, dense rows, ``offset`` bytes behind a multiple of 64."""
    raw = np.empty(a.nbytes + 64 + offset, np.uint8)
    start = -address(raw) % 64 + offset
    made = np.ndarray(a.shape, a.dtype, raw, start)
    made[...] = a
    return made


def _torch_make(a: np.ndarray) -> torch.Tensor:
    a = np.array(a, order="C")
    if a.dtype.name in FLOAT8 | {"bfloat16"}:
        return torch.from_numpy(a.view(f"i{a.itemsize}")).view(getattr(torch, a.dtype.name))
    return torch.from_numpy(a)


def _torch_read(t: torch.Tensor) -> np.ndarray:
    name = str(t.dtype).removeprefix("torch.")
    if name in FLOAT8 | {"bfloat16"}:
        return t.view(torch.int8 if t.itemsize == 1 else torch.int16).numpy().view(dtype_of(name))
    return t.numpy()


def _arrow_make(a: np.ndarray) -> pa.Array:
    made = pa.array(np.array(a, order="C").reshape(-1))
    for axis in range(a.ndim - 1, 0, -1):
        length = int(np.prod(a.shape[:axis]))
        made = pa.FixedSizeListArray.from_buffers(pa.list_(made.type, a.shape[axis]), length, [None], children=[made])
    return made


def _arrow_leaf(x: pa.Array) -> tuple[pa.Array, tuple[int, ...]]:
    shape = [len(x)]
    while pa.types.is_fixed_size_list(x.type):
        shape.append(x.type.list_size)
        x = x.values.slice(x.offset * shape[-1], len(x) * shape[-1])
    return x, tuple(shape)


def _arrow_read(x: pa.Array) -> np.ndarray:
    leaf, shape = _arrow_leaf(x)
    kind = np.dtype(leaf.type.to_pandas_dtype())
    data = leaf.buffers()[1]
    return np.frombuffer(data or b"", kind)[leaf.offset : leaf.offset + len(leaf)].reshape(shape)


def _arrow_pointer(x: pa.Array) -> int:
    leaf, _ = _arrow_leaf(x)
    return int(leaf.buffers()[1].address) + leaf.offset * leaf.type.bit_width // 8


class Foreign:
    """A tensor of a framework that nobody registered: all it has is DLPack."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __dlpack__(self, **keywords: Any) -> Any:
        return self.array.__dlpack__(**keywords)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


def _toy_make(a: np.ndarray) -> ToyTensor:
    return ToyTensor(memoryview(bytearray(a.tobytes())), a.dtype.name, a.shape)


def _toy_read(x: ToyTensor) -> np.ndarray:
    return np.frombuffer(x.memory, x.kind).reshape(x.shape)


NUMPY = Kind("numpy", EVERY, lambda a: np.array(a, order="C"), lambda x: x, address, framework="numpy")
TORCH = Kind(
    "torch",
    EVERY - FLOAT8 | FLOAT8_OF_TORCH,
    _torch_make,
    _torch_read,
    torch.Tensor.data_ptr,
    framework="torch",
)
JAX = Kind("jax", EVERY, jnp.array, np.asarray, lambda x: x.unsafe_buffer_pointer(), immutable=True, framework="jax")
PYARROW = Kind(
    "pyarrow",
    INTEGERS | REALS | {"float16"},
    _arrow_make,
    _arrow_read,
    _arrow_pointer,
    immutable=True,
    framework="pyarrow",
    only_c=True,
)
STRICT = Kind(
    "array_api_strict",
    INTEGERS | REALS | COMPLEX | {"bool"},
    lambda a: array_api_strict.asarray(np.array(a, order="C")),
    lambda x: x._array,
    lambda x: address(x._array),
    framework="array_api_strict",
)
TOY = Kind(
    "toy",
    frozenset(KINDS),
    _toy_make,
    _toy_read,
    lambda x: address(np.frombuffer(x.memory, np.uint8)),
    framework="toy",
    only_c=True,
)

FOREIGN = Kind(
    "protocol",
    INTEGERS | REALS | COMPLEX | {"bool", "float16"},
    lambda a: Foreign(np.array(a, order="C")),
    lambda x: x.array,
    lambda x: address(x.array),
    framework="numpy",
)

SOURCES = (NUMPY, TORCH, JAX, PYARROW, STRICT, TOY, FOREIGN)
TARGETS = (NUMPY, TORCH, JAX, PYARROW, STRICT, TOY)


@contextmanager
def x64(on: bool) -> Iterator[None]:
    """JAX with or without 64-bit types."""
    with jax.enable_x64(on):
        yield
