"""PyTorch on the host: GEMM and top-k, a tile at a time."""

from __future__ import annotations

from typing import Final

import numpy as np
import torch

from matrix_interop.exchange.convert import convert
from matrix_interop.search.engines import Form

__all__ = ["TorchEngine"]

#: Scores in one tile.
_TILE: Final = 1 << 22


class TorchEngine:
    """`torch.matmul` and `torch.topk`, on memory shared with the arrays."""

    @property
    def roundoff(self) -> float:
        """Larger where the process allows products of fewer bits (`torch.set_float32_matmul_precision`)."""
        return 2.0**-24 if torch.get_float32_matmul_precision() == "highest" else 2.0**-8

    def candidates(self, queries: np.ndarray, block: np.ndarray, k: int, form: Form) -> tuple[np.ndarray, np.ndarray]:
        # Nothing here writes to the shared memory.
        q, rows = (convert(array, "torch", share_readonly=True) for array in (queries, block))
        step = max(2 * k, _TILE // max(len(queries), 1))
        best = torch.empty((len(q), 0))
        best_ids = torch.empty((len(q), 0), dtype=torch.int64)
        for start in range(0, len(rows), step):
            part = rows[start : start + step]
            scores = q @ part.T
            if form == "ip":
                scores.neg_()
            else:
                scores.mul_(-2).add_((part * part).sum(1)).add_((q * q).sum(1, keepdim=True))
            scores.nan_to_num_(nan=torch.inf, posinf=torch.inf, neginf=torch.inf)
            found, chosen = scores.topk(min(k, len(part)), dim=1, largest=False)
            scores, ids = torch.cat([best, found], 1), torch.cat([best_ids, chosen + start], 1)
            best, place = scores.topk(min(k, scores.shape[1]), dim=1, largest=False)
            best_ids = ids.gather(1, place)
        best_ids[torch.isinf(best)] = -1
        return best_ids.numpy(), best.numpy()
