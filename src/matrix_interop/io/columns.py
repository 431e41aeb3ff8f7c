"""Columns of an Arrow table as a matrix: what the Parquet and the Arrow IPC formats share.

A column is a fixed-size list of numbers (a vector a row), a list whose rows all have the length
that the caller says by ``dim=``, or plain numbers (one value a row). Several stand side by side.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from matrix_interop.errors import FormatError, UnsupportedDtypeError, UnsupportedLayoutError
from matrix_interop.io.base import Array, DType, Options, Rows, require_dtype, require_library

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["NUMBERS", "Columns", "column_storage", "list_schema", "record_batches"]

NUMBERS: Final = (
    "float32",
    "float64",
    "float16",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
)


class Columns:
    """The wanted columns of a file's schema: their names, the width of a row and its dtype."""

    def __init__(self, path: Path, schema: Any, options: Options) -> None:
        self._pa = require_library("pyarrow", "pyarrow", "Arrow and Parquet")
        self._path = path
        self._dim = options.dim
        self.names = options.columns or (self._only_list(schema),)
        for name in self.names:
            if schema.names.count(name) != 1:
                found = "more than one" if name in schema.names else "no"
                msg = f"{path}: {found} column is named {name!r}; it has {schema.names}"
                raise FormatError(msg)
        types = [self._storage(schema.field(name).type) for name in self.names]
        self.widths = tuple(map(self._width, self.names, types))
        dtypes = {self._dtype(name, kind) for name, kind in zip(self.names, types, strict=True)}
        if len(dtypes) != 1:
            found = ", ".join(sorted(map(str, dtypes)))
            msg = f"{path}: the columns {list(self.names)} hold different types, {found}: a matrix has one"
            raise UnsupportedDtypeError(msg)
        self.dim = sum(self.widths)
        self.dtype = dtypes.pop()

    def _only_list(self, schema: Any) -> str:
        lists = [field.name for field in schema if self._pa.types.is_fixed_size_list(self._storage(field.type))]
        if len(lists) == 1:
            return str(lists[0])
        msg = f"{self._path}: {len(lists)} columns are fixed-size lists {lists}; choose by columns= of {schema.names}"
        raise FormatError(msg)

    def _storage(self, kind: Any) -> Any:
        return kind.storage_type if isinstance(kind, self._pa.BaseExtensionType) else kind

    def _is_list(self, kind: Any) -> bool:
        types = self._pa.types
        return bool(types.is_list(kind) or types.is_large_list(kind))

    def _width(self, name: str, kind: Any) -> int:
        if self._pa.types.is_fixed_size_list(kind):
            return int(kind.list_size)
        if not self._is_list(kind):
            return 1
        if self._dim is None:
            msg = f"{self._path}: column {name!r} is {kind}, which does not say how long its rows are: give dim="
            raise FormatError(msg)
        return self._dim

    def _dtype(self, name: str, kind: Any) -> DType:
        value = kind.value_type if self._pa.types.is_fixed_size_list(kind) or self._is_list(kind) else kind
        types = self._pa.types
        if not (types.is_integer(value) or types.is_floating(value)):
            msg = f"{self._path}: column {name!r} is {kind}; a matrix takes numbers or fixed-size lists of numbers"
            raise UnsupportedDtypeError(msg)
        dtype: DType = np.dtype(value.to_pandas_dtype())
        return dtype

    def fill(self, out: Array, batch: Any, first_row: int) -> None:
        """The rows of a record batch into ``out``; ``first_row`` is only for messages."""
        at = 0
        for name, width in zip(self.names, self.widths, strict=True):
            out[:, at : at + width] = self.values(batch.column(name), name, width, first_row)
            at += width

    def values(self, column: Any, name: str, width: int, first_row: int) -> Array:
        """The values of one Arrow array as rows, sharing its memory."""
        if isinstance(column.type, self._pa.BaseExtensionType):
            column = column.storage
        rows = len(column)
        if column.null_count:
            self._refuse_nulls(name, column.null_count, first_row)
        if self._pa.types.is_fixed_size_list(column.type) or self._is_list(column.type):
            if self._is_list(column.type):
                self._require_lengths(column, name, width, first_row)
            column = column.flatten()
            if column.null_count:
                self._refuse_nulls(name, column.null_count, first_row)
        if len(column) != rows * width:
            msg = f"{self._path}: column {name!r} has {len(column)} values in {rows} rows of {width}"
            raise FormatError(msg)
        values: Array = column.to_numpy(zero_copy_only=True)
        return values.reshape(rows, width)

    def _refuse_nulls(self, name: str, count: int, first_row: int) -> None:
        where = f"{self._path}: column {name!r}"
        msg = f"{where} has {count} nulls from row {first_row} on: fill or drop them with pyarrow first"
        raise UnsupportedLayoutError(msg)

    def _require_lengths(self, column: Any, name: str, width: int, first_row: int) -> None:
        lengths = column.value_lengths().to_numpy(zero_copy_only=False)
        wrong = np.flatnonzero(lengths != width)
        if wrong.size:
            where = f"{self._path}: row {first_row + int(wrong[0])} of column {name!r}"
            msg = f"{where} has {lengths[wrong[0]]} values, dim={width} was given"
            raise FormatError(msg)


def column_storage(format_name: str, shape: tuple[int, int], dtype: DType) -> DType:
    """The stored dtype of a fixed-size list column, or a refusal."""
    if not 0 < shape[1] < 2**31:
        msg = f"a {format_name} file cannot hold a matrix of shape {shape}: a fixed-size list has 1 to 2**31 - 1 values"
        raise UnsupportedLayoutError(msg)
    return require_dtype(format_name, dtype, NUMBERS)


def record_batches(pa: Any, schema: Any, blocks: Iterator[Array]) -> Iterator[Any]:
    """Each block as a record batch of one fixed-size list column, sharing its memory."""
    kind = schema.field(0).type
    for block in blocks:
        values = pa.array(block.reshape(-1), kind.value_type)
        yield pa.record_batch([pa.FixedSizeListArray.from_arrays(values, type=kind)], schema=schema)


def list_schema(pa: Any, rows: Rows, dtype: DType, dataset: str) -> Any:
    """The schema of one fixed-size list column without nulls."""
    value = pa.field("item", pa.from_numpy_dtype(dtype), nullable=False)
    return pa.schema([pa.field(dataset, pa.list_(value, rows.shape[1]), nullable=False)])
