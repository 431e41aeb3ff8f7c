"""Modes, mappings, options, and which format a file has."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from matrix_interop import HostMatrix
from matrix_interop.errors import FormatError, FrameworkNotInstalledError, UnsupportedDtypeError
from matrix_interop.io import Format, Layout, is_mapped, open_matrix, open_rows, registry, save_matrix

ONES = np.ones((20, 4), np.float32)


def test_work_on_a_read_only_map_makes_new_memory(tmp_path):
    """T02: normalising gives a new matrix; writing is refused; the file and its map stay as they were."""
    save_matrix(tmp_path / "x.npy", ONES)
    m = open_matrix(tmp_path / "x.npy")
    assert np.asarray(m[0:12].normalized()).tolist() == [[0.5] * 4] * 12
    with pytest.raises(ValueError, match="read-only"):
        np.asarray(m)[0, 0] = 2
    assert (m.readonly, np.asarray(m).tolist(), np.load(tmp_path / "x.npy").tolist()) == (
        True,
        ONES.tolist(),
        ONES.tolist(),
    )


@pytest.mark.parametrize(("mode", "readonly", "written"), [("c", False, 1.0), ("r+", False, 7.0)])
def test_modes_say_where_writes_go(tmp_path, mode, readonly, written):
    """Mode "c": into memory of one's own; "r+": into the file."""
    save_matrix(tmp_path / "x.fvecs", ONES)
    m = open_matrix(tmp_path / "x.fvecs", mode=mode)
    np.asarray(m)[19, 3] = 7
    assert (m.readonly, np.asarray(m)[19, 3], np.asarray(open_matrix(tmp_path / "x.fvecs"))[19, 3]) == (
        readonly,
        7,
        written,
    )


def test_writes_that_could_not_reach_the_file_are_refused(tmp_path):
    """Mode "r+" without a mapping, and modes that are none."""
    save_matrix(tmp_path / "x.parquet", ONES)
    save_matrix(tmp_path / "x.npy", ONES)
    for name, keywords in {"x.parquet": {}, "x.npy": {"mmap": False}}.items():
        with pytest.raises(FormatError, match="needs a mapping"):
            open_matrix(tmp_path / name, mode="r+", **keywords)
    with pytest.raises(ValueError, match="mode='w'"):
        open_matrix(tmp_path / "x.npy", mode="w")


def test_a_mapping_in_use_cannot_be_closed(tmp_path):
    """T36: the caller's mmap refuses while a matrix lies over it; is_mapped sees it through slices."""
    (tmp_path / "x").write_bytes(np.arange(10, dtype=np.float32).tobytes())
    with (tmp_path / "x").open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapping:
        m = HostMatrix.from_tensor(np.frombuffer(mapping, np.float32).reshape(2, 5))
        assert is_mapped(m[1:2])
        with pytest.raises(BufferError):
            mapping.close()
        assert np.asarray(m).tolist() == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
        del m


def test_is_mapped_is_false_for_ordinary_memory():
    """Arrays, matrices and views of them."""
    assert [is_mapped(x) for x in (ONES, HostMatrix.from_tensor(ONES), ONES[2:])] == [False] * 3


def test_what_the_caller_says_is_compared_with_the_file(tmp_path):
    """dtype, dim, dataset and columns that the file or its format does not have."""
    save_matrix(tmp_path / "x.npy", ONES)
    assert open_matrix(tmp_path / "x.npy", dtype="float32", dim=4).shape == (20, 4)
    with pytest.raises(UnsupportedDtypeError, match="astype"):
        open_matrix(tmp_path / "x.npy", dtype="float64")
    with pytest.raises(FormatError, match="4 values"):
        open_rows(tmp_path / "x.npy", dim=5)
    for keywords in ({"dataset": "train"}, {"columns": "vector"}):
        with pytest.raises(FormatError, match="know no"):
            open_matrix(tmp_path / "x.npy", **keywords)
    for keywords in ({"columns": []}, {"dim": -1}):
        with pytest.raises(ValueError, match="at least one column"):
            open_matrix(tmp_path / "x.npy", **keywords)


@pytest.mark.parametrize("dim", ["4", 4.0, None])
def test_dim_is_a_whole_number(tmp_path, dim):
    """Anything else is refused before the file is read."""
    (tmp_path / "x.raw").write_bytes(bytes(32))
    with pytest.raises(TypeError if dim is not None else FormatError):
        open_matrix(tmp_path / "x.raw", dtype="f4", dim=dim)


def test_a_pipe_is_refused_at_once(tmp_path):
    """Opening it would wait for a writer for ever."""
    os.mkfifo(tmp_path / "x.npy")
    for act in (open_matrix, open_rows, lambda path: open_matrix(path, format="fbin")):
        with pytest.raises(FormatError, match="is a pipe"):
            act(tmp_path / "x.npy")


@pytest.mark.parametrize("suffix", ["npz", "h5", "parquet", "arrow", "safetensors"])
@pytest.mark.parametrize("name", ["", "/", "a\0b", "\udcff", "__metadata__", 5, None])
def test_names_that_not_every_format_can_hold_are_refused(tmp_path, suffix, name):
    """Before the disk is touched."""
    with pytest.raises(ValueError, match="dataset="):
        save_matrix(tmp_path / f"x.{suffix}", ONES, dataset=name)
    assert list(tmp_path.iterdir()) == []


def test_a_format_that_nobody_knows_is_refused_with_the_list(tmp_path):
    """By suffix and by name, reading and writing; a missing file is FileNotFoundError as ever."""
    (tmp_path / "x.foo").write_bytes(b"abc")
    for act in (
        lambda: open_matrix(tmp_path / "x.foo"),
        lambda: open_matrix(tmp_path / "x.foo", format="foo"),
        lambda: open_matrix(tmp_path / "x.foo", format=5),
        lambda: save_matrix(tmp_path / "y", ONES),
    ):
        with pytest.raises(FormatError, match=r"arrow, arrows, bin, bvecs.*u8bin"):
            act()
    with pytest.raises(FileNotFoundError):
        open_matrix(tmp_path / "none.npy")
    assert [file.name for file in tmp_path.iterdir()] == ["x.foo"]


def test_the_format_can_be_given_with_a_dot_and_in_capitals(tmp_path):
    """Thus ".FBIN" is fbin, as a name and as a suffix."""
    save_matrix(tmp_path / "x", ONES, format=".FBIN")
    (tmp_path / "x").rename(tmp_path / "x.FBIN")
    assert open_matrix(tmp_path / "x.FBIN").shape == (20, 4)


class Toy(Format):
    """Two bytes of counts, then bytes."""

    name = "toy"

    def describe(self, path, options):
        """See Format."""
        n, d = path.read_bytes()[:2]
        return Layout((n, d), np.dtype("u1"), 2, (d, 1))

    def storage(self, shape, dtype):
        """See Format."""
        return np.dtype("u1")

    def write(self, file, rows, dtype, dataset):
        """See Format."""
        file.write(bytes(rows.shape) + rows.read(0, rows.shape[0]).astype(dtype).tobytes())


def test_other_packages_add_formats_and_replace_none(tmp_path, monkeypatch):
    """An entry point named "toy" serves .toy; one named "npy" is left aside."""
    entries = [SimpleNamespace(name=name, load=Toy) for name in ("toy", "npy")]
    monkeypatch.setattr(registry, "entry_points", lambda group: entries)
    registry._added.cache_clear()
    try:
        save_matrix(tmp_path / "x.toy", ONES)
        save_matrix(tmp_path / "x.npy", ONES)
        m = open_matrix(tmp_path / "x.toy")
        assert (m.shape, is_mapped(m), np.load(tmp_path / "x.npy").dtype) == ((20, 4), True, np.float32)
        with open_rows(tmp_path / "x.toy") as rows:
            assert rows.take([19]).tolist() == [[1, 1, 1, 1]]
    finally:
        registry._added.cache_clear()


def test_an_absent_library_gives_the_command_that_installs_it(tmp_path, monkeypatch):
    """h5py, pyarrow: named with the extra; nothing is written."""
    for name in ("h5py", "pyarrow", "pyarrow.parquet"):
        monkeypatch.setitem(sys.modules, name, None)
    for suffix, extra in {"h5": "h5py", "parquet": "pyarrow", "arrow": "pyarrow"}.items():
        with pytest.raises(FrameworkNotInstalledError, match=rf"pip install 'matrix-interop\[{extra}\]'"):
            save_matrix(tmp_path / f"x.{suffix}", ONES)
    assert list(tmp_path.iterdir()) == []


def test_formats_load_no_library_that_they_do_not_need(tmp_path):
    """Opening .npy and .fvecs imports neither h5py nor pyarrow nor safetensors."""
    save_matrix(tmp_path / "x.npy", ONES)
    save_matrix(tmp_path / "x.fvecs", ONES)
    code = (
        "import sys; from matrix_interop.io import open_matrix; [open_matrix(path) for path in sys.argv[1:]];"
        "print(sorted({'h5py', 'pyarrow', 'safetensors', 'torch'} & set(sys.modules)))"
    )
    command = [sys.executable, "-c", code, tmp_path / "x.npy", tmp_path / "x.fvecs"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    assert subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout == "[]\n"
