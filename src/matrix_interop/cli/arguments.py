"""Arguments in, exit status out: 0 done, 2 refused with one line that says why."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Final

from matrix_interop._version import __version__
from matrix_interop.bench import SUITES
from matrix_interop.errors import MatrixInteropError

__all__ = ["main"]

_REFUSED: Final = 2
_INTERRUPTED: Final = 130  # 128 + SIGINT, as shells count
_PIPE_CLOSED: Final = 141  # 128 + SIGPIPE
_FILE: Final = "FILE, or FILE::NAME for one array, tensor, dataset or column of it"
_METRICS: Final = ("sqeuclidean", "euclidean", "cosine", "inner_product")
_ENGINES: Final = ("faiss", "numpy", "torch", "jax")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; ``arguments``: those of the process if not given. The exit status."""
    options = _parser().parse_args(arguments)
    try:
        run = getattr(import_module(f"matrix_interop.cli.{options.module}"), options.command)
        run(options)
        print(end="", flush=True)  # a closed standard output is None, which print takes
    except BrokenPipeError:  # the reader, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _PIPE_CLOSED
    except KeyboardInterrupt:
        return _INTERRUPTED
    except (MatrixInteropError, OSError, MemoryError, ValueError) as error:
        print(f"matrix-interop: {' '.join(_sentence(error).split())}", file=sys.stderr)
        return _REFUSED
    return 0


def _sentence(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return str(error) or type(error).__name__


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="matrix-interop", description="Vectors between frameworks, files and searches, shared where possible."
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for name, (about, module, add) in _COMMANDS.items():
        one = commands.add_parser(name, help=about, description=f"{about[0].upper()}{about[1:]}.")
        one.set_defaults(command=name, module=module)
        add(one)
    return parser


def _no_more(_: argparse.ArgumentParser) -> None:
    """A command without arguments."""


def _add_plan(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help=_FILE)
    parser.add_argument("--to", default="numpy", metavar="FRAMEWORK", help="torch, jax, pyarrow, ... (default numpy)")
    parser.add_argument("--device", help="cpu or cuda:0; default: the host, where the file is")
    parser.add_argument("--dtype", help="float32, bfloat16, ...; default: that of the file")
    parser.add_argument("--order", choices=["C", "F"], help="dense rows or dense columns; default: as in the file")
    parser.add_argument("--mode", choices=["r", "c"], default="r", help="mapped read-only (default) or copy on write")
    parser.add_argument("--share-readonly", action="store_true", help="promise not to write where that cannot be kept")


def _add_convert(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="IN", help=_FILE)
    parser.add_argument("out", metavar="OUT", type=Path, help="replaced as a whole, once all is written")
    parser.add_argument("--dtype", help="refused where a value does not fit; default: that of IN")
    parser.add_argument("--format", help="npy, fvecs, fbin, ...; default: the suffix of OUT")
    parser.add_argument("--normalize", action="store_true", help="divide each row by its Euclidean length")
    parser.add_argument("--rows", type=_range, default=slice(None), metavar="A:B", help="only these rows, from 0")


def _add_search(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("base", metavar="BASE", help=_FILE)
    parser.add_argument("queries", metavar="QUERIES", help=_FILE)
    parser.add_argument("-k", type=_count, default=10, help="neighbours of each query (default 10)")
    parser.add_argument("--metric", choices=_METRICS, default=_METRICS[0], help=f"default {_METRICS[0]}")
    parser.add_argument("--engine", choices=_ENGINES, help="default: faiss where installed, else numpy")
    parser.add_argument("--device", help="search there, as in cuda:0; default: on the host")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the row numbers there (q x k)")
    parser.add_argument("--distances", type=Path, metavar="FILE", help="write the distances there (q x k)")
    parser.add_argument("--show", type=int, default=10, metavar="N", help="print so many queries (default 10)")


def _add_bench(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("suite", nargs="?", choices=list(SUITES), metavar="SUITE", help=", ".join(SUITES))
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="...", help="of the suite: see SUITE --help")


def _range(text: str) -> slice:
    start, colon, stop = text.partition(":")
    if not colon or not all(part.removeprefix("-").isdecimal() for part in (start, stop) if part):
        msg = f"{text!r}: write A:B, A: or :B"
        raise argparse.ArgumentTypeError(msg)
    return slice(*(int(part) if part else None for part in (start, stop)))


def _count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) < 2**31:
        msg = f"{text!r}: 1 or more, below 2**31"
        raise argparse.ArgumentTypeError(msg)
    return int(text)


#: Command -> what it does, the module that does it (in a function of the same name), and its arguments.
_COMMANDS: Final[dict[str, tuple[str, str, Callable[[argparse.ArgumentParser], None]]]] = {
    "demo": ("real sentence embeddings through every framework and into a search", "demo", _no_more),
    "info": ("what is installed, and which pairs of frameworks share memory", "info", _no_more),
    "plan": ("what bringing a file into a framework would copy, and why", "files", _add_plan),
    "convert": ("write a file anew in another format or data type", "files", _add_convert),
    "search": ("the nearest rows of one file for each row of another", "searching", _add_search),
    "bench": ("measure on this machine; without a suite, list them", "benchmarks", _add_bench),
}
