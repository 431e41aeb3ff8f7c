"""Threads of our own that all transfers of the process share."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Final

__all__ = ["CREW", "Crew"]

Job = Callable[[], None]


class _Run:
    """Jobs that belong together: how many are left, and what went wrong first."""

    __slots__ = ("_done", "_lock", "error", "left")

    def __init__(self, count: int) -> None:
        self.left = count
        self.error: BaseException | None = None
        self._lock = threading.Lock()
        self._done = threading.Lock()
        if count:
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
        with self._done:
            pass


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
        others = jobs[1:]
        if others:
            self._have(len(others))
        run = _Run(len(jobs))
        for job in others:
            self._queue.put((run, job))
        for job in jobs[:1]:
            run.do(job)
        run.wait()
        if run.error is not None:
            raise run.error

    def _have(self, count: int) -> None:
        with self._lock:
            while self._threads < count:
                # Daemons: they hold nothing that has to be given back, and must not keep the process from ending.
                threading.Thread(target=self._work, name="matrix-interop", args=(self._queue,), daemon=True).start()
                self._threads += 1

    @staticmethod
    def _work(queue: SimpleQueue[tuple[_Run, Job]]) -> None:
        while True:
            run, job = queue.get()
            run.do(job)
            del run, job  # nothing is kept alive while waiting


CREW: Final = Crew()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=CREW._begin_process)
