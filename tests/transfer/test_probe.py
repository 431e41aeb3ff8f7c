"""The setting of a machine: tried once, kept in a file that may be damaged, shared or out of reach."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from matrix_interop.errors import DeviceUnavailableError
from matrix_interop.transfer import probe, transfer_setting
from matrix_interop.transfer.probe import PROBED_BYTES, cache_file, setting_for
from matrix_interop.transfer.settings import Engine, Setting

SLOW, FAST, ALIKE = Setting(1, 1 << 20, 2), Setting(2, 1 << 20, 2), Setting(3, 1 << 20, 2)
SECONDS = {SLOW: 1.0, FAST: 0.5, ALIKE: 0.97}
ENGINE = Engine("of the test", SLOW, (SLOW, FAST, ALIKE))


class Trials:
    """Tells the seconds of the table, and counts how often it was asked to begin."""

    def __init__(self) -> None:
        self.begun = 0

    @contextmanager
    def __call__(self) -> Iterator[Callable[[Setting], float]]:
        self.begun += 1
        yield SECONDS.__getitem__


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(probe, "_found", {})


def found(
    trial: Callable[[], AbstractContextManager[Callable[[Setting], float]]], nbytes: int = PROBED_BYTES
) -> Setting:
    """What a new process finds."""
    probe._found.clear()
    return setting_for(ENGINE, "to ext", nbytes, trial)


def test_the_fastest_is_kept_for_the_next_process() -> None:
    """And for the next move of this one; a file for all, with nothing beside it."""
    trials = Trials()
    assert [found(trials), setting_for(ENGINE, "to ext", 1, trials), found(trials)] == [FAST] * 3
    assert trials.begun == 1
    assert [file.name for file in cache_file().parent.iterdir()] == ["transfer.json"]


def test_little_gain_is_noise() -> None:
    """The default stays where nothing is much faster."""
    assert setting_for(Engine("other", SLOW, (SLOW, ALIKE)), "to ext", PROBED_BYTES, Trials()) == SLOW


def test_short_moves_and_settings_by_hand_try_nothing() -> None:
    """They take the default, and what was said."""
    trials = Trials()
    assert found(trials, PROBED_BYTES - 1) == SLOW
    with transfer_setting(lanes=7):
        assert found(trials) == Setting(7, 1 << 20, 2)
    assert trials.begun == 0


@pytest.mark.parametrize(
    "damaged",
    [
        "",
        "{",
        "[]",
        "7",
        '{"KEY": []}',
        '{"KEY": {"lanes": 2}}',
        '{"KEY": {"lanes": 2.5, "chunk_bytes": 4194304, "in_flight": 2}}',
        '{"KEY": {"lanes": NaN, "chunk_bytes": 4194304, "in_flight": 2}}',
        '{"KEY": {"lanes": "2", "chunk_bytes": 4194304, "in_flight": 2}}',
        '{"KEY": {"lanes": 0, "chunk_bytes": 4194304, "in_flight": 2}}',
        '{"KEY": {"lanes": 2, "chunk_bytes": 4194304, "in_flight": 2, "more": 1}}',
        "\0",
        "[" * 100_000,
    ],
)
def test_a_damaged_file_is_written_anew(damaged: str) -> None:
    """What it holds for other machines stays, if it can be read."""
    found(Trials())
    (key,) = json.loads(cache_file().read_text())
    cache_file().write_text(damaged.replace("KEY", key))
    trials = Trials()
    assert [found(trials), found(trials), trials.begun] == [FAST, FAST, 1]
    assert json.loads(cache_file().read_text())[key]["lanes"] == 2


def test_a_file_of_other_bytes_is_written_anew() -> None:
    """As that of another program."""
    found(Trials())
    cache_file().write_bytes(b"\xff\xfe{}")
    trials = Trials()
    assert [found(trials), found(trials), trials.begun] == [FAST, FAST, 1]


def test_a_folder_in_the_place_of_the_file() -> None:
    """Nothing can be kept, and nothing is left beside it."""
    cache_file().mkdir(parents=True)
    trials = Trials()
    assert [found(trials), found(trials), trials.begun] == [FAST, FAST, 2]
    assert [file.name for file in cache_file().parent.iterdir()] == ["transfer.json"]


def test_a_file_in_the_place_of_the_folder(tmp_path: Path) -> None:
    """Nothing can be kept; each process tries."""
    (tmp_path / "matrix-interop").touch()
    trials = Trials()
    assert [found(trials), found(trials), trials.begun] == [FAST, FAST, 2]


def test_no_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user without one has no cache either."""

    def home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", home)
    assert found(Trials()) == FAST


@pytest.mark.parametrize("error", [MemoryError("full"), DeviceUnavailableError("gone")], ids=repr)
def test_a_trial_that_cannot_be_made(error: Exception) -> None:
    """A device that is full of what the user moves has no room for one: the default serves, and it is tried again."""

    @contextmanager
    def refused() -> Iterator[Callable[[Setting], float]]:
        raise error
        yield

    trials = Trials()
    assert [found(refused), found(trials), trials.begun] == [SLOW, FAST, 1]
