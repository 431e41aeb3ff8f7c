"""Copies by threads of our own and of torch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from matrix_interop.transfer.copying import _runs_across

SOURCE = Path(__file__).resolve().parent.parent.parent / "src"
ROWS = np.zeros((40, 60), np.float32)


@pytest.mark.parametrize(
    ("out", "values", "across"),
    [
        (ROWS, ROWS, False),
        (ROWS, ROWS.T.copy().T, True),
        (ROWS.T.copy().T, ROWS[::-1], True),
        (ROWS[::-1, ::-1], ROWS, False),
        (ROWS, np.broadcast_to(ROWS[0], ROWS.shape), False),
    ],
    ids=["rows", "from columns", "to columns", "backwards", "one row for all"],
)
def test_only_a_transposed_copy_goes_by_tiles(out: np.ndarray, values: np.ndarray, across: bool) -> None:
    """NumPy is faster at all others."""
    assert _runs_across(out, values) is across


def test_a_forked_child_copies_without_the_threads_of_torch() -> None:
    """The parent used them, the child has none and would wait for them for ever."""
    pytest.importorskip("torch")
    text = """
import os, signal
import numpy as np, torch
from matrix_interop.transfer.copying import copy_values_in_pool
torch.set_num_threads(2)
values, out = np.arange(1 << 21, dtype=np.float32), np.zeros(1 << 21, np.float32)
copy_values_in_pool(out, values)
child = os.fork()
if not child:
    signal.alarm(60)
    out.fill(0)
    copy_values_in_pool(out, values)
    os._exit(0 if np.array_equal(out, values) else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    done = subprocess.run([sys.executable, "-c", text], env=environment, capture_output=True, timeout=120, check=True)
    assert done.stdout == b"0\n"
