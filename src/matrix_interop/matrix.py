"""`Matrix`: one 2-D tensor of any framework; `HostMatrix` and `DeviceMatrix` by where its memory lives."""

from __future__ import annotations

import operator
from abc import abstractmethod
from collections.abc import Callable, Iterator
from functools import wraps
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, cast, overload

import numpy as np

from matrix_interop.devices import CPU, Device, as_device
from matrix_interop.dtypes import as_dtype
from matrix_interop.errors import DeviceUnavailableError
from matrix_interop.exchange.compute import copied, normalized, take
from matrix_interop.exchange.convert import (
    copy_to,
    destination,
    native_of,
    plain_targets_first,
    plan_for,
    to_framework,
)
from matrix_interop.exchange.intake import (
    as_matrix,
    converted,
    device_meant,
    empty_on_device,
    fillable,
    gathered,
    lengths_of,
    pack,
    unpack,
)
from matrix_interop.exchange.plan import CopyPlan, Order, decide, require_order
from matrix_interop.frameworks.registry import adapter_of_type, read
from matrix_interop.frameworks.registry import framework as framework_of
from matrix_interop.memory import default_arena, is_pinned
from matrix_interop.memory.host import aligned_empty
from matrix_interop.reasons import Reason
from matrix_interop.runtime import running_runtimes
from matrix_interop.tracking import record_copy
from matrix_interop.transfer import Transfer
from matrix_interop.view import DeviceView, HostView, TensorView, describe

if TYPE_CHECKING:
    from matrix_interop.rows import RowReader

__all__ = ["DeviceMatrix", "HostMatrix", "Matrix", "from_tensor"]

_Function = TypeVar("_Function", bound=Callable[..., Any])


def _plain_tensors_first(function: _Function) -> _Function:
    """Decorates `from_tensor`, and answers what most calls are: a plain tensor of rank 2, taken as it is.

    All others go on to the function itself, which would come to the same, in twice the time: its keywords alone
    take CPython as long as reading an array.
    """

    @wraps(function)
    def plainly(cls: type[Matrix], x: Any, /, **how: Any) -> Matrix:
        try:
            adapter = adapter_of_type[type(x)]
        except KeyError:
            adapter = None
        if adapter is None or how:
            return cast("Matrix", function(cls, x, **how))
        view = adapter.view(x)
        if type(view) is HostView and view.header.ndim == 2 and (cls is Matrix or cls is HostMatrix):
            made: Matrix = _new(HostMatrix)
        elif type(view) is DeviceView and len(view.shape) == 2 and cls is Matrix and not view.pending:
            made = _new(DeviceMatrix)
        else:
            return cast("Matrix", function(cls, view))
        made._view = view
        return made

    return cast(_Function, plainly)


class Matrix:
    """A dense 2-D tensor; a row is one vector. It holds data, never a graph, and wraps the framework's own tensor.

    Abstract: every matrix is a `HostMatrix` or a `DeviceMatrix`.
    Made by `from_tensor`, `from_rows`, `empty`, `open_matrix` or a builder.  Libraries that take
    arrays take a matrix: it speaks DLPack, and the array interfaces of where its memory lives.
    There is no ``==``: compare what ``np.asarray(m)`` or ``m.array`` gives.
    """

    __slots__ = ("__weakref__", "_view")
    _view: TensorView

    def __init__(self, *_: Any, **__: Any) -> None:
        raise TypeError(
            f"{type(self).__name__} has no constructor: use from_tensor, Matrix.from_rows, Matrix.empty or open_matrix"
        )

    # Making ------------------------------------------------------------------------------------
    @classmethod
    @_plain_tensors_first
    def from_tensor(
        cls,
        x: Any,
        /,
        *,
        device: Any = None,
        framework: Any = None,
        dtype: Any = None,
        order: Order | None = None,
        copy: bool | None = None,
        stream: Any = None,
        as_row: bool = False,
        fill: Any = None,
    ) -> Matrix:
        """A matrix over the memory of ``x``, shared where that is possible.

        ``x`` (n, d): a tensor of any known framework, an object with DLPack, the CUDA array interface,
        the array interface, the buffer protocol or ``__array__``, an Arrow fixed-size list column,
        nested lists, or a Matrix (itself).  ``framework``, ``device``, ``dtype``, ``order`` convert on the way in.
        ``copy``: None copies if it must, False never, True always.  ``stream``: where you will use device
        data that is converted.  ``as_row``: a vector or scalar becomes one row.  ``fill``: value for masked or
        null entries, which are refused without it.

        Read-only memory stays read-only.  A tensor that requires grad comes in detached; its own flags
        stay as they are.  Raises `UnsupportedLayoutError` for another rank, `UnsupportedTensorError` where
        there is no plain memory, `UnknownFrameworkError` for an object without a known protocol, and as `convert`.
        """
        view = read(x, fill)
        if len(view.shape) != 2:
            view = as_matrix(view, as_row=as_row)
        if device is None and cls is not Matrix:
            device = CPU if issubclass(cls, HostMatrix) else device_meant(view, None)
        plain = framework is None and dtype is None and order is None and copy is None and view.pending is None
        if not plain or (device is not None and as_device(device) != view.device):
            view = converted(view, device, framework, dtype, order, copy, stream)
        elif isinstance(x, Matrix):
            return x
        return _wrap(view)

    @classmethod
    def from_rows(cls, rows: Any, *, dtype: Any = None, device: Any = None, framework: Any = None) -> Matrix:
        """A matrix of copied rows: an iterable of vectors of one length, from any framework, or lists.

        ``dtype``: that of the rows if they agree, else the one NumPy promotes them to.  ``framework``:
        as in `from_tensor`; numpy if not given.  ``device``: the host if not given, of a `DeviceMatrix` the current
        device.  Raises `UnsupportedLayoutError` naming the first row of
        another length; an iterable without rows has no width and is refused.
        """
        out = gathered(rows, dtype)
        return cls.from_tensor(out, device=device, framework=framework)

    @classmethod
    def empty(
        cls,
        shape: tuple[int, int],
        *,
        dtype: Any = "float32",
        device: Any = None,
        framework: Any = None,
        order: Order = "C",
        pinned: bool = False,
    ) -> Matrix:
        """A matrix of uninitialised memory of its own, aligned to 256 bytes. ``shape`` (n, d).

        ``device`` as in `from_rows`.  ``pinned``: pinned memory where a device is present, else ordinary (`pinned`
        tells which).
        """
        kind = as_dtype(dtype)
        require_order(order)
        lengths = lengths_of(shape, kind)
        if issubclass(cls, DeviceMatrix) if device is None else not as_device(device).is_host:
            return _wrap(empty_on_device(lengths, kind, device, framework, order))
        if not pinned:
            return Matrix.from_tensor(aligned_empty(lengths, kind, order), framework=framework)
        rows = default_arena().empty(lengths if order == "C" else lengths[::-1], kind)
        return Matrix.from_tensor(rows if order == "C" else rows.T, framework=framework)

    # Facts -------------------------------------------------------------------------------------
    @property
    def shape(self) -> tuple[int, int]:
        """(rows, columns)."""
        rows, columns = self._view.header.shape
        return rows, columns

    @property
    def dtype(self) -> np.dtype[Any]:
        """NumPy dtype; of ml_dtypes for bfloat16 and the 8-bit floats."""
        return self._view.header.dtype

    @property
    def ndim(self) -> int:
        """2."""
        return 2

    @property
    def size(self) -> int:
        """Number of entries."""
        return self._view.header.size

    @property
    def itemsize(self) -> int:
        """Bytes of one entry."""
        return self._view.header.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of all entries, gaps between rows not counted."""
        return self._view.header.nbytes

    @property
    def strides(self) -> tuple[int, int]:
        """Bytes from one row to the next and from one column to the next, as in NumPy."""
        row, column = self._view.header.strides
        return row, column

    @property
    def order(self) -> Order | None:
        """Dense rows: "C"; dense columns: "F"; neither: None. Axes of length 1 and empty matrices count as dense."""
        flags = self._view.header.flags
        return "C" if flags.c_contiguous else "F" if flags.f_contiguous else None

    @property
    def readonly(self) -> bool:
        """True where the memory must not be written."""
        return not self._view.header.flags.writeable

    @property
    def device(self) -> Device:
        """Where the memory lives: "cpu" or "cuda:0"; equal to that text."""
        return self._view.device

    @property
    def framework(self) -> str:
        """Name of the framework that `array` belongs to."""
        return self._view.framework

    @property
    def array(self) -> Any:
        """The framework's own tensor over this memory.

        A slice that the framework cannot describe (a negative step in torch) is copied each time it is asked for.
        """
        return native_of(self._view)

    @property
    def xp(self) -> ModuleType:
        """The array-API namespace for `array`."""
        return framework_of(self._view.framework).namespace()

    @property
    def pinned(self) -> bool:
        """True for pinned, that is page-locked, host memory; False on a device."""
        return False

    @property
    def T(self) -> Matrix:  # noqa: N802 - as in NumPy
        """The transpose, over the same memory."""
        view = self._view
        return _wrap(TensorView.of(view.header.T, view.framework, None, view.device, stream=view.stream))

    def __len__(self) -> int:
        return len(self._view.header)

    def __repr__(self) -> str:
        rows, columns = self.shape
        words = [self.order or f"strides {self.strides}", self.framework]
        words += ["pinned"] if self.pinned else []
        words += ["read-only"] if self.readonly else []
        return f"<{type(self).__name__} {rows} x {columns} {self.dtype}, {', '.join(words)}, {self.device}>"

    # Rows --------------------------------------------------------------------------------------
    @overload
    def __getitem__(self, key: slice) -> Self: ...
    @overload
    def __getitem__(self, key: int) -> Any: ...
    def __getitem__(self, key: Any) -> Any:
        """``m[i]``: row i, the framework's own 1-D tensor. ``m[a:b:s]``: a matrix over those rows. Views, both."""
        view = self._view
        target = framework_of(view.framework)
        if isinstance(key, slice):
            native = None if view.native is None else target.item(view.native, key)
            return _wrap(TensorView.of(view.header[key], view.framework, native, view.device, stream=view.stream))
        try:
            row = operator.index(key)
        except TypeError:
            what = type(key).__name__
            msg = (
                f"a matrix is indexed by a row number or a slice of rows, not by {what}: use take(indices) for several "
                "rows, and m.array for columns"
            )
            raise TypeError(msg) from None
        count = len(view.header)
        if not -count <= row < count:
            raise IndexError(f"row {row} of a matrix of {count} rows")
        native = None if view.native is None else target.item(view.native, row)
        if native is None:
            native = to_framework(
                TensorView.of(view.header[row], view.framework, None, view.device, stream=view.stream), target
            )
        return native

    def __iter__(self) -> Iterator[Any]:
        return (self[row] for row in range(len(self)))

    def take(self, indices: Any) -> Matrix:
        """A new matrix of the rows ``indices`` (k,), in that order, repeats allowed. Copies k rows.

        Indices count from 0 and must exist: -1, which marks a missing neighbour in search results, is
        refused like any other index out of range (IndexError), before anything is copied.
        """
        return _wrap(take(self._view, indices))

    def rows(self, select: Any = None, *, block: int | None = None) -> RowReader:
        """The rows as read-only 1-D arrays in host memory, read ahead; to be iterated, each time anew.

        ``select``: a slice, steps and backwards too, or row numbers (k,) as in `take`.  ``block``: rows that are read
        at once, fewer where they would fill more than 4 MiB.  Rows of a host matrix are views of it.  Those of a device
        matrix stay right for as long as you keep them; do not write the matrix while you read.
        """
        from matrix_interop.rows import RowReader

        return RowReader(self, select, block)

    def blocks(
        self, block: int | None = None, *, select: Any = None, device: Any = None, framework: Any = None
    ) -> Iterator[Matrix]:
        """The rows as matrices of ``block`` rows each, the last one shorter. None: 32 MiB, from a device to the host 4.

        ``select`` as in `rows`.  Where the matrix lies they are views, row numbers copied.  With ``device`` or
        ``framework`` each block goes there as by `from_tensor`: from host memory, a mapped file too, one is sent while
        the device still does what you queued for the one before, so memory for two is needed; from a device to the
        host they come read-only, as in `rows`.
        """
        from matrix_interop.rows import blocks_of

        return blocks_of(self, block, select=select, device=device, framework=framework)

    # Converting --------------------------------------------------------------------------------
    @plain_targets_first(None)
    def to_tensor(
        self,
        framework: Any = None,
        *,
        like: Any = None,
        device: Any = None,
        dtype: Any = None,
        order: Order | None = None,
        copy: bool | None = None,
        stream: Any = None,
        share_readonly: bool = False,
    ) -> Any:
        """The matrix as a tensor (n, d) of ``framework`` (name or module), over the same memory where possible.

        Arguments and errors as in `convert`.  Every call gives a new tensor object.
        """
        target, device = destination(self._view, framework, like, device)
        return to_framework(self._view, target, device, dtype, order, copy, stream, share_readonly)

    def plan(
        self,
        framework: Any = None,
        *,
        like: Any = None,
        device: Any = None,
        dtype: Any = None,
        order: Order | None = None,
        share_readonly: bool = False,
    ) -> CopyPlan:
        """What `to_tensor` with these arguments will do; nothing is touched."""
        target, device = destination(self._view, framework, like, device)
        return plan_for(self._view, target, device=device, dtype=dtype, order=order, share_readonly=share_readonly)

    def astype(self, dtype: Any, *, copy: bool | None = None) -> Matrix:
        """The matrix in another dtype, same framework: itself if it has that dtype and ``copy`` is not True."""
        wanted = as_dtype(dtype)
        if wanted == self.dtype and not copy:
            return self
        return _wrap(copied(self._view, dtype=wanted, copy=copy, requested=True))

    def contiguous(self, order: Order = "C", *, copy: bool | None = None) -> Matrix:
        """The matrix with dense rows ("C") or columns ("F"): itself if it has them already and ``copy`` is not True."""
        require_order(order)
        if self._view.header.flags[order] and not copy:
            return self
        return _wrap(copied(self._view, order=order, copy=copy, requested=False))

    def normalized(self, *, return_norms: bool = False) -> Any:
        """A new matrix of rows divided by their Euclidean norm; with ``return_norms`` also the norms (n,).

        Rows of zeros stay zeros, norm 0; infinite entries come out as NaN.  Integers and booleans become float32, other
        types keep theirs.  On the host the norms are a float64 ndarray, and are summed after dividing by the largest
        entry, so that they neither overflow nor vanish; on a device they are a tensor of the matrix's framework, in
        float64 where it has that.
        """
        made, norms = normalized(self._view)
        return (_wrap(made), norms) if return_norms else _wrap(made)

    # Moving ------------------------------------------------------------------------------------
    def to_device(
        self,
        device: Any = None,
        *,
        framework: Any = None,
        dtype: Any = None,
        stream: Any = None,
        copy: bool | None = None,
    ) -> DeviceMatrix:
        """The matrix in device memory, ready in stream order: itself where it is there and nothing is to change.

        ``device``: "cuda:1", None for the current device.  ``framework``: the one that owns the new memory; not given,
        the matrix's own if it can live there, else the first of torch, CuPy and JAX that is imported, else installed.
        ``stream``: where you will use it.  This matrix may be changed as soon as the call returns.

        Raises `DeviceUnavailableError`, `FrameworkNotInstalledError`, `CopyRequiredError` for ``copy=False``.
        """
        view = self._view
        device = device_meant(view, device)
        if device == view.device and framework is None and dtype is None and not copy and stream is None:
            return cast("DeviceMatrix", self)
        made = converted(view, device, framework, dtype, None, copy, stream, requested=True)
        return cast("DeviceMatrix", _wrap(made))

    @overload
    def to_host(
        self,
        *,
        out: Any = ...,
        pinned: bool | None = ...,
        non_blocking: Literal[False] = ...,
        stream: Any = ...,
        copy: bool | None = ...,
    ) -> HostMatrix: ...
    @overload
    def to_host(
        self,
        *,
        out: Any = ...,
        pinned: bool | None = ...,
        non_blocking: Literal[True],
        stream: Any = ...,
        copy: bool | None = ...,
    ) -> Transfer[HostMatrix]: ...
    def to_host(
        self,
        *,
        out: Any = None,
        pinned: bool | None = None,
        non_blocking: bool = False,
        stream: Any = None,
        copy: bool | None = None,
    ) -> Any:
        """The matrix in host memory, there on return, or a `Transfer` when ``non_blocking``.

        A host matrix is returned itself, or copied for ``copy=True``.  ``out``: any writable host tensor of this shape,
        which is filled in its own dtype and becomes the result's memory.  Without it a device matrix goes to new memory
        over NumPy: pinned while the arena has room for results, else (or with ``pinned=False``) ordinary.
        ``stream``: read the device on that stream instead of the current one.  ``non_blocking`` returns early where the
        memory to be filled is pinned; matrix and transfer keep all of it alive.

        Raises `CopyRequiredError` for ``copy=False`` and for read-only ``out``, `UnsupportedLayoutError` for another
        shape.
        """
        return self._to_host(out, pinned, non_blocking, stream, copy)

    @abstractmethod
    def _to_host(self, out: Any, pinned: bool | None, non_blocking: bool, stream: Any, copy: bool | None) -> Any: ...

    # Protocols ---------------------------------------------------------------------------------
    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """See `TensorView.__dlpack__`."""
        return self._view.__dlpack__(stream=stream, max_version=max_version, dl_device=dl_device, copy=copy)

    def __dlpack_device__(self) -> tuple[int, int]:
        """(device type, device id); (1, 0) for all host memory."""
        return self._view.device.dlpack

    def __deepcopy__(self, _: Any = None) -> Matrix:
        """A copy in memory of its own, in the same framework and on the same device."""
        return _wrap(copied(self._view, copy=True, requested=True))

    __copy__ = __deepcopy__

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        """Own rows only, as host bytes, out of band from protocol 5 on. Comes back over NumPy memory."""
        packed = pack(self.to_host(pinned=False)._view.header, protocol)
        return _unpickle, (*packed, self.readonly)


class HostMatrix(Matrix):
    """A matrix in memory that the CPU addresses. ``np.asarray(m)`` is its shared ndarray."""

    __slots__ = ()

    def _to_host(self, out: Any, pinned: bool | None, non_blocking: bool, stream: Any, copy: bool | None) -> Any:
        if out is not None:
            target = _wrap(fillable(out, self._view, copy))
            copy_to(target._view.header, self._view)
            record_copy(target.nbytes, Reason.REQUESTED, "to_host into out")
            return Transfer(target, lambda: True, lambda: None) if non_blocking else target
        made: Any = self
        if copy:
            made = _wrap(copied(self._view, copy=copy, requested=True))
        return Transfer(made, lambda: True, lambda: None) if non_blocking else made

    @property
    def pinned(self) -> bool:
        """True for pinned memory: of our arenas by its block, of others by asking a driver that is in use."""
        header = self._view.header
        if is_pinned(header):
            return True
        runtimes = running_runtimes()
        if not runtimes:
            return False
        address = self._view.pointer
        try:
            return any(runtime.pointer(address).kind == "pinned" for runtime in runtimes)
        except DeviceUnavailableError:  # a forked child, where the driver must not be asked
            return False

    def pin(self) -> HostMatrix:
        """A copy in pinned memory of the default arena; itself where it is pinned already, or no device is present."""
        if self.pinned:
            return self
        fresh = default_arena().empty(self.shape, self.dtype.newbyteorder("="))
        if not is_pinned(fresh):
            return self
        copy_to(fresh, self._view)
        record_copy(fresh.nbytes, Reason.REQUESTED, "copied into pinned memory")
        return cast("HostMatrix", _wrap(TensorView.of(fresh, self._view.framework)))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """The shared ndarray, converted as NumPy's ``__array__`` protocol asks."""
        return self._view.__array__(dtype, copy)

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return self._view.__array_interface__


class DeviceMatrix(Matrix):
    """A matrix in the memory of a device that the CPU does not address by itself."""

    __slots__ = ()

    def _to_host(self, out: Any, pinned: bool | None, non_blocking: bool, stream: Any, copy: bool | None) -> Any:
        from matrix_interop.exchange.moves import start_fetch

        view = self._view
        target = None if out is None else _wrap(fillable(out, view, copy))
        landing = None if target is None else target._view.header
        kind = view.dtype if landing is None else landing.dtype
        order: Order | None = "F" if landing is not None and not landing.flags.c_contiguous else None
        made = decide(
            view, framework_of("numpy"), place=CPU, dtype=kind, order=order, copy=copy, requested=copy is None
        )
        started = start_fetch(view, made, landing, pinned=pinned is not False, early=non_blocking, stream=stream)
        moved = started.then(lambda header: target or _wrap(TensorView.of(header, "numpy", header)))
        return moved if non_blocking else moved.result()

    def pin(self) -> DeviceMatrix:
        """This matrix: only host memory is pinned."""
        return self

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """Refused: a transfer over the bus should be seen in the code."""
        raise TypeError(f"{describe(self._view)} is not in host memory: call to_host() first")

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return self._view.__cuda_array_interface__


#: `Matrix.from_tensor`, under the name that reads best at the top of a program.
from_tensor = Matrix.from_tensor
_new = object.__new__


def _wrap(view: TensorView) -> Matrix:
    made: Matrix = _new(HostMatrix if view.device is CPU else DeviceMatrix)
    made._view = view
    return made


def _unpickle(data: Any, shape: tuple[int, int], dtype: str, order: Order, readonly: bool) -> Matrix:
    return Matrix.from_tensor(unpack(data, shape, dtype, order, readonly=readonly))
