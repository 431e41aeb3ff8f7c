"""Parquet, through pyarrow: ``columns`` names the vectors' column, or the numbers that make up a row.

Never mapped: the values are encoded. A row group is decoded as a whole, and the last one is kept,
so that reading in small blocks decodes each once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, BinaryIO, Final

import numpy as np

from matrix_interop.errors import FormatError
from matrix_interop.io.base import (
    Array,
    DType,
    Format,
    Layout,
    Options,
    Rows,
    refusing,
    require_addressable,
    require_library,
)
from matrix_interop.io.columns import Columns, column_storage, list_schema, record_batches
from matrix_interop.io.writing import blocks

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["FORMATS"]

_ERRORS: Final = (OSError, ValueError, KeyError, TypeError, NotImplementedError, MemoryError, OverflowError, IndexError)


class Parquet(Format):
    """The format."""

    name = "parquet"
    takes = ("columns",)

    def sniff(self, head: bytes, tail: bytes) -> bool:
        """See `Format.sniff`."""
        return head.startswith(b"PAR1") and tail.endswith(b"PAR1")

    def describe(self, path: Path, options: Options) -> Layout:
        """See `Format.describe`."""
        rows = _RowGroups(path, options)
        rows.close()
        return rows.layout

    def open(self, path: Path, options: Options) -> Rows:
        """See `Format.open`."""
        return _RowGroups(path, options)

    def storage(self, shape: tuple[int, int], dtype: DType) -> DType:
        """See `Format.storage`."""
        return column_storage("Parquet", shape, dtype)

    def write(self, file: BinaryIO, rows: Rows, dtype: DType, dataset: str) -> None:
        """See `Format.write`. A row group a block, with checksums."""
        pa = require_library("pyarrow", "pyarrow", "Parquet")
        parquet = require_library("pyarrow.parquet", "pyarrow", "Parquet")
        schema = list_schema(pa, rows, dtype, dataset)
        with parquet.ParquetWriter(file, schema, compression="zstd", write_page_checksum=True) as writer:
            for batch in record_batches(pa, schema, blocks(rows, dtype)):
                writer.write_batch(batch)


class _RowGroups(Rows):
    """An open file; its footer was compared with itself."""

    def __init__(self, path: Path, options: Options) -> None:
        parquet = require_library("pyarrow.parquet", "pyarrow", "Parquet")
        self._path = path
        with refusing(path, "Parquet", *_ERRORS):
            self._file = parquet.ParquetFile(path, page_checksum_verification=True, buffer_size=1 << 20)
            try:
                metadata = self._file.metadata
                self._columns = Columns(path, self._file.schema_arrow, options)
                counts = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
                shape = (metadata.num_rows, self._columns.dim)
                require_addressable(path, "the Parquet footer", shape, self._columns.dtype)
                self._require_counts(metadata.num_rows, counts)
                self._decode_one_row(counts)
            except BaseException:
                self._file.close()
                raise
        super().__init__(Layout(shape, self._columns.dtype))
        self._starts = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
        self.near = max(counts, default=1)
        self._kept: tuple[int, Array] | None = None

    def _require_counts(self, total: int, counts: list[int]) -> None:
        """Rows that the footer counts in two places must agree before anything is allocated.

        The values that it counts a column would be a third, but asking pyarrow for a column of a damaged footer can
        end the process.
        """
        if min(counts, default=0) < 0 or sum(counts) != total:
            msg = f"{self._path}: the Parquet footer says {total} rows, its row groups {counts[:20]}"
            raise FormatError(msg)

    def _decode_one_row(self, counts: list[int]) -> None:
        """A damaged schema can claim any width: see one row of it before anything that wide is allocated."""
        group = next((i for i, count in enumerate(counts) if count), None)
        if group is not None:
            names = list(self._columns.names)
            rows = self._file.iter_batches(batch_size=1, row_groups=[group], columns=names, use_threads=False)
            if next(rows, None) is None:
                msg = f"{self._path}: row group {group} should hold {counts[group]} rows and holds none"
                raise FormatError(msg)

    def read(self, start: int, stop: int) -> Array:
        out = np.empty((stop - start, self.layout.shape[1]), self.layout.dtype)
        group = int(np.searchsorted(self._starts, start, "right")) - 1
        at = start
        while at < stop:
            first, end = int(self._starts[group]), min(stop, int(self._starts[group + 1]))
            if end > at:
                out[at - start : end - start] = self._decode(group)[at - first : end - first]
            at, group = max(at, end), group + 1
        return out

    def _decode(self, group: int) -> Array:
        if self._kept is not None and self._kept[0] == group:
            return self._kept[1]
        self._kept = None
        first, count = int(self._starts[group]), int(self._starts[group + 1] - self._starts[group])
        with refusing(self._path, "Parquet", *_ERRORS):
            table = self._file.read_row_group(group, columns=list(self._columns.names), use_threads=False)
            if table.num_rows != count:
                msg = f"{self._path}: row group {group} holds {table.num_rows} rows, the footer says {count}"
                raise FormatError(msg)
            rows = np.empty((count, self.layout.shape[1]), self.layout.dtype)
            at = 0
            for batch in table.to_batches():
                self._columns.fill(rows[at : at + batch.num_rows], batch, first + at)
                at += batch.num_rows
        self._kept = (group, rows)
        return rows

    def close(self) -> None:
        self._file.close()
        self._kept = None


FORMATS: Final[dict[str, Format]] = {"parquet": Parquet()}
