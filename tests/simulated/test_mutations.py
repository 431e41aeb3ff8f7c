"""The device tests notice when a wait is missing: each is removed in turn."""

from __future__ import annotations

import pytest

from simulated.mutations import EQUIVALENT, is_noticed, mutations

pytestmark = pytest.mark.mutation


@pytest.mark.parametrize("name", [name for name in mutations() if name not in EQUIVALENT])
def test_a_missing_wait_is_noticed(name: str) -> None:
    """Some test fails once this call is gone."""
    assert is_noticed(name)


def test_exceptions_are_still_there() -> None:
    """What is listed as making no difference exists."""
    assert set(EQUIVALENT) <= set(mutations())
