"""What can be said by hand about moves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from matrix_interop.transfer import transfer_setting
from matrix_interop.transfer.settings import Setting, changed

DEFAULT = Setting(4, 1 << 20, 2)


def test_what_is_said_holds_inside_the_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """The innermost counts, then the environment, then the default."""
    monkeypatch.setenv("MATRIX_INTEROP_TRANSFER", "lanes=8, in_flight=3")
    with transfer_setting(lanes=1), transfer_setting(chunk_bytes=np.int64(4096)):
        assert changed(DEFAULT) == Setting(1, 4096, 3)
    assert changed(DEFAULT) == Setting(8, 1 << 20, 3)
    monkeypatch.delenv("MATRIX_INTEROP_TRANSFER")
    assert changed(DEFAULT) is None


@pytest.mark.parametrize(
    "wrong",
    [{"lanes": 0}, {"lanes": 2.5}, {"lanes": float("nan")}, {"chunk_bytes": 4095}, {"in_flight": "3"}],
    ids=repr,
)
def test_what_makes_no_sense_is_refused_at_once(wrong: dict[str, Any]) -> None:
    """Not when something moves."""
    with pytest.raises((TypeError, ValueError), match=next(iter(wrong))), transfer_setting(**wrong):
        pass


@pytest.mark.parametrize("text", ["lanes", "lanes=", "lanes=two", "lanes=2.5", "lanes=0", "speed=9", "=1"])
def test_an_environment_that_cannot_be_read(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """The error says how to write it."""
    monkeypatch.setenv("MATRIX_INTEROP_TRANSFER", text)
    with pytest.raises(ValueError, match="write lanes=8,chunk_bytes=4194304,in_flight=2"):
        changed(DEFAULT)
