"""Saving: the old file or the new one, whole, whatever happens in between."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest

from matrix_interop.errors import FormatError, UnsupportedLayoutError
from matrix_interop.io import open_matrix, save_matrix, writing
from matrix_interop.io.writing import replacing

ONES = np.ones((20, 4), np.float32)


class Interrupted(BaseException):
    """As KeyboardInterrupt: not an Exception."""


@pytest.mark.parametrize("error", [OSError, Interrupted])
@pytest.mark.parametrize("suffix", ["npy", "npz", "fvecs", "fbin", "safetensors", "h5", "parquet", "arrow"])
def test_an_error_in_the_middle_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch, suffix, error):
    """The disk is full, or the user loses patience, after the first block."""
    path = tmp_path / f"x.{suffix}"
    save_matrix(path, ONES)
    old = path.read_bytes()
    real = writing.np.ascontiguousarray
    calls = []

    def failing(array, dtype):
        calls.append(array)
        if len(calls) == 2:
            raise error
        return real(array, dtype)

    monkeypatch.setattr(writing, "BLOCK_BYTES", 64)
    monkeypatch.setattr(writing.np, "ascontiguousarray", failing)
    with pytest.raises(error):
        save_matrix(path, np.asfortranarray(2 * ONES))
    assert ([file.name for file in tmp_path.iterdir()], path.read_bytes()) == ([path.name], old)


KILLED = """
import os, signal, sys
import matrix_interop.io.writing as writing
from matrix_interop.io import open_rows, save_matrix

writing.BLOCK_BYTES = 64
with open_rows(sys.argv[1]) as rows:
    real = type(rows).read
    type(rows).read = lambda self, a, b: os.kill(os.getpid(), signal.SIGKILL) if a else real(self, a, b)
    save_matrix(sys.argv[1], rows)
"""


def test_a_killed_process_leaves_the_old_file(tmp_path):
    """SIGKILL after the first block: the name still means the old, whole file."""
    path = tmp_path / "x.npy"
    save_matrix(path, ONES)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", KILLED, path], check=False, env=environment)
    assert (done.returncode, np.asarray(open_matrix(path)).tolist()) == (-signal.SIGKILL, ONES.tolist())


def test_a_file_can_be_saved_over_the_one_it_is_mapped_from(tmp_path):
    """The map keeps the old file; the name means the new one."""
    path = tmp_path / "x.npy"
    save_matrix(path, np.arange(12).reshape(3, 4))
    m = open_matrix(path)
    save_matrix(path, m[::-1])
    assert (
        np.asarray(open_matrix(path)).tolist()
        == np.asarray(m)[::-1].tolist()
        == [[8, 9, 10, 11], [4, 5, 6, 7], [0, 1, 2, 3]]
    )


def test_the_bytes_are_on_the_disk_before_the_name_is(tmp_path, monkeypatch):
    """fsync of the file, then the new name, then fsync of the folder."""
    done = []
    real, replace = os.fsync, writing.Path.replace
    monkeypatch.setattr(os, "fsync", lambda fd: (done.append("fsync"), real(fd))[1])
    monkeypatch.setattr(
        writing.Path, "replace", lambda self, target: (done.append("replace"), replace(self, target))[1]
    )
    save_matrix(tmp_path / "x.npy", ONES)
    assert done == ["fsync", "replace", "fsync"]


def test_links_and_permissions_stay(tmp_path):
    """A link still points where it did; the replaced file keeps its mode; a new one follows the umask."""
    target = tmp_path / "target.npy"
    save_matrix(target, ONES)
    assert target.stat().st_mode & 0o777 == 0o666 & ~current_umask()
    target.chmod(0o640)
    (tmp_path / "link.npy").symlink_to(target)
    save_matrix(tmp_path / "link.npy", 2 * ONES)
    assert ((tmp_path / "link.npy").is_symlink(), target.stat().st_mode & 0o777, np.load(target)[0, 0]) == (
        True,
        0o640,
        2,
    )


def current_umask():
    """The umask, which can only be read by setting it."""
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_only_regular_files_are_replaced(tmp_path):
    """A folder, and a device, stay what they are."""
    (tmp_path / "x.npy").mkdir()
    for path in (tmp_path / "x.npy", writing.Path("/dev/null")):
        with pytest.raises(FileExistsError, match="not a regular file"), replacing(path):
            pass


def test_a_folder_that_is_not_there_is_named(tmp_path):
    """With the file that was meant, not the temporary one."""
    with pytest.raises(FileNotFoundError, match=r"a new file in .*none.*x\.npy") as caught:
        save_matrix(tmp_path / "none" / "x.npy", ONES)
    assert caught.value.filename == str(tmp_path / "none" / "x.npy")


@pytest.mark.parametrize("suffix", ["npy", "npz", "fvecs", "fbin", "safetensors", "h5", "arrow"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_saving_needs_no_second_copy(tmp_path, suffix, order):
    """64 MiB are written with less than 40 MiB of new memory, whatever the order: blocks of 8 MiB."""
    array = np.ones((1 << 17, 128), np.float32, order=order)
    tracemalloc.start()
    try:
        save_matrix(tmp_path / f"x.{suffix}", array)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 40 << 20


def test_what_cannot_be_saved_says_what_can(tmp_path):
    """Arguments in the other order, and rows of which nobody knows how many there are."""
    path = tmp_path / "x.npy"
    with pytest.raises(TypeError, match="a path comes first"):
        save_matrix(ONES, path)
    with pytest.raises(UnsupportedLayoutError, match="MatrixBuilder"):
        save_matrix(path, iter([ONES]))
    assert not path.exists()


@pytest.mark.parametrize("suffix", ["npy", "fvecs"])
def test_a_mapped_file_that_was_cut_is_noticed_before_its_rows_are_read(tmp_path, suffix):
    """Touching what is gone would end the process, or say no more than a bad address."""
    save_matrix(tmp_path / "x.npy", np.ones((4000, 64), np.float32))
    m = open_matrix(tmp_path / "x.npy")
    os.truncate(tmp_path / "x.npy", 5000)
    with pytest.raises(FormatError, match=r"x\.npy: 5000 bytes are left"):
        save_matrix(tmp_path / f"y.{suffix}", m)
    assert not (tmp_path / f"y.{suffix}").exists()
