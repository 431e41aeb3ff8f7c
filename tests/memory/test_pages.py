"""Pages fetched ahead by several threads."""

from __future__ import annotations

import threading

import pytest

from matrix_interop.memory import pages


def test_all_threads_are_done_when_pages_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """They write to fresh memory, so none may be left when its user begins: the parts of all make up the whole."""
    touched: list[tuple[int, int]] = []

    class Late(threading.Thread):
        """It does its work when somebody waits for it."""

        def start(self) -> None:
            pass

        def join(self, timeout: float | None = None) -> None:
            self.run()

    monkeypatch.setattr(pages, "_processors", lambda: 4)
    monkeypatch.setattr(pages.threading, "Thread", Late)
    monkeypatch.setattr(pages, "_touch", lambda address, nbytes, errors, fresh: touched.append((address, nbytes)))
    pages.populate(0, 1 << 30)
    touched.sort()
    assert len(touched) == 4
    assert [at for at, _ in touched] == [sum(nbytes for _, nbytes in touched[:number]) for number in range(4)]
    assert sum(nbytes for _, nbytes in touched) == 1 << 30
