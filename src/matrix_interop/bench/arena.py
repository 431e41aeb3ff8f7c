"""Allocation traces through the arena, on every policy and on the pinned pools of torch and CuPy.

    python -m matrix_interop.bench.arena            simulated: counts only, no memory
    python -m matrix_interop.bench.arena --real     for real: pinned where there is a device, ordinary memory where not

Printed as the AMReX thread prints it: policy, upstream calls, stalls (requests that waited for upstream), peak reserved
over peak live (1.00 is the floor), churn (bytes ever taken over peak live), pages moved, seconds.
"""

from __future__ import annotations

import argparse
import datetime as dt
import gc
import json
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Final, Protocol

from matrix_interop.bench import report
from matrix_interop.bench.strategies import STRATEGIES, PowerOfTwoPool, SimulatedPages
from matrix_interop.bench.traces import TRACES, Step
from matrix_interop.errors import DeviceUnavailableError, PinnedLimitError
from matrix_interop.memory import Block, PinnedArena
from matrix_interop.memory.paged import Remap, page_size
from matrix_interop.memory.pages import available_memory
from matrix_interop.memory.policies import Bounded, Policy, Uncached
from matrix_interop.memory.upstreams import first_device
from matrix_interop.runtime import Runtime, get_runtime

__all__ = ["POLICIES", "CopyRow", "GrowthRow", "ReuseRow", "TraceRow", "copies", "growth", "replay", "reuse", "traces"]

_GB: Final = 10**9
_MIB: Final = 1 << 20

#: Name -> policy, ours first.
POLICIES: Final[dict[str, Callable[[], Policy]]] = {
    "bounded": Bounded,
    "remap": Remap,
    "none": Uncached,
    **STRATEGIES,
}

#: The pools of other libraries, as rows of their own.
_POOLS: Final = ("torch", "cupy")

#: On the warpx trace these take a terabyte from upstream, or, as pools that never give back, all a machine has.
_TOO_MUCH_FOR_REAL: Final = {("warpx", "none"), ("warpx", "release threshold 0"), ("warpx", "torch"), ("warpx", "cupy")}


@dataclass(frozen=True, slots=True)
class TraceRow:
    """One trace on one policy. Where several seeds ran, each figure is the worst of them."""

    trace: str
    policy: str
    upstream: str
    calls: int
    stalls: int
    peak: float
    churn: float
    moved: int
    seconds: float


@dataclass(frozen=True, slots=True)
class GrowthRow:
    """Getting fresh memory from an upstream: milliseconds for a GB."""

    upstream: str
    ms_per_gb: float


@dataclass(frozen=True, slots=True)
class CopyRow:
    """One block to the device and back: GB/s."""

    upstream: str
    mb: int
    to_device: float
    to_host: float


@dataclass(frozen=True, slots=True)
class ReuseRow:
    """Getting and dropping a block of a size that is in the arena: microseconds, and upstream calls meanwhile."""

    what: str
    us: float
    upstream_calls: int


class Pool(Protocol):
    """What a trace is played on."""

    def take(self, nbytes: int) -> Any:
        """A block."""

    def give(self, block: Any) -> None:
        """The block is not needed any more."""


class _ArenaPool:
    """An arena's blocks as the pipeline takes them."""

    def __init__(self, arena: PinnedArena) -> None:
        self.take: Callable[[int], Block] = arena.block
        self.give: Callable[[Block], None] = arena.release


def replay(steps: Iterable[Step], pool: Pool) -> None:
    """Play a trace, and give back what is still live at its end."""
    blocks: dict[Any, Any] = {}
    for step in steps:
        if step[0] in {"a", "r"}:
            new = pool.take(step[2])
            if step[0] == "r":
                pool.give(blocks[step[1]])
            blocks[step[1]] = new
        elif step[0] == "f":
            pool.give(blocks.pop(step[1]))
        elif step[0] == "=":
            blocks[step[1]] = blocks.pop(step[2])
    for block in blocks.values():
        pool.give(block)


def traces(names: Iterable[str], policies: Iterable[str], *, seeds: int = 5, real: bool = False) -> Iterable[TraceRow]:
    """A row for each trace and policy; ``policies`` may name the pools "torch" and "cupy", too.

    For real, what this machine cannot hold is left out, and of a random trace only the first seed is played.
    """
    for name in names:
        make, seeded = TRACES[name]
        runs = [make(seed) for seed in range(seeds if seeded and not real else 1)]
        for policy in policies:
            if real and (name, policy) in _TOO_MUCH_FOR_REAL:
                continue
            play = _play_pool if policy in _POOLS else _play_arena
            rows = [row for steps in runs if (row := play(name, policy, steps, real=real)) is not None]
            if rows:
                worst = {field.name: max(getattr(row, field.name) for row in rows) for field in fields(TraceRow)}
                yield TraceRow(**worst)


def _play_arena(trace: str, policy: str, steps: list[Step], *, real: bool) -> TraceRow | None:
    """None where this machine has too little memory for it."""
    live = live_bytes(steps)
    arena = PinnedArena(
        min(8 * live, available_memory() * 3 // 4) if real else 8 * live,
        policy=Remap(page_size(live)) if policy == "remap" else POLICIES[policy](),
        upstream="auto" if real else SimulatedPages(),
        decay_s=None,
    )
    start = time.perf_counter()
    try:
        replay(steps, _ArenaPool(arena))
    except PinnedLimitError:
        return None
    seconds = time.perf_counter() - start
    stats = arena.stats()
    arena.close()
    peak, churn = stats.peak_reserved / live, stats.taken / live
    return TraceRow(trace, policy, stats.upstream, stats.allocs, stats.stalls, peak, churn, stats.moved, seconds)


def live_bytes(steps: Iterable[Step]) -> int:
    """The most bytes that a trace keeps alive at once."""

    class Counter:
        now = most = 0

        def take(self, nbytes: int) -> int:
            self.now += nbytes
            self.most = max(self.most, self.now)
            return nbytes

        def give(self, nbytes: int) -> None:
            self.now -= nbytes

    counter = Counter()
    replay(steps, counter)
    return counter.most


def _play_pool(trace: str, policy: str, steps: list[Step], *, real: bool) -> TraceRow | None:
    make = (_TorchPool if policy == "torch" else _CupyPool) if real else PowerOfTwoPool
    try:
        pool = make()
    except DeviceUnavailableError:
        return None
    live = live_bytes(steps)
    start = time.perf_counter()
    replay(steps, pool)
    seconds = time.perf_counter() - start
    ratio = pool.reserved / live
    upstream = "host_alloc" if real else "simulated"
    return TraceRow(trace, policy, upstream, pool.allocs, pool.allocs, ratio, ratio, 0, seconds)


class _TorchPool:
    """torch's pinned pool. A block is a list of one tensor, so that giving it back drops the last reference."""

    def __init__(self) -> None:
        try:
            import torch
        except ImportError as error:
            raise DeviceUnavailableError(str(error)) from error
        if not torch.cuda.is_available():
            msg = "torch sees no CUDA device"
            raise DeviceUnavailableError(msg)
        self._torch: Any = torch
        torch.empty(1, pin_memory=True)
        gc.collect()
        self._torch._C._host_emptyCache()  # what earlier traces left
        self._start = torch.cuda.host_memory_stats()
        self._free = _free_memory()

    def take(self, nbytes: int) -> list[Any]:
        return [self._torch.empty(nbytes, dtype=self._torch.uint8, pin_memory=True)]

    def give(self, block: list[Any]) -> None:
        block.clear()

    @property
    def allocs(self) -> int:
        """Upstream calls; -1 where this torch keeps no such count (2.11 shows none)."""
        stats = self._torch.cuda.host_memory_stats()
        return int(stats["num_host_alloc"] - self._start["num_host_alloc"]) if "num_host_alloc" in stats else -1

    @property
    def reserved(self) -> int:
        """What the machine has less than before: the pool gives nothing back by itself."""
        return self._free - _free_memory()


def _free_memory() -> int:
    lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines())
    return int(lines["MemAvailable"].split()[0]) * 1024


class _CupyPool:
    """CuPy's pinned pool, over an allocator that counts."""

    def __init__(self) -> None:
        self.allocs = 0
        self.reserved = 0  # it gives nothing back by itself
        try:
            import cupy
        except ImportError as error:
            raise DeviceUnavailableError(str(error)) from error
        self._cuda: Any = cupy.cuda
        self._pool = cupy.cuda.PinnedMemoryPool(self._allocate)

    def _allocate(self, nbytes: int) -> Any:
        self.allocs += 1
        self.reserved += nbytes
        return self._cuda.PinnedMemoryPointer(self._cuda.PinnedMemory(nbytes), 0)

    def take(self, nbytes: int) -> list[Any]:
        return [self._pool.malloc(nbytes)]

    def give(self, block: list[Any]) -> None:
        block.clear()


# Upstreams ---------------------------------------------------------------------------------------------------------
def _upstreams(runtime: Runtime | None) -> tuple[str, ...]:
    return ("ordinary",) if runtime is None else ("registered", "host_alloc", "virtual", "ordinary")


def _arena_over(upstream: str) -> PinnedArena | None:
    """An arena whose memory comes from that upstream and no other; None where it does not work."""
    arena = PinnedArena(16 * _GB, policy="none", upstream=upstream, decay_s=None)
    arena.release(arena.block(1))
    arena.trim()
    return arena if arena.stats().upstream == upstream else None


def growth(runtime: Runtime | None, nbytes: int = _GB, repeat: int = 5) -> Iterable[GrowthRow]:
    """What a fresh GB costs from each upstream; the last row is policy "remap", growing page by page."""
    for upstream in _upstreams(runtime):
        arena = _arena_over(upstream)
        if arena is not None:
            yield GrowthRow(upstream, _growth_ms(arena, nbytes, repeat))
    arena = PinnedArena(16 * nbytes, policy="remap", decay_s=None)
    arena.release(arena.block(1))
    yield GrowthRow(f"remap over {arena.stats().upstream}", _growth_ms(arena, nbytes, repeat))


def _growth_ms(arena: PinnedArena, nbytes: int, repeat: int) -> float:
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        block = arena.block(nbytes)
        times.append(time.perf_counter() - start)
        arena.release(block)
        del block
        arena.trim()
    arena.close()
    return statistics.median(times) * 1e3 * _GB / nbytes


def copies(runtime: Runtime, megabytes: Iterable[int] = (16, 128, 1000), repeat: int = 9) -> Iterable[CopyRow]:
    """The bus from and to blocks of each upstream. Needs a device."""
    ordinal = first_device(runtime)
    stream = runtime.stream_create(ordinal)
    arenas = [(name, arena) for name in _upstreams(runtime) if (arena := _arena_over(name)) is not None]
    for mb in megabytes:
        nbytes = mb * 10**6
        device = runtime.device_alloc(nbytes, ordinal)
        for name, arena in arenas:
            block = arena.block(nbytes)
            block.array[:] = 1

            def send(dst: int, src: int, nbytes: int = nbytes) -> float:
                start = time.perf_counter()
                runtime.copy(dst, src, nbytes, ordinal=ordinal, stream=stream)
                runtime.stream_synchronize(stream, ordinal)
                return time.perf_counter() - start

            send(device, block.address)
            there = statistics.median(send(device, block.address) for _ in range(repeat))
            back = statistics.median(send(block.address, device) for _ in range(repeat))
            arena.release(block)
            yield CopyRow(name, mb, nbytes / there / _GB, nbytes / back / _GB)
        runtime.device_free(device, ordinal)
    runtime.stream_destroy(stream, ordinal)
    for _, arena in arenas:
        arena.close()


def reuse(nbytes: int = 4 * _MIB, count: int = 20_000, repeat: int = 5) -> Iterable[ReuseRow]:
    """Blocks of a size the arena has: `empty` and dropped by a user, `block` and `release` by a pipeline."""
    arena = PinnedArena(decay_s=None)

    def user() -> None:
        for _ in range(count):
            arena.empty((nbytes,), "u1")

    def pipeline() -> None:
        for _ in range(count):
            arena.release(arena.block(nbytes))

    for what, run in (("empty, dropped", user), ("block, release", pipeline)):
        run()
        before = arena.stats().allocs
        times = []
        for _ in range(repeat):
            start = time.perf_counter()
            run()
            times.append(time.perf_counter() - start)
        yield ReuseRow(what, statistics.median(times) / count * 1e6, arena.stats().allocs - before)
    arena.close()


# Printing ----------------------------------------------------------------------------------------------------------
_WIDTHS: Final = {"policy": 29, "what": 15, "upstream": 22}


def table(rows: Iterable[Any]) -> list[Any]:
    """Print rows of one dataclass as they come, under their fields' names; the rows."""
    kept: list[Any] = []
    for row in rows:
        names = [field.name for field in fields(row)]
        widths = [max(_WIDTHS.get(name, 9), len(name)) for name in names]
        if not kept:
            print("  ".join(name.ljust(width) for name, width in zip(names, widths, strict=True)))
        cells = [_cell(getattr(row, name)) for name in names]
        print("  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)), flush=True)
        kept.append(row)
    print()
    return kept


def _cell(value: object) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(
        prog="matrix-interop bench arena", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--real", action="store_true", help="take memory for real, and measure upstreams")
    parser.add_argument("--traces", nargs="*", default=list(TRACES), choices=list(TRACES))
    parser.add_argument("--policies", nargs="*", default=[*POLICIES, *_POOLS], choices=[*POLICIES, *_POOLS])
    parser.add_argument("--seeds", type=int, default=5, help="seeds of each random trace, simulated (default 5)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write rows, machine and versions there")
    options = parser.parse_args(arguments)
    print(report.facts(), end="\n\n")
    rows = _measure_upstreams() if options.real else []
    for trace in options.traces:
        rows += table(traces([trace], options.policies, seeds=options.seeds, real=options.real))
    if options.json is not None:
        kept = {
            "suite": "arena",
            "date": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
            "machine": report.machine(),
            "versions": report.versions(),
            "rows": [{"kind": type(row).__name__, **asdict(row)} for row in rows],
        }
        options.json.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


def _measure_upstreams() -> list[Any]:
    try:
        runtime = get_runtime("cuda")
    except DeviceUnavailableError as error:
        runtime = None
        print(f"no device: {error}", end="\n\n")
    rows = table(reuse()) + table(growth(runtime))
    return rows if runtime is None else rows + table(copies(runtime))


if __name__ == "__main__":
    main()
