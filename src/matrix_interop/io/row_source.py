"""`RowSource`: rows of files of any size, by range or by number, without holding the files in memory."""

from __future__ import annotations

import operator
import os
import threading
from collections import OrderedDict
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np

from matrix_interop.errors import ClosedError, FormatError, UnsupportedDtypeError
from matrix_interop.io.base import BLOCK_BYTES, Array, DType, Format, Options, Rows
from matrix_interop.io.registry import described, find

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

__all__ = ["RowSource"]

#: Of a list of files, at most so many are held open.
_MAX_OPEN: Final = 64


class RowSource:
    """The rows of one file, or of several in a row, read on demand into memory of the caller's own.

    Made by `open_rows`. ``shape`` and ``dtype`` are known at once and only the rows asked for are read. It
    may be used from several threads, which then take turns. Pickling carries paths and options, and
    a forked or unpickled source opens the files anew in its process; a file that has changed
    its shape or dtype since is refused with `FormatError`. After `close` every use raises `ClosedError`.
    """

    def __init__(self, paths: Sequence[Path], format: str | None, options: Options) -> None:
        self._paths = tuple(paths)
        self._format = format
        self._options = options
        self._closed = False
        self._formats: list[Format] = []
        counts: list[int] = []
        for path in self._paths:
            fmt = find(path, format, reading=True)
            layout = described(path, fmt, options)
            if counts:
                self._require_same(path, layout.shape[1], layout.dtype)
            self._dim, self._dtype = layout.shape[1], layout.dtype
            self._formats.append(fmt)
            counts.append(layout.shape[0])
        self._starts = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
        self._begin_process()

    def _require_same(self, path: Path, dim: int, dtype: DType) -> None:
        if (dim, dtype) != (self._dim, self._dtype):
            first = f"those of {self._paths[0]} have {self._dim} {self._dtype}"
            msg = f"{path}: rows of {dim} {dtype}, {first}: one source has one kind of row"
            raise FormatError(msg) if dtype == self._dtype else UnsupportedDtypeError(msg)

    def _begin_process(self) -> None:
        """Start with no open file and a lock that no thread of another process can have left locked."""
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._open: OrderedDict[int, Rows] = OrderedDict()

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns, over all files."""
        return int(self._starts[-1]), self._dim

    @property
    def dtype(self) -> DType:
        """The NumPy dtype of the rows (ml_dtypes for bfloat16 and float8)."""
        return self._dtype

    @property
    def ndim(self) -> int:
        """2."""
        return 2

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        where = str(self._paths[0]) if len(self._paths) == 1 else f"{len(self._paths)} files from {self._paths[0]}"
        return (
            f"RowSource({self.shape[0]} x {self.shape[1]} {self._dtype}, {where}{', closed' if self._closed else ''})"
        )

    def read(self, start: int, stop: int) -> Array:
        """Rows ``start`` to ``stop`` as a new C-order array. Raises IndexError unless 0 <= start <= stop <= len."""
        self._require_open()
        start, stop = operator.index(start), operator.index(stop)
        if not 0 <= start <= stop <= len(self):
            msg = f"rows {start} to {stop} of a source of {len(self)} rows"
            raise IndexError(msg)
        out = np.empty((stop - start, self._dim), self._dtype)
        first = int(np.searchsorted(self._starts, start, "right")) - 1
        for part in range(first, len(self._paths)):
            offset, end = int(self._starts[part]), int(self._starts[part + 1])
            begin, end = max(start, offset), min(stop, end)
            if begin >= stop:
                break
            block = self._read_part(part, begin - offset, end - offset)
            if (begin, end) == (start, stop):
                return block
            out[begin - start : end - start] = block
        return out

    def take(self, ids: Any) -> Array:
        """The rows with these numbers, in the order given, as a new array of shape (len(ids), columns).

        A number may come more than once. Inside, the file is read in ascending order and neighbours
        in one go, so that time grows about linearly. Raises IndexError for numbers below 0 or
        beyond the last row, TypeError for anything but one dimension of integers.
        """
        self._require_open()
        wanted = self._row_numbers(ids)
        order = np.argsort(wanted, kind="stable")
        ascending = wanted[order]
        out = np.empty((len(wanted), self._dim), self._dtype)
        bounds = np.searchsorted(ascending, self._starts)
        for part, (a, b) in enumerate(pairwise(bounds.tolist())):
            if a < b:
                with self._in_this_process():
                    self._part(part).gather(ascending[a:b] - self._starts[part], order[a:b], out)
        return out

    def _row_numbers(self, ids: Any) -> Array:
        given = np.asarray(ids)
        if given.size == 0:
            given = given.astype(np.int64)
        if given.ndim != 1 or given.dtype.kind not in "iu":
            msg = f"row numbers must be one dimension of integers, not shape {given.shape} of {given.dtype}"
            raise TypeError(msg)
        wrong = np.flatnonzero((given < 0) | (given >= len(self)))
        if wrong.size:
            row, place = given[wrong[0]], wrong[0]
            msg = f"row {row} (at position {place}) of a source of {len(self)} rows: 0 to {len(self) - 1} are there"
            raise IndexError(msg)
        return given.astype(np.int64)

    def blocks(self, block: int | None = None) -> Iterator[Array]:
        """All rows as arrays of ``block`` rows (None: about 8 MiB), the last one shorter."""
        self._require_open()
        step = (
            max(1, BLOCK_BYTES // max(1, self._dim * self._dtype.itemsize)) if block is None else operator.index(block)
        )
        if step < 1:
            msg = f"a block has at least one row, not {block}"
            raise ValueError(msg)
        return (self.read(start, min(len(self), start + step)) for start in range(0, len(self), step))

    def _read_part(self, part: int, start: int, stop: int) -> Array:
        with self._in_this_process():
            return self._part(part).read(start, stop)

    def _in_this_process(self) -> threading.Lock:
        """The lock to hold while a file is used; in a forked child, after leaving the parent's files."""
        if self._pid != os.getpid():
            inherited = self._open
            self._begin_process()
            # Closed first: the HDF5 library would hand the inherited file out again.
            for rows in inherited.values():
                rows.close()
        return self._lock

    def _part(self, part: int) -> Rows:
        """The open file of that number; called with the lock held."""
        self._require_open()
        rows = self._open.get(part)
        if rows is None:
            rows = self._formats[part].open(self._paths[part], self._options)
            expected = (int(self._starts[part + 1] - self._starts[part]), self._dim)
            if rows.shape != expected or rows.dtype != self._dtype:
                rows.close()
                now = f"{rows.shape} {rows.dtype}"
                msg = f"{self._paths[part]}: has changed since it was opened, from {expected} {self._dtype} to {now}"
                raise FormatError(msg)
            while len(self._open) >= _MAX_OPEN:
                self._open.popitem(last=False)[1].close()
            self._open[part] = rows
        self._open.move_to_end(part)
        return rows

    def _require_open(self) -> None:
        if self._closed:
            msg = f"{self!r} was closed: open it again with open_rows"
            raise ClosedError(msg)

    def close(self) -> None:
        """Close the files; arrays already read stay. A second call does nothing."""
        with self._in_this_process():
            self._closed = True
            while self._open:
                self._open.popitem()[1].close()

    def __enter__(self) -> Self:
        self._require_open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        self._require_open()
        return _reopen, (self._paths, self._format, self._options, self.shape, self._dtype)


def _reopen(
    paths: tuple[Path, ...], format: str | None, options: Options, shape: tuple[int, int], dtype: DType
) -> RowSource:
    source = RowSource(paths, format, options)
    if (source.shape, source.dtype) != (shape, dtype):
        msg = f"{paths[0]}: has changed since it was pickled, from {shape} {dtype} to {source.shape} {source.dtype}"
        raise FormatError(msg)
    return source
