"""RowSource: rows by range and number, over processes, threads and files."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from matrix_interop.errors import ClosedError, FormatError, UnsupportedDtypeError
from matrix_interop.io import base, is_mapped, open_matrix, open_rows, row_source, save_matrix
from matrix_interop.io.base import Options, PlainRows, Rows
from matrix_interop.io.npy import Npy

ARRAY = np.arange(4000, dtype=np.float32).reshape(1000, 4)


@pytest.fixture(params=["fvecs", "npy", "h5", "parquet"])
def path(request, tmp_path):
    """1000 rows of 4 in several formats."""
    save_matrix(tmp_path / f"x.{request.param}", ARRAY)
    return tmp_path / f"x.{request.param}"


def test_what_was_read_outlives_the_block_and_the_reader_does_not(path):
    """T37: arrays stay; the closed source refuses everything, and closing twice is nothing."""
    with open_rows(path) as rows:
        read = rows.read(0, 2)
    rows.close()
    assert (read.tolist(), read.flags.writeable, is_mapped(read)) == (ARRAY[:2].tolist(), True, False)
    for use in (
        lambda: rows.read(0, 1),
        lambda: rows.take([0]),
        rows.blocks,
        rows.__enter__,
        lambda: pickle.dumps(rows),
    ):
        with pytest.raises(ClosedError, match="closed"):
            use()
    assert (rows.shape, "closed" in repr(rows)) == ((1000, 4), True)


def test_a_matrix_outlives_its_file(path):
    """T37: a mapped or read matrix needs neither the name nor an open reader."""
    m = open_matrix(path)
    path.unlink()
    np.testing.assert_array_equal(np.asarray(m), ARRAY)


@pytest.mark.parametrize("block", [1, 7, 1000, 5000, None])
def test_blocks_cover_all_rows_once(path, block):
    """In order, the last one shorter."""
    with open_rows(path) as rows:
        parts = list(rows.blocks(block))
    assert [len(part) for part in parts[:-1]] == [block or 1000] * (len(parts) - 1)
    np.testing.assert_array_equal(np.concatenate(parts), ARRAY, strict=True)


@pytest.mark.parametrize(
    "ids", [[], [3], [999, 0, 999, 500, 1], range(999, -1, -1), np.arange(0, 1000, 37, dtype=np.uint64)]
)
def test_take_keeps_order_and_repeats(path, ids):
    """As NumPy's fancy indexing, any integer type."""
    with open_rows(path) as rows:
        expected = ARRAY[np.asarray(ids, np.int64)]
        np.testing.assert_array_equal(rows.take(ids), expected, strict=True)


@pytest.mark.parametrize("ids", [[-1], [0, 1000], [2**63 - 1], np.array([2**64 - 1], np.uint64)])
def test_numbers_out_of_bounds_are_refused(path, ids):
    """Also -1, which marks a missing neighbour."""
    with open_rows(path) as rows, pytest.raises(IndexError, match="of a source of 1000 rows"):
        rows.take(ids)


@pytest.mark.parametrize("ids", [[0.5], [[0]], [True], ["0"]])
def test_numbers_that_are_none_are_refused(path, ids):
    """One dimension of integers."""
    with open_rows(path) as rows, pytest.raises(TypeError):
        rows.take(ids)


@pytest.mark.parametrize(("start", "stop"), [(-1, 2), (2, 1), (0, 1001), (1001, 1001)])
def test_ranges_out_of_bounds_are_refused(path, start, stop):
    """No wrapping round, no silent shortening."""
    with open_rows(path) as rows, pytest.raises(IndexError):
        rows.read(start, stop)


@pytest.mark.parametrize(
    ("ids", "spans"),
    [(range(0, 1000, 2), [63] * 15 + [39]), (range(0, 1000, 20), [1] * 50), ([5, 3, 4, 900, 890], [3, 11])],
)
def test_neighbours_are_read_in_one_go_and_no_run_is_longer_than_a_block(tmp_path, monkeypatch, ids, spans):
    """Rows at most 10 apart belong together; a block is 64 rows here."""
    read, done = PlainRows.read, []
    monkeypatch.setattr(base, "BLOCK_BYTES", 64 * 16)
    monkeypatch.setattr(PlainRows, "read", lambda self, a, b: (done.append(b - a), read(self, a, b))[1])
    save_matrix(tmp_path / "x.npy", ARRAY)
    file = PlainRows(tmp_path / "x.npy", Npy().describe(tmp_path / "x.npy", Options()))
    file.near = 10
    out = np.zeros((len(ids), 4), np.float32)
    Rows.gather(file, np.sort(ids), np.argsort(ids), out)
    file.close()
    np.testing.assert_array_equal(out, ARRAY[np.asarray(ids)], strict=True)
    assert done == spans


@pytest.mark.parametrize("dtype", ["f4", "bfloat16", "u1"])
def test_rows_far_apart_go_straight_to_their_places(tmp_path, dtype):
    """A few of many wide rows, in any order and repeated, as in the array."""
    array = np.arange(300 * 20_000).reshape(300, 20_000).astype(np.dtype(dtype))
    save_matrix(tmp_path / "x.npy", array)
    with open_rows(tmp_path / "x.npy") as rows:
        np.testing.assert_array_equal(rows.take([299, 0, 150, 0]), array[[299, 0, 150, 0]], strict=True)


def test_pickling_carries_paths_and_options_and_opens_anew(path):
    """A few hundred bytes, whatever the file's size; the working directory does not matter."""
    with open_rows(os.path.relpath(path)) as rows:
        data = pickle.dumps(rows)
    assert len(data) < 1000
    with pickle.loads(data) as again:
        np.testing.assert_array_equal(again.read(0, 1000), ARRAY, strict=True)


def test_a_file_that_changed_since_is_refused(tmp_path):
    """Other shape when unpickled, or when first read."""
    save_matrix(tmp_path / "x.npy", ARRAY)
    rows = open_rows(tmp_path / "x.npy")
    data = pickle.dumps(rows)
    save_matrix(tmp_path / "x.npy", ARRAY[:10])
    with pytest.raises(FormatError, match="has changed"):
        pickle.loads(data)
    with rows, pytest.raises(FormatError, match="has changed"):
        rows.read(0, 1)


FORKS = """
import os, sys
import numpy as np
from matrix_interop.io import open_rows

rows = open_rows(sys.argv[1])
expected = np.arange(4000, dtype=np.float32).reshape(1000, 4)
assert (rows.read(0, 1000) == expected).all()
children = []
for seed in range(4):
    child = os.fork()
    if child == 0:
        order = np.random.default_rng(seed)
        right = all((rows.take(ids) == expected[ids]).all() for ids in (order.permutation(1000) for _ in range(20)))
        rows.close()
        os._exit(0 if right else 1)
    children.append(child)
print([os.waitpid(child, 0)[1] for child in children], (rows.read(0, 1000) == expected).all())
"""


def test_forked_workers_read_from_files_of_their_own(path):
    """T60: 4 workers read all 1000 rows 20 times, in different orders, beside each other and the parent."""
    done = subprocess.run(
        [sys.executable, "-c", FORKS, path],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.stdout == "[0, 0, 0, 0] True\n"


def test_threads_take_turns(path):
    """Several threads, one source: every row right."""
    orders = [np.random.default_rng(seed).permutation(1000) for seed in range(8)]
    with open_rows(path) as rows, ThreadPoolExecutor(4) as pool:
        for ids, taken in zip(orders, pool.map(rows.take, orders), strict=True):
            np.testing.assert_array_equal(taken, ARRAY[ids], strict=True)


def test_a_list_of_paths_is_one_source(tmp_path, monkeypatch):
    """Different formats, an empty file among them; ranges and numbers across borders; few files open at a time."""
    monkeypatch.setattr(row_source, "_MAX_OPEN", 2)
    parts = {"a.fvecs": ARRAY[:100], "b.npy": ARRAY[100:100], "c.h5": ARRAY[100:450], "d.fbin": ARRAY[450:]}
    for name, part in parts.items():
        save_matrix(tmp_path / name, part)
    with open_rows([tmp_path / name for name in parts]) as rows:
        ids = [999, 0, 100, 99, 449, 450]
        assert (rows.shape, len(rows), rows.dtype) == ((1000, 4), 1000, np.float32)
        np.testing.assert_array_equal(rows.take(ids), ARRAY[ids], strict=True)
        np.testing.assert_array_equal(rows.read(50, 900), ARRAY[50:900], strict=True)
        np.testing.assert_array_equal(rows.read(450, 1000), ARRAY[450:], strict=True)
        assert (rows.read(1000, 1000).shape, len(rows._open)) == ((0, 4), 2)


def test_a_list_of_unlike_files_is_refused(tmp_path):
    """Another width, another dtype, no file at all."""
    for name, array in {"a": ARRAY, "b": ARRAY[:, :2], "c": ARRAY.astype("f8")}.items():
        save_matrix(tmp_path / f"{name}.npy", array)
    with pytest.raises(FormatError, match="one kind of row"):
        open_rows([tmp_path / "a.npy", tmp_path / "b.npy"])
    with pytest.raises(UnsupportedDtypeError, match="one kind of row"):
        open_rows([tmp_path / "a.npy", tmp_path / "c.npy"])
    with pytest.raises(ValueError, match="at least one path"):
        open_rows([])
