"""NumPy's .npy: magic, version, a small header in Python's syntax, then the values.

Source: numpy/lib/format.py ("NPY format"), versions 1.0 to 3.0. Both memory orders are read;
logical row-major order is written. NumPy stores the types of ml_dtypes as nameless bytes ("V2" for
bfloat16), so that nobody can tell what they were. Here they are written as a record of one field
whose name is the type's: ``[('bfloat16', '|V2')]``. That stays a valid .npy file:
``np.load(path).view(ml_dtypes.bfloat16)`` reads it, and it comes back as bfloat16 by itself here.
A nameless "V2" is opened only with ``dtype="bfloat16"``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO, Final

import numpy as np

from matrix_interop.dtypes import as_dtype, is_extension, require_plain
from matrix_interop.errors import FormatError, UnsupportedDtypeError
from matrix_interop.io.base import DType, Format, Layout, Options, Rows, as_matrix, plain_layout
from matrix_interop.io.writing import write_blocks

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["FORMATS", "MAGIC", "Header", "read_header", "write_header"]

MAGIC: Final = b"\x93NUMPY"
#: Bytes of the header's length by version.
_LENGTH_BYTES: Final = {(1, 0): 2, (2, 0): 4, (3, 0): 4}
#: A matrix of plain numbers needs a hundred bytes of header.
_MAX_HEADER: Final = 1 << 16
_ENTRY: Final = re.compile(
    r"""\s*(['"])(?P<key>descr|fortran_order|shape)\1\s*:\s*"""
    r"""(?P<value>True|False|\([0-9\s,]*\)|'[^']*'|"[^"]*"|\[.*\](?=\s*,\s*['"](?:fortran_order|shape)|\s*,?\s*\}))\s*(?:,|(?=\}))""",
)
_SHAPE: Final = re.compile(r"\(\s*(?:[0-9]{1,19}\s*,\s*)*(?:[0-9]{1,19}\s*)?\)")
_DESCR: Final = re.compile(r"[<>|=](?:[biufcSUV][0-9]{1,9}|[mM]8(?:\[[0-9a-zA-Z]*\])?|O8?|\?)")
_NAMED: Final = re.compile(r"\[\(\s*'(?P<name>[a-z0-9_]+)'\s*,\s*'[<>|]V(?P<bytes>[0-9])'\s*\)\]")


@dataclass(frozen=True, slots=True)
class Header:
    """What a header says; ``offset`` is the byte of the first value."""

    dtype: DType
    order: str
    shape: tuple[int, ...]
    offset: int


class Npy(Format):
    """The format."""

    name = "npy"

    def sniff(self, head: bytes, tail: bytes) -> bool:
        """See `Format.sniff`."""
        return head.startswith(MAGIC)

    def describe(self, path: Path, options: Options) -> Layout:
        """See `Format.describe`."""
        with path.open("rb") as file:
            header = read_header(file, path)
        return describe_array(path, header, path.stat().st_size, options)

    def storage(self, shape: tuple[int, int], dtype: DType) -> DType:
        """See `Format.storage`. Foreign byte order is kept: the format can tell it."""
        return dtype

    def write(self, file: BinaryIO, rows: Rows, dtype: DType, dataset: str) -> None:
        """See `Format.write`."""
        write_header(file, rows.shape, dtype)
        write_blocks(file, rows, dtype)


def describe_array(path: Path, header: Header, size: int, options: Options) -> Layout:
    """The layout of an array whose header and values take ``size`` bytes in all."""
    shape = as_matrix(path, "the array", header.shape, options)
    dtype = header.dtype
    layout = plain_layout(
        path, "the .npy header", size, options, offset=header.offset, shape=shape, dtype=dtype, order=header.order
    )
    if dtype.kind == "V" and not is_extension(dtype):
        dtype = _name_bytes(path, dtype, options)
        return Layout(layout.shape, dtype, layout.offset, layout.strides)
    try:
        require_plain(dtype)
    except UnsupportedDtypeError as e:
        msg = f"{path}: {e}"
        raise UnsupportedDtypeError(msg) from None
    return layout


def _name_bytes(path: Path, dtype: DType, options: Options) -> DType:
    """The type that the caller gives to nameless bytes."""
    if options.dtype is not None and options.dtype.itemsize == dtype.itemsize:
        return options.dtype
    msg = (
        f"{path}: the .npy header names no type, only {dtype.itemsize} bytes a value ({dtype.str!r}); "
        "NumPy saves bfloat16 so. Say what they are, as in dtype='bfloat16'"
    )
    raise UnsupportedDtypeError(msg)


def read_header(file: BinaryIO, path: Path) -> Header:
    """The header at the start of ``file``. Raises `FormatError`, or `UnsupportedDtypeError` for objects and records."""
    start = file.read(8)
    length_bytes = _LENGTH_BYTES.get((start[6], start[7])) if len(start) == 8 and start.startswith(MAGIC) else None
    if length_bytes is None:
        msg = f"{path}: a .npy file starts with {MAGIC!r} and a version from 1.0 to 3.0, this one with {start!r}"
        raise FormatError(msg)
    length = int.from_bytes(file.read(length_bytes), "little")
    text = file.read(min(length, _MAX_HEADER))
    if len(text) < length or not text.endswith(b"\n"):
        msg = f"{path}: the .npy header of {length} bytes is cut off, too long or does not end in a new line"
        raise FormatError(msg)
    entries = _entries(text.decode("latin-1").strip(), path)
    return Header(
        dtype=_dtype(entries["descr"], path),
        order="F" if _flag(entries["fortran_order"], path) else "C",
        shape=_shape(entries["shape"], path),
        offset=8 + length_bytes + length,
    )


def _entries(text: str, path: Path) -> dict[str, str]:
    # Not ast.literal_eval: damaged headers make Python's parser warn, recurse or use much memory.
    found: dict[str, str] = {}
    at = 1
    while text.startswith("{") and (match := _ENTRY.match(text, at)):
        if match["key"] in found:
            break
        found[match["key"]] = match["value"]
        at = match.end()
    if len(found) != 3 or text[at:].strip() != "}":
        msg = f"{path}: the .npy header must be a dictionary of descr, fortran_order and shape, not {text[:200]!r}"
        raise FormatError(msg)
    return found


def _dtype(value: str, path: Path) -> DType:
    if value.startswith("["):
        named = _NAMED.fullmatch(value)
        if named is not None:
            try:
                dtype = as_dtype(named["name"])
            except UnsupportedDtypeError:
                dtype = None
            if dtype is not None and is_extension(dtype) and dtype.itemsize == int(named["bytes"]):
                return dtype
        msg = f"{path}: the array holds records {value[:200]}: load it with NumPy and pass one field, as in x['name']"
        raise UnsupportedDtypeError(msg)
    text = value[1:-1]
    try:
        if _DESCR.fullmatch(text) is None:
            raise TypeError
        dtype = np.dtype(text)
    except TypeError:
        msg = f"{path}: the .npy header names the data type {text!r}, which is none"
        raise FormatError(msg) from None
    if dtype.hasobject:
        msg = (
            f"{path}: the array holds pickled Python objects, which are never loaded: save a rectangular numeric array"
        )
        raise UnsupportedDtypeError(msg)
    return dtype


def _flag(value: str, path: Path) -> bool:
    if value not in {"True", "False"}:
        msg = f"{path}: fortran_order in the .npy header must be True or False, not {value!r}"
        raise FormatError(msg)
    return value == "True"


def _shape(value: str, path: Path) -> tuple[int, ...]:
    if _SHAPE.fullmatch(value) is None:
        msg = f"{path}: the .npy header gives the shape {value[:200]!r}, which is none"
        raise FormatError(msg)
    return tuple(int(number) for number in value[1:-1].split(",") if number.strip())


def write_header(file: BinaryIO, shape: tuple[int, int], dtype: DType) -> None:
    """The header of a row-major array, padded so that the values start at a multiple of 64 bytes."""
    named = [(dtype.name, f"|V{dtype.itemsize}")] if is_extension(dtype) else np.lib.format.dtype_to_descr(dtype)
    np.lib.format.write_array_header_1_0(file, {"descr": named, "fortran_order": False, "shape": shape})


FORMATS: Final[dict[str, Format]] = {"npy": Npy()}
