"""NumPy's .npz: a zip archive of .npy members; ``dataset`` picks one, without the ".npy".

Never mapped, though a member stored without compression could be: only reading the member through
compares its checksum. Opening therefore reads the member whole, and says so by a warning where a
mapping was asked for (see `open_matrix`).
"""

from __future__ import annotations

import zipfile
import zlib
from typing import TYPE_CHECKING, BinaryIO, Final

import numpy as np

from matrix_interop.errors import FormatError
from matrix_interop.io.base import BLOCK_BYTES, Array, DType, Format, Layout, Options, Rows, choose, refusing
from matrix_interop.io.npy import describe_array, read_header, write_header
from matrix_interop.io.writing import write_blocks

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["FORMATS"]

_ERRORS: Final = (
    zipfile.BadZipFile,
    zlib.error,
    NotImplementedError,
    RuntimeError,
    EOFError,
    OSError,
    ValueError,
    OverflowError,
)
#: Deflate turns one byte into at most 1032: a member that claims more is forged.
_DEFLATE_RATIO: Final = 1032


class Npz(Format):
    """The format."""

    name = "npz"
    takes = ("dataset",)

    def sniff(self, head: bytes, tail: bytes) -> bool:
        """See `Format.sniff`."""
        return head.startswith(b"PK\x03\x04") and b"PK\x05\x06" in tail

    def describe(self, path: Path, options: Options) -> Layout:
        """See `Format.describe`."""
        with refusing(path, "npz", *_ERRORS), zipfile.ZipFile(path) as archive:
            layout = _member(archive, path, options)[1]
        return Layout(layout.shape, layout.dtype)

    def open(self, path: Path, options: Options) -> Rows:
        """See `Format.open`. Reads the member whole."""
        with refusing(path, "npz", *_ERRORS), zipfile.ZipFile(path) as archive:
            member, layout = _member(archive, path, options)
            return _Member(layout, _load(archive, member, layout, path))

    def storage(self, shape: tuple[int, int], dtype: DType) -> DType:
        """See `Format.storage`."""
        return dtype

    def write(self, file: BinaryIO, rows: Rows, dtype: DType, dataset: str) -> None:
        """See `Format.write`. The member is stored, not compressed."""
        with (
            zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive,
            archive.open(zipfile.ZipInfo(f"{dataset}.npy"), "w", force_zip64=True) as member,
        ):
            write_header(member, rows.shape, dtype)  # type: ignore[arg-type]
            write_blocks(member, rows, dtype)  # type: ignore[arg-type]


class _Member(Rows):
    """A member in memory; `read` copies, `whole` does not."""

    def __init__(self, layout: Layout, array: Array) -> None:
        super().__init__(Layout(layout.shape, layout.dtype))
        self._array = array

    def read(self, start: int, stop: int) -> Array:
        return np.array(self._array[start:stop], order="C")

    def gather(self, ids: Array, places: Array, out: Array) -> None:
        out[places] = self._array[ids]

    def whole(self) -> Array:
        return self._array


def _member(archive: zipfile.ZipFile, path: Path, options: Options) -> tuple[zipfile.ZipInfo, Layout]:
    names = [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]
    member = archive.getinfo(choose(path, "dataset", names, options.dataset) + ".npy")
    ratio = {zipfile.ZIP_STORED: 1, zipfile.ZIP_DEFLATED: _DEFLATE_RATIO}.get(member.compress_type)
    if ratio is None or member.compress_size > path.stat().st_size or member.file_size > member.compress_size * ratio:
        msg = (
            f"{path}: the archive says that {member.filename} has {member.file_size} bytes in {member.compress_size} "
            f"(method {member.compress_type}), which the file of {path.stat().st_size} bytes cannot hold"
        )
        raise FormatError(msg)
    with archive.open(member) as file:
        return member, describe_array(path, read_header(file, path), member.file_size, options)  # type: ignore[arg-type]


def _load(archive: zipfile.ZipFile, member: zipfile.ZipInfo, layout: Layout, path: Path) -> Array:
    """The whole member in its own memory order, with its checksum compared."""
    flat = np.empty(member.file_size, np.uint8)
    at = 0
    with archive.open(member) as file:
        # The read after the last byte is the one that compares the checksum.
        while piece := file.read(BLOCK_BYTES):
            flat[at : at + len(piece)] = np.frombuffer(piece, np.uint8)
            at += len(piece)
    if at != member.file_size:
        msg = f"{path}: {member.filename} ends after {at} bytes of {member.file_size}"
        raise FormatError(msg)
    return np.ndarray(layout.shape, layout.dtype, flat, layout.offset or 0, layout.strides)


FORMATS: Final[dict[str, Format]] = {"npz": Npz()}
