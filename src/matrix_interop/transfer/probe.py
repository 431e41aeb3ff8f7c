"""Finding the best setting of a machine once, by trying each for a few milliseconds."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import tempfile
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from matrix_interop.memory.upstreams import REFUSALS
from matrix_interop.transfer.settings import Engine, Setting, changed, processors

__all__ = ["PROBED_BYTES", "Trial", "cache_file", "setting_for"]

#: Moves from this size on are worth a probe, which moves as many bytes a few times.
PROBED_BYTES: Final = 128 << 20
_ROUNDS: Final = 5
#: A candidate must be faster by so much than the default: anything less is noise.
_GAIN: Final = 0.05

#: Gives a function that moves `PROBED_BYTES` by a setting and tells the seconds.
Trial = Callable[[], AbstractContextManager[Callable[[Setting], float]]]

#: (engine, device) -> setting, in this process.
_found: dict[tuple[str, str], Setting] = {}
_lock = threading.Lock()


def setting_for(engine: Engine, device: str, nbytes: int, trial: Trial) -> Setting:
    """The setting for a move of ``nbytes``: said by hand, else probed or remembered, else the default.

    ``device``: text that tells its kind from others.
    """
    by_hand = changed(engine.default)
    if by_hand is not None:
        return by_hand
    found = _found.get((engine.name, device))
    if found is not None:
        return found
    if nbytes < PROBED_BYTES:
        return engine.default
    key = f"{engine.name}, {device}, {processors()} x {platform.processor() or platform.machine()}"
    found = _recall(key)
    if found is not None:
        return _found.setdefault((engine.name, device), found)
    if not _lock.acquire(blocking=False):  # a probe beside another move finds nonsense
        return engine.default
    try:
        with trial() as measure:
            found = _best(engine, measure)
        _found[engine.name, device] = found
        _remember(key, found)
    except REFUSALS:  # a full device has no room for a trial
        return engine.default
    finally:
        _lock.release()
    return found


def _best(engine: Engine, measure: Callable[[Setting], float]) -> Setting:
    seconds = dict.fromkeys(engine.candidates, float("inf"))
    for _ in range(_ROUNDS):
        for setting in engine.candidates:
            seconds[setting] = min(seconds[setting], measure(setting))
    best = min(seconds, key=seconds.__getitem__)
    return best if seconds[best] < (1 - _GAIN) * seconds[engine.default] else engine.default


def cache_file() -> Path:
    """Where settings are kept: transfer.json in the user's cache folder. Delete it to have the next long move probe."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "matrix-interop" / "transfer.json"


def _kept() -> dict[str, Any]:
    try:
        kept = json.loads(cache_file().read_text(encoding="utf-8"))
    except (OSError, ValueError, RuntimeError):  # absent, damaged, no home
        return {}
    return kept if isinstance(kept, dict) else {}


def _recall(key: str) -> Setting | None:
    try:
        return Setting(**_kept()[key])
    except (KeyError, TypeError, ValueError):
        return None


def _remember(key: str, setting: Setting) -> None:
    """Keep it for the next process; where that cannot be, that one probes again."""
    with contextlib.suppress(OSError, RuntimeError):
        path = cache_file()
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps({**_kept(), key: asdict(setting)}, indent=1)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            fresh = Path(folder) / path.name
            fresh.write_text(text, encoding="utf-8")
            fresh.replace(path)  # at once: others read and write it meanwhile
