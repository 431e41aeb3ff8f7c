"""Memory that a search takes, or building an index, over a base in a mapped file.

Each way runs in a process of its own, which opens the base with `open_matrix` and measures from there on.  "anonymous":
the most that memory of the process itself (RssAnon) grew.  "own": what the index keeps of that, by its number of
vectors and the bytes that it keeps of each.  "more": the rest, which must stay below an eighth of the base.  "mapped":
pages of the file that were resident meanwhile; the system takes them back when it needs them.

A search reads the base in blocks and keeps none.  An index keeps what it is made of: a flat one, hnswlib's graph and
usearch's all vectors, scalar quantisation a quarter of float32, product quantisation a few bytes of each.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Self

import numpy as np

from matrix_interop.bench import report
from matrix_interop.io import open_matrix
from matrix_interop.search import build, knn

__all__ = ["WAYS", "main", "measured", "write_base"]

_COLUMNS: Final = 128
_ROW: Final = 4 * _COLUMNS
_QUERIES: Final = 1000
#: What a search or a build may take beyond the index itself, as a share of the base.
_SHARE: Final = 8
_EVERY: Final = 0.002

#: Columns of the table and their widths.
_WIDTHS: Final = {"anonymous": 10, "own": 7, "more": 7, "mapped": 8, "all": 7}

#: Way -> the library it needs, and what it does with the base; an index is given back.
WAYS: Final[dict[str, tuple[str, Callable[[Any], Any]]]] = {
    "knn, numpy": ("numpy", lambda base: _searched(base, "numpy")),
    "knn, faiss": ("faiss", lambda base: _searched(base, "faiss")),
    "knn, torch": ("torch", lambda base: _searched(base, "torch")),
    "knn, cosine": ("numpy", lambda base: _searched(base, None, "cosine")),
    "build, faiss IVF,PQ": ("faiss", lambda base: build(base, "faiss", factory="IVF256,PQ16x4")),
    "build, faiss SQ8": ("faiss", lambda base: build(base, "faiss", factory="SQ8")),
    "build, faiss Flat": ("faiss", lambda base: build(base, "faiss")),
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the suite as the command line says."""
    parser = argparse.ArgumentParser(
        prog="matrix-interop bench search_memory",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--mib", type=int, default=2048, help="size of the base, written for the time (default 2048)")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()), help="where (default %(default)s)")
    parser.add_argument("--only", default="", metavar="TEXT", help="ways whose name holds this text")
    parser.add_argument("--way", choices=list(WAYS), help=argparse.SUPPRESS)
    parser.add_argument("--base", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.way is not None:
        print(json.dumps(_alone(options.way, options.base)))
        return
    if not Path("/proc/self/status").exists():
        print("bench search_memory reads /proc, which this system has not")
        return
    print(report.facts())
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        base = write_base(Path(folder) / "base.npy", options.mib << 20)
        limit = base.stat().st_size / _SHARE
        print(f"{'MiB':<22} anonymous    own   more  mapped    all  seconds  more than {limit / 2**20:.0f}?")
        for way, (library, _) in WAYS.items():
            if options.only in way and find_spec(library) is not None:
                found = measured(way, base)
                sizes = "".join(f"{found[key] / 2**20:{width},.0f}" for key, width in _WIDTHS.items())
                print(
                    f"{way:<22}{sizes}{found['seconds']:9.1f}  {'yes' if found['more'] > limit else 'no'}", flush=True
                )


def write_base(path: Path, nbytes: int) -> Path:
    """A .npy of so many bytes of float32 rows, of which none is like another; its path.

    Raises OSError where the disk has no room for it.
    """
    free = shutil.disk_usage(path.parent).free
    if free < nbytes + (1 << 30):
        msg = f"{path.parent} has {free:,} bytes free: a base of {nbytes:,} would leave less than a GiB"
        raise OSError(msg)
    out = np.lib.format.open_memmap(path, "w+", np.dtype(np.float32), (nbytes // _ROW, _COLUMNS))
    piece = np.random.default_rng(0).standard_normal((1 << 16, _COLUMNS), dtype=np.float32)
    for start in range(0, len(out), len(piece)):
        out[start : start + len(piece)] = piece[: len(out) - start] + np.float32(start / len(out))
    out.flush()
    return path


def measured(way: str, base: Path) -> dict[str, float]:
    """One way in a process of its own: bytes and seconds as the suite's table names them."""
    command = [sys.executable, "-m", "matrix_interop.bench.search_memory", "--way", way, "--base", str(base)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)  # noqa: S603 - ourselves
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def _alone(way: str, path: Path) -> dict[str, float]:
    run = WAYS[way][1]
    base = open_matrix(path)
    run(np.random.default_rng(1).standard_normal((10_000, _COLUMNS), dtype=np.float32))  # loads what it needs
    began = time.perf_counter()
    with _Watch() as watch:
        index = run(base)
        if index is not None:
            index.search(np.asarray(base[:10]), 10)
    seconds = time.perf_counter() - began
    own = 0.0 if index is None else float(_own(index.native))
    more = watch.anonymous - own
    return {
        "anonymous": watch.anonymous, "own": own, "more": more, "mapped": watch.mapped, "all": watch.all,
        "seconds": seconds,
    }  # fmt: skip


def _searched(base: Any, engine: str | None, metric: str = "sqeuclidean") -> None:
    queries = np.random.default_rng(2).standard_normal((_QUERIES, _COLUMNS), dtype=np.float32)
    knn(queries, base, 10, metric=metric, engine=engine)


def _own(index: Any) -> int:
    """Bytes that a FAISS index keeps of its vectors; in lists, their numbers as well."""
    number = 8 if hasattr(index, "invlists") else 0
    return int(index.ntotal) * (int(index.code_size) + number)


class _Watch:
    """The most memory that this process held meanwhile, looked at every other millisecond."""

    def __enter__(self) -> Self:
        self._before = _resident()["RssAnon"]
        self.anonymous = self.mapped = self.all = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def _watch(self) -> None:
        while not self._over.wait(_EVERY):
            self._look()

    def _look(self) -> None:
        now = _resident()
        self.anonymous = max(self.anonymous, now["RssAnon"] - self._before)
        self.mapped = max(self.mapped, now["RssFile"] + now["RssShmem"])
        self.all = max(self.all, sum(now.values()))

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._look()


def _resident() -> dict[str, int]:
    """Resident bytes by kind, as Linux counts them."""
    text = Path("/proc/self/status").read_text(encoding="ascii")
    return {name: int(kib) << 10 for name, kib in re.findall(r"^(Rss\w+):\s+(\d+) kB", text, re.MULTILINE)}


if __name__ == "__main__":
    main()
