"""Removes each wait, order and hold of the library in turn, to see whether the device tests notice.

``python tests/simulated/mutations.py`` shows a table (of the names given, or all); the tests run every line of it.
"""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
SOURCE = ROOT / "src"
PACKAGE = SOURCE / "matrix_interop"
#: Where streams are put in order and the host waits.
FILES = (
    "frameworks/streams.py",
    "exchange/moves.py",
    "transfer/lanes.py",
    "transfer/staging.py",
    "transfer/streams.py",
)
#: Calls that, as statements of their own, wait, make somebody wait, or keep memory until somebody is done.
CALLS = frozenset(
    {"finish", "keep_until", "make_ready", "order_streams", "stream_synchronize", "synchronize", "wait", "wait_for"}
)
#: Tests that must notice, the most telling first.
TESTS = ("tests/exchange/test_moves.py", "tests/simulated/test_adapter.py", "tests/transfer")
#: Removals that change nothing a test could see, with the reason.
EQUIVALENT = {
    "transfer/staging.py:Staging._reserve:wait": "the loop asks again and again instead of sleeping until told",
    "transfer/staging.py:Staging._finish:synchronize": "the arena waits for a chunk's own event before it gives it out "
    "again; only the count of chunks on loan would run ahead",
}


def mutations(package: Path = PACKAGE) -> dict[str, tuple[Path, ast.Expr]]:
    """Every such call by "file:function:call", numbered from the second of a kind in a function on."""
    found: dict[str, tuple[Path, ast.Expr]] = {}
    for file in FILES:
        seen: Counter[str] = Counter()
        for name, statement in _statements(ast.parse((package / file).read_text()), ""):
            call = statement.value.func  # type: ignore[attr-defined]
            word = call.attr if isinstance(call, ast.Attribute) else call.id
            if word in CALLS:
                key = f"{file}:{name}:{word}"
                seen[key] += 1
                found[key if seen[key] == 1 else f"{key} {seen[key]}"] = package / file, statement
    return found


def _statements(node: ast.AST, name: str) -> list[tuple[str, ast.Expr]]:
    """Calls that are statements, each with the function that it stands in."""
    found = []
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Expr) and isinstance(child.value, ast.Call):
            if isinstance(child.value.func, ast.Attribute | ast.Name):
                found.append((name, child))
        elif isinstance(child, ast.FunctionDef | ast.ClassDef):
            found += _statements(child, f"{name}.{child.name}" if name else child.name)
        else:
            found += _statements(child, name)
    return found


def is_noticed(name: str) -> bool:
    """True if a test fails once the call is gone."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "src"
        shutil.copytree(SOURCE, source, ignore=shutil.ignore_patterns("__pycache__", "data"))
        shutil.copytree(PACKAGE / "data", source / "matrix_interop" / "data")
        changed, statement = mutations(source / "matrix_interop")[name]
        lines = changed.read_text().splitlines(keepends=True)
        first, last = statement.lineno - 1, statement.end_lineno or statement.lineno
        lines[first:last] = [" " * statement.col_offset + "pass\n"]
        changed.write_text("".join(lines))
        return any(_fails(source, test) for test in TESTS)


def _fails(source: Path, test: str) -> bool:
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist"]
    command += [
        "-o",
        f"pythonpath={source} tests",
        "-m",
        "not slow and not gpu",
        "-k",
        "not test_a_call_that_fails",
        test,
    ]
    environment = {**os.environ, "PYTHONPATH": str(source)}
    try:
        ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, timeout=300, check=False)
    except subprocess.TimeoutExpired:  # somebody waits for what never comes
        return True
    if ran.returncode > 1:  # not a test that failed, but tests that could not run
        raise RuntimeError(ran.stdout.decode()[-2000:])
    return ran.returncode != 0  # below 0: memory was overwritten so that the process died


if __name__ == "__main__":
    for mutation in sys.argv[1:] or mutations():
        verdict = EQUIVALENT.get(mutation) or ("noticed" if is_noticed(mutation) else "NOT NOTICED")
        sys.stdout.write(f"{mutation}: {verdict}\n")
        sys.stdout.flush()
