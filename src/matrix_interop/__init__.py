"""One matrix object between tensor frameworks, devices, files and vector-search libraries.

Names load when first used; nothing is imported that the user did not import or ask for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from matrix_interop._version import __version__
from matrix_interop.errors import (
    ClosedError,
    CopyRequiredError,
    DeviceUnavailableError,
    FormatError,
    FrameworkNotInstalledError,
    MatrixInteropError,
    PinnedLimitError,
    UnknownFrameworkError,
    UnsupportedDtypeError,
    UnsupportedLayoutError,
    UnsupportedTensorError,
)
from matrix_interop.exchange.convert import convert, plan
from matrix_interop.exchange.plan import CopyPlan
from matrix_interop.frameworks.registry import Framework, FrameworkInfo, frameworks, register_framework
from matrix_interop.matrix import DeviceMatrix, HostMatrix, Matrix, from_tensor
from matrix_interop.tracking import CopyLog, forbid_copies, track_copies
from matrix_interop.view import TensorView

if TYPE_CHECKING:
    from matrix_interop import bench, io, memory, search
    from matrix_interop.builder import MatrixBuilder
    from matrix_interop.io import open_matrix, open_rows, save_matrix
    from matrix_interop.memory import PinnedArena, default_arena, use_arena
    from matrix_interop.rows import RowReader
    from matrix_interop.search import knn
    from matrix_interop.transfer import Transfer

__all__ = [
    "ClosedError",
    "CopyLog",
    "CopyPlan",
    "CopyRequiredError",
    "DeviceMatrix",
    "DeviceUnavailableError",
    "FormatError",
    "Framework",
    "FrameworkInfo",
    "FrameworkNotInstalledError",
    "HostMatrix",
    "Matrix",
    "MatrixBuilder",
    "MatrixInteropError",
    "PinnedArena",
    "PinnedLimitError",
    "RowReader",
    "TensorView",
    "Transfer",
    "UnknownFrameworkError",
    "UnsupportedDtypeError",
    "UnsupportedLayoutError",
    "UnsupportedTensorError",
    "__version__",
    "bench",
    "convert",
    "default_arena",
    "forbid_copies",
    "frameworks",
    "from_tensor",
    "io",
    "knn",
    "memory",
    "open_matrix",
    "open_rows",
    "plan",
    "register_framework",
    "save_matrix",
    "search",
    "track_copies",
    "use_arena",
]

#: Loaded on first use: name -> module.
_LATER = {
    **{name: f"matrix_interop.{name}" for name in ("bench", "io", "memory", "search")},
    **dict.fromkeys(("open_matrix", "open_rows", "save_matrix"), "matrix_interop.io"),
    **dict.fromkeys(("PinnedArena", "default_arena", "use_arena"), "matrix_interop.memory"),
    "knn": "matrix_interop.search",
    "MatrixBuilder": "matrix_interop.builder",
    "RowReader": "matrix_interop.rows",
    "Transfer": "matrix_interop.transfer",
}


def __getattr__(name: str) -> Any:
    where = _LATER.get(name)
    if where is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(where)
    return module if where == f"{__name__}.{name}" else getattr(module, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER})
