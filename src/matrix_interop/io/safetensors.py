"""safetensors: a JSON header that names tensors, then their bytes; ``dataset`` picks a tensor.

Source: the format's specification (https://github.com/huggingface/safetensors, "Format"). 8 bytes of
header length, little-endian; the header, from "{" on, padded with spaces; then the byte buffer, in
which the tensors follow each other without gap or overlap. The header is read here and not by the
library, which cannot map a tensor into NumPy and knows bfloat16 only through torch.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from matrix_interop.dtypes import as_dtype
from matrix_interop.errors import FormatError, UnsupportedDtypeError
from matrix_interop.io.base import DType, Format, Layout, Options, Rows, as_matrix, choose, plain_layout
from matrix_interop.io.writing import write_blocks

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["FORMATS"]

#: The library's own limit for a header.
_MAX_HEADER: Final = 100_000_000
_DTYPES: Final[dict[str, DType]] = {
    code: as_dtype(name)
    for code, name in {
        "BOOL": "?",
        "U8": "u1",
        "I8": "i1",
        "U16": "<u2",
        "I16": "<i2",
        "U32": "<u4",
        "I32": "<i4",
        "U64": "<u8",
        "I64": "<i8",
        "F16": "<f2",
        "F32": "<f4",
        "F64": "<f8",
        "C64": "<c8",
        "BF16": "bfloat16",
        "F8_E4M3": "float8_e4m3fn",
        "F8_E5M2": "float8_e5m2",
        "F8_E8M0": "float8_e8m0fnu",
        "F8_E4M3FNUZ": "float8_e4m3fnuz",
        "F8_E5M2FNUZ": "float8_e5m2fnuz",
    }.items()
}
#: In the specification, but narrower than a byte.
_BITS: Final = {"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6}


@dataclass(frozen=True, slots=True)
class _Tensor:
    code: str
    shape: tuple[int, ...]
    start: int
    stop: int


class Safetensors(Format):
    """The format."""

    name = "safetensors"
    takes = ("dataset",)

    def sniff(self, head: bytes, tail: bytes) -> bool:
        """See `Format.sniff`. No zero byte where the header's text starts tells it from two uint64."""
        return head[8:9] == b"{" and head[5:8] == b"\0\0\0" and 0 not in head[8:16]

    def describe(self, path: Path, options: Options) -> Layout:
        """See `Format.describe`."""
        size = path.stat().st_size
        tensors, offset = _read_header(path, size, partial=options.partial)
        name = choose(path, "tensor", list(tensors), options.dataset)
        tensor = tensors[name]
        dtype = _DTYPES.get(tensor.code)
        if dtype is None:
            msg = f"{path}: tensor {name!r} has the type {tensor.code}, narrower than a byte: no array has it"
            raise UnsupportedDtypeError(msg)
        shape = as_matrix(path, f"tensor {name!r}", tensor.shape, options)
        end = min(size, offset + tensor.stop)
        start = offset + tensor.start
        return plain_layout(path, f"tensor {name!r}", max(end, start), options, offset=start, shape=shape, dtype=dtype)

    def storage(self, shape: tuple[int, int], dtype: DType) -> DType:
        """See `Format.storage`."""
        stored = dtype.newbyteorder("<")
        if stored in _DTYPES.values():
            return stored
        msg = f"a safetensors file cannot hold {dtype}: write m.astype('float32') to convert first"
        raise UnsupportedDtypeError(msg)

    def write(self, file: BinaryIO, rows: Rows, dtype: DType, dataset: str) -> None:
        """See `Format.write`. One tensor, its values at a multiple of 64 bytes."""
        code = next(code for code, stored in _DTYPES.items() if stored == dtype)
        stop = rows.shape[0] * rows.shape[1] * dtype.itemsize
        header = json.dumps({dataset: {"dtype": code, "shape": list(rows.shape), "data_offsets": [0, stop]}}).encode()
        header += b" " * (-(8 + len(header)) % 64)
        file.write(len(header).to_bytes(8, "little") + header)
        write_blocks(file, rows, dtype)


def _read_header(path: Path, size: int, *, partial: bool) -> tuple[dict[str, _Tensor], int]:
    """The tensors by name, and the byte at which their buffer starts."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, _MAX_HEADER):
            msg = f"{path}: the safetensors header is {length} bytes long by its first 8, but the file has {size} bytes"
            raise FormatError(msg)
        text = file.read(length)
    try:
        header = json.loads(text.decode(), object_pairs_hook=_unique)
        tensors = _tensors(header)
    except (ValueError, TypeError, KeyError, RecursionError) as e:
        msg = f"{path}: the safetensors header of {length} bytes is damaged: {type(e).__name__}: {e}"
        raise FormatError(msg) from e
    expected = 8 + length + max((tensor.stop for tensor in tensors.values()), default=0)
    if size > expected or (size < expected and not partial):
        msg = f"{path}: the safetensors header of {length} bytes says {expected} bytes in all, but the file has {size}"
        raise FormatError(msg + ("; partial=True reads the whole rows that are there" if size < expected else ""))
    return tensors, 8 + length


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object whose names are all different."""
    found = dict(pairs)
    if len(found) != len(pairs):
        msg = "a name stands twice"
        raise ValueError(msg)
    return found


def _tensors(header: Any) -> dict[str, _Tensor]:
    """The entries, each checked for itself and all of them for gaps and overlaps; errors are plain ValueErrors."""
    if not isinstance(header, dict):
        msg = "not a JSON object"
        raise TypeError(msg)
    tensors = {name: _tensor(name, entry) for name, entry in header.items() if name != "__metadata__"}
    at = 0
    for name, tensor in sorted(tensors.items(), key=lambda item: (item[1].start, item[1].stop)):
        if tensor.start != at:
            msg = f"tensor {name!r} starts at byte {tensor.start} of the buffer, the one before it ends at {at}"
            raise ValueError(msg)
        at = tensor.stop
    return tensors


def _tensor(name: str, entry: Any) -> _Tensor:
    if set(entry) != {"dtype", "shape", "data_offsets"}:
        msg = f"tensor {name!r} must have dtype, shape and data_offsets, not {sorted(entry)}"
        raise ValueError(msg)
    code, shape, (start, stop) = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not all(type(number) is int and number >= 0 for number in (*shape, start, stop)):
        msg = f"tensor {name!r} has shape {shape} and data_offsets {start}, {stop}: counts of 0 and more are meant"
        raise ValueError(msg)
    bits = _BITS[code] if code in _BITS else _DTYPES[code].itemsize * 8
    if (stop - start) * 8 != prod(shape) * bits:
        needed = prod(shape) * bits // 8
        msg = f"tensor {name!r} of shape {shape}, {code}, needs {needed} bytes, its data_offsets give {stop - start}"
        raise ValueError(msg)
    return _Tensor(code, tuple(shape), start, stop)


FORMATS: Final[dict[str, Format]] = {"safetensors": Safetensors()}
