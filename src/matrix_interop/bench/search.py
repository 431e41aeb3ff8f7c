"""Exact search beside the libraries that do it, on the host or on a device.

Host: each library in a process of its own, at its best: with the OPENBLAS_* variables as they are and without them,
and in blocks of several sizes where it works in blocks.  Device: all in one process; what comes from NumPy is sent,
searched and fetched within the time.  A peer whose ids agree with ours in less than 99.9 % of places is left out.
"norms known": torch with the squared norms of the base
computed before.  "streamed": the base lies in host memory; bare copies of as many bytes and the search of a base that
is on the device stand beside it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import numpy as np

from matrix_interop.bench import report
from matrix_interop.bench.bus import Bus
from matrix_interop.bench.harness import Call, Case, Goal, Outcome, Reading, measure, run
from matrix_interop.errors import DeviceUnavailableError
from matrix_interop.matrix import from_tensor
from matrix_interop.memory.host import aligned_empty
from matrix_interop.search import build, knn

__all__ = ["cases", "main"]

#: (rows, columns, queries, neighbours)
_HOST: Final = ((100_000, 128, 1000, 10), (100_000, 768, 1000, 10), (1_000_000, 128, 1000, 10))
_DEVICE: Final = (
    (1_000_000, 128, 1000, 10),
    (1_000_000, 128, 1000, 100),
    (2_000_000, 128, 1000, 10),
    (2_000_000, 128, 1000, 100),
    (100_000, 768, 1000, 10),
    (1_000_000, 768, 1000, 10),
    (1_000_000, 128, 1, 10),
)
_STREAMED: Final = (8_000_000, 128, 1000, 10)
_PEERS: Final = ("ours", "faiss", "numpy", "torch", "sklearn")
_AGREE: Final = 0.999
_GOAL: Final = 1.25
#: What a single query may take more than a bare one, in seconds.
_MORE: Final = 2e-4

Shape = tuple[int, int, int, int]
Search = Callable[..., Any]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the suite as the command line says."""
    parser = argparse.ArgumentParser(
        prog="matrix-interop bench search", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--where", choices=("host", "device"), default="host")
    parser.add_argument("--rounds", type=int, default=5, help="searches of each way (default 5)")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the rows, for a short look")
    parser.add_argument("--frameworks", nargs="+", choices=("torch", "cupy"), default=["torch", "cupy"])
    parser.add_argument("--only", default="", metavar="TEXT", help="cases whose name holds this text")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write times, machine and versions there")
    parser.add_argument("--peer", choices=_PEERS, help=argparse.SUPPRESS)
    parser.add_argument("--shape", type=int, nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.peer is not None:
        print(json.dumps(_alone(options.peer, tuple(options.shape), options.rounds)))
        return
    before = report.load()
    print(report.facts())
    outcomes: list[Outcome] = []
    try:
        found = _on_host(options) if options.where == "host" else _on_device(options)
        for outcome in found:
            outcomes.append(outcome)
            print(report.suite_table([outcome]))
            print(_against_best(outcome), flush=True)
    except DeviceUnavailableError as error:
        print(f"bench search --where device needs a device: {error}")
        return
    if options.json is not None:
        kept = report.record("search", outcomes, clock="wall", load_before=before)
        options.json.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


def _name(shape: Shape) -> str:
    rows, columns, queries, k = shape
    return f"{rows:,} x {columns}, {queries} queries, k={k}"


def _scaled(shape: Shape, scale: float) -> Shape:
    return (max(1000, int(shape[0] * scale)), *shape[1:])


def _values(rows: int, columns: int, seed: int) -> np.ndarray:
    out = aligned_empty((rows, columns), np.dtype(np.float32))
    np.random.default_rng(seed).standard_normal(out=out, dtype=np.float32)
    return out


def _against_best(outcome: Outcome) -> str:
    """Ours beside the fastest peer, and who was left out."""
    ours, *others = outcome.readings
    absent = ", ".join(name for name in outcome.case.calls if name not in outcome.readings)
    left_out = f"; other ids, so left out: {absent}" if absent else ""
    if not others:
        return f"no peer{left_out}\n"
    best = min(others, key=lambda name: outcome.readings[name].median)
    ratio = outcome.readings[ours].median / outcome.readings[best].median
    return f"{ours} / {best}, the fastest peer: {ratio:.2f}{left_out}\n"


# On the host ----------------------------------------------------------------------------------------
def _on_host(options: argparse.Namespace) -> Iterator[Outcome]:
    for shape in (_scaled(shape, options.scale) for shape in _HOST):
        if options.only not in _name(shape):
            continue
        readings, ids = {}, {}
        for peer in _PEERS:
            if peer != "ours" and find_spec(peer) is None:
                continue
            answers = [_in_process(peer, shape, options.rounds, plain) for plain in (False, True)]
            best = min(answers, key=lambda answer: answer["reading"]["median"])
            readings[peer], ids[peer] = Reading(**best["reading"]), np.array(best["ids"])
        names = [name for name in readings if np.mean(ids[name] == ids["ours"]) >= _AGREE]
        goals = tuple(Goal("ours", name, _GOAL) for name in names[1:])
        calls = {name: Call(_TEXTS[name], lambda: None) for name in readings}
        yield Outcome(Case(_name(shape), calls, goals), {name: readings[name] for name in names})


def _in_process(peer: str, shape: Shape, rounds: int, plain: bool) -> dict[str, Any]:
    """The peer alone in a process; ``plain``: without the OPENBLAS_* variables."""
    environment = {key: value for key, value in os.environ.items() if not (plain and key.startswith("OPENBLAS_"))}
    command = [
        sys.executable,
        "-m",
        "matrix_interop.bench.search",
        "--peer",
        peer,
        "--rounds",
        str(rounds),
        "--shape",
        *map(str, shape),
    ]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)  # noqa: S603 - ourselves
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def _alone(peer: str, shape: Shape, rounds: int) -> dict[str, Any]:
    rows, columns, count, k = shape
    base, queries = _values(rows, columns, 0), _values(count, columns, 1)
    search = _SEARCHES[peer]
    if peer in _BLOCKS:
        ways = {step: partial(search, queries, base, k, step) for step in _BLOCKS[peer]}
        tried = measure({str(step): way for step, way in ways.items()}, rounds=1)
        run = ways[min(ways, key=lambda step: tried[str(step)].median)]
    else:
        run = partial(search, queries, base, k)
    ids = np.asarray(run())
    reading = measure({peer: run}, rounds=rounds)[peer]
    fields = ("median", "low", "high", "best", "rounds", "loops")
    return {"ids": ids[:50].tolist(), "reading": {name: getattr(reading, name) for name in fields}}


def _by_faiss(queries: np.ndarray, base: np.ndarray, k: int) -> Any:
    import faiss

    return faiss.knn(queries, base, k)[1]


def _by_numpy(queries: np.ndarray, base: np.ndarray, k: int, step: int = 1 << 14) -> Any:
    keys, ids = [], []
    for start in range(0, len(base), step):
        part = base[start : start + step]
        scores = np.einsum("ij,ij->i", part, part) - 2 * (queries @ part.T)
        here = min(k, len(part))
        chosen = np.argpartition(scores, here - 1, axis=1)[:, :here]
        keys.append(np.take_along_axis(scores, chosen, axis=1))
        ids.append(chosen + start)
    key, number = np.concatenate(keys, axis=1), np.concatenate(ids, axis=1)
    return np.take_along_axis(number, np.argsort(key, axis=1)[:, :k], axis=1)


def _by_torch(queries: np.ndarray, base: np.ndarray, k: int, step: int = 1 << 16) -> Any:
    import torch

    q, b = torch.from_numpy(queries), torch.from_numpy(base)
    keys, ids = [], []
    for start in range(0, len(b), step):
        part = b[start : start + step]
        found = torch.addmm((part * part).sum(1), q, part.T, alpha=-2).topk(min(k, len(part)), largest=False)
        keys.append(found.values)
        ids.append(found.indices + start)
    return torch.cat(ids, 1).gather(1, torch.cat(keys, 1).topk(k, largest=False).indices)


def _by_sklearn(queries: np.ndarray, base: np.ndarray, k: int) -> Any:
    from sklearn.neighbors import NearestNeighbors

    return NearestNeighbors(n_neighbors=k, algorithm="brute").fit(base).kneighbors(queries, return_distance=False)


_SEARCHES: Final[dict[str, Search]] = {
    "ours": lambda queries, base, k: knn(queries, base, k).ids,
    "faiss": _by_faiss,
    "numpy": _by_numpy,
    "torch": _by_torch,
    "sklearn": _by_sklearn,
}
#: Rows at a time that are tried out; the fastest counts.
_BLOCKS: Final = {"numpy": (1 << 11, 1 << 13, 1 << 15), "torch": (1 << 13, 1 << 15, 1 << 17)}
_TEXTS: Final = {
    "ours": "knn(queries, base, k)",
    "faiss": "faiss.knn(queries, base, k)",
    "numpy": "GEMM and argpartition, block by block",
    "torch": "addmm and topk, block by block",
    "sklearn": "NearestNeighbors(algorithm='brute')",
}


# On a device ----------------------------------------------------------------------------------------
def _on_device(options: argparse.Namespace) -> Iterator[Outcome]:
    bus = Bus.of(options.frameworks)
    found = (case for case in cases(bus, options.scale, options.only))
    yield from run(found, rounds=options.rounds)


def cases(bus: Bus, scale: float = 1.0, only: str = "") -> Iterator[Case]:
    """Every shape from every framework, and the streamed base."""
    for shape in (_scaled(shape, scale) for shape in _DEVICE):
        names = [f"{framework}: {_name(shape)}" for framework in (*bus.names, "numpy")]
        if not any(only in name for name in names):
            continue
        rows, columns, count, k = shape
        base, queries = _values(rows, columns, 0), _values(count, columns, 1)
        for name in names:
            if only in name:
                yield _device_case(bus, name, queries, base, k)
    shape = _scaled(_STREAMED, scale)
    if only in f"streamed: {_name(shape)}":
        yield _streamed(bus, shape)


def _device_case(bus: Bus, name: str, queries: np.ndarray, base: np.ndarray, k: int) -> Case:
    framework = name.partition(":")[0]
    if framework == "numpy":
        ways: dict[str, Callable[[], Any]] = {"ours": lambda: knn(queries, base, k, device=bus.device).ids}
        given: tuple[Any, Any] = queries, base
    else:
        q, b = given = tuple(from_tensor(m).to_device(bus.device, framework=framework).array for m in (queries, base))
        ways = {"ours": lambda: knn(q, b, k).ids}
    ways |= _device_peers(bus, given, k)
    ids = {key: np.asarray(from_tensor(way()).to_host()) for key, way in ways.items()}
    kept = [key for key in ways if np.mean(ids[key] == ids["ours"]) >= _AGREE]
    factor, plus = (1.0, _MORE) if len(queries) == 1 else (_GOAL, 0.0)
    goals = tuple(Goal("ours", key, factor, plus) for key in kept if key in ("torch", "cuvs"))
    calls = {key: Call(_DEVICE_TEXTS[key], bus.waiting(ways[key])) for key in kept}
    return Case(name, calls, goals, value=lambda _: np.zeros(0))


def _device_peers(bus: Bus, given: tuple[Any, Any], k: int) -> dict[str, Callable[[], Any]]:
    """torch and cuVS on the same data: shared on the device, or sent from the host each time."""
    torch, on_host = bus.modules.get("torch"), isinstance(given[0], np.ndarray)
    ways: dict[str, Callable[[], Any]] = {}
    if torch is not None:
        if on_host:
            q, b = (torch.from_numpy(x) for x in given)
            ways["torch"] = lambda: _bare(torch, q.cuda(), b.cuda(), k).cpu()
        else:
            q, b = (from_tensor(x).to_tensor("torch") for x in given)
            norms = torch.linalg.vector_norm(b, dim=1).square_()
            ways["torch"] = lambda: _bare(torch, q, b, k)
            ways["norms known"] = lambda: _bare(torch, q, b, k, norms)
    if find_spec("cuvs") is not None:
        build(given[1][:1000], "cuvs", device=bus.device)  # loads what it needs
        brute_force = import_module("cuvs.neighbors.brute_force")

        def by_cuvs() -> Any:
            queries, base = (from_tensor(x).to_device(bus.device) for x in given)
            found = from_tensor(brute_force.search(brute_force.build(base), queries, k)[1])
            return found.to_host() if on_host else found

        ways["cuvs"] = by_cuvs
    return ways


def _bare(torch: Any, q: Any, b: Any, k: int, norms: Any = None) -> Any:
    """The shortest search in torch: all rows at once."""
    norms = torch.linalg.vector_norm(b, dim=1).square_() if norms is None else norms
    scores = torch.addmv(norms, b, q[0], alpha=-2)[None] if len(q) == 1 else torch.addmm(norms, q, b.T, alpha=-2)
    return scores.topk(k, largest=False).indices


_DEVICE_TEXTS: Final = {
    "ours": "knn(queries, base, k)",
    "torch": "vector_norm, addmm, topk",
    "norms known": "addmm, topk",
    "cuvs": "brute_force.build, brute_force.search",
}


def _streamed(bus: Bus, shape: Shape) -> Case:
    rows, columns, count, k = shape
    base = aligned_empty((rows, columns), np.dtype(np.float32))
    piece = _values(max(1, rows // 16), columns, 0)
    for start in range(0, rows, len(piece)):
        base[start : start + len(piece)] = piece[: len(base) - start] + np.float32(start / rows)
    queries = from_tensor(_values(count, columns, 1)).to_device(bus.device)
    there = from_tensor(base).to_device(bus.device)
    copy, times = bus.bare(piece, to_device=True), -(-rows // len(piece))
    calls = {
        "ours": Call("knn(queries, base in host memory, k)", bus.waiting(lambda: knn(queries, base, k).ids)),
        "bus": Call("cuMemcpyAsync, page-locked, as many bytes", lambda: [copy.run() for _ in range(times)][:0]),
        "compute": Call("knn(queries, base on the device, k)", bus.waiting(lambda: knn(queries, there, k).ids)),
    }
    taken = measure({name: calls[name].run for name in ("bus", "compute")}, rounds=3)
    slower = max(taken, key=lambda name: taken[name].median)
    return Case(f"streamed: {_name(shape)}", calls, (Goal("ours", slower, 1.2),), base.nbytes, lambda _: np.zeros(0))


if __name__ == "__main__":
    main()
