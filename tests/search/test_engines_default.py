"""Which engine `knn` takes when none is named."""

from __future__ import annotations

import sys

import pytest

from matrix_interop.search import engines
from matrix_interop.search.engines.numpy import NumpyEngine


def test_a_broken_faiss_does_not_break_search(monkeypatch: pytest.MonkeyPatch, tmp_path):
    """Where FAISS is installed but does not import, NumPy searches."""
    (tmp_path / "faiss.py").write_text("raise RuntimeError('no such instruction')\n", encoding="ascii")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "faiss", raising=False)
    monkeypatch.delitem(sys.modules, "matrix_interop.search.engines.faiss", raising=False)
    engines._load.cache_clear()
    assert type(engines.engine_for(None)) is NumpyEngine
    engines._load.cache_clear()
