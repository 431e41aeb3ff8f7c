"""The DLPack suites that ship in NumPy's and pyarrow's wheels, every argument wrapped in a `TensorView`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from importlib.metadata import version
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
SOURCE = HERE.parent.parent / "src"

#: Release -> number of tests in its suite. Another release may hold more: then only the names of failures are compared.
NUMPY = {"2.4.6": 82}
PYARROW = {"26.0.1": 147}

#: Where our answer is another one, and why the standard allows it.
DIFFERENCES = {
    # `__dlpack__` must raise BufferError for what cannot be described. A datetime is refused before there is
    # anything to export: TensorView(x) itself raises UnsupportedDtypeError, which is a TypeError.
    "TestDLPack::test_invalid_dtype": "failed",
    # A subclass with the pre-1.0 `__dlpack__` comes back read-only from NumPy, because a legacy capsule cannot say
    # "writable". It still is an ndarray: the view takes the flag from the array itself and exports what is true.
    "TestDLPack::test_writeable": "failed",
    # Nulls, lists of any length and packed bits are refused in words of our own, not pyarrow's, whose text is matched.
    "test_dlpack_not_supported": "failed",
    # An object without any protocol: TensorView raises UnknownFrameworkError, a TypeError; pyarrow AttributeError.
    "test_from_dlpack_no_dlpack_method": "failed",
    # Needs pyarrow built with CUDA.
    "test_dlpack_cuda_not_supported": "skipped",
}


@pytest.mark.parametrize(
    ("suite", "distribution", "counts"),
    [
        ("numpy._core.tests.test_dlpack", "numpy", NUMPY),
        ("pyarrow.tests.test_dlpack", "pyarrow", PYARROW),
    ],
)
def test_suite_of_the_wheel(suite: str, distribution: str, counts: dict[str, int]) -> None:
    """Every test of the suite passes through our views, but for the differences named above."""
    pytest.importorskip(distribution)
    command = [sys.executable, str(HERE / "drive.py"), suite]
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "PYTEST_ADDOPTS": "", "PYTEST_PLUGINS": ""}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    outcomes: dict[str, str] = json.loads(ran.stdout.splitlines()[-1])
    others = {name: outcome for name, outcome in outcomes.items() if outcome != "passed"}
    assert others == {name: outcome for name, outcome in DIFFERENCES.items() if name in outcomes}
    expected = counts.get(version(distribution), len(outcomes))
    assert (len(outcomes), Counter(outcomes.values())["passed"]) == (expected, expected - len(others))
    assert len(outcomes) >= min(counts.values())
