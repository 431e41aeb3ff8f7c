"""Handed cases T01 and T02: read-only arrays and aliasing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from matrix_interop import CopyRequiredError, HostMatrix, from_tensor, open_matrix, track_copies


def test_t01_readonly_into_torch() -> None:
    """A read-only matrix says so, goes to torch by copy, and is refused where copying is forbidden."""
    a = np.arange(10, dtype=np.float32).reshape(2, 5)
    a.flags.writeable = False
    m = from_tensor(a)
    assert m.readonly
    with track_copies() as log:
        t = m.to_tensor("torch")
    assert t.data_ptr() != a.ctypes.data
    assert t.tolist() == a.tolist()
    assert log.nbytes == a.nbytes
    with pytest.raises(BufferError) as caught:
        m.to_tensor("torch", copy=False)
    assert type(caught.value) is CopyRequiredError
    assert caught.value.plan == m.plan("torch")
    shared = m.to_tensor("torch", share_readonly=True)
    assert shared.data_ptr() == a.ctypes.data


def test_t02_normalising_a_mapped_file(tmp_path: Path) -> None:
    """Normalising gives a new matrix; writing into the mapped one raises; the file stays as it was."""
    file = tmp_path / "ones.npy"
    np.save(file, np.ones((20, 4), np.float32))
    m = open_matrix(file)
    assert (np.asarray(m[0:12].normalized()) == 0.5).all()
    with pytest.raises(ValueError, match="read-only"):
        np.asarray(m)[...] = 0.5
    with pytest.raises(CopyRequiredError, match="read-only"):
        HostMatrix.from_tensor(np.zeros((20, 4))).to_host(out=m)
    assert (np.asarray(m) == 1).all()
    assert (np.load(file) == 1).all()
