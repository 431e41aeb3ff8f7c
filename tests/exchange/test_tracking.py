"""Counting and forbidding copies, per context."""

from __future__ import annotations

import asyncio
import threading

import numpy as np
import pytest

from matrix_interop import CopyLog, CopyRequiredError, convert, forbid_copies, from_tensor, track_copies
from matrix_interop.tracking import copies_forbidden

A = np.arange(6, dtype=np.float32).reshape(2, 3)


def test_logs_nest() -> None:
    """An outer log counts what inner blocks copy; an inner one only its own; neither counts after its end."""
    with track_copies() as outer:
        convert(A, "numpy", copy=True)
        with track_copies() as inner:
            convert(A, "torch", dtype="f8")
    convert(A, "numpy", copy=True)
    assert isinstance(outer, CopyLog)
    assert ([r.nbytes for r in outer], [r.nbytes for r in inner]) == ([24, 48], [48])
    assert (len(outer), outer.nbytes, repr(outer)) == (2, 72, "<CopyLog: 2 copies, 72 bytes>")


def test_other_threads_are_not_counted() -> None:
    """Log and ban hold in the thread that asked for them."""
    found: list[bool] = []

    def work() -> None:
        found.append(copies_forbidden())
        convert(A, "numpy", copy=True)

    with track_copies() as log, forbid_copies():
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert (found, len(log)) == ([False], 0)


def test_other_tasks_are_not_counted() -> None:
    """So they do in the task that asked for them."""

    async def strict(entered: asyncio.Event, leave: asyncio.Event) -> int:
        with forbid_copies(), track_copies() as log:
            entered.set()
            await leave.wait()
            with pytest.raises(CopyRequiredError):
                convert(A, "numpy", dtype="f8")
        return len(log)

    async def both() -> int:
        entered, leave = asyncio.Event(), asyncio.Event()
        task = asyncio.create_task(strict(entered, leave))
        await entered.wait()
        convert(A, "numpy", dtype="f8")
        leave.set()
        return await task

    assert asyncio.run(both()) == 0


def test_the_ban_ends_with_its_block() -> None:
    """Also when the block ends by an exception; nested bans end one by one."""
    with pytest.raises(CopyRequiredError), forbid_copies():
        from_tensor(A, dtype="f8")
    assert not copies_forbidden()
    with forbid_copies():
        with forbid_copies():
            pass
        assert copies_forbidden()
    assert from_tensor(A, dtype="f8").dtype == np.float64
