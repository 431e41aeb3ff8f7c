"""Data types: NumPy's own plus bfloat16 and the 8-bit floats of ml_dtypes, and their DLPack codes.

Codes are those of the DLPack header, version 1.3 (``DLDataTypeCode``).  DLPack describes native
byte order only; types narrower than a byte are packed there and have no NumPy form: both are out.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

import ml_dtypes
import numpy as np

from matrix_interop.errors import UnsupportedDtypeError

__all__ = [
    "DLPACK_OF_DTYPE",
    "DTYPE_OF_DLPACK",
    "as_dtype",
    "carrier",
    "cast",
    "is_extension",
    "name_of",
    "require_plain",
    "require_unrounded",
]

_EXTENSIONS: Final[dict[str, tuple[int, int]]] = {
    "bfloat16": (4, 16),
    "float8_e3m4": (7, 8),
    "float8_e4m3": (8, 8),
    "float8_e4m3b11fnuz": (9, 8),
    "float8_e4m3fn": (10, 8),
    "float8_e4m3fnuz": (11, 8),
    "float8_e5m2": (12, 8),
    "float8_e5m2fnuz": (13, 8),
    "float8_e8m0fnu": (14, 8),
}
_BY_NAME: Final[dict[str, np.dtype[Any]]] = {name: np.dtype(getattr(ml_dtypes, name)) for name in _EXTENSIONS}

#: NumPy dtype -> DLPack (code, bits).
DLPACK_OF_DTYPE: Final[dict[np.dtype[Any], tuple[int, int]]] = {
    np.dtype(np.bool_): (6, 8),
    **{np.dtype(f"i{n}"): (0, 8 * n) for n in (1, 2, 4, 8)},
    **{np.dtype(f"u{n}"): (1, 8 * n) for n in (1, 2, 4, 8)},
    **{np.dtype(f"f{n}"): (2, 8 * n) for n in (2, 4, 8)},
    **{np.dtype(f"c{n}"): (5, 8 * n) for n in (8, 16)},
    **{_BY_NAME[name]: code for name, code in _EXTENSIONS.items()},
}
#: DLPack (code, bits) -> NumPy dtype.
DTYPE_OF_DLPACK: Final[dict[tuple[int, int], np.dtype[Any]]] = {code: dtype for dtype, code in DLPACK_OF_DTYPE.items()}

_CARRIERS: Final[dict[np.dtype[Any], np.dtype[Any]]] = {
    dtype: np.dtype(f"u{dtype.itemsize}") for dtype in _BY_NAME.values()
}


@lru_cache(maxsize=64)
def name_of(dtype: np.dtype[Any]) -> str:
    """The text of a dtype. NumPy puts it together anew each time, in Python: that takes longer than to share."""
    return str(dtype)


def as_dtype(dtype: Any) -> np.dtype[Any]:
    """The NumPy dtype that ``dtype`` names.

    Takes what NumPy takes, the names of ml_dtypes ("bfloat16", "float8_e4m3fn", ...) and the dtype
    objects of other frameworks, whose text ends in the same names (``torch.bfloat16``).  Raises
    `UnsupportedDtypeError` for names nobody knows and for types that are not plain numbers.
    """
    if isinstance(dtype, str) and dtype in _BY_NAME:
        return _BY_NAME[dtype]
    try:
        found = np.dtype("None" if dtype is None else dtype)  # NumPy would read None as float64
    except TypeError:
        name = str(dtype).rpartition(".")[2]
        if name in _BY_NAME:
            return _BY_NAME[name]
        try:
            found = np.dtype(name)
        except TypeError:
            msg = (
                f"unknown data type {dtype!r}: write a NumPy dtype or one of its names, or one of {', '.join(_BY_NAME)}"
            )
            raise UnsupportedDtypeError(msg) from None
    return require_plain(found)


def require_plain(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """``dtype`` itself if it is a plain number of whole bytes, in either byte order; else `UnsupportedDtypeError`."""
    if dtype in DLPACK_OF_DTYPE or dtype.newbyteorder("=") in DLPACK_OF_DTYPE:
        return dtype
    if dtype.names is not None:
        why = "a structured type: pass one field, as in x['name']"
    elif dtype.kind == "O":
        why = (
            "Python objects (rows of different lengths, or mixed values): build a rectangular numeric array first, "
            "of vectors with Matrix.from_rows"
        )
    elif dtype.kind in "SUTMm":
        why = "not a number: convert it with astype() or view() first"
    elif dtype.kind in "fc":
        why = "wider than the other frameworks know: convert it with astype('float64') or astype('complex128') first"
    else:
        why = "narrower than a byte or unknown to DLPack: convert it with astype() first"
    msg = f"unsupported data type {dtype}: {why}"
    raise UnsupportedDtypeError(msg)


def cast(values: np.ndarray, dtype: np.dtype[Any]) -> tuple[np.ndarray, np.ndarray]:
    """``values`` as ``dtype``, and a mask of those that it holds.

    Whole numbers must stay what they are.  Fractions may be rounded, but none becomes infinite or NaN that was not, and
    no imaginary part is lost.
    """
    real = values.dtype.kind == "c" and dtype.kind != "c"
    part = values.real if real else values
    with np.errstate(all="ignore"):
        made = part.astype(dtype)
        if dtype.kind in "biu":
            fits = made == part
        else:
            fits = (np.isnan(made) == np.isnan(part)) & (np.isinf(made) == np.isinf(part))
    return made, fits & (values.imag == 0) if real else fits


def require_unrounded(rows: Any, read: np.ndarray) -> None:
    """Raise `UnsupportedDtypeError` where NumPy rounded whole numbers in nested lists ``rows`` to ``read`` them.

    It makes fractions of 2**63 and -1, and of whole numbers beside fractions; float64 holds them up to 2**53.
    """
    if read.dtype.kind != "f" or not (np.abs(read) >= 2**53).any():
        return
    for number in np.array(rows, dtype=object).ravel().tolist():
        if isinstance(number, int | np.integer) and int(float(number)) != int(number):
            msg = f"a list holds {number}, which {read.dtype} would round: pass np.array(rows, dtype=...)"
            raise UnsupportedDtypeError(msg)


def is_extension(dtype: np.dtype[Any]) -> bool:
    """True for the types that NumPy knows only through ml_dtypes and cannot name in its own protocols."""
    return dtype in _CARRIERS


def carrier(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The type under which NumPy's protocols carry ``dtype``: an unsigned integer of the same width, or itself."""
    return _CARRIERS.get(dtype, dtype)
