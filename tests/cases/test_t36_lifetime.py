"""Handed case T36: a mapping is not closed under a matrix."""

from __future__ import annotations

import gc
import mmap
import weakref

import numpy as np
import pytest

from frameworks.table import TARGETS
from matrix_interop import from_tensor


def test_t36_closing_a_mapping_in_use() -> None:
    """close() is refused while a matrix, a row or an exported tensor lies over the mapping, and works after."""
    mapping = mmap.mmap(-1, 40)
    mapping.write(np.arange(10, dtype=np.float32).tobytes())
    m = from_tensor(np.frombuffer(mapping, np.float32).reshape(2, 5))
    keepers = [m.to_tensor("numpy"), m.to_tensor("torch"), m[1], m]
    del m
    while keepers:
        with pytest.raises(BufferError):
            mapping.close()
        assert np.asarray(keepers[-1]).ravel()[-1] == 9
        keepers.pop()
    gc.collect()
    mapping.close()


@pytest.mark.parametrize("target", [kind.name for kind in TARGETS])
def test_memory_lives_as_long_as_its_last_tensor(target: str) -> None:
    """A shared tensor keeps the source's memory after source and matrix are gone, and lets go with its own end."""
    raw = np.zeros(256 + 64, np.uint8)
    x = np.ndarray((8, 8), np.float32, raw, -raw.ctypes.data % 64)
    end = weakref.ref(raw)
    made = from_tensor(x).to_tensor(target, copy=False)
    del x, raw
    gc.collect()
    assert end() is not None
    del made
    gc.collect()
    assert end() is None
