"""Which format a file has: the table of built-in formats, each module loaded when first needed.

Other packages add formats through the entry-point group ``matrix_interop.formats``: the entry's name
is the suffix without its dot, its object a `Format`. They never replace a built-in one.
"""

from __future__ import annotations

import os
import stat
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Final

from matrix_interop.errors import FormatError, UnsupportedDtypeError
from matrix_interop.io.base import Format, Layout, Options

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["described", "find", "known", "named"]

#: A format's name, which is also its suffix -> the module in this room that serves it.
_BUILT_IN: Final[dict[str, str]] = {
    "npy": "npy",
    "npz": "npz",
    **dict.fromkeys(("fvecs", "ivecs", "bvecs"), "texmex"),
    **dict.fromkeys(("fbin", "u8bin", "i8bin", "ibin", "f16bin", "hbin", "u64bin"), "bigann"),
    "bin": "truth",
    "raw": "raw",
    **dict.fromkeys(("hdf5", "h5"), "hdf5"),
    "parquet": "parquet",
    **dict.fromkeys(("arrow", "feather", "arrows"), "arrow"),
    "safetensors": "safetensors",
}
#: Those that a file's content gives away, whatever its name.
_BY_CONTENT: Final = ("npy", "hdf5", "arrow", "parquet", "npz", "safetensors")
_SNIFFED_BYTES: Final = 64


@cache
def _added() -> dict[str, Format]:
    """The formats of other packages by name."""
    return {
        entry.name: entry.load()
        for entry in entry_points(group="matrix_interop.formats")
        if entry.name not in _BUILT_IN
    }


def known() -> list[str]:
    """The names of all formats."""
    return sorted({*_BUILT_IN, *_added()})


def named(name: str) -> Format | None:
    """The format of that name, with or without a leading dot, in either case; None if nobody has it."""
    key = str(name).removeprefix(".").lower()
    if key in _BUILT_IN:
        formats: dict[str, Format] = import_module(f"matrix_interop.io.{_BUILT_IN[key]}").FORMATS
        return formats[key]
    return _added().get(key)


def find(path: Path, name: str | None, *, reading: bool) -> Format:
    """The format by ``name``; else by the content of a file to read; else by the suffix. Raises `FormatError`."""
    if reading and not stat.S_ISREG(mode := path.stat().st_mode) and not stat.S_ISDIR(mode):
        msg = f"{path}: is a pipe, a socket or a device, which has no size: save it to a file first"
        raise FormatError(msg)
    if name is not None:
        found = named(name)
        if found is None:
            msg = f"no format is called {name!r}; known are {', '.join(known())}"
            raise FormatError(msg)
        return found
    found = (_sniffed(path) if reading else None) or named(path.suffix)
    if found is None:
        told = f"the suffix {path.suffix!r} tells no format" + (", nor does the content" if reading else "")
        msg = f"{path}: {told}: say format=, one of {', '.join(known())}"
        raise FormatError(msg)
    return found


def _sniffed(path: Path) -> Format | None:
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(_SNIFFED_BYTES)
        file.seek(max(0, size - _SNIFFED_BYTES), os.SEEK_SET)
        tail = file.read(_SNIFFED_BYTES)
    formats = (named(name) for name in _BY_CONTENT)
    return next((fmt for fmt in formats if fmt is not None and fmt.sniff(head, tail)), None)


def described(path: Path, fmt: Format, options: Options) -> Layout:
    """The layout of a file, after what the caller said of it was compared with it."""
    for option in ("dataset", "columns"):
        if getattr(options, option) is not None and option not in fmt.takes:
            msg = f"{path}: {fmt.name} files know no {option}={getattr(options, option)!r}"
            raise FormatError(msg)
    layout = fmt.describe(path, options)
    if options.dim is not None and layout.shape[1] != options.dim:
        msg = f"{path}: its rows have {layout.shape[1]} values ({fmt.name}), dim={options.dim} was given"
        raise FormatError(msg)
    if options.dtype is not None and layout.dtype != options.dtype:
        msg = (
            f"{path}: holds {layout.dtype} ({fmt.name}), dtype={options.dtype.name!r} was given: "
            "open it as it is and write m.astype(...)"
        )
        raise UnsupportedDtypeError(msg)
    return layout
