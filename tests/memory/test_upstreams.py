"""Where memory comes from, what is tried next, and what a refusal leaves behind."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from matrix_interop.errors import DeviceUnavailableError
from matrix_interop.memory import PinnedArena, is_pinned
from matrix_interop.memory.policies import Bounded
from matrix_interop.memory.upstreams import REFUSALS, make_upstream, probe
from memory.fake_runtime import FakeRuntime
from simulated.runtime import SimulatedRuntime

MIB = 1 << 20
GIVING_BACK = ("host_unregister", "host_free", "unmap", "destroy", "unreserve")


@pytest.mark.parametrize("name", ["registered", "host_alloc", "virtual", "ordinary"])
def test_each_upstream_gives_memory_and_takes_it_back(name):
    """A piece is aligned, writeable over its whole length and gone from the runtime after it was freed."""
    runtime = FakeRuntime()
    upstream = make_upstream(name, None if name == "ordinary" else runtime)
    nbytes = 4 * MIB
    address = upstream.allocate(nbytes)
    ctypes.memset(address, 0x5A, nbytes)
    assert (ctypes.string_at(address + nbytes - 1, 1), address % 256) == (b"\x5a", 0)
    upstream.free(address, nbytes)
    assert runtime.held == []


def test_a_probe_notices_wrong_contents():
    """An upstream whose memory the device does not see as the CPU does is refused, though every call succeeded."""
    runtime = FakeRuntime()
    runtime.copy = lambda *args, **kinds: None
    with pytest.raises(DeviceUnavailableError, match="other contents"):
        make_upstream("registered", runtime)
    assert runtime.held == []


def test_a_probe_waits_for_the_device():
    """It looks at what came back once that is there, also where giving device memory back waits for nothing."""
    runtime = SimulatedRuntime(seed=1)
    runtime.device_free = lambda address, ordinal: None
    assert make_upstream("host_alloc", runtime).pinned


@pytest.mark.parametrize("name", ["registered", "host_alloc", "virtual"])
def test_a_probe_that_is_refused_anywhere_leaves_nothing_behind(name):
    """Whichever call of the round trip fails, what was taken goes back."""
    clean = FakeRuntime()
    probe(make_upstream(name, clean), clean)
    for number, call in enumerate(clean.calls[: len(clean.calls) // 2]):
        runtime = FakeRuntime(refuse=lambda _, count, number=number: count == number)
        with pytest.raises(REFUSALS):
            make_upstream(name, runtime)
        assert call in GIVING_BACK or runtime.held == []


@pytest.mark.parametrize(
    ("policy", "refused", "upstream"),
    [
        ("bounded", (), "registered"),
        ("bounded", ("host_register",), "host_alloc"),
        ("remap", (), "virtual"),
        ("remap", ("create",), "registered"),
        ("remap", ("reserve", "host_register"), "host_alloc"),
        ("none", ("host_register",), "host_alloc"),
    ],
)
def test_the_next_upstream_stands_in(policy, refused, upstream):
    """What fails its round trip is passed over, and the figures say why."""
    runtime = FakeRuntime(refuse=lambda name, _: name in refused)
    arena = PinnedArena(256 * MIB, policy=policy, runtime=runtime, decay_s=None)
    assert is_pinned(arena.empty(MIB, "u1"))
    assert (arena.stats().upstream, len(arena.stats().reasons)) == (upstream, len(refused))
    assert all(name in reason for name, reason in zip(refused, arena.stats().reasons, strict=True))


def test_a_device_without_virtual_memory_keeps_hunks():
    """Policy "remap" works without it, and says what is missing."""
    arena = PinnedArena(256 * MIB, policy="remap", runtime=FakeRuntime(virtual=False), decay_s=None)
    assert is_pinned(arena.empty(MIB, "u1"))
    assert "no virtual memory" in arena.stats().reasons[0]


def test_when_nothing_can_be_pinned_it_warns_once():
    """A device is there but pins nothing: ordinary memory, one warning."""
    runtime = FakeRuntime(refuse=lambda name, _: name in {"host_register", "host_alloc"})
    arena = PinnedArena(256 * MIB, runtime=runtime, decay_s=None)
    with pytest.warns(RuntimeWarning, match="pinned memory is refused") as caught:
        arrays = [arena.empty(50 * MIB, "u1") for _ in range(3)]
    assert (len(caught), arena.stats().pinned, is_pinned(arrays[0])) == (1, False, False)


def test_an_upstream_by_name_is_tried_first():
    """A named upstream is used though "auto" would prefer another."""
    arena = PinnedArena(256 * MIB, upstream="virtual", runtime=FakeRuntime(), decay_s=None)
    assert (arena.empty(3).sum() >= -np.inf, arena.stats().upstream) == (True, "virtual")


def test_a_driver_at_its_cap_serves_what_still_fits():
    """Past what the driver pins, ordinary memory helps out; pinned memory is used again as soon as it fits."""
    limit = 100 * MIB
    runtime = FakeRuntime()
    register = runtime.host_register

    def capped(address, nbytes):
        if sum(runtime.registered.values()) + nbytes > limit:
            msg = "the system pins no more"
            raise MemoryError(msg)
        register(address, nbytes)

    runtime.host_register = capped
    runtime.host_alloc = lambda nbytes: capped(0, limit + 1)
    arena = PinnedArena(512 * MIB, runtime=runtime, decay_s=None)
    kept = arena.empty(60 * MIB, "u1")
    with pytest.warns(RuntimeWarning, match="pins no more"):
        helped = arena.empty(70 * MIB, "u1")
    assert [is_pinned(kept), is_pinned(helped), is_pinned(arena.empty(10 * MIB, "u1"))] == [True, False, True]
    del kept
    assert is_pinned(arena.empty(60 * MIB, "u1"))


class SmallHunks(Bounded):
    """The default policy in miniature, so that many little arenas are quick."""

    hunk = MIB


def play(arena, runtime):
    """A busy little life of an arena; what could not be had."""
    refused, held = 0, []
    for number, mb in enumerate((3, 50, 7, 90, 20, 60, 5, 120, 30, 8)):
        try:
            array = arena.empty(mb * MIB // 16, "u1")
            array[0] = array[-1] = number
            held.append((array, number))
        except MemoryError:
            refused += 1
        if number % 3 == 2:
            held.pop(0)
            arena.release(arena.block(MIB // 16))
            arena.trim()
    assert all(array[0] == array[-1] == number for array, number in held)
    return refused


@pytest.mark.filterwarnings("ignore:pinned memory is refused")
@pytest.mark.parametrize("policy", [SmallHunks(), "remap", "none"], ids=["bounded", "remap", "none"])
def test_a_refusal_at_any_call_leaves_the_books_right(policy):
    """Each call to the driver refused in turn, once or from then on: a fallback, and at the end nothing is held."""
    clean = FakeRuntime()
    play(PinnedArena(64 * MIB, policy=policy, staging_bytes=0, runtime=clean, decay_s=None), clean)
    total = len(clean.calls)
    for number in range(0, total, max(1, total // 40)):
        for lasting in (False, True):
            refusing = [True]

            def refuse(name, count, number=number, lasting=lasting, refusing=refusing):
                return bool(refusing) and (count >= number if lasting else count == number)

            runtime = FakeRuntime(refuse=refuse)
            arena = PinnedArena(64 * MIB, policy=policy, staging_bytes=0, runtime=runtime, decay_s=None)
            assert play(arena, runtime) == 0
            refusing.clear()
            stats = arena.stats()
            assert (stats.live, stats.pending, stats.cached >= 0, stats.results) == (0, 0, True, 0)
            assert arena.trim() == stats.reserved
            assert arena.stats().reserved == 0
            arena.close()
            # What the driver would not take back is out of the books, and the figures say so.
            assert runtime.held == [] or any(call in str(arena.stats().reasons) for call in GIVING_BACK)
