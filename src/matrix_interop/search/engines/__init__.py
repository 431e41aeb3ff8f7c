"""Candidate engines: one file each, one method each.

An engine is fast and rounds as it likes within its promise; `matrix_interop.search.screen` turns
its answers into exact ones.  Adding one takes a file and a line of the table below.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Final, Literal, Protocol

import numpy as np

from matrix_interop.errors import FrameworkNotInstalledError

__all__ = ["Engine", "Form", "engine_for"]

#: "l2": squared distance.  "ip": the negated inner product.
Form = Literal["l2", "ip"]


class Engine(Protocol):
    """Finds the rows of one block that look nearest.

    ``roundoff``: unit roundoff u of its arithmetic (2**-24 for float32).  The promise that exactness
    rests on: an "ip" score is the sum of the d products, in any order, each operation rounded to u.
    An "l2" score is |x|**2 + |y|**2 - 2 x.y from such sums, or the sum of the squared differences.
    Negative "l2" scores may be lifted to 0.
    """

    roundoff: float

    def candidates(self, queries: np.ndarray, block: np.ndarray, k: int, form: Form) -> tuple[np.ndarray, np.ndarray]:
        """Row numbers (q, k) int64 and scores (q, k), best (smallest) first; 1 <= k <= rows of the block.

        ``queries`` (q, d) and ``block`` (n, d): C-ordered float32.  ``block`` may hold rows that are
        not finite; no query is such.  Of the rows with finite scores the k best by the engine's own
        scores are returned; a place for which there is none has id -1 and score +inf.
        """


_TABLE: Final[dict[str, str]] = {
    "faiss": "matrix_interop.search.engines.faiss:FaissEngine",
    "numpy": "matrix_interop.search.engines.numpy:NumpyEngine",
    "torch": "matrix_interop.search.engines.torch:TorchEngine",
    "jax": "matrix_interop.search.engines.jax:JaxEngine",
}
#: What to install for an engine, where that is not its name.
_PACKAGES: Final = {"faiss": "faiss-cpu"}


def engine_for(name: str | None) -> Engine:
    """The engine ``name``; None: FAISS where it is installed, else NumPy.

    Raises ValueError for an unknown name and `FrameworkNotInstalledError` for a missing library.
    """
    if name is None:
        try:
            return _load("faiss" if find_spec("faiss") else "numpy")
        except FrameworkNotInstalledError:  # there, but broken
            return _load("numpy")
    if name not in _TABLE:
        msg = f"unknown engine {name!r}: write one of {', '.join(map(repr, _TABLE))}, or None for the fastest"
        raise ValueError(msg)
    return _load(name)


@cache
def _load(name: str) -> Engine:
    place, _, made = _TABLE[name].partition(":")
    try:
        engine: Engine = getattr(import_module(place), made)()
    except Exception as error:  # a broken install raises anything
        what = f"engine {name!r} does not import here ({type(error).__name__}: {error})"
        msg = f"{what}: pip install {_PACKAGES.get(name, name)}"
        raise FrameworkNotInstalledError(msg) from error
    return engine
