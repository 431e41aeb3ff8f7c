"""Opening and saving: the functions that users call."""

from __future__ import annotations

import mmap as memory_map
import operator
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, cast

import numpy as np

from matrix_interop.dtypes import as_dtype
from matrix_interop.errors import FormatError, UnknownFrameworkError, UnsupportedLayoutError
from matrix_interop.io.base import Array, Layout, Options, Rows
from matrix_interop.io.registry import described, find
from matrix_interop.io.row_source import RowSource
from matrix_interop.io.writing import ArrayRows, replacing
from matrix_interop.matrix import HostMatrix, from_tensor
from matrix_interop.transfer.files import MappedFile

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["is_mapped", "open_matrix", "open_rows", "save_matrix"]

StrPath = str | os.PathLike[str]
Mode = Literal["r", "c", "r+"]
_ACCESS: Final = {"r": memory_map.ACCESS_READ, "c": memory_map.ACCESS_COPY, "r+": memory_map.ACCESS_WRITE}


def open_matrix(
    path: StrPath,
    *,
    format: str | None = None,
    mmap: bool = True,
    mode: Mode = "r",
    partial: bool = False,
    dataset: str | None = None,
    columns: str | Sequence[str] | None = None,
    dtype: Any = None,
    dim: int | None = None,
    verify: bool = False,
) -> HostMatrix:
    """The matrix in a file, mapped where the format keeps it as one plain region.

    A mapped matrix costs no memory: pages are read when their values are. Mode "r" makes it read-only, "c" lets
    writes stay in memory (copy on write), "r+" lets them reach the file. npy, fvecs, fbin, raw, ground truth and
    safetensors files are mapped, HDF5 datasets if contiguous, Arrow files of one uncompressed batch. What cannot be
    mapped, and everything with ``mmap=False``, is read into new, writable memory; mode "r+" is then refused, and an
    .npz, which people expect to be mapped, warns. `is_mapped` tells which it was. The file must not be cut shorter
    while it is mapped: touching a page that is gone ends the process (SIGBUS). `rows`, `blocks`, `knn`, `save_matrix`
    and moves to a device look before each block and raise `FormatError`.

    ``format`` is a suffix such as "fbin"; without it the content decides (npy, npz, HDF5, Parquet, Arrow,
    safetensors), else the suffix. ``dataset`` names the array, tensor or half in npz, HDF5, safetensors and
    ground-truth files, ``columns`` the columns in Parquet and Arrow files; neither is needed where there is but
    one. ``dtype`` and ``dim`` (values a row) are needed where the file does not say them: raw files, nameless bytes in
    .npy, one-dimensional arrays, lists of any length. Where it does, they are compared with it. ``partial`` takes the
    whole rows of a file that was cut off. ``verify`` reads .fvecs, .ivecs and .bvecs through once and compares every
    record's dimension; otherwise 256 are compared.

    Raises `FormatError` (a file and its header disagree, or it lacks what was asked for), `UnsupportedDtypeError`,
    `UnsupportedLayoutError`, `FrameworkNotInstalledError` and the usual OSErrors.
    """
    where = Path(path)
    options = _options(dataset, columns, dtype, dim, partial=partial, verify=verify)
    if mode not in {"r", "c", "r+"}:
        msg = f"mode={mode!r}: 'r' (read only), 'c' (writes stay in memory) or 'r+' (writes reach the file)"
        raise ValueError(msg)
    fmt = find(where, format, reading=True)
    layout = described(where, fmt, options)
    if mmap and layout.offset is not None:
        return _host(_map(where, layout, mode))
    if mode == "r+":
        why = f"this {fmt.name} file keeps no plain region" if mmap else "mmap=False forbids it"
        msg = f"{where}: mode='r+' needs a mapping, and {why}"
        raise FormatError(msg)
    if mmap and fmt.name == "npz":
        nbytes = layout.shape[0] * layout.shape[1] * layout.dtype.itemsize
        text = f"{where}: an .npz is never mapped, {nbytes} bytes are read into memory; mmap=False says that you know"
        warnings.warn(text, stacklevel=2)
    rows = fmt.open(where, options)
    try:
        return _host(rows.whole())
    finally:
        rows.close()


def open_rows(
    path: StrPath | Sequence[StrPath],
    *,
    format: str | None = None,
    partial: bool = False,
    dataset: str | None = None,
    columns: str | Sequence[str] | None = None,
    dtype: Any = None,
    dim: int | None = None,
    verify: bool = False,
) -> RowSource:
    """The rows of a file of any format and size, read on demand; several paths make one source, one after the other.

    The keywords are those of `open_matrix`. Nothing is mapped, so that memory holds what was asked for and no more,
    besides one decoded row group of Parquet and the whole member of an .npz. Use it in a ``with`` block or close it.
    """
    paths = [path] if isinstance(path, str | os.PathLike) else list(path)
    if not paths:
        msg = "open_rows needs at least one path"
        raise ValueError(msg)
    options = _options(dataset, columns, dtype, dim, partial=partial, verify=verify)
    return RowSource([Path(one).absolute() for one in paths], format, options)


def save_matrix(path: StrPath, m: Any, *, format: str | None = None, dataset: str = "vectors") -> None:
    """Write a matrix to a file, whole or not at all.

    ``m`` is a Matrix, anything that `from_tensor` takes, a `RowSource`, or `Rows` of your own. Rows are written in
    logical order, whatever the order in memory, in blocks of about 8 MiB, to a temporary file in the same folder that
    then takes the name: after an error, or a crash, the old file is still there. ``format`` is a suffix, by default
    that of ``path``; ``dataset`` names the rows where the format has names (npz, HDF5, safetensors, Parquet, Arrow).

    Raises `UnsupportedDtypeError` or `UnsupportedLayoutError` for what the format cannot hold, before the disk is
    touched; nothing is converted unasked.
    """
    try:
        where = Path(path)
    except TypeError:
        msg = f"a path comes first, as in save_matrix('x.npy', m), not {type(path).__name__}"
        raise TypeError(msg) from None
    _require_name(dataset)
    fmt = find(where, format, reading=False)
    rows = _rows_of(m)
    dtype = fmt.storage(rows.shape, rows.dtype)
    with replacing(where) as file:
        fmt.write(file, rows, dtype, dataset)


def _require_name(dataset: Any) -> None:
    """Raise ValueError for what some format or its library would cut, refuse or never find again."""
    if isinstance(dataset, str) and dataset.isprintable() and dataset.strip("/.") and dataset != "__metadata__":
        return
    msg = f"dataset={dataset!r} is no name that every format can hold: write one of printable characters"
    raise ValueError(msg)


def is_mapped(m: Any) -> bool:
    """True if ``m``, a HostMatrix or an ndarray, lies over a memory map, such as one that `open_matrix` made."""
    owner: Any = m
    while owner is not None:
        if isinstance(owner, np.memmap | memory_map.mmap):
            return True
        if isinstance(owner, HostMatrix):
            owner = owner.array
        elif isinstance(owner, memoryview):
            owner = owner.obj
        else:
            owner = getattr(owner, "base", None)
    return False


def _options(
    dataset: str | None,
    columns: str | Sequence[str] | None,
    dtype: Any,
    dim: int | None,
    *,
    partial: bool,
    verify: bool,
) -> Options:
    """The keywords of `open_matrix` and `open_rows`, normalised."""
    names = (columns,) if isinstance(columns, str) else None if columns is None else tuple(columns)
    if dim is not None:
        dim = int(operator.index(dim))
    if names == () or (dim is not None and dim < 0):
        msg = f"columns={columns!r}, dim={dim!r}: at least one column, and a row length of 0 or more"
        raise ValueError(msg)
    return Options(dataset, names, None if dtype is None else as_dtype(dtype), dim, partial, verify)


def _host(array: Array) -> HostMatrix:
    """The array as a matrix that shares it."""
    return cast("HostMatrix", HostMatrix.from_tensor(array))


def _map(path: Path, layout: Layout, mode: Mode) -> Array:
    """The plain region as an array over a mapping of the file: nothing is read until it is touched."""
    if 0 in layout.shape:  # no operating system maps zero bytes
        empty = np.empty(layout.shape, layout.dtype)
        empty.flags.writeable = mode != "r"
        return empty
    (n, d), strides = layout.shape, layout.strides
    offset = layout.offset or 0
    end = offset + (n - 1) * strides[0] + (d - 1) * strides[1] + layout.dtype.itemsize
    mapped = MappedFile(path, end, _ACCESS[mode])
    return np.ndarray(layout.shape, layout.dtype, mapped, offset, strides)


class _ReadRows(Rows):
    """The rows of something that is read by ranges."""

    def __init__(self, m: Any, read: Callable[[int, int], Array]) -> None:
        super().__init__(Layout(m.shape, m.dtype))
        self._read = read

    def read(self, start: int, stop: int) -> Array:
        return self._read(start, stop)


def _rows_of(m: Any) -> Rows:
    """What is to be saved, as rows."""
    if isinstance(m, Rows):
        return m
    if isinstance(m, RowSource):
        return _ReadRows(m, m.read)
    try:
        matrix: Any = from_tensor(m)
    except UnknownFrameworkError:
        if not isinstance(m, Iterator):
            raise
        msg = "an iterator does not say how many rows will come: gather them with a MatrixBuilder, or pass Rows"
        raise UnsupportedLayoutError(msg) from None
    if isinstance(matrix, HostMatrix):
        return ArrayRows(np.asarray(matrix))
    return _ReadRows(matrix, lambda start, stop: np.asarray(matrix[start:stop].to_host()))
