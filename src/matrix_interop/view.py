"""`TensorView`: the description of one tensor's memory, whatever framework it came from.

A view is an array *header* (address, shape, strides, dtype, writeable flag, owner), the device
that the memory belongs to and the tensor it was read from.  On the host the header is an ordinary
NumPy array over the shared memory.  On a device it is only a header: NumPy computes layouts and
views from it, and nothing reads through it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import numpy as np

from matrix_interop.devices import CPU, HOST_CODES, Device
from matrix_interop.dlpack import capsule_of, header_of
from matrix_interop.dtypes import is_extension, name_of
from matrix_interop.errors import CopyRequiredError, DeviceUnavailableError
from matrix_interop.reasons import Reason
from matrix_interop.tracking import copies_forbidden, record_copy

__all__ = ["DeviceView", "HostView", "Pending", "TensorView"]


_new: Final = object.__new__


class Pending(NamedTuple):
    """Values that are not in memory as the reader sees them: a conjugate bit, a mask, nulls, chunks.

    ``write`` puts the true values into an array of the view's shape, in any layout and dtype.
    """

    text: str
    write: Callable[[np.ndarray], None]


class _Frameworks(Protocol):
    """What a view needs from the frameworks, which it cannot import: they rest on it."""

    def read(self, x: Any) -> TensorView: ...

    def make_ready(self, view: TensorView, stream: Any) -> int: ...

    def producer_stream(self, view: TensorView) -> int: ...


class TensorView:
    """The memory of tensor ``x``, any rank, shared: shape, strides in bytes, dtype, device, read-only flag, owner.

    ``x`` is anything that `from_tensor` takes.  The view keeps ``x`` alive, exports DLPack in both
    capsule forms and the array interface (host) or CUDA array interface (CUDA).  An interface that
    cannot tell the truth about this memory raises AttributeError, so ``hasattr`` is False.

    Raises `UnsupportedTensorError` where there is no plain memory, `UnsupportedDtypeError` for types
    without a NumPy form and `UnknownFrameworkError` for objects without any known protocol.
    """

    __slots__ = ("__weakref__", "device", "framework", "header", "native", "note", "pending", "stream")

    #: Installed by the room of that name when it is imported.
    frameworks: _Frameworks

    device: Device
    #: Name of the framework that ``native`` belongs to.
    framework: str
    #: The array header. For a device: never read through it.
    header: np.ndarray
    #: The tensor itself, or None where its framework has no object for this view yet.
    native: Any
    #: Values still to be computed, or None.
    pending: Pending | None
    #: What a reader of a plan should know although nothing is copied ("detached from its graph"), or "".
    note: str
    #: Stream that the producer named for its data (-1: it is there already), or None: then its framework's current one
    #: counts.
    stream: int | None

    def __init__(self, x: Any) -> None:
        view = self.frameworks.read(x)
        for name in ("device", "framework", "header", "native", "note", "pending", "stream"):
            setattr(self, name, getattr(view, name))

    @classmethod
    def of(
        cls,
        header: np.ndarray,
        framework: str,
        native: Any = None,
        device: Device = CPU,
        pending: Pending | None = None,
        note: str = "",
        stream: int | None = None,
    ) -> TensorView:
        """A view from its parts; adapters call this."""
        self = _new(cls)
        self.header = header
        self.framework = framework
        self.native = native
        self.device = device
        self.pending = pending
        self.note = note
        self.stream = stream
        return self

    # Facts -------------------------------------------------------------------------------------
    @property
    def shape(self) -> tuple[int, ...]:
        """Lengths of the axes."""
        return self.header.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """NumPy dtype; of ml_dtypes for bfloat16 and the 8-bit floats."""
        return self.header.dtype

    @property
    def strides(self) -> tuple[int, ...]:
        """Bytes from one entry to the next along each axis, as in NumPy."""
        return self.header.strides

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return self.header.ndim

    @property
    def size(self) -> int:
        """Number of entries."""
        return self.header.size

    @property
    def itemsize(self) -> int:
        """Bytes of one entry."""
        return self.header.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of all entries, gaps between strided rows not counted."""
        return self.header.nbytes

    @property
    def readonly(self) -> bool:
        """True where the memory must not be written."""
        return not self.header.flags.writeable

    @property
    def pointer(self) -> int:
        """Address of the first entry."""
        return int(self.header.__array_interface__["data"][0])

    def __len__(self) -> int:
        return len(self.header)

    def __repr__(self) -> str:
        return f"<TensorView {describe(self)}>"

    # Protocols ---------------------------------------------------------------------------------
    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """A DLPack capsule: versioned when ``max_version`` allows it, else legacy. Raises BufferError only.

        Shares memory, except for ``copy=True`` and for negative strides, which torch cannot take
        without ending the process: those are copied unless ``copy=False``.  Host memory is always
        labelled (1, 0), pinned or not.  Read-only memory is marked so, and refused in the legacy
        form, which has no mark.  On a device the data is ready on ``stream`` (None: the legacy
        default stream; -1: no ordering).
        """
        try:
            return self._export(stream, max_version, dl_device, copy)
        except BufferError:
            raise
        except Exception as error:  # a TypeError would make the consumer call again with fewer keywords
            raise BufferError(f"{describe(self)} cannot be exported over DLPack: {error}") from error

    def _export(self, stream: Any, max_version: Any, dl_device: Any, copy: bool | None) -> Any:
        if self.pending is not None:
            raise BufferError(f"{describe(self)} has {self.pending.text}: export from_tensor(x), which resolves it")
        header, device = _without_idle_strides(self.header), self.device
        backwards = min(header.strides, default=0) < 0
        if device.is_host:
            if stream not in (None, -1):
                raise BufferError(f"stream={stream!r} makes no sense for memory on the host: leave it out")
            if dl_device is not None and dl_device[0] not in HOST_CODES:
                raise BufferError(
                    f"{describe(self)} cannot be exported to DLPack device {tuple(dl_device)}: call to_device() first"
                )
            if backwards and not copy:
                if copy is False or copies_forbidden():
                    raise CopyRequiredError(
                        f"{describe(self)} has negative strides, which not every consumer survives: allow a copy"
                    )
                copy = True
            if copy:
                header = np.array(header, order="K", copy=True, subok=False)
                reason = Reason.NEGATIVE_STRIDE if backwards else Reason.REQUESTED
                record_copy(header.nbytes, reason, "copied for a DLPack consumer")
        else:
            if dl_device is not None and tuple(dl_device) != device.dlpack:
                other = f"DLPack device {tuple(dl_device)}"
                raise BufferError(
                    f"{describe(self)} cannot be exported to {other}: call to_host() or to_device() first"
                )
            if copy:
                raise BufferError("copy=True is not offered for device memory: copy in the consumer")
            if backwards:
                raise BufferError(f"{describe(self)} has negative strides, which not every consumer survives: copy it")
            self.frameworks.make_ready(self, stream)
        if max_version is not None:
            max_version = (int(max_version[0]), int(max_version[1]))
        if not header.flags.writeable and (max_version is None or max_version[0] < 1):
            raise BufferError(
                f"{describe(self)} has no legacy capsule, which could not say read-only: ask for max_version=(1, 0), "
                "or convert with to_tensor() or convert()"
            )
        return capsule_of(header, device, max_version=max_version, copied=bool(copy))

    def __dlpack_device__(self) -> tuple[int, int]:
        """(device type, device id); (1, 0) for all host memory."""
        return self.device.dlpack

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """The shared ndarray (host), converted as NumPy's ``__array__`` protocol asks; TypeError on a device."""
        if not self.device.is_host:
            msg = f"{describe(self)} is not in host memory: call to_host() first"
            raise TypeError(msg)
        if self.pending is not None:
            msg = f"{describe(self)} has {self.pending.text}: use np.asarray(from_tensor(x)), which resolves it"
            raise TypeError(msg)
        if dtype is not None and np.dtype(dtype) != self.header.dtype:
            if copy is False:
                size = self.size * np.dtype(dtype).itemsize
                msg = f"{describe(self)} as {np.dtype(dtype)} needs a copy of {size} bytes"
                raise ValueError(msg)
            made = self.header.astype(dtype)
            record_copy(made.nbytes, Reason.DTYPE, "converted for NumPy")
            return made
        if copy:
            record_copy(self.nbytes, Reason.REQUESTED, "copied for NumPy")
            return self.header.copy()
        return self.header

    @property
    def __array_interface__(self) -> dict[str, Any]:
        if not self.device.is_host or self.pending is not None or is_extension(self.header.dtype):
            raise AttributeError(f"__array_interface__ cannot describe {describe(self)}")
        return self.header.__array_interface__

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """Version 3, strides in bytes; the data is ready on the stream it names."""
        if self.device.type != "cuda" or self.pending is not None or is_extension(self.dtype):
            raise AttributeError(f"__cuda_array_interface__ cannot describe {describe(self)}")
        interface = dict(self.header.__array_interface__)
        interface["version"] = 3
        try:
            stream = self.frameworks.producer_stream(self)
        except DeviceUnavailableError as error:
            raise AttributeError(str(error)) from error
        interface["stream"] = None if stream < 0 else stream
        return interface


def _without_idle_strides(header: np.ndarray) -> np.ndarray:
    """The same memory, no negative stride on an axis where none counts: consumers judge by it all the same."""
    if min(header.strides, default=0) >= 0 or any(
        step < 0 < header.size and n > 1 for n, step in zip(header.shape, header.strides, strict=True)
    ):
        return header
    strides = tuple(abs(step) for step in header.strides)
    address, readonly = header.__array_interface__["data"]
    return header_of(address, header.shape, strides, header.dtype, readonly=readonly, owner=header)


class HostView(TensorView):
    """A view of a framework's tensor in host memory with nothing to remark: most exchanges begin with one.

    Made empty, by a bare call; then its header, framework and tensor are set. `TensorView.of` takes twice the time.
    """

    __slots__ = ()

    if TYPE_CHECKING:

        def __init__(self) -> None: ...
    else:
        __init__ = object.__init__

    device = CPU
    pending = None
    note = ""
    stream = None


class DeviceView(TensorView):
    """A view of a framework's device tensor, from its facts alone.

    The array header costs as much as the rest of an exchange and is needed only where layouts are
    computed, so it is made when first asked for.
    """

    __slots__ = ("_header", "dtype", "pointer", "readonly", "shape", "strides")

    if TYPE_CHECKING:

        def __init__(self) -> None: ...
    else:
        __init__ = object.__init__  # as in `HostView`

    _header: np.ndarray | None
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    strides: tuple[int, ...]
    readonly: bool
    pointer: int

    @classmethod
    def of_tensor(
        cls,
        native: Any,
        framework: str,
        device: Device,
        pointer: int,
        shape: tuple[int, ...],
        strides: tuple[int, ...],
        dtype: np.dtype[Any],
        *,
        readonly: bool = False,
        note: str = "",
        pending: Pending | None = None,
        stream: int | None = None,
    ) -> DeviceView:
        """A view of ``native``, whose memory starts at ``pointer``. ``strides`` in bytes."""
        self = cls()
        self._header = None
        self.native = native
        self.framework = framework
        self.device = device
        self.pointer = pointer
        self.shape = shape
        self.strides = strides
        self.dtype = dtype
        self.readonly = readonly
        self.note = note
        self.pending = pending
        self.stream = stream
        return self

    @property
    def header(self) -> np.ndarray:  # type: ignore[override]
        """The array header; never read through it."""
        header = self._header
        if header is None:
            header = self._header = header_of(
                self.pointer, self.shape, self.strides, self.dtype, readonly=self.readonly, owner=self.native
            )
        return header

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def itemsize(self) -> int:
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    def __len__(self) -> int:
        return self.shape[0]


def describe(view: TensorView) -> str:
    """One line: framework, dtype, shape, strides, device, read-only."""
    return in_words(*facts_of(view))


def facts_of(view: TensorView) -> tuple[str, np.dtype[Any], tuple[int, ...], tuple[int, ...], Device, bool]:
    """What `describe` says of a view, without its memory: for `in_words`, which may never be asked."""
    return view.framework, view.dtype, view.shape, view.strides, view.device, view.readonly


def in_words(
    framework: str,
    dtype: np.dtype[Any],
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    device: Device,
    readonly: bool,
) -> str:
    """The text of `facts_of`."""
    return (
        f"{framework} {name_of(dtype)} {shape}, strides {strides} bytes, on {device}{', read-only' if readonly else ''}"
    )
