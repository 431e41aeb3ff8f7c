"""NumPy: the host's common currency. It holds every layout, so nothing is ever in its way."""

from __future__ import annotations

from types import ModuleType
from typing import Any, Final

import numpy as np

from matrix_interop.dtypes import DLPACK_OF_DTYPE, require_plain
from matrix_interop.errors import UnsupportedLayoutError
from matrix_interop.frameworks.registry import Framework
from matrix_interop.reasons import Obstacle
from matrix_interop.view import HostView, Pending, TensorView

#: Looked up once: most conversions start here.
_ndarray: Final = np.ndarray
_FLOAT32: Final = np.dtype(np.float32)


class NumpyFramework(Framework):
    """`numpy.ndarray`, its subclasses (memmap, matrix, masked arrays) and its scalars."""

    name = "numpy"

    def owns(self, x: Any) -> bool:
        return isinstance(x, np.ndarray | np.generic)

    def view(self, x: Any, fill: Any = None) -> TensorView:
        if type(x) is _ndarray:
            dtype = x.dtype
            if dtype is not _FLOAT32 and dtype not in DLPACK_OF_DTYPE:  # float32 spares the hash
                require_plain(dtype)
            view = HostView()
            view.header = x
            view.framework = "numpy"
            view.native = x
            return view
        if isinstance(x, np.generic):
            x = np.asarray(x)
            x.flags.writeable = False
        require_plain(x.dtype)
        if isinstance(x, np.ma.MaskedArray):
            return _masked_view(x, fill)
        header = x.view(np.ndarray)
        return TensorView.of(header, "numpy", header)

    def refusal(self, dtype: np.dtype[Any]) -> str | None:
        return None

    def obstacle(self, header: np.ndarray, *, share_readonly: bool = False) -> Obstacle | None:
        return None

    def wrap(self, header: np.ndarray) -> np.ndarray:
        return header.view()

    def quick(self, header: np.ndarray, share_readonly: bool = False) -> np.ndarray:
        return header.view()

    def alias(self, native: np.ndarray) -> np.ndarray:
        return native.view()

    def namespace(self) -> ModuleType:
        return np


def _masked_view(x: np.ma.MaskedArray[Any, Any], fill: Any) -> TensorView:
    """Values under a mask are still to be computed; a mask that hides none is left out."""
    header = x.data.view(np.ndarray)
    mask = np.ma.getmask(x)  # one False where nothing is hidden
    hidden = int(np.count_nonzero(mask))
    if not hidden:
        return TensorView.of(header, "numpy", header, note="mask dropped: it hides nothing")
    if fill is None:
        what = f"masked numpy array {x.dtype} {x.shape}"
        msg = f"{what} hides {hidden} entries: pass fill=value, or fill it with x.filled(value)"
        raise UnsupportedLayoutError(msg)

    def write(out: np.ndarray) -> None:
        np.copyto(out, header, casting="unsafe")
        out[mask] = fill

    return TensorView.of(header, "numpy", pending=Pending(f"{hidden} masked entries to fill with {fill!r}", write))
