"""`Index`: one shape for every index library, with the checks that the libraries leave out."""

from __future__ import annotations

import errno
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, Final

import numpy as np

from matrix_interop.errors import UnsupportedLayoutError
from matrix_interop.exchange.convert import convert
from matrix_interop.matrix import Matrix, from_tensor
from matrix_interop.search.metrics import distances_of, kind_of
from matrix_interop.search.result import KnnResult, in_framework_of
from matrix_interop.search.sources import blocks_of, host_array, neighbours, require_columns, require_numbers

__all__ = ["HostIndex", "Index", "refuse_iterator"]

#: Queries handed to the library at once.
_QUERIES: Final = 1 << 14
#: A message names at most this many rows.
_NAMED: Final = 10
_LARGEST: Final = np.iinfo(np.int64).max


class Index(ABC):
    """An index of ``library`` over float32 vectors of ``dim`` columns. Made by `build`.

    ``native`` is the library's own object, with its own settings.  Nothing that was added needs to be
    kept: the library copies it, or, for cuVS, the index holds it.  One thread at a time adds;
    searching follows the library's rules.
    """

    library: ClassVar[str]
    native: Any

    def __init__(self, dim: int, metric: str, *, check: bool) -> None:
        self.dim = dim
        self.metric = metric
        self.kind = kind_of(metric)
        self.check = check
        self._ids: np.ndarray | None = None  # None: 0 to len - 1

    @abstractmethod
    def add(self, rows: Any, ids: Any = None) -> None:
        """Add vectors (n, d), in batches of at most 64 MiB, and nothing at all if a check fails.

        ``rows``: as ``base`` in `knn`, but no iterator, since rows are looked at before the first is added.  They
        become float32.  ``ids`` (n,): whole numbers of any type, 0 <= id < 2**63 - 1, each once; None
        continues from ``len(self)``.  With ``check``, rows with NaN or infinity (in float32) are refused by number.

        Raises `UnsupportedLayoutError` for another number of columns or ids, ValueError for bad ids and bad rows,
        `UnsupportedDtypeError` for complex rows.
        """

    @abstractmethod
    def search(self, queries: Any, k: int) -> KnnResult:
        """The ``k`` nearest of each query (q, d), as the library finds them, in the form that `knn` gives.

        Distances are float32; equal ones come lowest id first; where the library finds fewer than k, or
        a query holds NaN or infinity, the rest is id -1.  Raises `UnsupportedLayoutError` for another
        number of columns, ValueError for ``k`` < 1.
        """

    def vectors(self) -> np.ndarray:
        """The vectors (n, d) as the library holds them, in the order they were added, float32, in new memory.

        Those of a compressed index are approximate; for cosine some libraries keep unit vectors.
        """
        if not len(self):
            return np.empty((0, self.dim), np.float32)
        ids = np.arange(len(self)) if self._ids is None else self._ids
        return np.ascontiguousarray(self._vectors(ids), dtype=np.float32)

    def save(self, path: str | Path) -> None:
        """Write the library's own file; ``path`` is replaced only once that is complete."""
        path = Path(path)
        if not path.absolute().parent.is_dir():  # hnswlib would write nothing, without a word
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path.parent))
        part = path.with_name(path.name + ".part")
        try:
            self._save(str(part))
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)

    @abstractmethod
    def __len__(self) -> int:
        """Number of vectors."""

    def __repr__(self) -> str:
        return f"<{self.library} index, {len(self)} x {self.dim}, {self.metric}>"

    # What a library's file provides ------------------------------------------------------------
    @abstractmethod
    def _vectors(self, ids: np.ndarray) -> np.ndarray:
        """The vectors of all ids, in that order."""

    @abstractmethod
    def _save(self, path: str) -> None:
        """Write the native index."""

    # What every index checks -------------------------------------------------------------------
    def _refuse_rows(self, bad: list[int]) -> None:
        if bad:
            names = ", ".join(map(str, bad[:_NAMED])) + (", ..." if len(bad) > _NAMED else "")
            msg = f"rows {names} hold NaN or infinity (as float32): nothing was added; drop them, or use check=False"
            raise ValueError(msg)

    def _asked(self, queries: Any, k: int) -> tuple[Matrix, int]:
        """Queries and ``k``, checked."""
        k = neighbours(k)
        asked = from_tensor(queries)
        require_columns("queries", asked.shape[1], f"the {self.library} index", self.dim)
        return asked, k

    def _numbers(self, ids: Any, count: int) -> np.ndarray:
        """``count`` new ids, int64, checked."""
        if ids is None:
            numbers = np.arange(len(self), len(self) + count)
            given = "ids that continue from the number of rows"
        else:
            wanted = convert(np.asarray(ids) if isinstance(ids, list | tuple | range) else ids, "numpy")
            if wanted.ndim != 1 or len(wanted) != count:
                msg = f"ids have shape {wanted.shape}, there are {count} rows: give one id for each row"
                raise UnsupportedLayoutError(msg)
            if count and (wanted.dtype.kind not in "iu" or int(wanted.min()) < 0 or int(wanted.max()) >= _LARGEST):
                span = f"{wanted.dtype} from {wanted.min()} to {wanted.max()}"
                msg = f"ids must be whole numbers from 0 to 2**63 - 2, not {span}"
                raise ValueError(msg)
            numbers = wanted.astype(np.int64)
            given = "ids"
        ordered = np.sort(numbers)
        twice = ordered[1:][ordered[1:] == ordered[:-1]]
        if self._ids is not None:
            twice = np.concatenate([twice, numbers[np.isin(numbers, self._ids)]])
        elif ids is not None:
            twice = np.concatenate([twice, numbers[numbers < len(self)]])
        if len(twice):
            msg = f"{given} repeat {int(twice[0])}: an id names one vector, and nothing was added"
            raise ValueError(msg)
        return numbers

    def _note(self, numbers: np.ndarray, ids: Any) -> None:
        """The rows ``numbers`` were added; ``ids``: what the caller said."""
        if self._ids is not None or ids is not None:
            known = np.arange(len(self) - len(numbers)) if self._ids is None else self._ids
            self._ids = np.concatenate([known, numbers])


def refuse_iterator(rows: Any) -> None:
    """Raise `UnsupportedLayoutError` for what can be read only once: an index looks at rows before it adds any."""
    if isinstance(rows, Iterator):
        msg = "an iterator can be read only once: pass a matrix, a row source or a list of blocks to an index"
        raise UnsupportedLayoutError(msg)


class HostIndex(Index):
    """An index of a library that takes NumPy arrays: rows and queries come to the host, block by block."""

    def add(self, rows: Any, ids: Any = None) -> None:
        refuse_iterator(rows)
        count, bad = 0, []
        for block in blocks_of(rows):
            require_columns("rows", block.shape[1], f"the {self.library} index", self.dim)
            require_numbers("rows", block)
            if self.check:
                finite = np.isfinite(_float32(block)).all(axis=1)
                bad.extend((np.flatnonzero(~finite)[: _NAMED + 1] + count).tolist())
            count += len(block)
        self._refuse_rows(bad)
        numbers = self._numbers(ids, count)
        if not count:
            return
        self._ready(rows, numbers)
        start = 0
        for block in blocks_of(rows):
            if len(block):
                self._add(_float32(block), numbers[start : start + len(block)])
            start += len(block)
        self._note(numbers, ids)

    def search(self, queries: Any, k: int) -> KnnResult:
        asked, k = self._asked(queries, k)
        ids = np.full((len(asked), k), -1, np.int64)
        keys = np.full((len(asked), k), np.inf, np.float32)
        found = min(k, len(self))
        for start in range(0, len(asked) if found else 0, _QUERIES):
            part = host_array(asked[start : start + _QUERIES])
            require_numbers("queries", part)
            q = _float32(part)
            usable = np.flatnonzero(np.isfinite(q).all(axis=1))
            if len(usable):
                some = q if len(usable) == len(q) else q[usable]
                ids[usable + start, :found], keys[usable + start, :found] = _sorted(*self._search(some, found))
        return in_framework_of(asked, ids, distances_of(self.metric, keys, np.dtype(np.float32)))

    # What a library's file provides ------------------------------------------------------------
    @abstractmethod
    def _ready(self, rows: Any, ids: np.ndarray) -> None:
        """Make room for the new ``ids``, train on ``rows``; the last chance to refuse before `_add`."""

    @abstractmethod
    def _add(self, rows: np.ndarray, ids: np.ndarray) -> None:
        """Add float32 C-ordered rows (n >= 1, d) under int64 ids that are new."""

    @abstractmethod
    def _search(self, queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """(ids, keys), both (q, k), of finite float32 C-ordered queries (q >= 1, d), 1 <= k <= len(self).

        Keys as in `metrics`: squared L2, 1 - cos, negated product.  Filler ids are outside [0, 2**63 - 1).
        """


def _float32(rows: np.ndarray) -> np.ndarray:
    """What every library takes as it is: an exact ndarray, float32, dense rows; shared where it is that already."""
    with np.errstate(all="ignore"):
        return np.require(rows, np.float32, ["C", "A"]).view(np.ndarray)


def _sorted(ids: np.ndarray, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """One convention: filler ids become -1 with key +inf, all sorted by (key, id)."""
    keys = np.array(keys, dtype=np.float32)
    if ids.dtype == np.uint64:
        ids = np.minimum(ids, np.uint64(_LARGEST))
    ids = ids.astype(np.int64)
    missing = (ids < 0) | (ids == _LARGEST) | np.isnan(keys)
    keys[missing] = np.inf
    order = np.lexsort((np.where(missing, _LARGEST, ids), keys), axis=1)
    ids[missing] = -1
    return np.take_along_axis(ids, order, axis=1), np.take_along_axis(keys, order, axis=1)
