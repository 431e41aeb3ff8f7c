"""Threads that share the jobs of a move."""

from __future__ import annotations

from functools import partial

import pytest

from matrix_interop.transfer.crew import Crew, _Run


def test_all_jobs_are_over_when_a_run_returns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of other threads, too: here they are so late that they begin when somebody waits for them."""
    crew, done = Crew(), list[int]()

    def late(_: _Run) -> None:
        while not crew._queue.empty():
            run, job = crew._queue.get()
            run.do(job)

    monkeypatch.setattr(crew, "_have", lambda count: None)
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
