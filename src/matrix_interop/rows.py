"""Reading a matrix row by row or block by block, wherever it lies; what comes next is read ahead."""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from typing import Any, Final, cast

import numpy as np

from matrix_interop.devices import CPU, Device
from matrix_interop.errors import UnsupportedLayoutError
from matrix_interop.exchange.compute import copied, row_indices, take
from matrix_interop.exchange.convert import destination, plan_for
from matrix_interop.exchange.intake import converted
from matrix_interop.frameworks.registry import Framework, device_framework
from matrix_interop.frameworks.registry import framework as framework_of
from matrix_interop.matrix import HostMatrix, Matrix, from_tensor
from matrix_interop.reasons import Reason
from matrix_interop.runtime import get_runtime, is_served
from matrix_interop.tracking import record_copy
from matrix_interop.transfer import Transfer
from matrix_interop.transfer.files import require_whole, will_need
from matrix_interop.transfer.lanes import upload
from matrix_interop.transfer.streams import follow, side_stream
from matrix_interop.view import TensorView

__all__ = ["RowReader", "blocks_of"]

#: Bytes of a block of `blocks_of` where the caller does not say.
_BLOCK: Final = 32 << 20
#: What a two-dimensional copy takes between the starts of two rows.
_MAX_PITCH: Final = (1 << 31) - 1

Rows = range | np.ndarray


class RowReader:
    """The rows of a matrix as read-only 1-D arrays in host memory; made by `Matrix.rows`. Can be iterated many times.

    Rows of a host matrix are views of it.  Those of a device matrix lie in pinned blocks that are read ahead: do
    not write the matrix meanwhile.  A row that you keep stays right, and keeps the block that it lies in; while all
    blocks are kept, further rows come in ordinary memory.  Each iteration has blocks of its own.
    """

    def __init__(self, matrix: Matrix, select: Any = None, block: int | None = None) -> None:
        self._view = matrix._view
        self._rows = _selected(select, len(matrix))
        self._block = _checked(block)

    @property
    def shape(self) -> tuple[int, int]:
        """Rows that will come, and entries of each."""
        return len(self._rows), self._view.shape[1]

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the rows, that of the matrix."""
        return self._view.dtype

    def __len__(self) -> int:
        return len(self._rows)

    def __repr__(self) -> str:
        return f"<RowReader of {len(self)} rows of {self.shape[1]} {self.dtype} on {self._view.device}>"

    def __iter__(self) -> Iterator[np.ndarray]:
        for block in self.blocks():
            yield from block
            del block  # else it would be held while the next one is read

    def blocks(self) -> Iterator[np.ndarray]:
        """The same rows as read-only 2-D arrays."""
        view = self._view
        if not view.size:  # nothing is anywhere
            return self._on_host(np.empty(view.shape, view.dtype))
        return self._on_host(view.header) if view.device.is_host else self._from_device()

    def _on_host(self, header: np.ndarray) -> Iterator[np.ndarray]:
        for rows in _cut(self._rows, self._block or _rows_in(self._view, _BLOCK)):
            require_whole(header)
            block = header[_index(rows)]
            if not isinstance(rows, range):
                record_copy(block.nbytes, Reason.REQUESTED, f"{len(rows)} rows by their numbers")
            will_need(block)
            yield _readonly(block)

    def _from_device(self) -> Iterator[np.ndarray]:
        from matrix_interop.transfer.ahead import block_bytes, read_ahead

        view = self._view
        most = _rows_in(view, block_bytes())
        pieces = _cut(self._rows, min(self._block or most, most))
        if not is_served(view.device.type):
            return _fetched(from_tensor(view), pieces)
        numbered = enumerate(pieces)
        blocks = read_ahead((self._piece(rows, first=number == 0) for number, rows in numbered), view.device)
        if isinstance(self._rows, range) and self._rows.step < 0:
            return (block[::-1] for block in blocks)
        return blocks

    def _piece(self, rows: Rows, *, first: bool) -> Any:
        """What the device is to send for ``rows``; those of a backward range in their own order."""
        from matrix_interop.frameworks.streams import producer_stream
        from matrix_interop.transfer.ahead import Piece

        view = self._view
        if isinstance(rows, range):
            ascending = rows if rows.step > 0 else rows[::-1]
            header = view.header[_index(ascending)]
            if _has_dense_rows(header):
                return Piece(header, producer_stream(view) if first else None, view)
            part = TensorView.of(header, view.framework, None, view.device, stream=view.stream)
            dense = copied(part, order="C", copy=True, requested=True)
        else:
            dense = take(view, rows)
        return Piece(dense.header, producer_stream(dense), dense)


def blocks_of(
    source: Any, block: int | None = None, *, select: Any = None, device: Any = None, framework: Any = None
) -> Iterator[Matrix]:
    """`Matrix.blocks`; also of a row source, whose rows are read from its files one block ahead."""
    matrix = source if isinstance(source, Matrix) else None
    view = TensorView.of(np.empty((0, source.shape[1]), source.dtype), "numpy") if matrix is None else matrix._view
    rows = _selected(select, len(source))
    size = _checked(block) or _rows_in(view, _BLOCK)
    made = None
    if device is not None or framework is not None:
        which = framework
        if which is None and device is not None:
            which = _framework_on(view, device)
        target, device = destination(view, which, None, device)
        made = plan_for(view, target, device=device)
        if view.device.is_host and is_served(made.device.type):
            pieces = _cut(rows, size)
            parts = _read_ahead(source, pieces) if matrix is None else (view.header[_index(part)] for part in pieces)
            shapes = ((len(part), view.shape[1]) for part in _cut(rows, size))
            return _sent(parts, shapes, view.dtype, target, made.device)
    if matrix is None:
        return (_converted(from_tensor(_read(source, part)), device, framework) for part in _cut(rows, size))
    if not view.device.is_host and made is not None and made.device.is_host:
        from matrix_interop.transfer.ahead import block_bytes

        if block is None or size <= _rows_in(view, block_bytes()):
            arrays = RowReader(matrix, select, block).blocks()
        else:
            arrays = _fetched(matrix, _cut(rows, size))
        return (_converted(from_tensor(array), device, framework) for array in arrays)
    return (_converted(_part(matrix, part), device, framework) for part in _cut(rows, size))


def _framework_on(view: TensorView, device: Any) -> Any:
    """The framework of the view if it has tensors there, else the one that new memory there goes to."""
    from matrix_interop.devices import as_device

    kind = as_device(device).type
    if kind in framework_of(view.framework).device_types:
        return None
    return "numpy" if kind == "cpu" else device_framework(kind).name


def _converted(part: Matrix, device: Any, framework: Any) -> Matrix:
    """As `from_tensor` does it; a device that was named is asked for."""
    if device is None and framework is None:
        return part
    named = device is not None
    return from_tensor(converted(part._view, device, framework, None, None, None, None, requested=named))


def _part(matrix: Matrix, rows: Rows) -> Matrix:
    if matrix.device is CPU:
        require_whole(matrix._view.header)
    if isinstance(rows, range):
        part = matrix[cast(slice, _index(rows))]
        if part.device is CPU:
            will_need(part._view.header)
        return part
    return matrix.take(rows)


def _fetched(matrix: Matrix, pieces: Iterable[Rows]) -> Iterator[np.ndarray]:
    """Rows of a device matrix as read-only arrays, the next ones on their way while the caller works with the last."""
    coming: deque[Transfer[HostMatrix]] = deque()
    for rows in pieces:
        coming.append(_part(matrix, rows).to_host(non_blocking=True))
        if len(coming) > 1:
            yield _readonly(np.asarray(coming.popleft().result()))
    while coming:
        yield _readonly(np.asarray(coming.popleft().result()))


def _readonly(block: np.ndarray) -> np.ndarray:
    block.flags.writeable = False
    return block


def _read(source: Any, rows: Rows) -> np.ndarray:
    """Rows of a row source."""
    if isinstance(rows, range) and rows.step == 1:
        found = np.asarray(source.read(rows.start, rows.stop))
    else:
        found = np.asarray(source.take(np.asarray(rows)))
    if found.shape != (len(rows), source.shape[1]):  # it would be written beside the memory that waits for it
        msg = f"{source!r} gave an array {found.shape} for {len(rows)} rows of {source.shape[1]} entries"
        raise UnsupportedLayoutError(msg)
    return found


# Onto a device ---------------------------------------------------------------------------------------
def _sent(
    parts: Iterator[np.ndarray],
    shapes: Iterable[tuple[int, int]],
    dtype: np.dtype[Any],
    target: Framework,
    device: Device,
) -> Iterator[Matrix]:
    """``parts`` on a device, each sent when the caller asks for it: what was queued for the one before runs meanwhile.

    The caller's thread sends them. Threads that copy stay with the thread that they serve, so another one would bring
    a second set of them, and both would wait for each other's processors.
    """
    coming: deque[_Arrival] = deque()
    try:
        for shape in shapes:
            coming.append(_Arrival(shape, dtype.newbyteorder("="), target, device))
            if len(coming) > 1:
                rows = next(parts)
                yield coming.popleft().matrix(rows)
        for rows in parts:
            yield coming.popleft().matrix(rows)
    finally:
        for arrival in coming:
            arrival.drop()


class _Arrival:
    """Device memory for a block that is still to come."""

    def __init__(self, shape: tuple[int, int], dtype: np.dtype[Any], target: Framework, device: Device) -> None:
        self._target = target
        self._device = device
        self._dtype = dtype
        self._runtime = get_runtime(device.type)
        # Made before the caller works with the block before this one, so that the bus need not wait for that work.
        self._native = target.empty(shape, dtype, device)
        self._home = target.current_stream(device)
        self._ready = self._runtime.record(self._home, device.index)

    def matrix(self, rows: np.ndarray) -> Matrix:
        """The block with these rows, ready on the current stream of its framework."""
        runtime, ordinal, target = self._runtime, self._device.index, self._target
        raw, current = target.view(self._native), target.current_stream(self._device)
        if current != self._home:  # where the memory goes back to
            target.keep_until(self._native, current, self._device)
        try:
            with side_stream(runtime, ordinal) as stream:
                runtime.wait(stream, self._ready, ordinal)
                try:
                    upload(rows, raw.pointer, self._dtype, self._device, stream)
                finally:  # after an error, too, nobody gets the memory before what is under way
                    follow(runtime, ordinal, current, stream)
        finally:
            self.drop()
        record_copy(raw.nbytes, Reason.DEVICE, f"block of {len(rows)} rows moved to {self._device}")
        return from_tensor(target.written(self._native, current, self._device))

    def drop(self) -> None:
        """Nobody waits for the memory any more."""
        self._runtime.release(self._ready)


def _read_ahead(source: Any, parts: Iterable[Rows]) -> Iterator[np.ndarray]:
    """Rows of a row source, the next ones read while the caller works with the last."""
    with ThreadPoolExecutor(1, "matrix-interop rows") as reader:
        coming: deque[Future[np.ndarray]] = deque()
        for part in parts:
            coming.append(reader.submit(copy_context().run, _read, source, part))
            if len(coming) > 1:
                yield coming.popleft().result()
        while coming:
            yield coming.popleft().result()


# Which rows ------------------------------------------------------------------------------------------
def _selected(select: Any, count: int) -> Rows:
    if select is None:
        return range(count)
    if isinstance(select, slice):
        return range(*select.indices(count))
    return row_indices(select, count)


def _checked(block: int | None) -> int | None:
    if block is not None and operator.index(block) < 1:
        msg = f"block={block} rows: write 1 or more, or None"
        raise ValueError(msg)
    return block


def _cut(rows: Rows, size: int) -> Iterator[Rows]:
    return (rows[start : start + size] for start in range(0, len(rows), size))


def _rows_in(view: TensorView, nbytes: int) -> int:
    return max(1, nbytes // max(1, view.shape[1] * view.itemsize))


def _index(rows: Rows) -> slice | np.ndarray:
    """What selects ``rows`` from an array of all of them: a slice for a range, so that nothing is copied."""
    if not isinstance(rows, range):
        return rows
    stop = rows.stop if rows.stop >= 0 else None  # a range that runs down to row 0 stops at -1
    return slice(rows.start, stop, rows.step)


def _has_dense_rows(header: np.ndarray) -> bool:
    """True for rows that one copy moves: their entries side by side, the rows in ascending order."""
    pitch, step = header.strides
    width = header.shape[1] * header.itemsize
    return (step == header.itemsize or header.shape[1] == 1) and (len(header) == 1 or width <= pitch <= _MAX_PITCH)
