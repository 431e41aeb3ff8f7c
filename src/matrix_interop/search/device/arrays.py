"""What a search asks of a framework on a device: its array-API namespace, and a few operations that it lacks.

The candidates' scores may be rounded as `matrix_interop.search.engines.Engine` promises.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from importlib import import_module
from typing import Any, Final

import numpy as np

from matrix_interop.devices import CPU, Device
from matrix_interop.exchange.convert import convert
from matrix_interop.frameworks.registry import Framework
from matrix_interop.frameworks.registry import framework as framework_of
from matrix_interop.runtime import get_runtime

__all__ = ["Arrays", "HostArrays", "arrays_of", "host_arrays"]

#: Where a framework has better than the array API.
_TABLE: Final[dict[str, str]] = {
    "torch": "matrix_interop.search.device.torch:TorchArrays",
    "jax": "matrix_interop.search.device.jax:JaxArrays",
}


class Arrays:
    """Operations of one framework on one device, on its current stream."""

    #: Unit roundoff of `scores`.
    roundoff = 2.0**-24

    def __init__(self, framework: Framework, device: Device) -> None:
        self.framework = framework
        self.device = device
        self.xp: Any = framework.namespace()

    def context(self) -> AbstractContextManager[object]:
        """What has to be in force while a search runs."""
        return nullcontext()

    def array(self, values: np.ndarray) -> Any:
        """A copy of host values on the device."""
        return convert(values, self.framework.name, device=self.device, copy=True)

    def sending(self, *kinds: tuple[tuple[int, ...], str]) -> Callable[..., list[Any]]:
        """Make ready for arrays of these shapes and types, entries of 64 bits before those of 32.

        What comes back copies such host arrays to the device, as these types.
        """
        return lambda *parts: [
            self.array(part.astype(dtype, copy=False)) for part, (_, dtype) in zip(parts, kinds, strict=True)
        ]

    def host(self, x: Any) -> np.ndarray:
        """The values on the host, once they are there; bfloat16 may come as float32."""
        return np.asarray(convert(x, "numpy"))

    def fetching(self, *parts: Any) -> Callable[[], list[np.ndarray]]:
        """Start to bring several arrays to the host; what comes back waits until they are there."""
        return lambda: [self.host(part) for part in parts]

    def full(self, shape: tuple[int, ...], value: float, dtype: str) -> Any:
        """An array of one value."""
        return self.array(np.full(shape, value, dtype))

    def arange(self, start: int, stop: int) -> Any:
        """Whole numbers (stop - start,), int64."""
        return self.array(np.arange(start, stop))

    def astype(self, x: Any, dtype: str) -> Any:
        """The array in another type; itself if it has that."""
        return self.xp.astype(x, getattr(self.xp, dtype), copy=False)

    def finite(self, x: Any) -> bool:
        """True where all is finite and that is known at once: False, too, where asking costs more than an operation."""
        del x
        return False

    def columns(self, x: Any) -> Any:
        """Rows (n, d) as float64 columns (d, n)."""
        return self.astype(x.T, "float64")

    def rows(self, x: Any, numbers: Any) -> Any:
        """``x[numbers]``, for whole numbers (m,) on the device that are in range."""
        return self.xp.take(x, numbers, axis=0)

    def along(self, x: Any, places: Any) -> Any:
        """``x[i, places[i, j]]`` (q, k)."""
        return self.xp.take_along_axis(x, places, axis=1)

    def order(self, x: Any) -> Any:
        """Places that sort each row (q, n), equal entries as they stand, NaN last."""
        return self.xp.argsort(x, axis=1, stable=True)

    def order_pairs(self, keys: Any, ids: Any) -> Any:
        """Places that sort each row by key and id, NaN last, where equal keys stand by ascending id already."""
        del ids
        return self.order(keys)

    def squared_norms(self, y: Any) -> Any:
        """(n,) of float32 rows, with an error of at most d + 3 roundings."""
        return self.xp.sum(y * y, axis=1)

    def scores(self, x: Any, y: Any, offset: Any, factor: float) -> Any:
        """``factor * x @ y.T + offset`` (q, n), None for no offset; all float32, at full precision.

        ``factor``: a power of two, up to its sign.
        """
        products = self.xp.matmul(x * factor, y.T)
        return products if offset is None else products + offset

    def last(self, x: Any) -> Any:
        """The last entries (q,) of rows (q, n)."""
        return x[:, -1]

    def largest(self, x: Any) -> Any:
        """The largest entries (q,) of rows (q, n)."""
        return self.xp.max(x, axis=1)

    def top(self, scores: Any, k: int) -> tuple[Any, Any]:
        """The k smallest of each row (q, n), in any order, and their places; NaN counts as largest."""
        places = self.order(scores)[:, :k]
        return self.along(scores, places), places

    def free_bytes(self) -> int:
        """Memory of the device that a search may count on."""
        return get_runtime(self.device.type).memory_info(self.device.index)[0]


class _Quick:
    """NumPy's functions, some without the wrappers that take small arrays most of the time."""

    sum = staticmethod(np.add.reduce)
    reshape = staticmethod(np.ndarray.reshape)

    def __getattr__(self, name: str) -> Any:
        found = getattr(np, name)
        setattr(self, name, found)
        return found


class HostArrays(Arrays):
    """NumPy, where what is small is finished: an operation there costs a tenth of a kernel's start."""

    def __init__(self) -> None:
        super().__init__(framework_of("numpy"), CPU)
        self.xp = _Quick()

    def array(self, values: np.ndarray) -> Any:
        return values

    def host(self, x: Any) -> np.ndarray:
        found: np.ndarray = x
        return found

    def full(self, shape: tuple[int, ...], value: float, dtype: str) -> Any:
        return np.full(shape, value, dtype)

    def arange(self, start: int, stop: int) -> Any:
        return np.arange(start, stop)

    def astype(self, x: Any, dtype: str) -> Any:
        return x.astype(dtype, copy=False)

    def finite(self, x: Any) -> bool:
        return math.isfinite(np.add.reduce(x, axis=None))  # one call; False for sums that overflow

    def columns(self, x: Any) -> Any:
        return x.T.astype("float64", order="C")

    def along(self, x: Any, places: Any) -> Any:
        return x.take(places) if len(x) == 1 else x[np.arange(len(x))[:, None], places]

    def last(self, x: Any) -> Any:
        """As above; a number where there is one row, with which proofs cost a fifth."""
        return x[0, -1] if len(x) == 1 else x[:, -1]

    def largest(self, x: Any) -> Any:
        """As above; a number where there is one row."""
        return np.maximum.reduce(x, axis=None if len(x) == 1 else 1)

    def order_pairs(self, keys: Any, ids: Any) -> Any:
        """As above, wherever equal keys stand."""
        return np.lexsort((ids, keys))


@cache
def host_arrays() -> Arrays:
    """The one for all searches."""
    return HostArrays()


@cache
def arrays_of(name: str, device: Device) -> Arrays:
    """The operations of the framework ``name`` on ``device``."""
    place, _, made = _TABLE.get(name, "matrix_interop.search.device.arrays:Arrays").partition(":")
    found: Arrays = getattr(import_module(place), made)(framework_of(name), device)
    return found
