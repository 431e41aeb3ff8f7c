"""The search on a device: blocks of the base come there, read ahead, and the answer runs along with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from importlib.util import find_spec
from typing import Any, Final

import numpy as np

from matrix_interop.devices import Device, as_device
from matrix_interop.dtypes import is_extension
from matrix_interop.errors import UnsupportedDtypeError
from matrix_interop.exchange.convert import convert
from matrix_interop.frameworks.registry import device_framework
from matrix_interop.frameworks.registry import framework as framework_of
from matrix_interop.matrix import Matrix, from_tensor
from matrix_interop.rows import blocks_of
from matrix_interop.search.device.arrays import Arrays, arrays_of, host_arrays
from matrix_interop.search.device.best import Best
from matrix_interop.search.device.chain import MOST, Chain
from matrix_interop.search.device.screen import Queries, Screen, candidates_for
from matrix_interop.search.metrics import Kind, kind_of
from matrix_interop.search.result import KnnResult, in_framework_of
from matrix_interop.search.sources import is_short_float, require_columns

__all__ = ["device_of_search", "native_of", "require_numbers_on", "result_of", "search_on_device"]

#: Engines that can search on a device.
_ENGINES: Final = ("torch", "jax")
#: Bytes of one tile of scores, and the share of the free memory that it may be; entries that need no asking.
_TILE: Final = 4 << 30
_SHARE: Final = 8
_FEW: Final = 1 << 27
#: Bytes of a block that is sent to the device: an eighth of the base, within these.
_LEAST: Final = 256 << 20
_MOST: Final = 512 << 20
_EXACT: Final = 2**53
_INT64: Final = np.dtype(np.int64)
#: Entries of candidates up to which what follows their choice is done on the host.
_FINISHED: Final = 1 << 15


def device_of_search(queries: Matrix, base: Any, device: Any, engine: str | None) -> Device | None:
    """Where to search: ``device`` if given, else where the queries are, else the base; None for the host.

    ``base``: a matrix, or what `sources.is_source` accepts.  Engines that know the host only search there.
    """
    if device is not None:
        wanted = as_device(device)
        if not wanted.is_host and engine not in (None, *_ENGINES):
            msg = f"engine {engine!r} searches on the host: write one of {', '.join(map(repr, _ENGINES))}, or None"
            raise ValueError(msg)
        return None if wanted.is_host else wanted
    if engine not in (None, *_ENGINES):
        return None
    first = from_tensor(base[0]) if isinstance(base, list | tuple) else base  # an iterator is not looked into
    for m in (queries, first):
        if isinstance(m, Matrix) and not m.device.is_host:
            return m.device
    return None


def search_on_device(
    asked: Matrix, base: Any, k: int, *, metric: str, block: int | None, device: Device, engine: str | None
) -> KnnResult:
    """`knn` on ``device``. ``base``: a matrix, or what `sources.is_source` accepts."""
    arrays = arrays_of(_framework(asked, base, device, engine), device)
    with arrays.context():
        chain, short = _run(arrays, kind_of(metric), asked, base, k, block)
        here = chain.queries.arrays is not arrays and not asked.device.is_host
        # What needs no answer is done while the device works.
        send = arrays.sending(*_kinds(asked, k, short=short)) if here else None
        with np.errstate(all="ignore"):  # as in the chain; and distances beyond float32
            best, usable = chain.answer(), chain.queries.worked[2]
            return result_of(arrays, asked, usable, best, metric, short=short, send=send)


def _framework(asked: Matrix, base: Any, device: Device, engine: str | None) -> str:
    """Who computes: the engine asked for; torch for its own memory and CuPy's; else who owns the memory there."""
    if engine is not None:
        return engine
    owners = [m.framework for m in (asked, base) if isinstance(m, Matrix) and m.device == device]
    name = owners[0] if owners else device_framework(device.type).name
    if name == "torch" or (name != "jax" and _torch_serves(device)):
        return "torch"
    return name if framework_of(name).computes else device_framework(device.type).name


@cache
def _torch_serves(device: Device) -> bool:
    return device.type == "cuda" and find_spec("torch") is not None and device in framework_of("torch").devices()


def _queries(arrays: Arrays, asked: Matrix, k: int) -> Queries:
    """The queries; what is few is finished on the host."""
    require_numbers_on(arrays, "queries", asked)
    (count, width), dtype = asked._view.shape, asked._view.dtype
    few = count * candidates_for(k) * max(width, 1) <= _FINISHED
    native = _exact(arrays, native_of(arrays, asked), dtype)
    return Queries(host_arrays() if few else arrays, native, arrays)


def native_of(arrays: Arrays, m: Matrix) -> Any:
    """The matrix as a tensor of the framework that computes, shared where that is possible; for reading only."""
    view = m._view
    there = view.framework == arrays.framework.name and view.device == arrays.device
    if there and view.native is not None and view.pending is None:
        return view.native
    return m.to_tensor(arrays.framework.name, device=arrays.device, share_readonly=True)


def _run(arrays: Arrays, kind: Kind, asked: Matrix, base: Any, k: int, block: int | None) -> tuple[Chain, bool]:
    """The answer, of which the last block is still to come, and whether all numbers were short floats."""
    chain = Chain(lambda: _queries(arrays, asked, k), k)
    (count, width), given, number = asked._view.shape, asked._view.dtype, 0
    short = is_short_float(given)
    for m in _blocks(arrays, base, block):
        (size, columns), dtype = m._view.shape, m._view.dtype
        require_columns("queries", width, "base", columns)
        require_numbers_on(arrays, "rows of the base", m)
        short = short and is_short_float(dtype)
        bounded = not (_is_double(given) or _is_double(dtype))
        rows, step = _exact(arrays, native_of(arrays, m), dtype), _rows_of_tile(arrays, size, columns, count)
        for start in range(0, size if count else 0, step):
            part = rows if step >= size else rows[start : start + step, :]
            chain.add(Screen(arrays, kind, part, number + start, k, careful=chain.careful, bounded=bounded))
        number += size
    return chain, short


def _is_double(dtype: np.dtype[Any]) -> bool:
    return dtype.kind == "f" and dtype.itemsize > 4


def _rows_of_tile(arrays: Arrays, rows: int, columns: int, queries: int) -> int:
    """Rows whose scores, and whose copies in float32, fit a tile: all of them where they can."""
    across = max(min(queries, MOST), columns, 1)
    if rows * across <= _FEW:
        return max(rows, 1)
    return max(1, min(_TILE, arrays.free_bytes() // _SHARE) // 4 // across)


def _blocks(arrays: Arrays, base: Any, block: int | None) -> Iterator[Matrix]:
    """Blocks of the base, on the device or on their way there."""
    if not isinstance(base, Matrix) and not hasattr(base, "read"):
        for part in base:
            yield from _blocks(arrays, from_tensor(part), block)
        return
    if not len(base):  # it has columns to check, and a dtype
        yield from_tensor(np.empty(base.shape, base.dtype))
        return
    if isinstance(base, Matrix) and base.device == arrays.device:
        yield from [base] if block is None else base.blocks(block)
        return
    if block is None:
        width = max(base.shape[1] * np.dtype(base.dtype).itemsize, 1)
        block = max(1, min(max(len(base) * width // 8, _LEAST), _MOST) // width)
    yield from blocks_of(base, block, device=arrays.device, framework=arrays.framework.name)


def _exact(arrays: Arrays, rows: Any, dtype: np.dtype[Any]) -> Any:
    """The rows in a type that frameworks index and convert: unsigned integers and 8-bit floats become wider floats.

    Rows without entries get one, 0: most operations want some.
    """
    if not rows.shape[1]:
        return arrays.full((rows.shape[0], 1), 0, "float32")
    if dtype.kind == "u" and dtype.itemsize > 1:
        return arrays.astype(rows, "float32" if dtype.itemsize == 2 else "float64")
    return arrays.astype(rows, "float32") if is_extension(dtype) and dtype.itemsize == 1 else rows


def require_numbers_on(arrays: Arrays, what: str, m: Matrix) -> None:
    """`sources.require_numbers` on the device."""
    dtype = m._view.dtype
    if dtype.kind == "c":
        msg = f"{what} are {dtype}: distances are defined for real numbers; pass the real and imaginary parts"
        raise UnsupportedDtypeError(msg)
    if dtype.kind in "iu" and dtype.itemsize == 8 and m.size:
        whole = arrays.astype(native_of(arrays, m), "int64")  # what is beyond int64 becomes negative
        low, high = (int(arrays.host(found(whole))) for found in (arrays.xp.min, arrays.xp.max))
        if low < (0 if dtype.kind == "u" else -_EXACT) or high > _EXACT:
            msg = f"{what} are {dtype} and reach beyond 2**53, where float64 rounds: subtract an offset"
            raise UnsupportedDtypeError(msg)


def _kinds(asked: Matrix, k: int, *, short: bool) -> tuple[tuple[tuple[int, ...], str], ...]:
    """Shapes and types of ids, counts and distances on a device; ``short``: distances are float32."""
    count = asked._view.shape[0]
    narrow = framework_of(asked.framework).refusal(_INT64) is not None  # JAX without 64-bit types
    whole, fraction = "int32" if narrow else "int64", "float32" if narrow or short else "float64"
    return ((count, k), whole), ((count,), whole), ((count, k), fraction)


def result_of(
    arrays: Arrays,
    asked: Matrix,
    usable: Any,
    best: Best,
    metric: str,
    *,
    short: bool,
    send: Callable[..., list[Any]] | None = None,
) -> KnnResult:
    """Ids, distances and counts, where the queries are and in their framework.

    ``usable`` (q,): queries that have neighbours, None for all.  ``short``: distances are float32.  ``send`` brings
    ids, counts and distances to the queries' device, for an answer that lives on the host.
    """
    home = best.arrays
    xp, ids, keys = home.xp, best.ids, best.keys
    if usable is not None:
        keys = xp.where(usable[:, None], keys, xp.nan)
    if not home.finite(keys):
        missing = xp.isnan(keys)
        ids, keys = xp.where(missing, -1, ids), xp.where(missing, xp.inf, keys)
    if metric == "euclidean":
        keys = xp.sqrt(keys)
    elif metric == "inner_product":
        keys = -keys
    if asked.device.is_host:
        return in_framework_of(asked, home.host(ids), home.host(keys).astype("float32" if short else "float64"))
    parts = ids, xp.sum(ids >= 0, axis=1), keys
    if send is not None:
        ids, valid, distances = send(*parts)
    else:
        kinds = _kinds(asked, keys.shape[1], short=short)
        ids, valid, distances = (home.astype(part, dtype) for part, (_, dtype) in zip(parts, kinds, strict=True))
    owner = framework_of(asked.framework)
    if owner is arrays.framework or not owner.computes:
        return KnnResult(ids, distances, valid)
    return KnnResult(*(convert(part, owner.name, device=asked.device) for part in (ids, distances, valid)))
