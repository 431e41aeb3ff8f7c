"""The device tests notice when a wait is missing: each is removed in turn."""

from __future__ import annotations

import pytest

from simulated.mutations import EQUIVALENT, NOTICED_BY, mutations, noticed_by


@pytest.mark.mutation
@pytest.mark.parametrize("name", NOTICED_BY)
def test_a_missing_wait_is_noticed(name: str) -> None:
    """The test that is named for it fails once the call is gone."""
    assert noticed_by(name, NOTICED_BY[name])


def test_every_wait_has_its_test() -> None:
    """A new one has to be entered in a table; they hold no others."""
    assert sorted([*NOTICED_BY, *EQUIVALENT]) == sorted(mutations())
