"""A base in a mapped file is searched, and an index built of it, without a copy of it in memory."""

from __future__ import annotations

import mmap
import sys
from pathlib import Path

import numpy as np
import pytest

from matrix_interop.bench import search_memory

MIB = 1 << 20
SOURCE = Path(search_memory.__file__).parents[2]

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@pytest.mark.slow
@pytest.mark.parametrize("way", search_memory.WAYS)
def test_little_more_memory_than_the_index(way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """512 MiB of vectors, 128 MiB of memory beyond what the index keeps: what 2 GiB need as well, block by block."""
    pytest.importorskip(search_memory.WAYS[way][0])
    monkeypatch.setenv("PYTHONPATH", str(SOURCE))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # threads that spin make a busy machine slow
    base = search_memory.write_base(tmp_path / "base.npy", 512 * MIB)
    try:
        found = search_memory.measured(way, base)
    finally:
        base.unlink()
    assert found["more"] <= 128 * MIB
    assert found["mapped"] >= 512 * MIB  # all of it was read


def test_a_copy_would_be_seen(tmp_path: Path) -> None:
    """Memory that is touched counts, and a mapped file counts apart."""
    base = search_memory.write_base(tmp_path / "base.npy", 16 * MIB)
    with search_memory._Watch() as watch:
        values = np.load(base, mmap_mode="r")
        total = values.sum()
    assert (watch.anonymous < 8 * MIB, watch.mapped > 16 * MIB) == (True, True)
    with search_memory._Watch() as watch:
        # Pages of its own: an ordinary array may be given memory that an earlier test touched.
        copy = np.frombuffer(mmap.mmap(-1, values.nbytes, mmap.MAP_PRIVATE), values.dtype).reshape(values.shape)
        copy[...] = values
    assert (watch.anonymous > 15 * MIB, copy.sum() == total) == (True, True)
