"""`import matrix_interop`: what it brings in and what it offers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import matrix_interop
from matrix_interop import errors

SOURCE = Path(__file__).resolve().parent.parent / "src"

#: Third-party packages that the import may load.
ALLOWED = {"matrix_interop", "ml_dtypes", "numpy"}

#: Names at the top level that users, docs and outside checks rely on.
PUBLIC = {
    "CopyLog",
    "CopyPlan",
    "DeviceMatrix",
    "HostMatrix",
    "Matrix",
    "MatrixBuilder",
    "RowReader",
    "TensorView",
    "Transfer",
    "__version__",
    "convert",
    "forbid_copies",
    "frameworks",
    "from_tensor",
    "plan",
    "register_framework",
    "track_copies",
}


def loaded_by(statement: str) -> set[str]:
    """Top-level names of the modules that a fresh interpreter holds after ``statement``."""
    code = f"import json, sys\n{statement}\nprint(json.dumps(sorted(sys.modules)))"
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    ran = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    return {name.partition(".")[0] for name in json.loads(ran.stdout)}


def test_import_loads_no_framework() -> None:
    """Beyond NumPy, ml_dtypes and the standard library nothing is imported."""
    before = loaded_by("pass")  # what the interpreter's own start brings, such as site hooks
    assert loaded_by("import matrix_interop") - before - set(sys.stdlib_module_names) - ALLOWED == set()


def test_all_is_sorted_and_resolves() -> None:
    """`__all__` is in order, without repeats, and every name is there."""
    names = list(matrix_interop.__all__)
    assert names == sorted(set(names))
    assert [name for name in names if not hasattr(matrix_interop, name)] == []


def test_all_is_complete() -> None:
    """`__all__` holds the promised names and every error."""
    assert sorted((PUBLIC | set(errors.__all__)) - set(matrix_interop.__all__)) == []
