"""``demo``: real sentence embeddings from a file into one `Matrix`, every framework, and a search."""

from __future__ import annotations

import argparse
import shutil
import textwrap
import time
from typing import Any

import numpy as np

from matrix_interop.bench.pairs import pair_table, targets
from matrix_interop.cli.info import state_of
from matrix_interop.data import embeddings_path, question_texts, questions_path, sentence_texts
from matrix_interop.errors import FrameworkNotInstalledError
from matrix_interop.frameworks.registry import frameworks
from matrix_interop.io import is_mapped, open_matrix
from matrix_interop.matrix import HostMatrix
from matrix_interop.search import build, knn
from matrix_interop.tracking import track_copies

__all__ = ["demo"]

_NEIGHBOURS = 3


def demo(_: argparse.Namespace) -> None:
    """Print every step with the code that does it."""
    m = _from_file()
    _into_frameworks(m)
    _search(m)


def _from_file() -> HostMatrix:
    path = embeddings_path()
    _say("1. A file becomes a Matrix", f'm = open_matrix("{path.name}", mode="c")')
    m = open_matrix(path, mode="c")  # copy on write: writes stay in memory, so that every framework may share it
    how = "mapped: nothing was read yet" if is_mapped(m) else "read into memory"
    print(f"{m!r}\n{len(m)} sentences from docstrings of Python libraries as vectors, {m.nbytes:,} bytes, {how}.")
    return m


def _into_frameworks(m: HostMatrix) -> None:
    _say("2. One Matrix in every framework on this machine", 'm.to_tensor("torch")')
    found = frameworks(load=True)
    with track_copies() as log:
        tried = targets(m, found)
    print(pair_table(tried))
    print(f"Shared means: the same address, compared. Copies made in all these calls: {len(log)}.")
    for one in found:
        if not one.installed or one.problem is not None:
            print(state_of(one))
    name = next((pair.target for pair in tried if pair.target == "torch"), "numpy")
    _say("3. A plan says beforehand what a conversion costs", f'm.plan("{name}"); m.plan("{name}", dtype="float32")')
    print(m.plan(name))
    print(m.plan(name, dtype="float32"))


def _search(m: HostMatrix) -> None:
    _say("4. Search", f"knn(questions, m, k={_NEIGHBOURS})")
    questions = open_matrix(questions_path())
    began = time.perf_counter()
    knn(questions, m, _NEIGHBOURS)
    first = _milliseconds(began)
    began = time.perf_counter()
    exact = knn(questions, m, _NEIGHBOURS)
    again = _milliseconds(began)
    print(f"Exact search, {len(questions)} questions: {again}; the first time, with the import of its engine, {first}.")
    try:
        began = time.perf_counter()
        index = build(m, "faiss")
        built = _milliseconds(began)
        began = time.perf_counter()
        ids = np.asarray(index.search(questions, _NEIGHBOURS).ids)
        agree = "the same sentences" if np.array_equal(ids, np.asarray(exact.ids)) else "other sentences"
        print(f'build(m, "faiss"): {built}; its search: {_milliseconds(began)}, {agree}.')
    except FrameworkNotInstalledError as error:
        print(error)
    print()
    _print_hits(exact)


def _print_hits(found: Any) -> None:
    sentences = sentence_texts()
    width = min(shutil.get_terminal_size().columns, 120) - len("  0.00  ")
    print("question, and below it the sentences found, with their squared distances")
    for question, ids, distances in zip(question_texts(), found.ids.tolist(), found.distances.tolist(), strict=True):
        print(question)
        for row, distance in zip(ids, distances, strict=True):
            print(f"  {distance:.2f}  {textwrap.shorten(sentences[row], width, placeholder='...')}")


def _say(heading: str, code: str) -> None:
    print(f"\n{heading}\n{'=' * len(heading)}\n>>> {code}")


def _milliseconds(began: float) -> str:
    return f"{(time.perf_counter() - began) * 1e3:.1f} ms"
