"""A move that may still be under way, as its user sees it."""

from __future__ import annotations

import pytest

from matrix_interop.transfer import Transfer


def fails(*_: object) -> bool:
    """What a lost device answers."""
    raise OSError("lost")


def test_a_move_that_failed_is_done() -> None:
    """Asking does not raise, however it is heard of; waiting does, each time."""
    for moved in (Transfer(7, fails, fails), Transfer(7, lambda: True, fails)):  # type: ignore[arg-type]
        assert moved.done()
        assert repr(moved) == "<Transfer of 7, failed>"
        for _ in range(2):
            with pytest.raises(OSError, match="lost"):
                moved.result()


def test_an_interrupted_wait_can_be_taken_up_again() -> None:
    """The move goes on meanwhile."""
    raised = [KeyboardInterrupt()]

    def finish() -> None:
        if raised:
            raise raised.pop()

    moved = Transfer(7, lambda: False, finish)
    with pytest.raises(KeyboardInterrupt):
        moved.wait()
    assert (moved.done(), moved.result(), moved.done()) == (False, 7, True)
