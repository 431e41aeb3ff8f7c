"""What every file format has in common: its options, where the values lie, and how rows are read.

A format says where a matrix lies in a file (`Layout`), opens it for reading (`Rows`) and writes one.
Sizes are Python integers from the header to the last check, and nothing is mapped or allocated
before the file has been found to hold what its header claims.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import pairwise
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import numpy as np

from matrix_interop.errors import FormatError, FrameworkNotInstalledError, UnsupportedDtypeError, UnsupportedLayoutError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import ModuleType

    from numpy.typing import NDArray

__all__ = [
    "BLOCK_BYTES",
    "Array",
    "DType",
    "Format",
    "Layout",
    "Options",
    "PlainRows",
    "Rows",
    "as_matrix",
    "choose",
    "plain_layout",
    "refusing",
    "require_addressable",
    "require_dtype",
    "require_library",
]

DType = np.dtype[Any]
if TYPE_CHECKING:
    Array = NDArray[Any]
else:
    Array = np.ndarray

#: What is read or written at once, where the caller does not say.
BLOCK_BYTES: Final = 8 << 20


@dataclass(frozen=True, slots=True)
class Options:
    """What the caller says about a file, as in `open_matrix`; picklable."""

    dataset: str | None = None
    columns: tuple[str, ...] | None = None
    dtype: DType | None = None
    dim: int | None = None
    partial: bool = False
    verify: bool = False


@dataclass(frozen=True, slots=True)
class Layout:
    """Shape and dtype of a matrix in a file and, where it is one plain region, the place of its values.

    ``offset`` is the byte of the first value, or None where the file keeps no plain region
    (compressed, chunked, several batches). ``strides`` are in bytes, as NumPy counts them.
    """

    shape: tuple[int, int]
    dtype: DType
    offset: int | None = None
    strides: tuple[int, int] = (0, 0)


class Rows(ABC):
    """An open file that gives rows. Used by one thread at a time."""

    #: Wanted rows at most this far apart are read in one go, with what lies between them.
    near: int = 1

    def __init__(self, layout: Layout) -> None:
        self.layout = layout

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return self.layout.shape

    @property
    def dtype(self) -> DType:
        """The dtype of `read`'s result."""
        return self.layout.dtype

    @abstractmethod
    def read(self, start: int, stop: int) -> Array:
        """Rows ``start`` to ``stop`` (within bounds) in C order; memory of its own unless the class says otherwise."""

    def gather(self, ids: Array, places: Array, out: Array) -> None:
        """Rows ``ids``, ascending, into ``out[places]``: runs of near neighbours, no longer than a block, at a time."""
        limit = max(self.near, BLOCK_BYTES // max(1, self.shape[1] * self.dtype.itemsize))
        gaps = np.flatnonzero(np.diff(ids) > self.near) + 1
        for a, b in pairwise([0, *gaps.tolist(), len(ids)]):
            while a < b:
                first = int(ids[a])
                end = a + int(np.searchsorted(ids[a:b], first + limit))
                block = self.read(first, int(ids[end - 1]) + 1)
                out[places[a:end]] = block[ids[a:end] - first]
                a = end

    def whole(self) -> Array:
        """All rows, in memory of their own."""
        return self.read(0, self.shape[0])

    def close(self) -> None:
        """Let go of the file."""


class Format(ABC):
    """One file format. ``takes`` names the options beyond dtype, dim, partial and verify that it understands."""

    name: str
    takes: tuple[str, ...] = ()

    def sniff(self, head: bytes, tail: bytes) -> bool:
        """True if the first and last 64 bytes of a file can be no other format's."""
        return False

    @abstractmethod
    def describe(self, path: Path, options: Options) -> Layout:
        """The layout of the matrix in ``path``, after its sizes were checked. Raises `FormatError`."""

    def open(self, path: Path, options: Options) -> Rows:
        """The file, open for reading rows."""
        return PlainRows(path, self.describe(path, options))

    @abstractmethod
    def storage(self, shape: tuple[int, int], dtype: DType) -> DType:
        """The dtype in which such a matrix is stored; raises before anything is written if it cannot be."""

    @abstractmethod
    def write(self, file: BinaryIO, rows: Rows, dtype: DType, dataset: str) -> None:
        """Write all rows as ``dtype``, in blocks, into a new file; ``dataset``: their name, if the format has names."""


class PlainRows(Rows):
    """Rows of a plain region, read with ``preadv``: no page stays mapped, however much is read."""

    def __init__(self, path: Path, layout: Layout) -> None:
        super().__init__(layout)
        if layout.offset is None:
            msg = f"{path}: not one plain region"
            raise FormatError(msg)
        self._path = path
        self._offset = layout.offset
        # Reading this much for nothing costs about as much as a second call.
        self.near = max(1, (16 << 10) // max(1, abs(layout.strides[0])))
        self._fd = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))

    def read(self, start: int, stop: int) -> Array:
        """See `Rows.read`."""
        (_, dim), dtype, strides = self.layout.shape, self.layout.dtype, self.layout.strides
        out = np.empty((stop - start, dim), dtype)
        if out.size == 0:
            return out
        if strides[1] == dtype.itemsize:
            self._fill(_bytes_of(out), self._offset + start * strides[0])
        else:  # column by column
            column = np.empty(stop - start, dtype)
            for j in range(dim):
                self._fill(_bytes_of(column), self._offset + start * strides[0] + j * strides[1])
                out[:, j] = column
        return out

    def gather(self, ids: Array, places: Array, out: Array) -> None:
        """See `Rows.gather`. Rows far apart go straight to their places."""
        (_, dim), (stride, step), item = self.layout.shape, self.layout.strides, self.layout.dtype.itemsize
        if step != item or dim == 0 or int(ids[-1] - ids[0]) < self.near * len(ids):
            super().gather(ids, places, out)
            return
        row = dim * item
        into = _bytes_of(out)
        for number, place in zip(ids.tolist(), places.tolist(), strict=True):
            self._fill(into[place * row : (place + 1) * row], self._offset + number * stride)

    def _fill(self, rest: memoryview, offset: int) -> None:
        """Fill memory with what the file has from byte ``offset`` on."""
        while rest:
            got = os.preadv(self._fd, [rest], offset)
            if got == 0:
                msg = (
                    f"{self._path}: became shorter while it was read: {len(rest)} bytes from byte {offset} on are gone"
                )
                raise FormatError(msg)
            rest, offset = rest[got:], offset + got

    def close(self) -> None:
        """See `Rows.close`."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __del__(self) -> None:
        if hasattr(self, "_fd"):
            self.close()


def _bytes_of(array: Array) -> memoryview:
    """The memory of a contiguous array; NumPy gives none directly for the types of ml_dtypes."""
    return memoryview(array.reshape(-1).view(np.uint8).data)


def plain_layout(
    path: Path,
    header: str,
    size: int,
    options: Options,
    *,
    offset: int,
    shape: tuple[int, int],
    dtype: DType,
    order: str = "C",
) -> Layout:
    """The layout of packed values from ``offset`` to the end, ``size``; else `FormatError` with all the numbers.

    ``header`` names what claims the shape. With ``options.partial`` a file that is too short gives
    the rows that are whole; one that is too long never passes.
    """
    n, d = shape
    item = dtype.itemsize
    require_addressable(path, header, shape, dtype)
    strides = (d * item, item) if order == "C" else (item, n * item)
    layout = Layout(shape, dtype, offset, strides)
    expected = offset + n * d * item
    if size == expected:
        return layout
    msg = (
        f"{path}: {header} says {n} rows x {d} columns of {dtype} from byte {offset} on, "
        f"{expected} bytes in all, but the file has {size}"
    )
    if size > expected:
        raise FormatError(msg)
    last_value = (d - 1) * strides[1] + item
    whole = max(0, min(n, (size - offset - last_value) // strides[0] + 1))
    if options.partial:
        return replace(layout, shape=(whole, d))
    left = f", {size - offset - whole * d * item} bytes left" if order == "C" and size >= offset else ""
    msg += f": {whole} whole rows{left}; partial=True reads the whole rows"
    raise FormatError(msg)


def require_addressable(path: Path, header: str, shape: tuple[int, int], dtype: DType) -> None:
    """Refuse shapes that no array can have: negative ones, or beyond 2**63 bytes with zeros counted as one."""
    n, d = shape
    if min(n, d) < 0 or max(n, 1) * max(d, 1) * dtype.itemsize >= 2**63:
        msg = f"{path}: {header} says {n} rows x {d} columns of {dtype}, which no array can be"
        raise FormatError(msg)


def as_matrix(path: Path, what: str, shape: tuple[int, ...], options: Options) -> tuple[int, int]:
    """The rows and columns of a stored array: its own if it has rank 2; of rank 1, rows of ``options.dim`` values."""
    if len(shape) == 2:
        return shape[0], shape[1]
    if len(shape) == 1 and options.dim and shape[0] % options.dim == 0:
        return shape[0] // options.dim, options.dim
    hint = f"; dim= cuts its {shape[0]} values into rows (dim=1: a column)" if len(shape) == 1 else ""
    msg = f"{path}: {what} has shape {shape}, a matrix needs two dimensions{hint}"
    raise UnsupportedLayoutError(msg)


def choose(path: Path, what: str, names: list[str], wanted: str | None) -> str:
    """The one of ``names`` that is wanted, or the only one; else `FormatError` with the list."""
    listed = ", ".join(repr(name) for name in names[:20]) + (", ..." if len(names) > 20 else "")
    if wanted is not None:
        if wanted in names:
            return wanted
        msg = f"{path}: holds no {what} {wanted!r}; it holds {listed or 'none'}"
        raise FormatError(msg)
    if len(names) == 1:
        return names[0]
    msg = f"{path}: holds {len(names)} {what}s: {listed or 'none'}" + ("; choose one by dataset=" if names else "")
    raise FormatError(msg)


def require_dtype(format_name: str, dtype: DType, allowed: tuple[str, ...]) -> DType:
    """``dtype`` in little-endian order if the format holds it; else `UnsupportedDtypeError` that names astype."""
    if dtype.name in allowed:
        return dtype.newbyteorder("<")
    held = " or ".join(allowed)
    msg = f"a {format_name} file holds {held}, not {dtype}: write m.astype({allowed[0]!r}) to convert first"
    raise UnsupportedDtypeError(msg)


def require_library(name: str, extra: str, what: str) -> ModuleType:
    """The module ``name``; else `FrameworkNotInstalledError` with the command that installs it."""
    try:
        return import_module(name)
    except ImportError as e:
        msg = f"{what} files need {extra}, which cannot be imported here ({e}): pip install 'matrix-interop[{extra}]'"
        raise FrameworkNotInstalledError(msg, name=extra) from e


@contextmanager
def refusing(path: Path, what: str, *errors: type[Exception]) -> Iterator[None]:
    """Turn the named errors of a library that reads ``path`` into `FormatError`; our own errors pass."""
    try:
        yield
    except (FormatError, UnsupportedDtypeError, UnsupportedLayoutError, FileNotFoundError, PermissionError):
        raise
    except errors as e:
        msg = f"{path}: not a whole {what} file of {path.stat().st_size} bytes: {type(e).__name__}: {e}"
        raise FormatError(msg) from e
