"""Parquet, through pyarrow: ``columns`` names the vectors' column, or the numbers that make up a row.

Never mapped: the values are encoded. A row group is decoded as a whole, and the last one is kept,
so that reading in small blocks decodes each once.
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
            self._file = parquet.ParquetFile(path, page_checksum_verification=True)
            try:
                metadata = self._file.metadata
                self._columns = Columns(path, self._file.schema_arrow, options)
                counts = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
                shape = (metadata.num_rows, self._columns.dim)
                require_addressable(path, "the Parquet footer", shape, self._columns.dtype)
                self._require_counts(metadata, counts)
            except BaseException:
                self._file.close()
                raise
        super().__init__(Layout(shape, self._columns.dtype))
        self._starts = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
        self.near = max(counts, default=1)
        self._kept: tuple[int, Array] | None = None

    def _require_counts(self, metadata: Any, counts: list[int]) -> None:
        """Rows and values that the footer counts in several places must agree before anything is allocated."""
        if min(counts, default=0) < 0 or sum(counts) != metadata.num_rows:
            msg = f"{self._path}: the Parquet footer says {metadata.num_rows} rows, its row groups {counts[:20]}"
            raise FormatError(msg)
        widths = dict(zip(self._columns.names, self._columns.widths, strict=True))
        for i, count in enumerate(counts):
            group = metadata.row_group(i)
            for j in range(group.num_columns):
                name = group.column(j).path_in_schema.split(".")[0]
                if name in widths and group.column(j).num_values > count * max(widths[name], 1):
                    msg = (
                        f"{self._path}: row group {i} of the Parquet file has {count} rows, but "
                        f"{group.column(j).num_values} values in column {name!r} of width {widths[name]}"
                    )
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
