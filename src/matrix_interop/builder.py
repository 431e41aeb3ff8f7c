"""`MatrixBuilder`: a matrix whose rows come one after the other, or in bulk."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any, Final, Literal

import numpy as np

from matrix_interop.devices import Device, as_device
from matrix_interop.dtypes import as_dtype, cast, require_unrounded
from matrix_interop.errors import ClosedError, UnknownFrameworkError, UnsupportedDtypeError, UnsupportedLayoutError
from matrix_interop.exchange.convert import copy_to, place_of
from matrix_interop.exchange.intake import as_matrix, converted
from matrix_interop.frameworks.registry import Framework, device_framework, read
from matrix_interop.frameworks.registry import framework as framework_of
from matrix_interop.matrix import Matrix, from_tensor
from matrix_interop.memory import Region, default_arena, is_pinned
from matrix_interop.reasons import Reason
from matrix_interop.runtime import get_runtime, is_served
from matrix_interop.tracking import record_copy
from matrix_interop.transfer import copy_values_in_pool
from matrix_interop.transfer.lanes import Mark, address_of, finish, upload
from matrix_interop.transfer.streams import follow
from matrix_interop.view import TensorView, describe

__all__ = ["MatrixBuilder"]

#: Bytes of rows that are checked, and sent to a device, together.
_BLOCK: Final = 4 << 20
#: Least and most bytes of pages fetched ahead of the rows in host memory: as many as there are.
_AHEAD: Final = (2 << 20, 32 << 20)
_ndarray: Final = np.ndarray


class MatrixBuilder:
    """Rows of ``dim`` entries, added by `append` and `extend`; `finish` gives them as one matrix.

    ``dtype``: of the matrix. Rows of another type are converted if every value of that type fits, else refused.
    ``device``, ``framework``: where the matrix is to be. ``capacity``: the most rows that will come; None if unknown.
    ``check="finite"``: rows with NaN or infinite entries are refused, whole blocks of about 4 MiB at a time.

    Nothing is copied at the end.  On the host the rows lie in memory that grows in place, whose pages the matrix takes;
    without ``capacity`` each builder has address space for all memory there is, or, of many at once, for a part of it.
    Rows for a device go there as they come; with ``capacity`` its memory is taken at once, without, it doubles when it
    is full (or grows by less, where the device has no more), by a copy on the device, and the matrix keeps what is left
    over.  For one thread at a time.
    """

    __slots__ = (
        "_at", "_block_rows", "_capacity", "_check", "_checked", "_count", "_device", "_dim", "_dtype",
        "_room", "_row_shape", "_rows", "_store", "_target",
    )  # fmt: skip

    def __init__(
        self,
        dim: int,
        *,
        dtype: Any = "float32",
        device: Any = "cpu",
        framework: Any = None,
        capacity: int | None = None,
        check: Literal["finite"] | None = None,
    ) -> None:
        self._dim = operator.index(dim)
        self._capacity = None if capacity is None else operator.index(capacity)
        if self._dim < 0 or (self._capacity or 0) < 0:
            msg = f"dim={dim}, capacity={capacity}: write numbers of 0 or more"
            raise ValueError(msg)
        if check not in (None, "finite"):
            msg = f"check={check!r}: write 'finite', or None"
            raise ValueError(msg)
        kind = as_dtype(dtype)
        # The very object that NumPy's arrays have, so that `append` can compare by identity.
        self._dtype = kind if kind.isnative else kind.newbyteorder("=")
        self._check = check is not None
        place = as_device(device)
        which = ("numpy" if place.is_host else device_framework(place.type)) if framework is None else framework
        self._target: Framework = which if isinstance(which, Framework) else framework_of(which)
        why_not = self._target.refusal(self._dtype)
        if why_not is not None:
            msg = f"{self._target.name} cannot hold a matrix of {self._dtype}: {why_not}"
            raise UnsupportedDtypeError(msg)
        empty = TensorView.of(np.empty((0, self._dim), self._dtype), "numpy")
        self._device: Device = place_of(empty, self._target, device)
        #: Where no runtime serves a device, its framework takes the whole matrix in the end.
        on_host = self._device.is_host or not is_served(self._device.type)
        self._store: _HostRows | _DeviceRows | None = (
            _HostRows(self._dim, self._dtype, self._capacity)
            if on_host
            else _DeviceRows(self._dim, self._dtype, self._capacity, self._target, self._device)
        )
        #: Rows of the store that are open for writing; of them `_at` are written and `_room` may be without a question.
        self._rows = self._filling.rows
        self._block_rows = max(1, _BLOCK // max(1, self._dim * self._dtype.itemsize))
        self._row_shape = (self._dim,)
        self._at = self._room = self._checked = 0
        #: Rows of the matrix that was made.
        self._count = 0

    def __len__(self) -> int:
        return self._count if self._store is None else self._store.sent + self._at

    @property
    def shape(self) -> tuple[int, int]:
        """Rows so far, and entries of each."""
        return len(self), self._dim

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the matrix."""
        return self._dtype

    def __repr__(self) -> str:
        state = ", finished" if self._store is None else ""
        return f"<MatrixBuilder {len(self)} x {self._dim} {self._dtype}, {self._target.name}, {self._device}{state}>"

    # Adding ------------------------------------------------------------------------------------
    def append(self, row: Any) -> None:
        """Add one row: a vector of ``dim`` entries from any framework, on the host or a device, or a list.

        Raises `UnsupportedLayoutError` for another shape, `UnsupportedDtypeError` for a type whose values would not
        all fit, ClosedError after `finish`.  With ``check``, ValueError for a block of rows in which some are not
        finite: it names them, and none of the block is kept.
        """
        at = self._at
        if at < self._room and type(row) is _ndarray and row.dtype is self._dtype and row.shape == self._row_shape:
            self._rows[at] = row
            self._at = at + 1
            return
        self._filling  # noqa: B018 - a closed builder says so first
        self._add(_as_rows(self._fitting(self._read(row), rank=1)))

    def extend(self, rows: Any) -> None:
        """Add many rows: a tensor or Matrix (n, dim) of any framework and device, a row source, a list, or an iterable
        of rows and blocks.

        Raises as `append`.  A tensor or list that does not fit is refused as a whole, before anything of it is added;
        of an iterable or row source, what came before stays.  With ``check`` a tensor is a block; of rows in a list,
        blocks before the one that is refused stay.
        """
        self._filling  # noqa: B018 - a closed builder says so first
        if isinstance(rows, (list, tuple)):
            for view in self._of_list(rows):
                self._add(view)
        elif hasattr(rows, "read") and hasattr(rows, "blocks"):
            for block in rows.blocks():
                self._add(self._fitting(read(block)))
        elif hasattr(rows, "__next__"):
            self._extend_by_each(rows)
        else:
            try:
                view = read(rows)
            except UnknownFrameworkError:
                if not hasattr(rows, "__iter__"):
                    raise
                self._extend_by_each(iter(rows))
                return
            self._add(self._fitting(view))

    def finish(self) -> Matrix:
        """The rows added, as one matrix: not copied, though pages may move. The builder is closed then.

        With ``check``, ValueError as in `append`; the rows before that block remain, and the builder open.
        """
        store = self._filling
        self._check_written(self._at)
        if isinstance(store, _DeviceRows):
            self._flush()
        made = store.finish(len(self))
        self._rows, self._room = store.rows, 0
        if made.device != self._device or made.framework != self._target.name:
            made = from_tensor(made, device=self._device, framework=self._target.name)
        self._count, self._rows, self._store = len(made), np.empty((0, self._dim), self._dtype), None
        return made

    # -------------------------------------------------------------------------------------------
    @property
    def _filling(self) -> _HostRows | _DeviceRows:
        """Where the rows go; ClosedError after `finish`."""
        if self._store is None:
            msg = f"{self!r} takes no more rows: make another MatrixBuilder"
            raise ClosedError(msg)
        return self._store

    def _extend_by_each(self, rows: Iterator[Any]) -> None:
        for item in rows:
            if type(item) is _ndarray and item.ndim == 1:
                self.append(item)
            else:
                view = self._read(item)
                self._add(_as_rows(self._fitting(view, rank=2 if view.ndim == 2 else 1)))

    def _of_list(self, rows: list[Any] | tuple[Any, ...]) -> list[TensorView]:
        """Views of all rows, each found to fit, before one is added."""
        if not rows:
            return []
        if all(isinstance(row, (list, tuple)) for row in rows):
            return [self._fitting(_numbers(rows, self._dtype))]
        views = [self._read(row) for row in rows]
        total = sum(len(view) if view.ndim == 2 else 1 for view in views)
        for number, view in enumerate(views):
            self._fitting(view, rank=2 if view.ndim == 2 else 1, count=total, where=f"row {number}: ")
        return [_as_rows(view) for view in views]

    def _read(self, row: Any) -> TensorView:
        return _numbers(row, self._dtype) if isinstance(row, (list, tuple)) else read(row)

    def _fitting(self, view: TensorView, *, rank: int = 2, count: int | None = None, where: str = "") -> TensorView:
        """The view, if its shape, its dtype and the number of rows, ``count`` or its own, are right."""
        if view.ndim != rank or view.shape[-1] != self._dim:
            wanted = f"({self._dim},)" if rank == 1 else f"(n, {self._dim})"
            msg = f"{where}{describe(view)} does not fit into a matrix of {self._dim} columns: shape {wanted} is needed"
            raise UnsupportedLayoutError(msg)
        if not np.can_cast(view.dtype, self._dtype, "safe"):
            msg = (
                f"{where}{describe(view)} would lose values as {self._dtype}: convert it first if that is meant, or "
                f"write MatrixBuilder({self._dim}, dtype={view.dtype.newbyteorder('=').name!r})"
            )
            raise UnsupportedDtypeError(msg)
        if count is None:
            count = len(view) if rank == 2 else 1
        if self._capacity is not None and len(self) + count > self._capacity:
            msg = (
                f"{count} rows more than the {len(self)} that are there exceed capacity={self._capacity}: declare more "
                "or leave capacity out"
            )
            raise UnsupportedLayoutError(msg)
        return view

    def _add(self, view: TensorView) -> None:
        """Add rows that fit."""
        count = len(view)
        store = self._filling
        if not count:
            return
        if isinstance(store, _DeviceRows) and count * self._dim * self._dtype.itemsize >= _BLOCK // 2:
            self._check_written(self._at)
            self._flush()
            if self._check:
                self._check_incoming(view)
            store.send(view)
            return
        for start in range(0, count, max(1, store.most)):
            part = view if count <= store.most else _rows_of(view, slice(start, start + store.most))
            self._make_room(len(part))
            target = self._rows[self._at : self._at + len(part)]
            _fill(target, part)
            if self._check and len(part) > 1:
                self._check_written(self._at)
                _require_finite(target, len(self))
                self._checked = self._at + len(part)
            self._at += len(part)
            self._room = min(self._room, self._checked + self._block_rows) if self._check else self._room

    def _make_room(self, count: int) -> None:
        """Have ``count`` rows open for writing."""
        if self._check and self._at - self._checked >= self._block_rows:
            self._check_written(self._at)
        if self._at + count > len(self._rows) and isinstance(self._filling, _DeviceRows):
            self._check_written(self._at)
            self._flush()
        room = self._filling.open(self._at + count)
        self._rows = self._filling.rows
        self._room = min(room, max(self._checked + self._block_rows, self._at + count)) if self._check else room

    def _flush(self) -> None:
        """Send what waits in the buffer of a device."""
        store = self._filling
        assert isinstance(store, _DeviceRows)  # noqa: S101 - for the type checker
        store.flush(self._at)
        self._rows = store.rows
        self._at = self._checked = self._room = 0

    def _check_written(self, stop: int) -> None:
        """Check rows appended since the last check; take them out again if some are not finite."""
        if self._check and self._checked < stop:
            try:
                _require_finite(self._rows[self._checked : stop], self._filling.sent + self._checked)
            except ValueError:
                self._at = self._room = self._checked
                raise
            self._checked = stop

    def _check_incoming(self, view: TensorView) -> None:
        number = len(self)
        for block in from_tensor(view).blocks(self._block_rows, device="cpu"):
            _require_finite(np.asarray(block), number)
            number += len(block)


class _HostRows:
    """Rows in host memory that grows in place."""

    def __init__(self, dim: int, dtype: np.dtype[Any], capacity: int | None) -> None:
        self._row_bytes = dim * dtype.itemsize
        self._region = Region(None if capacity is None else capacity * self._row_bytes)
        self.most = (self._region.nbytes // self._row_bytes) if self._row_bytes else 1 << 40
        if capacity is not None:
            self.most = min(self.most, capacity)
        self.rows = self._region.array((self.most, dim), dtype)
        self.sent = 0

    def open(self, count: int) -> int:
        """Have pages behind ``count`` rows and some more; how many rows those are."""
        if count > self.most:
            msg = (
                f"{count} rows of {self._row_bytes} bytes are more than the {self._region.nbytes} bytes of memory here"
            )
            raise MemoryError(msg)
        if not self._row_bytes:
            return self.most
        ahead = min(_AHEAD[1], max(_AHEAD[0], count * self._row_bytes))
        room = min(self.most, count + max(1, ahead // self._row_bytes))
        self._region.touch(room * self._row_bytes)
        return room

    def finish(self, count: int) -> Matrix:
        self._region.finish(count * self._row_bytes)
        self.most, self.rows = count, self._region.array((count, self.rows.shape[1]), self.rows.dtype)
        return from_tensor(self.rows)


class _DeviceRows:
    """Rows in device memory, before it two buffers for those that come one by one: one is filled, one is sent."""

    def __init__(self, dim: int, dtype: np.dtype[Any], capacity: int | None, target: Framework, device: Device) -> None:
        self._dim = dim
        self._dtype = dtype
        self._target = target
        self._device = device
        self._runtime = get_runtime(device.type)
        self._row_bytes = dim * dtype.itemsize
        self._native = target.empty((capacity or 0, dim), dtype, device)
        self._raw = target.view(self._native)
        self._stream = target.current_stream(device)
        self.most = max(1, _BLOCK // max(1, self._row_bytes))
        if capacity is not None:
            self.most = min(self.most, capacity)
        #: The buffer that is being filled: none before the first row that comes alone.
        self.rows = np.empty((0, dim), dtype)
        #: The other buffer, and when the device has read it.
        self._other: np.ndarray | None = None
        self._read: Mark | None = None
        #: Rows that are on the device, or on their way.
        self.sent = 0

    def open(self, count: int) -> int:
        """Have a buffer; how many rows it takes."""
        if not len(self.rows):
            self.rows = default_arena().result((self.most, self._dim), self._dtype)
        return self.most

    def flush(self, count: int) -> None:
        """Send the first ``count`` rows of the buffer, and fill the other one from now on."""
        if count and not is_pinned(self.rows):
            self.send(TensorView.of(self.rows[:count], "numpy"))
        elif count:
            runtime, ordinal, nbytes = self._runtime, self._device.index, count * self._row_bytes
            address = self._room_for(count)
            runtime.copy(address, address_of(self.rows), nbytes, ordinal=ordinal, stream=self._stream)
            read = Mark(runtime, runtime.record(self._stream, ordinal))
            if self._read is not None:
                self._read.synchronize()
            other = default_arena().result(self.rows.shape, self._dtype) if self._other is None else self._other
            self.rows, self._other, self._read = other, self.rows, read
            self._sent(count)

    def send(self, view: TensorView) -> None:
        """Send rows from host or device memory behind those that are there."""
        address = self._room_for(len(view))
        if view.device.is_host:
            source = view.header
            if view.pending is not None:
                source = np.empty(view.shape, self._dtype)
                copy_to(source, view)
            upload(source, address, self._dtype, self._device, self._stream)
        else:
            moved = converted(view, self._device, self._target.name, self._dtype, "C", None, None, requested=True)
            self._follow(self._target.current_stream(self._device))
            nbytes = len(view) * self._row_bytes
            self._runtime.copy(address, moved.pointer, nbytes, ordinal=self._device.index, stream=self._stream)
            # Not every framework can be told that another stream still reads its memory.
            finish(self._runtime, self._runtime.record(self._stream, self._device.index))
        self._sent(len(view))

    def _sent(self, count: int) -> None:
        record_copy(count * self._row_bytes, Reason.REQUESTED, f"rows added to a builder on {self._device}")
        self.sent += count

    def _room_for(self, count: int) -> int:
        """Where so many rows more are to lie on the device."""
        self._have(self.sent + count)
        return self._raw.pointer + self.sent * self._row_bytes

    def _have(self, count: int) -> None:
        """Have memory for so many rows: twice what there was, if need be, so that rows are seldom copied again."""
        held = self._raw.shape[0]
        if count <= held:
            return
        native = self._memory_for(count, held)
        raw = self._target.view(native)
        current = self._target.current_stream(self._device)
        if current != self._stream:  # it goes back there
            self._follow(current)
            self._target.keep_until(native, self._stream, self._device)
        if self.sent:
            nbytes, ordinal = self.sent * self._row_bytes, self._device.index
            self._runtime.copy(raw.pointer, self._raw.pointer, nbytes, ordinal=ordinal, stream=self._stream)
            finish(self._runtime, self._runtime.record(self._stream, ordinal))
        self._native, self._raw = native, raw

    def _memory_for(self, count: int, held: int) -> Any:
        """Twice what is held; where the device has less left, an eighth more, or what is needed now."""
        for more in (held, held // 8):
            if held + more > count:
                try:
                    return self._target.empty((held + more, self._dim), self._dtype, self._device)
                except Exception:  # noqa: BLE001, S110 - each framework has an error of its own
                    pass
        return self._target.empty((count, self._dim), self._dtype, self._device)

    def _follow(self, stream: int) -> None:
        if stream != self._stream:
            follow(self._runtime, self._device.index, self._stream, stream)

    def finish(self, count: int) -> Matrix:
        current = self._target.current_stream(self._device)
        if current != self._stream:
            follow(self._runtime, self._device.index, current, self._stream)
            self._target.keep_until(self._native, current, self._device)
        made = from_tensor(self._target.written(self._native, current, self._device))
        return made if count == len(made) else made[:count]


def _as_rows(view: TensorView) -> TensorView:
    """A vector as a matrix of one row."""
    return view if view.ndim == 2 else as_matrix(view, as_row=True)


def _rows_of(view: TensorView, rows: slice) -> TensorView:
    return from_tensor(view)[rows]._view


def _fill(target: np.ndarray, view: TensorView) -> None:
    """Copy rows, from wherever they are, into ``target``."""
    if not view.device.is_host:
        source = from_tensor(view)
        if view.dtype == target.dtype:
            source.to_host(out=target)
            return
        view = source.to_host(pinned=False)._view
    if view.pending is not None:
        copy_to(target, view)
    else:
        copy_values_in_pool(target, view.header)
    record_copy(target.nbytes, Reason.REQUESTED, "rows added to a builder")


def _numbers(rows: Any, dtype: np.dtype[Any]) -> TensorView:
    """Nested lists as an array: numbers for a type of fractions are rounded to it, others have to fit."""
    try:
        given = np.asarray(rows)
    except Exception as error:  # whatever the entries raise
        msg = f"the rows of a list have several lengths, or hold no numbers: {error}"
        raise UnsupportedLayoutError(msg) from error
    if given.dtype.kind not in "biufc":
        msg = f"a list of {given.dtype} holds no numbers that {dtype} could hold"
        raise UnsupportedDtypeError(msg)
    if dtype.kind in "iu":
        require_unrounded(rows, given)
    made, fits = cast(given, dtype)
    if not fits.all():
        msg = f"a list holds {given[~fits].flat[0]}, which {dtype} cannot hold"
        raise UnsupportedDtypeError(msg)
    return TensorView.of(made, "numpy")


def _require_finite(rows: np.ndarray, first: int) -> None:
    """Raise ValueError naming the rows, counted from ``first``, that have entries which are not finite."""
    if rows.dtype.kind in "biu":
        return
    finite = np.isfinite(rows)
    if finite.all():
        return
    bad = np.flatnonzero(~finite.all(axis=1))
    named = ", ".join(str(first + number) for number in bad[:10].tolist()) + (", ..." if len(bad) > 10 else "")
    msg = (
        f"not finite: {len(bad)} of the rows {first} to {first + len(rows) - 1}, namely {named}; none of these "
        f"{len(rows)} rows was kept"
    )
    raise ValueError(msg)
