"""`PinnedArena`: page-locked memory that is cheap to get and never piles up."""

from __future__ import annotations

import math
import os
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import index
from typing import Any, Final, Literal, Self

import numpy as np
import numpy.typing as npt

from matrix_interop.errors import ClosedError, PinnedLimitError, UnsupportedDtypeError
from matrix_interop.memory import supply as supply_module
from matrix_interop.memory.block import Block, Live
from matrix_interop.memory.host import aligned_empty
from matrix_interop.memory.janitor import Janitor
from matrix_interop.memory.paged import Remap
from matrix_interop.memory.pages import available_memory
from matrix_interop.memory.policies import Bounded, NoRoomError, Policy, Store, Uncached
from matrix_interop.memory.stats import ArenaStats
from matrix_interop.memory.supply import Supply
from matrix_interop.memory.upstreams import REFUSALS, Upstream
from matrix_interop.memory.waiting import Entry, Waiting
from matrix_interop.runtime import Runtime

__all__ = ["PinnedArena"]

_POLICIES: Final[dict[str, Callable[[], Policy]]] = {"bounded": Bounded, "none": Uncached, "remap": Remap}

#: Seconds that getting one byte of fresh pinned memory takes, about (ceilings: 43 to 56 ms a GB), and one call.
_GROWTH_S_PER_BYTE: Final = 50e-12
_GROWTH_S: Final = 100e-6
_POLL_S: Final = 20e-6
#: How often a closed arena looks whether its last arrays are gone.
_CLOSED_PERIOD_S: Final = 1.0


class PinnedArena:
    """A pool of page-locked host memory. Blocks are NumPy arrays; they go back by themselves with their last view.

    ``max_bytes``: most memory held at any time, cached and waiting memory included; None is a quarter of the memory
    that the process may use. ``policy``: "bounded" holds little more than is in use; "remap" moves pages under fixed
    addresses, for long-lived use with ever new sizes; "none" keeps nothing. A `Policy` of your own works too.
    ``upstream``: "auto", or where memory comes from: "registered", "host_alloc", "virtual" or "ordinary".

    ``staging_bytes`` of the limit can be taken only by `block`, never by `empty`, so that results kept by a user do
    not stop transfers; an arena with less than twice that much keeps no such reserve. `result` gives pinned memory
    while live results take at most ``result_bytes`` (half of ``max_bytes``), and ordinary memory past that.
    Memory unused for ``decay_s`` seconds goes back, down to ``staging_bytes``; None keeps it until `trim`.

    A block that a user could see is reused only when all work enqueued on any stream of any device before its death
    was noticed is done. Where there is no device, everything works on ordinary memory and `stats` says why.

    Safe to use from several threads. After a fork the child's copy is dead: its arrays stay readable, and getting a
    block raises ClosedError.
    """

    def __init__(
        self,
        max_bytes: int | None = None,
        *,
        policy: str | Policy = "bounded",
        upstream: str | Upstream = "auto",
        staging_bytes: int = 64 << 20,
        result_bytes: int | None = None,
        decay_s: float | None = 10.0,
        runtime: Runtime | Literal["auto"] | None = "auto",
    ) -> None:
        if isinstance(policy, str) and policy not in _POLICIES:
            msg = f"policy {policy!r} is none of {', '.join(sorted(_POLICIES))}"
            raise ValueError(msg)
        if max_bytes is not None and index(max_bytes) <= 0:
            msg = f"max_bytes is {max_bytes}; write a positive number of bytes, or None for a quarter of the memory"
            raise ValueError(msg)
        self._policy: Policy = _POLICIES[policy]() if isinstance(policy, str) else policy
        self._limit = max_bytes if max_bytes is not None else available_memory() // 4
        self._reserve = staging_bytes if self._limit >= 2 * staging_bytes else 0
        self._result_bytes = self._limit // 2 if result_bytes is None else result_bytes
        self._decay_s = decay_s
        self._supply = Supply(upstream, self._policy, runtime)
        #: For the books: short, and nothing slow is called under it.
        self._lock = threading.Lock()
        #: For calls to upstream: one thread at a time takes and gives back memory.
        self._growing = threading.Lock()
        #: One store for each upstream in use, best first; further ones are opened when those refuse.
        self._stores: list[Store] = []
        #: The store of the fast path; None before the first block and once closed or forked.
        self._first: Store | None = None
        #: Store -> held bytes plus request at which its upstream last refused. Asking for as much again is useless.
        self._ceilings: dict[int, int] = {}
        self._waiting = Waiting()
        self._live: dict[int, Live] = {}
        self._results = 0
        self._results_limit = self._limit - self._reserve
        self._ordinary_results = 0
        self._peak_reserved = 0
        self._end: Literal["", "closed", "forked"] = ""
        self._janitor: Janitor | None = None
        _arenas.add(self)

    # Blocks ------------------------------------------------------------------------------------
    def empty(
        self, shape: int | Sequence[int], dtype: npt.DTypeLike = np.float32, *, order: Literal["C", "F"] = "C"
    ) -> np.ndarray[Any, np.dtype[Any]]:
        """An uninitialised array of the arena's memory, aligned to 256 bytes.

        It goes back to the arena when its last view dies. Raises PinnedLimitError when the limit leaves no room,
        ClosedError after `close` or in a forked child.
        """
        shape, kind, nbytes = _layout(shape, dtype)
        return np.ndarray(shape, kind, self._block(nbytes, staging=False), 0, None, order)

    def result(
        self, shape: int | Sequence[int], dtype: npt.DTypeLike = np.float32, *, order: Literal["C", "F"] = "C"
    ) -> np.ndarray[Any, np.dtype[Any]]:
        """`empty` while live results stay within ``result_bytes`` and the limit, else ordinary memory.

        Large ordinary arrays get huge pages, as NumPy's own do.
        """
        shape, kind, nbytes = _layout(shape, dtype)
        if self._results + nbytes > self._result_bytes:
            with self._lock:
                self._reap(thorough=False)
        if self._results + nbytes <= self._result_bytes:
            try:
                return np.ndarray(shape, kind, self._block(nbytes, staging=False), 0, None, order)
            except PinnedLimitError:
                pass  # results have no right to pinned memory
        self._ordinary_results += 1
        return aligned_empty(shape, kind, order)

    def block(self, nbytes: int) -> Block:
        """``nbytes`` for a pipeline of our own: give them back by `release`, with the events they wait for.

        A block that is dropped instead goes back like an array of `empty`. Raises as `empty` does.
        """
        return self._block(nbytes, staging=True)

    def release(self, block: Block, events: Iterable[int] = ()) -> None:
        """A block of `block` is free once ``events`` are done; they are the arena's from now on.

        No view of the block may be used afterwards. Raises ValueError for a block that is not this arena's, or was
        released already. Takes no lock, so that finalisers may call it, wherever the collector runs them.
        """
        live = self._live.get(block.address)
        if live is None or live() is not block or self._live.pop(live.address, None) is not live:
            msg = f"the block at {block.address:#x} is not in use in this arena: was it released already?"
            raise ValueError(msg)
        self._waiting.ended.append(Entry(tuple(events), [live]))

    # Keeping house -----------------------------------------------------------------------------
    @property
    def reserved(self) -> int:
        """Bytes held now, used or not: of all `stats` the one that costs nothing to know."""
        return sum(store.reserved for store in self._stores)

    @property
    def staging_bytes(self) -> int:
        """What transfers may hold together: the reserve, and half of the limit where there is none."""
        return self._reserve or self._limit // 2

    def stats(self) -> ArenaStats:
        """The figures of this moment."""
        with self._lock:
            self._reap(thorough=True)
            return self._figures()

    def trim(self) -> int:
        """Give everything unused back to where it came from; the bytes given back."""
        if self._end == "forked":
            return 0
        with self._growing:
            with self._lock:
                self._reap(thorough=True)
            return sum(store.trim(0, math.inf) for store in self._stores)

    def decay(self, now: float) -> None:
        """Give back what was unused for ``decay_s`` before ``now`` (`time.monotonic`), down to the staging reserve."""
        if self._decay_s is None or self._end == "forked":
            return
        with self._growing:
            with self._lock:
                self._reap(thorough=True)
            for store in self._stores:
                store.trim(self._reserve if store is self._first else 0, now - self._decay_s)

    def close(self) -> None:
        """Give no more blocks, and give all memory back: what is unused now, the rest as its arrays die."""
        if self._end == "forked":
            return
        with self._growing:
            self._close()
            self._need_janitor()

    def _close(self) -> None:
        with self._lock:
            self._end, self._first = "closed", None
            self._reap(thorough=True)
        while self._wait_for_one():
            pass
        for store in self._stores:
            store.close()

    def __del__(self, _is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        # No block is alive, for each holds its arena. At exit the system takes everything back by itself, and the
        # names of this module are gone already: hence the default argument.
        if not _is_finalizing() and getattr(self, "_end", "forked") != "forked":
            self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        names = "+".join(store.upstream.name for store in self._stores) or "not used yet"
        return f"<PinnedArena {self._policy.name} over {names}, {self.reserved} of {self._limit} bytes held>"

    # Getting a block ---------------------------------------------------------------------------
    def _block(self, nbytes: int, *, staging: bool) -> Block:
        address = None
        with self._lock:
            store = self._first
            if store is not None:
                waiting = self._waiting
                if waiting.ended or waiting.nbytes:
                    self._results -= waiting.reap(self._live, thorough=False)
                size = store.round(nbytes)
                if staging or self._results + size <= self._results_limit:
                    address = store.take(size)
                    if address is not None and not staging:
                        self._results += size
        if address is None or store is None:
            store, address, size = self._slow(nbytes, staging=staging)
        block: Block = Block.from_address(address)
        block.arena = self
        block.nbytes = nbytes
        block.pinned = store.upstream.pinned
        live = Live(block, self._waiting.ended.append)
        live.address, live.nbytes, live.store, live.staging = address, size, store, staging
        self._live[address] = live
        return block

    def _slow(self, nbytes: int, *, staging: bool) -> tuple[Store, int, int]:
        """A block where the fast path found none: (store, address, rounded size)."""
        with self._growing:
            self._refuse_if_over()
            with self._lock:
                self._reap(thorough=True)
            self._wait_briefly(nbytes)
            while True:
                found = self._find(nbytes) if staging or self._results + nbytes <= self._results_limit else None
                if found is not None:
                    break
                if not self._wait_for_one():
                    raise self._limit_error(nbytes, staging=staging)
            with self._lock:
                self._results += 0 if staging else found[2]
                self._peak_reserved = max(self._peak_reserved, self.reserved)
            self._need_janitor()
            return found

    def _find(self, nbytes: int) -> tuple[Store, int, int] | None:
        """Place or grow in the first store that can; None at the limit. MemoryError when every upstream refuses."""
        for store in self._open_stores():
            size = store.round(nbytes)
            with self._lock:
                address = store.take(size)
            if address is not None:
                return store, address, size
            if store.reserved + size >= self._ceilings.get(id(store), sys.maxsize):
                continue
            try:
                return store, self._grow(store, size), size
            except NoRoomError:
                return None
            except REFUSALS as error:
                # Only the text is kept: the exception holds the frames of all callers, and with them their arrays.
                if id(store) not in self._ceilings:
                    self._supply.reasons.append(f"{store.upstream.name} refused {size} bytes: {error}")
                self._ceilings[id(store)] = store.reserved + size
        if self._waiting.nbytes:
            return None
        msg = f"no upstream gives {nbytes} bytes: {'; '.join(self._supply.reasons)}"
        raise MemoryError(msg)

    def _grow(self, store: Store, size: int) -> int:
        try:
            return store.grow(size, self._limit - self.reserved)
        except NoRoomError:
            if not sum(other.trim(0, math.inf) for other in self._stores if other is not store):
                raise
        return store.grow(size, self._limit - self.reserved)

    def _open_stores(self) -> Iterator[Store]:
        yield from self._stores
        while (upstream := self._supply.next()) is not None:
            self._waiting.runtime = self._supply.runtime
            try:
                store = self._policy.store(upstream, self._lock, self._limit)
            except REFUSALS as error:
                self._supply.reasons.append(f"{upstream.name}: {error}")
                continue
            with self._lock:
                self._stores.append(store)
                self._first = self._stores[0]
            if self.runtime is not None and self._supply.reasons and not upstream.pinned:
                reasons = "; ".join(self._supply.reasons)
                warnings.warn(f"pinned memory is refused, so transfers will be slower: {reasons}", RuntimeWarning, 2)
            yield store

    def _refuse_if_over(self) -> None:
        if self._end == "closed":
            msg = "this arena is closed: make another PinnedArena, or use default_arena()"
            raise ClosedError(msg)
        if self._end == "forked":
            msg = (
                "this arena was made before the process forked, and page-locked memory does not survive a fork: "
                "use default_arena(), which gives a child its own, or start workers with the 'spawn' method"
            )
            raise ClosedError(msg)

    def _limit_error(self, nbytes: int, *, staging: bool) -> PinnedLimitError:
        with self._lock:
            now = self._figures()
        kept = "" if staging or not self._reserve else f", of which {self._reserve} are kept for staging"
        msg = (
            f"asked for {nbytes} bytes, but of this arena's limit of {now.limit} bytes{kept}, {now.live} are live, "
            f"{now.pending} pending and {now.cached} cached: drop arrays, or make a PinnedArena with larger max_bytes"
        )
        return PinnedLimitError(msg)

    # Blocks on their way back ------------------------------------------------------------------
    def _reap(self, *, thorough: bool) -> None:
        """Under the lock: note blocks that died, and free those whose events are done."""
        if self._end != "forked":
            self._results -= self._waiting.reap(self._live, thorough=thorough)

    def _wait_briefly(self, nbytes: int) -> None:
        """Wait for pending blocks, at most as long as growing would take: so both together take twice the best."""
        start = now = time.monotonic()
        before = self._waiting.nbytes
        while before and now - start < _GROWTH_S + nbytes * _GROWTH_S_PER_BYTE:
            with self._lock:
                self._reap(thorough=True)
            if self._waiting.nbytes < max(before, nbytes):
                break
            if now - start > _GROWTH_S:  # at first most wait for work that is over: sleeping would take longer
                time.sleep(_POLL_S)
            now = time.monotonic()

    def _wait_for_one(self) -> bool:
        """Block until the oldest pending block is free; False when none is pending. Needs no lock."""
        with self._lock:
            self._reap(thorough=True)
            entry = self._waiting.pop()
        if entry is None:
            return False
        self._waiting.wait(entry)
        with self._lock:
            self._waiting.give(entry)
        return True

    # Figures -----------------------------------------------------------------------------------
    def _figures(self) -> ArenaStats:
        used = sum(store.used for store in self._stores)
        counters = [store.counters for store in self._stores]
        losses = [loss for store in self._stores for loss in store.losses]
        return ArenaStats(
            policy=self._policy.name,
            upstream=self._stores[0].upstream.name if self._stores else "",
            pinned=bool(self._stores) and self._stores[0].upstream.pinned,
            reasons=(*self._supply.reasons, *losses),
            limit=self._limit,
            reserved=self.reserved,
            live=used - self._waiting.nbytes,
            pending=self._waiting.nbytes,
            cached=self.reserved - used,
            results=self._results,
            ordinary_results=self._ordinary_results,
            peak_reserved=self._peak_reserved,
            allocs=sum(counter.allocs for counter in counters),
            frees=sum(counter.frees for counter in counters),
            stalls=sum(counter.stalls for counter in counters),
            taken=sum(counter.taken for counter in counters),
            moved=sum(counter.moved for counter in counters),
        )

    # Idle, closed, forked ----------------------------------------------------------------------
    def tend(self) -> bool:
        """For the janitor: let idle memory go; whether there is still something to watch."""
        if self._end == "closed":
            self.close()
        else:
            self.decay(time.monotonic())
        with self._growing:
            needed = self._watched()
            if not needed:
                self._janitor = None
        return needed

    def _watched(self) -> bool:
        keep = 0 if self._end == "closed" else self._reserve
        return self._end != "forked" and self.reserved > keep

    def _need_janitor(self) -> None:
        period_s = _CLOSED_PERIOD_S if self._decay_s is None else self._decay_s / 4
        if self._janitor is None and (self._decay_s is not None or self._end == "closed") and self._watched():
            self._janitor = Janitor(self, period_s)

    def abandon(self) -> None:
        """In the child of a fork: keep the arrays readable, and touch neither upstream nor device again."""
        self._end, self._first = "forked", None
        # A thread of the parent may have held them at the fork.
        self._lock, self._growing = threading.Lock(), threading.Lock()

    @property
    def runtime(self) -> Runtime | None:
        """The runtime whose events `release` takes; None before the first block and where there is no device."""
        return self._supply.runtime

    @property
    def forked(self) -> bool:
        """Whether this is the dead copy in a child process."""
        return self._end == "forked"


def _layout(shape: int | Sequence[int], dtype: npt.DTypeLike) -> tuple[tuple[int, ...], np.dtype[Any], int]:
    """Shape as Python integers, dtype, and bytes."""
    kind = dtype if isinstance(dtype, np.dtype) else np.dtype(dtype)
    if kind.hasobject:
        msg = f"dtype {kind} holds Python objects, which cannot live in an arena: use a dtype of plain numbers"
        raise UnsupportedDtypeError(msg)
    dims = tuple(map(index, shape)) if isinstance(shape, (tuple, list)) else (index(shape),)  # type: ignore[arg-type]
    nbytes = math.prod(dims) * kind.itemsize
    if nbytes < 0:  # two negative dimensions are left to NumPy
        msg = f"negative dimensions are not allowed: shape {dims}"
        raise ValueError(msg)
    return dims, kind, nbytes


#: Every arena, so that a forked child can tell its copies that they are dead.
_arenas: weakref.WeakSet[PinnedArena] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for arena in list(_arenas):
        if arena.runtime is not None:
            supply_module.parent_used_device = True
        arena.abandon()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
