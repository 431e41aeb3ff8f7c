"""Run the DLPack suite of an installed library with every argument of ``from_dlpack`` wrapped in a `TensorView`.

    python drive.py numpy._core.tests.test_dlpack

The suite is imported as it lies in the wheel; nothing of it is copied here.  Once collected, the
names ``np`` and ``pa`` inside it are replaced by stand-ins that differ in one point only: whatever
is handed to ``from_dlpack`` goes in as ``TensorView(x)``.  The last line written is JSON: the
outcome of every test by name.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from matrix_interop import TensorView


class _WrappingType(type):
    """A stand-in for a class with a ``from_dlpack`` of its own: the class itself in all else."""

    real: Any

    def __getattr__(cls, name: str) -> Any:
        return getattr(cls.real, name)

    def __instancecheck__(cls, x: Any) -> bool:
        return isinstance(x, cls.real)

    def from_dlpack(cls, x: Any, /, **options: Any) -> Any:
        return cls.real.from_dlpack(TensorView(x), **options)


class _WrappingModule(ModuleType):
    """A stand-in for a module: its ``from_dlpack``, and those of its classes, wrap their argument."""

    def __init__(self, real: ModuleType) -> None:
        super().__init__(real.__name__)
        self.real = real

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.real, name)
        if name == "from_dlpack":
            return lambda x, /, **options: found(TensorView(x), **options)
        if isinstance(found, type) and hasattr(found, "from_dlpack"):
            return _WrappingType(name, (), {"real": found})
        return found


class _Plugin:
    """Puts the stand-ins in once the suite is collected, and keeps the outcomes."""

    def __init__(self) -> None:
        self.outcomes: dict[str, str] = {}

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        for module in {item.module for item in items}:
            for name in ("np", "pa"):
                if hasattr(module, name):
                    setattr(module, name, _WrappingModule(getattr(module, name)))

    def pytest_runtest_logreport(self, report: Any) -> None:
        name = report.nodeid.partition("::")[2]
        if report.when == "call" or report.outcome != "passed":
            self.outcomes[name] = report.outcome


def main(suite: str) -> None:
    """Run ``suite``, a module name, and write the outcomes."""
    plugin = _Plugin()
    empty = str(Path(__file__).with_name("suite.ini"))  # no settings of ours reach the foreign suite
    options = ["-p", "no:cacheprovider", "-p", "no:randomly", "-p", "no:xdist", "-q", "--noconftest", "-c", empty]
    pytest.main([*options, "--pyargs", suite], plugins=[plugin])
    sys.stdout.write("\n" + json.dumps(plugin.outcomes) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
