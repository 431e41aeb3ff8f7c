"""`build` and `prepare`: the way into every index library, by its name."""

from __future__ import annotations

from importlib import import_module
from inspect import Parameter, signature
from typing import Any, Final

import numpy as np

from matrix_interop.errors import CopyRequiredError, FrameworkNotInstalledError
from matrix_interop.matrix import HostMatrix, from_tensor
from matrix_interop.search.device.dense import dense_rows
from matrix_interop.search.index import Index, refuse_iterator
from matrix_interop.search.metrics import kind_of
from matrix_interop.search.sources import require_numbers
from matrix_interop.tracking import copies_forbidden

__all__ = ["build", "prepare"]

_INDEXES: Final[dict[str, str]] = {
    "faiss": "matrix_interop.search.faiss:FaissIndex",
    "hnswlib": "matrix_interop.search.hnswlib:HnswlibIndex",
    "usearch": "matrix_interop.search.usearch:UsearchIndex",
    "cuvs": "matrix_interop.search.cuvs:CuvsIndex",
}
#: What to install, where that is not the library's name.
_PACKAGES: Final = {"faiss": "faiss-cpu", "cuvs": "cuvs-cu13"}
_FLOAT32: Final = (np.dtype(np.float32),)
#: Library -> dtypes that it computes with as they are. Any other becomes the first, or float64 where that is one
#: of them and the type is wider than float32 holds.
_TAKES: Final[dict[str, tuple[np.dtype[Any], ...]]] = {
    "faiss": _FLOAT32,
    "hnswlib": _FLOAT32,
    "pynndescent": _FLOAT32,
    "scann": _FLOAT32,
    "sklearn": (*_FLOAT32, np.dtype(np.float64)),
    "usearch": _FLOAT32,
    "voyager": _FLOAT32,
}
#: These take any strides; the others misread or copy what is not dense rows.
_ANY_STRIDES: Final = frozenset({"sklearn"})
#: These refuse read-only memory.
_WRITABLE: Final = frozenset({"voyager"})
_EXACT_IN_FLOAT32: Final = frozenset("?bBhHef")


def build(m: Any, /, library: str, *, metric: str = "sqeuclidean", check: bool = True, **options: Any) -> Index:
    """An index of ``library`` ("faiss", "hnswlib", "usearch", "cuvs") that holds the rows of ``m``, numbered from 0.

    ``m``: as in `Index.add`; an empty one gives an empty index.  ``metric``: as in `knn`.  ``check``: refuse
    rows with NaN or infinity.  ``options``: those of the library's class, such as ``factory`` for faiss, ``M`` for
    hnswlib, ``connectivity`` for usearch, ``algorithm`` for cuvs.  Rows are copied in batches of at most 64 MiB; cuvs
    shares dense float32 rows that are on the device.

    Raises ValueError for an unknown library, metric or bad rows, `FrameworkNotInstalledError` for a missing one,
    TypeError for an unknown option, and as `Index.add`.
    """
    kind_of(metric)
    refuse_iterator(m)
    made = _class_of(library)
    _require_options(library, made, options)
    index: Index = made(_columns(m), metric, check=check, **options)
    index.add(m)
    return index


def prepare(m: Any, library: str) -> Any:
    """The rows of ``m`` (n, d) as the ndarray that ``library`` takes as it is; shared where that is possible.

    ``library``: "faiss", "hnswlib", "usearch", "sklearn", "pynndescent", "voyager" or "scann"; it need not
    be installed.  float32 in dense rows and native byte order, for scikit-learn also float64 and any strides; for
    voyager writeable.  Give usearch its dtype by name all the same (``Index(ndim, dtype="f32")``).  "cuvs" takes a
    `DeviceMatrix` of dense float32 rows; unlike others it copies nothing, so keep that.

    Keep the result while the library uses it without a copy of its own.  Raises ValueError for an unknown
    library, `CopyRequiredError` where a copy is needed and `forbid_copies` is in force.
    """
    if library == "cuvs":
        return dense_rows(m)
    if library not in _TAKES:
        msg = f"unknown library {library!r}: write one of {', '.join(map(repr, (*_TAKES, 'cuvs')))}"
        raise ValueError(msg)
    matrix = from_tensor(m)
    if not isinstance(matrix, HostMatrix):
        matrix = matrix.to_host()
    require_numbers("rows", np.asarray(matrix))
    takes = _TAKES[library]
    if matrix.dtype.newbyteorder("=") in takes:
        dtype = matrix.dtype.newbyteorder("=")
    else:
        wide = matrix.dtype.kind in "iuf" and matrix.dtype.char not in _EXACT_IN_FLOAT32
        dtype = takes[-1] if wide else takes[0]
    order: Any = None if library in _ANY_STRIDES else "C"
    copy = True if library in _WRITABLE and matrix.readonly else None
    if copy and copies_forbidden():
        msg = f"{library} refuses read-only memory, {matrix!r} is that, and forbid_copies() forbids to copy it"
        raise CopyRequiredError(msg)
    array: np.ndarray = matrix.to_tensor("numpy", dtype=dtype, order=order, copy=copy)
    return array.view(np.ndarray)


def _columns(m: Any) -> int:
    """Columns of whatever `blocks_of` takes, without reading it."""
    if isinstance(m, list | tuple) and m and getattr(m[0], "ndim", 0) == 2:
        m = m[0]
    if hasattr(m, "shape") and len(m.shape) == 2:
        return int(m.shape[1])
    return from_tensor(m).shape[1]


def _require_options(library: str, made: Any, options: dict[str, Any]) -> None:
    """Raise TypeError for an option that the class ``made`` does not name; cuVS's own parameters it checks itself."""
    parameters = signature(made).parameters.values()
    if any(parameter.kind is Parameter.VAR_KEYWORD for parameter in parameters):
        return
    known = [one.name for one in parameters if one.kind is Parameter.KEYWORD_ONLY and one.name != "check"]
    for name in options:
        if name not in known:
            msg = f"{library!r} has no option {name!r}: write one of {', '.join(map(repr, known))}"
            raise TypeError(msg)


def _class_of(library: str) -> Any:
    if library not in _INDEXES:
        known = ", ".join(map(repr, _INDEXES))
        hint = f"; prepare(m, {library!r}) gives it its array" if library in _TAKES else ""
        msg = f"no index for {library!r}: write one of {known}{hint}"
        raise ValueError(msg)
    place, _, name = _INDEXES[library].partition(":")
    try:
        return getattr(import_module(place), name)
    except ImportError as error:
        msg = f"{library!r} is not installed: pip install {_PACKAGES.get(library, library)}"
        raise FrameworkNotInstalledError(msg) from error
