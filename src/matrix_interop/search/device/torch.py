"""PyTorch: GEMM with the offset added on its way out, and `torch.topk`."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from functools import cached_property
from typing import Any, Final

import numpy as np
import torch

from matrix_interop.search.device.arrays import Arrays

__all__ = ["TorchArrays"]

#: The driver has taken a copy of so many bytes when it returns: nobody needs to wait.
_TAKEN: Final = 64 << 10


_matmul: Final[Any] = torch.backends.cuda.matmul
#: The switch of TF32, and what it says where there is none.
_SWITCH, *_FULL = ("fp32_precision", "ieee", "none") if hasattr(_matmul, "fp32_precision") else ("allow_tf32", False)
_lock = threading.Lock()
_multiplying = 0
_precision: Any = _FULL[0]


class _FullPrecision:
    """No TF32 while anybody multiplies here. The switch is one for the process, so the last one restores it."""

    def __enter__(self) -> None:
        global _multiplying, _precision  # noqa: PLW0603
        with _lock:
            if not _multiplying:
                _precision = getattr(_matmul, _SWITCH)
                if _precision not in _FULL:
                    setattr(_matmul, _SWITCH, _FULL[0])
            _multiplying += 1

    def __exit__(self, *error: object) -> None:
        global _multiplying  # noqa: PLW0603
        with _lock:
            _multiplying -= 1
            if not _multiplying and _precision not in _FULL:
                setattr(_matmul, _SWITCH, _precision)


class TorchArrays(Arrays):
    """Also for CuPy, whose memory torch shares."""

    def array(self, values: np.ndarray) -> Any:
        there = torch.from_numpy(np.ascontiguousarray(values))
        return there.to(self._where, non_blocking=values.nbytes <= _TAKEN)

    def sending(self, *kinds: tuple[tuple[int, ...], str]) -> Callable[..., list[Any]]:
        """In one copy. The arrays share its memory."""
        words = 1 + sum(math.prod(shape) for shape, _ in kinds)  # one for each entry is enough
        data, there = np.empty(words, np.int64), torch.empty(words, dtype=torch.int64, device=self._where)
        here, places, made, start = torch.from_numpy(data), [], [], 0
        for shape, dtype in kinds:
            place: np.ndarray = np.ndarray(shape, dtype, data, start)
            kind, size = getattr(torch, dtype), place.itemsize
            seen = there if kind is torch.int64 else there.view(kind)
            places.append(place)
            made.append(seen.as_strided(shape, [step // size for step in place.strides], start // size))
            start += place.nbytes

        def send(*parts: np.ndarray) -> list[Any]:
            for place, part in zip(places, parts, strict=True):
                place[...] = part
            there.copy_(here, non_blocking=data.nbytes <= _TAKEN)
            return made

        return send

    def host(self, x: Any) -> np.ndarray:
        found: np.ndarray = (x.float() if x.dtype is torch.bfloat16 else x).cpu().numpy()
        return found

    def fetching(self, *parts: Any) -> Callable[[], list[np.ndarray]]:
        """Copies into memory that torch pins are under way when this returns: what is queued later can wait."""
        plain = [(part.float() if part.dtype is torch.bfloat16 else part).contiguous() for part in parts]
        there = [part.to("cpu", non_blocking=True) for part in plain]
        arrived = self._marked()
        arrays = [part.numpy() for part in there]

        def fetched() -> list[np.ndarray]:
            if arrived is not None:
                arrived.synchronize()
            return arrays

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
        return x.index_select(0, numbers)

    def along(self, x: Any, places: Any) -> Any:
        return x.gather(1, places)

    def order(self, x: Any) -> Any:
        return torch.argsort(x, dim=1, stable=True)

    def squared_norms(self, y: Any) -> Any:
        return torch.linalg.vector_norm(y, dim=1).square_()  # in one pass, without the matrix of squares

    def scores(self, x: Any, y: Any, offset: Any, factor: float) -> Any:
        if offset is None:
            x = x * factor
        if x.shape[0] == 1:  # GEMV reads the rows once, at the speed of the memory, and knows no TF32
            one = x[0]
            return (torch.mv(y, one) if offset is None else torch.addmv(offset, y, one, alpha=factor))[None]
        with _FullPrecision():
            return torch.mm(x, y.T) if offset is None else torch.addmm(offset, x, y.T, alpha=factor)

    def top(self, scores: Any, k: int) -> tuple[Any, Any]:
        found: tuple[Any, Any] = torch.topk(scores, k, dim=1, largest=False, sorted=False)
        return found

    def free_bytes(self) -> int:
        free = torch.cuda.mem_get_info(self.device.index)[0]
        kept = torch.cuda.memory_reserved(self.device.index) - torch.cuda.memory_allocated(self.device.index)
        return int(free + kept)

    @cached_property
    def _where(self) -> torch.device:
        return torch.device("cpu") if self.device.is_host else torch.device(self.device.type, self.device.index)
