"""Counting copies, and forbidding those that nobody asked for, per context (thread or async task)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final

from matrix_interop.reasons import Reason

__all__ = ["CopyLog", "CopyRecord", "copies_forbidden", "forbid_copies", "record_copy", "track_copies"]


@dataclass(frozen=True, slots=True)
class CopyRecord:
    """One copy: the bytes written, why, and in words."""

    nbytes: int
    reason: Reason
    text: str


class CopyLog:
    """The copies made inside one ``with track_copies()`` block, in order."""

    def __init__(self) -> None:
        self._records: list[CopyRecord] = []

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[CopyRecord]:
        return iter(tuple(self._records))

    @property
    def nbytes(self) -> int:
        """Bytes written by all of them."""
        return sum(record.nbytes for record in self._records)

    def append(self, record: CopyRecord) -> None:
        """Add one record; the library calls this."""
        self._records.append(record)

    def __repr__(self) -> str:
        return f"<CopyLog: {len(self)} copies, {self.nbytes} bytes>"


_LOGS: Final[ContextVar[tuple[CopyLog, ...]]] = ContextVar("matrix_interop_logs", default=())
_FORBIDDEN: Final[ContextVar[bool]] = ContextVar("matrix_interop_forbidden", default=False)


@contextmanager
def track_copies() -> Iterator[CopyLog]:
    """Count every copy that the library makes inside the block: ``with track_copies() as log``.

    Blocks nest; an outer log counts the inner copies too.  Other threads and tasks are not counted.
    """
    log = CopyLog()
    token = _LOGS.set((*_LOGS.get(), log))
    try:
        yield log
    finally:
        _LOGS.reset(token)


@contextmanager
def forbid_copies() -> Iterator[None]:
    """Inside the block every copy that was not asked for raises `CopyRequiredError`, as with ``copy=False``.

    Asked for, and so allowed, are ``copy=True``, `take`, `astype` to another type, `normalized`, `to_host` and
    `to_device` where the data lives elsewhere.
    """
    token = _FORBIDDEN.set(True)
    try:
        yield
    finally:
        _FORBIDDEN.reset(token)


def copies_forbidden() -> bool:
    """True inside a `forbid_copies` block of this context."""
    return _FORBIDDEN.get()


def record_copy(nbytes: int, reason: Reason, text: str) -> None:
    """Add a copy to every log of this context."""
    logs = _LOGS.get()
    if logs:
        record = CopyRecord(nbytes, reason, text)
        for log in logs:
            log.append(record)
