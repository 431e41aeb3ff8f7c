"""Threads of our own that all transfers of the process share."""

from __future__ import annotations

import contextlib
import contextvars
import os
import sys
import threading
from collections.abc import Callable, Sequence
from functools import partial
from queue import SimpleQueue
from typing import Final

__all__ = ["CREW", "Crew"]

Job = Callable[[], None]


class _Run:
    """Jobs of other threads that belong together: how many are left, and what went wrong first."""

    __slots__ = ("_done", "_lock", "error", "left")

    def __init__(self, count: int) -> None:
        self.left = count
        self.error: BaseException | None = None
        self._lock = threading.Lock()
        self._done = threading.Lock()
        self._done.acquire()

    def do(self, job: Job) -> None:
        try:
            job()
        except BaseException as error:  # noqa: BLE001 - raised in the thread that waits
            self.error = self.error or error
        with self._lock:
            self.left -= 1
            if not self.left:
                self._done.release()

    def wait(self) -> None:
        """Until all are over, an interrupt or not: they use memory of whoever waits."""
        while self.left:
            try:
                with self._done:
                    return
            except BaseException as error:  # noqa: BLE001 - raised at the end
                self.error = self.error or error


class Crew:
    """Threads that are started when first needed and then wait for work. A job must not wait for another one's end."""

    def __init__(self) -> None:
        self._begin_process()

    def _begin_process(self) -> None:
        """Also in a forked child, which has none of its parent's threads."""
        self._queue: SimpleQueue[tuple[_Run, Job]] = SimpleQueue()
        self._lock = threading.Lock()
        self._threads = 0

    def run(self, jobs: Sequence[Job]) -> None:
        """Do all jobs, the first in the calling thread; when all are over, raise what went wrong first."""
        if len(jobs) < 2 or not self._have(len(jobs) - 1):
            for job in jobs:
                job()
            return
        run, queue = _Run(len(jobs) - 1), self._queue
        for job in jobs[1:]:  # each in a copy of the caller's context, as of NumPy's error state
            queue.put((run, partial(contextvars.copy_context().run, job)))
        try:
            jobs[0]()
        except BaseException as error:  # noqa: BLE001 - raised once all are over
            run.error = run.error or error
        if queue is self._queue:
            run.wait()
        else:
            run.error = run.error or RuntimeError("this process was forked amid work of threads, which it lacks")
        try:
            if run.error is not None:
                raise run.error
        finally:
            run.error = None  # whose frames hold this one, and with it all arrays

    def _have(self, count: int) -> bool:
        """Start threads up to that number, or as many as there can be; False where none works."""
        with self._lock, contextlib.suppress(RuntimeError):  # there can be no more threads
            while self._threads < count:
                # Daemons: they hold nothing that has to be given back, and must not keep the process from ending.
                threading.Thread(target=self._work, name="matrix-interop", args=(self._queue,), daemon=True).start()
                self._threads += 1
        return self._threads > 0 and not sys.is_finalizing()  # at the end of the process daemons stand still

    @staticmethod
    def _work(queue: SimpleQueue[tuple[_Run, Job]]) -> None:
        while True:
            run, job = queue.get()
            run.do(job)
            del run, job  # nothing is kept alive while waiting


CREW: Final = Crew()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=CREW._begin_process)
