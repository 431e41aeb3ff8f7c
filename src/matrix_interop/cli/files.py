"""``plan`` and ``convert``: what a file holds, how it gets into a framework, and writing it anew."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from matrix_interop.cli.progress import Progress
from matrix_interop.dtypes import as_dtype, cast
from matrix_interop.errors import UnsupportedDtypeError
from matrix_interop.io import Rows, RowSource, is_mapped, open_matrix, open_rows, save_matrix
from matrix_interop.io.base import Layout
from matrix_interop.io.registry import find
from matrix_interop.matrix import HostMatrix, from_tensor

__all__ = ["convert", "matrix_in", "plan", "rows_in"]


def matrix_in(text: str, mode: Any = "r") -> HostMatrix:
    """The matrix in the file that the command line names."""
    path, options = _named(text)
    mapped = find(path, None, reading=True).name != "npz"  # which never is: `plan` says so on its first line
    return open_matrix(path, mode=mode, mmap=mapped, **options)


def rows_in(text: str) -> RowSource:
    """The rows of the file that the command line names."""
    path, options = _named(text)
    return open_rows(path, **options)


def _named(text: str) -> tuple[Path, dict[str, Any]]:
    """``FILE::NAME`` apart; NAME means columns (with commas between) where the format has columns."""
    file, colons, name = text.partition("::")
    path = Path(file)
    if not colons or Path(text).exists():
        return Path(text), {}
    takes = find(path, None, reading=True).takes
    return path, {"columns": name.split(",")} if "columns" in takes else {"dataset": name}


def plan(options: argparse.Namespace) -> None:
    """Print what the file holds and the plan."""
    m = matrix_in(options.file, options.mode)
    found = m.plan(
        options.to,
        device=options.device,
        dtype=options.dtype,
        order=options.order,
        share_readonly=options.share_readonly,
    )
    print(f"{m!r}, {m.nbytes:,} bytes, {'mapped' if is_mapped(m) else 'read into memory'}")
    print(found)


def convert(options: argparse.Namespace) -> None:
    """Write the rows anew, block by block."""
    dtype = None if options.dtype is None else as_dtype(options.dtype)
    with rows_in(options.file) as source:
        start, stop, _ = options.rows.indices(len(source))
        count = max(0, stop - start)
        with Progress("convert", count) as progress:
            rows = _Converted(source, start, count, dtype, options.normalize, progress)
            save_matrix(options.out, rows, format=options.format)
    print(f"{options.out}: {count:,} x {rows.shape[1]} {rows.dtype}, {options.out.stat().st_size:,} bytes")


class _Converted(Rows):
    """Rows of a source in another dtype, normalised or not."""

    def __init__(
        self,
        source: RowSource,
        start: int,
        count: int,
        dtype: np.dtype[Any] | None,
        normalize: bool,
        progress: Progress,
    ) -> None:
        computed = np.dtype(np.float32) if normalize and source.dtype.kind in "biu" else source.dtype
        super().__init__(Layout((count, source.shape[1]), computed if dtype is None else dtype))
        self._source = source
        self._start = start
        self._normalize = normalize
        self._progress = progress

    def read(self, start: int, stop: int) -> np.ndarray:
        """See `Rows.read`."""
        block = self._source.read(self._start + start, self._start + stop)
        if self._normalize:
            block = np.asarray(from_tensor(block).normalized())
        self._progress.advance(stop - start)
        return _cast(block, self.dtype, self._start + start)


def _cast(block: np.ndarray, dtype: np.dtype[Any], first: int) -> np.ndarray:
    """``block`` as ``dtype``. Raises `UnsupportedDtypeError` for what `cast` finds not to fit."""
    if block.dtype == dtype:
        return block
    made, fits = cast(block, dtype)
    if not fits.all():
        row, column = np.argwhere(~fits)[0].tolist()
        msg = f"row {first + row} holds {block[row, column]} in column {column}, which {dtype} cannot hold"
        raise UnsupportedDtypeError(msg)
    return made
