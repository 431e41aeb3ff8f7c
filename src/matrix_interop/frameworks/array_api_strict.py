"""array-api-strict: NumPy arrays behind the letter of the array API standard.

Its devices are pretence, all in host memory, and its ``__dlpack_device__`` says so; tensors made
here are on its "CPU_DEVICE".  It holds native byte order only and has neither float16 nor ml_dtypes.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, Final

import array_api_strict
import numpy as np

from matrix_interop.dtypes import require_plain
from matrix_interop.frameworks.registry import Framework
from matrix_interop.reasons import Obstacle, Reason
from matrix_interop.view import TensorView

_Array: Final = type(array_api_strict.empty(0))  # not public by name
_HOST: Final = array_api_strict.Device("CPU_DEVICE")
_DTYPES: Final = frozenset(
    np.dtype(kind) for kind in ("?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f4", "f8", "c8", "c16")
)


class StrictFramework(Framework):
    """`array_api_strict.Array`."""

    name = "array_api_strict"

    def owns(self, x: Any) -> bool:
        return isinstance(x, _Array)

    def view(self, x: Any, fill: Any = None) -> TensorView:
        # np.asarray refuses its other devices; DLPack does not, but cannot describe every stride.
        header = np.asarray(x) if x.device == _HOST else np.from_dlpack(x)
        require_plain(header.dtype)
        return TensorView.of(header, self.name, x)

    def refusal(self, dtype: np.dtype[Any]) -> str | None:
        if dtype.newbyteorder("=") in _DTYPES:
            return None
        return f"the array API standard has no {dtype}: ask for dtype='float32' or another type that it has"

    def obstacle(self, header: np.ndarray, *, share_readonly: bool = False) -> Obstacle | None:
        if not header.dtype.isnative:
            return Obstacle(Reason.BYTE_ORDER, f"array_api_strict has no {header.dtype.byteorder}-endian numbers")
        if any(step % header.itemsize for n, step in zip(header.shape, header.strides, strict=True) if n > 1):
            # NumPy behind it would take this, but nobody could take it from there over DLPack.
            return Obstacle(Reason.STRIDES, f"a stride is no multiple of the {header.itemsize} bytes of an entry")
        return None

    def wrap(self, header: np.ndarray) -> Any:
        return array_api_strict.asarray(header.view(), device=_HOST, copy=False)

    def alias(self, native: Any) -> Any:
        return native[...]

    def item(self, native: Any, key: Any) -> Any:
        return None if isinstance(key, slice) else native[key, ...]  # its slices must not reach past the end

    def namespace(self) -> ModuleType:
        return array_api_strict
