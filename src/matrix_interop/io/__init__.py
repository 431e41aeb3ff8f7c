"""Files: one module a format, all of one shape; opening, saving, and rows read on demand."""

from __future__ import annotations

from matrix_interop.io.base import Format, Layout, Options, Rows
from matrix_interop.io.files import is_mapped, open_matrix, open_rows, save_matrix
from matrix_interop.io.row_source import RowSource

__all__ = [
    "Format",
    "Layout",
    "Options",
    "RowSource",
    "Rows",
    "is_mapped",
    "open_matrix",
    "open_rows",
    "save_matrix",
]
