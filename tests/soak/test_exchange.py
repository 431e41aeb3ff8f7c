"""Exchanging for long: no wrong value, no lost reference, no growth, a clean end."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
PATHS = os.pathsep.join(str(path) for path in (HERE.parent.parent / "src", HERE.parent))
MEGABYTE = 1 << 20


def run(*arguments: str) -> str:
    """What Python printed when run with ``arguments``; it has to end well."""
    environment = {**os.environ, "PYTHONPATH": PATHS}
    ran = subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, f"exit code {ran.returncode}: {ran.stderr}"
    return ran.stdout


@pytest.mark.parametrize("rounds", [4000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_eight_threads(rounds: int) -> None:
    """Every value is right, from cold caches on, and no thread waits for another for ever."""
    pytest.importorskip("pyarrow")
    pytest.importorskip("torch")
    run(str(HERE / "threads.py"), str(rounds))


@pytest.mark.parametrize("rounds", [20_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
def test_memory_stays(rounds: int) -> None:
    """Resident memory within a megabyte, reference counts as before."""
    pytest.importorskip("torch")
    assert int(run(str(HERE / "memory.py"), str(rounds))) < MEGABYTE


START = """
import gc
import ml_dtypes, numpy as np
from matrix_interop import TensorView, convert, from_tensor

class ByDLPack:
    def __init__(self, a): self.a = a
    def __dlpack__(self, **keywords): return self.a.__dlpack__(**keywords)
    def __dlpack_device__(self): return self.a.__dlpack_device__()

x, b = np.ones((2, 2), "f4"), np.ones((2, 2), ml_dtypes.bfloat16)
p = ByDLPack(x)
"""

EXITS = {
    "globals": """
kept = [from_tensor(p), TensorView(p), np.from_dlpack(TensorView(p)), TensorView(b).__dlpack__(max_version=(1, 0))]
""",
    "globals of torch": """
import torch
t = torch.ones(2, 2)
kept = [from_tensor(t), convert(b, "torch"), torch.from_dlpack(from_tensor(b)), convert(x, "torch")]
""",
    "cycles": """
class Node: pass
node = Node()
node.me, node.view, node.capsule = node, TensorView(p), TensorView(b).__dlpack__()
gc.disable()
""",
    "a finaliser that exchanges": """
class Last:
    def __init__(self): self.x, self.p = x, p
    def __del__(self): from_tensor(self.x).to_tensor("numpy"); TensorView(self.p)
import builtins
builtins.kept = Last()
kept = Last()
""",
    "a finaliser in the middle of an exchange": """
class Cycle:
    def __init__(self): self.me, self.view = self, TensorView(p)
    def __del__(self): TensorView(ByDLPack(x)); TensorView(b).__dlpack__()
gc.set_threshold(1)
for _ in range(3000):
    Cycle()
    assert TensorView(ByDLPack(x)).size == 4
""",
    "a thread that holds the last view": """
import threading
ended = threading.Event()
def hold(view): ended.wait(); assert view.shape == (2, 2)
threading.Thread(target=hold, args=(TensorView(p),)).start()
del p
ended.set()
""",
    "a daemon thread in the middle": """
import threading
started = threading.Event()
def loop():
    while True: from_tensor(x).to_tensor("numpy"); TensorView(p); started.set()
threading.Thread(target=loop, daemon=True).start()
started.wait()
""",
    "a forked child that leaves at once": """
import os
view, m = TensorView(p), from_tensor(b)
child = os.fork()
if child == 0:
    ok = convert(x, "numpy").sum() == 4 and np.asarray(m).sum() == 4 and TensorView(ByDLPack(x)).size == 4
    del view
    os._exit(0 if ok else 1)
assert os.waitpid(child, 0)[1] == 0
""",
    "a forked child that ends by itself": """
import os
view, m = TensorView(p), from_tensor(b)
child = os.fork()
if child:
    assert os.waitpid(child, 0)[1] == 0
""",
}


@pytest.mark.parametrize("code", EXITS.values(), ids=EXITS)
def test_the_interpreter_ends_well(code: str) -> None:
    """Whatever is alive at the end, and in whatever order it goes: exit code 0."""
    if "torch" in code:
        pytest.importorskip("torch")
    run("-c", START + code)
