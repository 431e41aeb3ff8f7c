"""Apache Arrow: fixed-size lists as matrices, primitive arrays as vectors, one dense block each.

Layout: a fixed-size list of width d keeps its values in one child array; row i starts at entry
(offset + i) * d.  ``flatten()`` honours the offset of a slice but drops null rows, so nulls are
handled before it is called.  Arrow memory is immutable: it comes in read-only.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
import pyarrow as pa

from matrix_interop.errors import UnsupportedDtypeError, UnsupportedLayoutError
from matrix_interop.frameworks.registry import Framework
from matrix_interop.reasons import Obstacle, Reason
from matrix_interop.view import Pending, TensorView

_NUMBERS: Final = {
    np.dtype(kind): arrow
    for kind, arrow in (
        ("i1", pa.int8()), ("i2", pa.int16()), ("i4", pa.int32()), ("i8", pa.int64()),
        ("u1", pa.uint8()), ("u2", pa.uint16()), ("u4", pa.uint32()), ("u8", pa.uint64()),
        ("f2", pa.float16()), ("f4", pa.float32()), ("f8", pa.float64()),
    )
}  # fmt: skip
_NUMPY_OF_ARROW: Final = {arrow: dtype for dtype, arrow in _NUMBERS.items()}


class ArrowFramework(Framework):
    """`pyarrow` arrays and chunked arrays of numbers and of fixed-size lists of numbers, and `pyarrow.Tensor`."""

    name = "pyarrow"
    only_order = "C"
    least_ndim = 1

    def owns(self, x: Any) -> bool:
        return isinstance(x, pa.Array | pa.ChunkedArray | pa.Tensor | pa.Table | pa.RecordBatch)

    def view(self, x: Any, fill: Any = None) -> TensorView:
        if type(x) is pa.FixedSizeListArray and not x.null_count:
            values = x.values
            if values.type in _NUMPY_OF_ARROW and len(values) and not values.null_count:
                start, count, width = x.offset, len(x), x.type.list_size
                header = values.to_numpy()[start * width : (start + count) * width].reshape(count, width)
                return TensorView.of(header, "pyarrow", x)
        return self._careful_view(x, fill)

    def _careful_view(self, x: Any, fill: Any) -> TensorView:
        """Anything but rows of numbers without nulls."""
        if isinstance(x, pa.Table | pa.RecordBatch):
            names = ", ".join(x.schema.names)
            msg = f"a pyarrow {type(x).__name__} has named columns ({names}): pass one of them, as in x['name']"
            raise UnsupportedLayoutError(msg)
        if isinstance(x, pa.Tensor):
            header = x.to_numpy()
            return TensorView.of(header, "pyarrow", x)
        kind, widths = _element(x.type)
        shape = (len(x), *widths)
        if isinstance(x, pa.ChunkedArray):
            if x.num_chunks == 1:
                return self.view(x.chunk(0), fill)
            return self._gather(x, kind, shape, fill)
        if _null_count(x) or kind == np.bool_:
            return self._gather(x, kind, shape, fill)
        leaf = _levels(x)[-1]
        flat = leaf.to_numpy(zero_copy_only=True) if len(leaf) else np.frombuffer(b"", kind)
        return TensorView.of(flat.reshape(shape), "pyarrow", x)

    def _gather(self, x: Any, kind: np.dtype[Any], shape: tuple[int, ...], fill: Any) -> TensorView:
        """Several chunks, nulls or packed bits: values that have to be written into one block first."""
        chunks = x.chunks if isinstance(x, pa.ChunkedArray) else [x]
        nulls = sum(_null_count(chunk) for chunk in chunks)
        if nulls and fill is None:
            what = f"pyarrow {x.type} of length {len(x)}"
            msg = f"{what} holds {nulls} nulls: pass fill=value, or drop them with x.drop_null()"
            raise UnsupportedLayoutError(msg)

        def write(out: np.ndarray) -> None:
            start = 0
            for chunk in chunks:
                _write(chunk, out[start : start + len(chunk)], fill)
                start += len(chunk)

        parts = [f"{len(chunks)} chunks to join"] if len(chunks) != 1 else []
        parts += ["bits to unpack"] if kind == np.bool_ else []
        parts += [f"{nulls} nulls to fill with {fill!r}"] if nulls else []
        blank = np.broadcast_to(np.zeros((), kind), shape)  # a header: shape and dtype of what write() gives
        own = self.name if kind in _NUMBERS else "numpy"  # unpacked booleans have no Arrow form
        return TensorView.of(blank, own, pending=Pending(" and ".join(parts), write))

    def refusal(self, dtype: np.dtype[Any]) -> str | None:
        if dtype.newbyteorder("=") in _NUMBERS:
            return None
        if dtype == np.dtype(np.bool_):
            return "arrow packs booleans into bits: ask for dtype='uint8'"
        if dtype.kind == "c":
            return "arrow has no complex numbers: pass the parts apart, or ask for dtype='float32' for the real ones"
        return f"arrow has no {dtype}: ask for dtype='float32'"

    def obstacle(self, header: np.ndarray, *, share_readonly: bool = False) -> Obstacle | None:
        if not header.dtype.isnative:
            return Obstacle(Reason.BYTE_ORDER, f"arrow has no {header.dtype.byteorder}-endian numbers")
        if not header.flags.c_contiguous:
            return Obstacle(Reason.ORDER, "arrow takes dense rows only")
        if not header.flags.aligned:
            return Obstacle(Reason.ALIGNMENT, f"the address is no multiple of what {header.dtype} needs")
        return None

    def wrap(self, header: np.ndarray) -> Any:
        array = pa.Array.from_buffers(_NUMBERS[header.dtype], header.size, [None, pa.py_buffer(header)])
        for axis in range(header.ndim - 1, 0, -1):
            width = header.shape[axis]
            if width:
                array = pa.FixedSizeListArray.from_arrays(array, width)
            else:  # lists without entries, whose number the entries do not tell
                length = math.prod(header.shape[:axis])
                array = pa.Array.from_buffers(pa.list_(array.type, 0), length, [None], children=[array])
        return array

    def quick(self, header: np.ndarray, share_readonly: bool = False) -> Any:
        flags = header.flags
        if flags.c_contiguous and flags.aligned and header.ndim and header.dtype in _NUMBERS:
            return self.wrap(header)
        return None

    def alias(self, native: Any) -> Any:
        if isinstance(native, pa.Tensor):
            return pa.Tensor.from_numpy(native.to_numpy(), native.dim_names or None)
        return native.slice(0)

    def item(self, native: Any, key: Any) -> Any:
        if isinstance(key, slice):
            fits = not isinstance(native, pa.Tensor) and key.step in (None, 1)
            return native[key] if fits else None
        return native[key].values if pa.types.is_fixed_size_list(native.type) else None


def _element(kind: pa.DataType) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """NumPy dtype of the numbers inside nested fixed-size lists, and the widths of the lists."""
    widths: list[int] = []
    inner = kind
    while True:
        if isinstance(inner, pa.FixedShapeTensorType):
            if inner.permutation is not None and list(inner.permutation) != sorted(inner.permutation):
                raise UnsupportedLayoutError(f"pyarrow {kind} permutes its axes: use x.to_numpy_ndarray() first")
            widths.extend(inner.shape)
            inner = inner.value_type
        elif pa.types.is_fixed_size_list(inner):
            widths.append(inner.list_size)
            inner = inner.value_type
        else:
            break
    if inner == pa.bool_():
        return np.dtype(np.bool_), tuple(widths)
    dtype = _NUMPY_OF_ARROW.get(inner)
    if dtype is None:
        if pa.types.is_list(inner) or pa.types.is_large_list(inner):
            raise UnsupportedLayoutError(
                f"pyarrow {kind} has rows of any length: cast it, as in x.cast(pa.list_(x.type.value_type, d)), or "
                "copy a column of pandas or Polars with Matrix.from_rows(x)"
            )
        raise UnsupportedDtypeError(
            f"pyarrow {kind} holds no numbers of a fixed width: cast it first, for example to float32"
        )
    return dtype, tuple(widths)


def _levels(x: pa.Array) -> list[pa.Array]:
    """``x`` and the child arrays below it, each cut to the entries of its slice, null rows included."""
    levels = [x]
    while True:
        if isinstance(x, pa.ExtensionArray):
            x = x.storage
        if not pa.types.is_fixed_size_list(x.type):
            return levels
        width = x.type.list_size
        x = x.values.slice(x.offset * width, len(x) * width)
        levels.append(x)


def _null_count(x: pa.Array) -> int:
    """Null rows and null entries, at every level."""
    return sum(level.null_count for level in _levels(x))


def _write(x: pa.Array, out: np.ndarray, fill: Any) -> None:
    """The values of one chunk into ``out``; null entries, and all entries of null rows, become ``fill``."""
    *lists, leaf = _levels(x)
    if leaf.null_count:
        leaf = leaf.fill_null(fill)
    np.copyto(out, leaf.to_numpy(zero_copy_only=False).reshape(out.shape), casting="unsafe")
    for depth, level in enumerate(lists, start=1):
        if level.null_count:
            out[level.is_null().to_numpy(zero_copy_only=False).reshape(out.shape[:depth])] = fill
