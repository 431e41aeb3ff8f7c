"""Threads that share the jobs of a move."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from matrix_interop.transfer.crew import Crew, _Run

SOURCE = Path(__file__).resolve().parent.parent.parent / "src"


def test_all_jobs_are_over_when_a_run_returns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of other threads, too: here they are so late that they begin when somebody waits for them."""
    crew, done = Crew(), list[int]()

    def late(_: _Run) -> None:
        while not crew._queue.empty():
            run, job = crew._queue.get()
            run.do(job)

    monkeypatch.setattr(crew, "_have", lambda count: True)
    monkeypatch.setattr(_Run, "wait", late)
    crew.run([partial(done.append, number) for number in range(3)])
    assert done == [0, 1, 2]


def test_what_goes_wrong_first_is_raised_once_all_are_over() -> None:
    """By the thread that asked; the other jobs are done all the same."""
    crew, done = Crew(), list[int]()

    def fails() -> None:
        raise ArithmeticError("enough")

    with pytest.raises(ArithmeticError, match="enough"):
        crew.run([fails, *(partial(done.append, number) for number in range(3))])
    assert sorted(done) == [0, 1, 2]


def test_an_interrupt_waits_for_the_jobs_of_others() -> None:
    """They use arrays of the caller, who would go on; it is raised once they are over."""
    run, done = _Run(1), list[int]()

    class Interrupted:
        """In the place of a lock: the first who waits is interrupted, and the job is over when the second has it."""

        def __enter__(self) -> None:
            if run.error is None:
                raise KeyboardInterrupt
            run.do(partial(done.append, 1))

        def __exit__(self, *_: object) -> None:
            pass

        def release(self) -> None:
            pass

    run._done = Interrupted()  # type: ignore[assignment]
    run.wait()
    assert (done, type(run.error)) == ([1], KeyboardInterrupt)


def test_no_more_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that are there do all jobs, the caller where there are none."""

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    alone, few, done = Crew(), Crew(), list[int]()
    few.run([partial(done.append, 0), partial(done.append, 1)])
    monkeypatch.setattr(threading.Thread, "start", refuse)
    for crew in (alone, few):
        crew.run([partial(done.append, number) for number in range(2, 6)])
    assert sorted(done) == [0, 1, 2, 2, 3, 3, 4, 4, 5, 5]


def test_jobs_see_the_callers_context() -> None:
    """What holds for the caller's context holds for all threads."""
    crew, seen = Crew(), list[dict[str, str]]()
    with np.errstate(all="ignore", over="raise"):
        expected = dict(np.geterr())
        crew.run([lambda: seen.append(dict(np.geterr()))] * 4)
    assert seen == [expected] * 4


def printed_by(code: str) -> bytes:
    """What a fresh interpreter prints."""
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, timeout=60, check=True
    ).stdout


def test_a_run_at_the_end_of_the_process() -> None:
    """Where threads stand still already, the caller does all."""
    text = """
import builtins, os
from matrix_interop.transfer.crew import CREW
class Late:
    def __del__(self, run=CREW.run, job=lambda write=os.write: write(1, b"x")):
        run([job] * 3)
CREW.run([int] * 3)
builtins.late = Late()
"""
    assert printed_by(text) == b"xxx"


def test_a_fork_amid_a_run() -> None:
    """The child, which lacks the other threads, does not wait for them; the parent goes on."""
    text = """
import os, signal, threading
from matrix_interop.transfer.crew import CREW
forked, pids = threading.Event(), []
def fork():
    pids.append(os.fork())
    forked.set()
signal.alarm(30)
try:
    CREW.run([fork, forked.wait])
except RuntimeError as error:
    os._exit(7 if pids == [0] and "forked amid" in str(error) else 8)
print(os.waitstatus_to_exitcode(os.waitpid(pids[0], 0)[1]))
"""
    assert printed_by(text) == b"7\n"
