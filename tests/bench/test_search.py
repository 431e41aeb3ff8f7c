"""The search suite: every way on the host finds the same ids."""

from __future__ import annotations

import numpy as np
import pytest

from matrix_interop.bench import search


@pytest.mark.parametrize("peer", search._PEERS)
def test_every_peer_finds_the_same(peer: str) -> None:
    """What is timed is the same search."""
    pytest.importorskip({"ours": "numpy"}.get(peer, peer))
    base, queries = search._values(3000, 16, 0), search._values(20, 16, 1)
    expected = search._SEARCHES["ours"](queries, base, 5)
    assert np.array_equal(search._SEARCHES[peer](queries, base, 5), expected)
    answer = search._alone(peer, (1000, 8, 5, 3), 1)
    assert answer["reading"]["rounds"] == 1
    assert np.array(answer["ids"]).shape == (5, 3)
