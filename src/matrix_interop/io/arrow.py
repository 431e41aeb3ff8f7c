"""Arrow IPC files and streams, through pyarrow; ``columns`` as in Parquet. Feather version 2 is the same format.

One uncompressed batch with one fixed-size list column is a plain region of the file: it is mapped.
Other files are read batch by batch from a mapping of the library's own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, BinaryIO, Final

import numpy as np

from matrix_interop.errors import FormatError
from matrix_interop.io.base import (
    Array,
    DType,
    Format,
    Layout,
    Options,
    PlainRows,
    Rows,
    refusing,
    require_addressable,
    require_library,
)
from matrix_interop.io.columns import Columns, column_storage, list_schema, record_batches
from matrix_interop.io.writing import ArrayRows, blocks

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["FORMATS"]

_MAGIC: Final = b"ARROW1"
#: How a stream ends: the mark of a message, and the length 0.
_END: Final = b"\xff\xff\xff\xff\0\0\0\0"
_ERRORS: Final = (OSError, ValueError, KeyError, TypeError, NotImplementedError, MemoryError, OverflowError, IndexError)


class Arrow(Format):
    """The format."""

    name = "arrow"
    takes = ("columns",)

    def sniff(self, head: bytes, tail: bytes) -> bool:
        """See `Format.sniff`."""
        return head.startswith(_MAGIC)

    def describe(self, path: Path, options: Options) -> Layout:
        """See `Format.describe`."""
        return _Batches(path, options).layout

    def open(self, path: Path, options: Options) -> Rows:
        """See `Format.open`."""
        rows = _Batches(path, options)
        return rows if rows.layout.offset is None else PlainRows(path, rows.layout)

    def storage(self, shape: tuple[int, int], dtype: DType) -> DType:
        """See `Format.storage`."""
        return column_storage("Arrow", shape, dtype)

    def write(self, file: BinaryIO, rows: Rows, dtype: DType, dataset: str) -> None:
        """See `Format.write`. An array that lies in memory as it shall lie in the file goes in as one batch."""
        pa = require_library("pyarrow", "pyarrow", "Arrow")
        schema = list_schema(pa, rows, dtype, dataset)
        whole = isinstance(rows, ArrayRows) and rows.array.flags.c_contiguous and rows.array.dtype == dtype
        parts: Iterator[Array] = iter([rows.whole()]) if whole else blocks(rows, dtype)
        with pa.ipc.new_file(file, schema) as writer:
            for batch in record_batches(pa, schema, parts):
                writer.write_batch(batch)


class _Batches(Rows):
    """An open file: its record batches, which share the library's mapping."""

    def __init__(self, path: Path, options: Options) -> None:
        pa = require_library("pyarrow", "pyarrow", "Arrow")
        self._path = path
        if path.stat().st_size == 0:
            msg = f"{path}: an Arrow file starts with {_MAGIC!r}, this one has 0 bytes"
            raise FormatError(msg)
        with refusing(path, "Arrow", *_ERRORS):
            with pa.memory_map(str(path)) as source:
                whole = source.read_buffer()
            schema, self._batches = _read(pa, path, whole)
            self._columns = Columns(path, schema, options)
            for batch in self._batches:
                batch.validate(full=True)
            counts = [batch.num_rows for batch in self._batches]
            shape = (sum(counts), self._columns.dim)
            require_addressable(path, "the Arrow file", shape, self._columns.dtype)
            offset = self._plain_offset(whole)
        self._starts = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
        item = self._columns.dtype.itemsize
        super().__init__(Layout(shape, self._columns.dtype, offset, (shape[1] * item, item)))

    def _plain_offset(self, whole: Any) -> int | None:
        """The byte of the first value if one column in one batch lies in the file as it is."""
        if len(self._batches) != 1 or len(self._columns.names) != 1:
            return None
        name = self._columns.names[0]
        values = self._columns.values(self._batches[0].column(name), name, self._columns.dim, 0)
        offset = int(values.ctypes.data) - int(whole.address)
        return offset if offset >= 0 and offset + values.nbytes <= whole.size else None

    def read(self, start: int, stop: int) -> Array:
        out = np.empty((stop - start, self.layout.shape[1]), self.layout.dtype)
        with refusing(self._path, "Arrow", *_ERRORS):
            for first, batch in zip(self._starts[:-1].tolist(), self._batches, strict=True):
                begin, end = max(start, first), min(stop, first + batch.num_rows)
                if begin < end:
                    self._columns.fill(out[begin - start : end - start], batch.slice(begin - first, end - begin), begin)
        return out

    def close(self) -> None:
        self._batches = []


def _read(pa: Any, path: Path, whole: Any) -> tuple[Any, list[Any]]:
    """Schema and batches of a file, or of a stream, that share ``whole``.

    A file is a stream between its magic and its footer: both are read, since neither carries a checksum, and must
    agree.
    """
    is_file = whole.slice(0, min(len(_MAGIC), whole.size)).to_pybytes() == _MAGIC
    if not is_file and whole.slice(max(0, whole.size - len(_END))).to_pybytes() != _END:
        msg = f"{path}: the Arrow stream of {whole.size} bytes does not end in its end mark: it was cut off"
        raise FormatError(msg)
    stream = pa.ipc.open_stream(whole.slice(8) if is_file else whole)
    batches = list(stream)
    if is_file:
        file = pa.ipc.open_file(whole)
        listed = [file.get_batch(i) for i in range(file.num_record_batches)]
        if file.schema != stream.schema or [_place(whole, b) for b in listed] != [_place(whole, b) for b in batches]:
            counts = [batch.num_rows for batch in listed]
            msg = f"{path}: the Arrow footer says batches of {counts[:20]} rows, but others come before it"
            raise FormatError(msg)
    return stream.schema, batches


def _place(whole: Any, batch: Any) -> tuple[int, list[int]]:
    """The rows of a batch and where its buffers lie in the file: decompressed or byte-swapped ones do not."""
    buffers = [buffer for column in batch.columns for buffer in column.buffers() if buffer is not None]
    places = [buffer.address - whole.address for buffer in buffers]
    return batch.num_rows, [place for place in places if 0 <= place < whole.size]


FORMATS: Final[dict[str, Format]] = dict.fromkeys(("arrow", "feather", "arrows"), Arrow())
