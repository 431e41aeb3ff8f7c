"""Ground truth of big-ann-benchmarks, .bin: the neighbours of each query and their distances.

uint32 queries, uint32 k, then queries x k int32 ids, then queries x k float32 distances, all
little-endian. ``dataset="ids"`` or ``dataset="distances"`` picks the half.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, BinaryIO, Final

import numpy as np

from matrix_interop.errors import FormatError, UnsupportedLayoutError
from matrix_interop.io.base import DType, Format, Layout, Options, Rows, choose, require_addressable

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["FORMATS"]


class Truth(Format):
    """The format; read only, since one file holds two matrices."""

    name = "bin"
    takes = ("dataset",)

    def describe(self, path: Path, options: Options) -> Layout:
        """See `Format.describe`. A file that is too short is refused even with partial: its halves are not whole."""
        size = path.stat().st_size
        with path.open("rb") as file:
            head = file.read(8)
        n, k = int.from_bytes(head[:4], "little"), int.from_bytes(head[4:], "little")
        if len(head) < 8 or size != 8 + n * k * 8:
            msg = (
                f"{path}: the ground-truth header says {n} queries x {k} neighbours, int32 ids and float32 distances, "
                f"{8 + n * k * 8} bytes in all, but the file has {size}. For plain values write format='raw' or 'fbin'"
            )
            raise FormatError(msg)
        half = choose(path, "dataset", ["ids", "distances"], options.dataset)
        dtype = np.dtype("<i4" if half == "ids" else "<f4")
        require_addressable(path, "the ground-truth header", (n, k), dtype)
        return Layout((n, k), dtype, 8 if half == "ids" else 8 + n * k * 4, (k * 4, 4))

    def storage(self, shape: tuple[int, int], dtype: DType) -> DType:
        """See `Format.storage`."""
        msg = (
            f"a ground-truth .bin file holds ids and distances together, not one matrix of shape {shape}, {dtype}: "
            "save the ids as .ibin and the distances as .fbin"
        )
        raise UnsupportedLayoutError(msg)

    def write(self, file: BinaryIO, rows: Rows, dtype: DType, dataset: str) -> None:
        """Never reached: `storage` refuses."""
        raise NotImplementedError


FORMATS: Final[dict[str, Format]] = {"bin": Truth()}
