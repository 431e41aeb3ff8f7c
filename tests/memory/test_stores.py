"""The books of every store: blocks never overlap, sums are right, what is free merges."""

from __future__ import annotations

import math
import threading
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matrix_interop.bench.arena import POLICIES
from matrix_interop.bench.strategies import SimulatedPages
from matrix_interop.memory.paged import Remap, page_size
from matrix_interop.memory.policies import NoRoomError

MIB = 1 << 20
ALL = {**POLICIES, "remap": lambda: Remap(MIB)}

# Sizes from a few bytes to several hunks; a step frees (-1 - which), trims (None) or asks for bytes.
STEPS = st.lists(
    st.one_of(
        st.integers(1, 1 << 13),
        st.integers(1, 30 * MIB),
        st.integers(-6, -1),
        st.none(),
        st.sampled_from([MIB, 8 * MIB]),
    ),
    max_size=60,
)


@pytest.mark.parametrize("policy", ALL)
@given(steps=STEPS)
def test_blocks_never_overlap_and_the_sums_are_right(policy, steps):
    """Whatever is asked, freed and trimmed: live blocks are apart, used and reserved add up, and all goes back."""
    limit = 256 * MIB
    store = ALL[policy]().store(SimulatedPages(), threading.Lock(), limit)
    live = []
    for step in steps:
        if step is None:
            store.trim(0, math.inf)
        elif step > 0:
            size = store.round(step)
            address = store.take(size)
            if address is None:
                try:
                    address = store.grow(size, limit - store.reserved)
                except NoRoomError:
                    continue
            live.append((address, size))
        elif live:
            address, _ = live.pop(step % len(live))
            store.give(address)
        assert store.used == sum(size for _, size in live) <= store.reserved <= limit
        ordered = sorted(live)
        assert all(start + size <= after for (start, size), (after, _) in pairwise(ordered))
    for address, _ in live:
        store.give(address)
    held = store.reserved
    assert (store.trim(0, math.inf), store.used, store.reserved) == (held, 0, 0)
    assert store.counters.taken >= held


@pytest.mark.parametrize("policy", ["bounded", "remap"])
def test_freed_neighbours_serve_one_larger_request(policy):
    """Three blocks freed in any order make room for one of their total size without asking upstream."""
    store = ALL[policy]().store(SimulatedPages(), threading.Lock(), 256 * MIB)
    size = 4 * MIB
    for order in ((0, 1, 2), (2, 0, 1), (1, 2, 0)):
        blocks = [store.take(size) or store.grow(size, 256 * MIB) for _ in range(3)]
        allocs = store.counters.allocs
        for number in order:
            store.give(blocks[number])
        whole = store.take(3 * size)
        assert (whole is not None, store.counters.allocs) == (True, allocs)
        store.give(whole)


@pytest.mark.parametrize(
    ("limit", "page"), [(64 * MIB, 2 * MIB), (4096 * MIB, 16 * MIB), (1 << 40, 64 * MIB), (MIB, MIB // 4)]
)
def test_pages_suit_the_limit(limit, page):
    """Small arenas have small pages, large ones large pages, and a tiny one still holds a few."""
    assert page_size(limit) == page


def test_pages_move_instead_of_growing():
    """Fragments too small for a request give their pages to it: nothing new is taken, blocks stay where they are."""
    store = Remap(MIB).store(SimulatedPages(), threading.Lock(), 256 * MIB)
    blocks = [store.take(MIB) or store.grow(MIB, 256 * MIB) for _ in range(16)]
    for block in blocks[::2]:
        store.give(block)
    taken = store.counters.taken
    store.grow(8 * MIB, 256 * MIB)
    assert (store.counters.taken, store.counters.moved, store.reserved) == (taken, 8, 16 * MIB)
