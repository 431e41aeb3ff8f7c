"""PyTorch: GEMM with the offset added on its way out, and `torch.topk`."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, cached_property
from itertools import accumulate
from typing import Any, Final

import numpy as np
import torch

from matrix_interop.search.device.arrays import Arrays

__all__ = ["TorchArrays"]

#: The driver has taken a copy of so many bytes when it returns: nobody needs to wait.
_TAKEN: Final = 64 << 10


@cache
def _numpy_type(dtype: torch.dtype) -> np.dtype[Any]:
    return np.dtype(str(dtype).removeprefix("torch."))


_lock = threading.Lock()
_multiplying = 0
_precision = "ieee"


@contextmanager
def _full_precision() -> Iterator[None]:
    """No TF32 while anybody multiplies here. The switch is one for the process, so the last one restores it."""
    global _multiplying, _precision  # noqa: PLW0603
    matmul: Any = torch.backends.cuda.matmul
    name, full = ("fp32_precision", "ieee") if hasattr(matmul, "fp32_precision") else ("allow_tf32", False)
    with _lock:
        if not _multiplying:
            _precision = getattr(matmul, name)
            if _precision != full:
                setattr(matmul, name, full)
        _multiplying += 1
    try:
        yield
    finally:
        with _lock:
            _multiplying -= 1
            if not _multiplying and _precision != full:
                setattr(matmul, name, _precision)


class TorchArrays(Arrays):
    """Also for CuPy, whose memory torch shares."""

    def array(self, values: np.ndarray) -> Any:
        there = torch.from_numpy(np.ascontiguousarray(values))
        return there.to(self._where, non_blocking=values.nbytes <= _TAKEN)

    def sending(self, *kinds: tuple[tuple[int, ...], str]) -> Callable[..., list[Any]]:
        """In one copy, from pinned memory: so nobody waits. The arrays share its memory."""
        starts = [0, *accumulate(math.prod(shape) * np.dtype(dtype).itemsize for shape, dtype in kinds)]
        size = starts[-1] + -starts[-1] % 8  # whole words, so that all of it can be seen as any type
        here = torch.empty(size, dtype=torch.uint8, pin_memory=self._where.type == "cuda")
        there = torch.empty(size, dtype=torch.uint8, device=self._where)
        data, seen = here.numpy(), {dtype: there.view(getattr(torch, dtype)) for _, dtype in kinds}
        places, made = [], []
        for (shape, dtype), start in zip(kinds, starts, strict=False):
            place: np.ndarray = np.ndarray(shape, dtype, data, start)
            strides = [step // place.itemsize for step in place.strides]
            places.append(place)
            made.append(seen[dtype].as_strided(shape, strides, start // place.itemsize))

        def send(*parts: np.ndarray) -> list[Any]:
            for place, part in zip(places, parts, strict=True):
                place[...] = part
            there.copy_(here, non_blocking=True)
            return made

        return send

    def host(self, x: Any) -> np.ndarray:
        found: np.ndarray = (x.float() if x.dtype is torch.bfloat16 else x).cpu().numpy()
        return found

    def fetching(self, *parts: Any) -> Callable[[], list[np.ndarray]]:
        """As bytes side by side, in one copy, which is under way when this returns: what is queued later can wait."""
        plain = [(part.float() if part.dtype is torch.bfloat16 else part).contiguous() for part in parts]
        # An axis of length 1 may have any stride, of which `view` would complain.
        packed = torch.cat([part.as_strided((part.numel(),), (1,)).view(torch.uint8) for part in plain])
        starts = [0, *accumulate(part.nbytes for part in plain)]
        places = [(part.shape, _numpy_type(part.dtype), start) for part, start in zip(plain, starts, strict=False)]
        there = packed.to("cpu", non_blocking=True)  # into memory that torch pins, and keeps until the copy is done
        arrived = self._marked()

        def fetched() -> list[np.ndarray]:
            if arrived is not None:
                arrived.synchronize()
            data = there.numpy()
            return [np.ndarray(shape, dtype, data, start) for shape, dtype, start in places]

        return fetched

    def _marked(self) -> torch.Event | None:
        """An event after what is queued now; None on the host, which queues nothing."""
        return None if self.device.is_host else torch.cuda.current_stream(self._where).record_event()

    def full(self, shape: tuple[int, ...], value: float, dtype: str) -> Any:
        return torch.full(shape, value, dtype=getattr(torch, dtype), device=self._where)

    def arange(self, start: int, stop: int) -> Any:
        return torch.arange(start, stop, device=self._where)

    def astype(self, x: Any, dtype: str) -> Any:
        kind = getattr(torch, dtype)
        return x if x.dtype is kind else x.to(kind)

    def rows(self, x: Any, numbers: Any) -> Any:
        return x[numbers]

    def along(self, x: Any, places: Any) -> Any:
        return x.gather(1, places)

    def order(self, x: Any) -> Any:
        return torch.argsort(x, dim=1, stable=True)

    def squared_norms(self, y: Any) -> Any:
        return torch.linalg.vector_norm(y, dim=1).square_()  # in one pass, without the matrix of squares

    def scores(self, x: Any, y: Any, offset: Any) -> Any:
        with _full_precision():
            if len(x) == 1:  # GEMV reads the rows once, at the speed of the memory
                return (torch.mv(y, x[0]) if offset is None else torch.addmv(offset, y, x[0]))[None]
            return torch.mm(x, y.T) if offset is None else torch.addmm(offset, x, y.T)

    def top(self, scores: Any, k: int) -> tuple[Any, Any]:
        found: tuple[Any, Any] = torch.topk(scores, k, dim=1, largest=False)
        return found

    def free_bytes(self) -> int:
        free = torch.cuda.mem_get_info(self.device.index)[0]
        kept = torch.cuda.memory_reserved(self.device.index) - torch.cuda.memory_allocated(self.device.index)
        return int(free + kept)

    @cached_property
    def _where(self) -> torch.device:
        return torch.device("cpu") if self.device.is_host else torch.device(self.device.type, self.device.index)
