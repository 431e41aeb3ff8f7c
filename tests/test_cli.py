"""The command line: what each command prints and writes, and that it refuses in one line."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from matrix_interop import open_matrix, save_matrix
from matrix_interop.bench import SUITES
from matrix_interop.cli import files, main
from matrix_interop.cli import progress as progress_module
from matrix_interop.cli.progress import Progress
from matrix_interop.data import embeddings_path, question_texts, sentence_texts
from matrix_interop.transfer.progress import reporter

SOURCE = Path(__file__).resolve().parent.parent / "src"
ROWS = np.arange(12, dtype=np.float32).reshape(4, 3)


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    """A file of 4 x 3 float32, 0 to 11."""
    path = tmp_path / "rows.npy"
    np.save(path, ROWS)
    return path


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The line that a refused command prints; nothing else may come out."""
    assert main(arguments) == 2
    out, line = capsys.readouterr()
    assert (out, line.count("\n"), line.startswith("matrix-interop: ")) == ("", 1, True)
    return line.removeprefix("matrix-interop: ").rstrip("\n")


def in_process(arguments: list[str], path: Path | None = None) -> subprocess.CompletedProcess[str]:
    """The command in an interpreter of its own, with ``path`` first among the places to import from."""
    places = os.pathsep.join(str(place) for place in (path, SOURCE) if place is not None)
    command = [sys.executable, "-m", "matrix_interop", *arguments]
    return subprocess.run(
        command, env={**os.environ, "PYTHONPATH": places}, capture_output=True, text=True, check=False
    )


# demo and info --------------------------------------------------------------------------------------
def test_demo_answers_its_questions(capsys: pytest.CaptureFixture[str]) -> None:
    """It shares the file with every framework and prints three sentences below each question, the best first."""
    assert main(["demo"]) == 0
    lines = capsys.readouterr().out.splitlines()
    (shares,) = [line for line in lines if line.startswith("Matrix ")]
    assert ("shared" in shares, "copied" in shares) == (True, False)
    assert "Shared means: the same address, compared. Copies made in all these calls: 0." in lines
    start = lines.index("convert a string to a date")
    assert lines[start + 1] == "  0.41  Convert a date string to a time tuple."
    assert lines[start::4] == question_texts()
    hits = [line[8:].removesuffix("...") for line in lines[start:] if line.startswith("  ")]
    assert [hit for hit in hits if not any(text.startswith(hit) for text in sentence_texts())] == []


def test_info_survives_broken_installs(tmp_path: Path) -> None:
    """A framework and a library that do not import are reported as broken; the rest of the tables is there."""
    for name, error in (("torch", "OSError('libfoo.so: no such file')"), ("faiss", "ValueError('two\\nlines')")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(f"raise {error}\n", encoding="utf-8")
    for name in ("jax", "pyarrow", "cupy"):  # absent, so that the test is quick
        (tmp_path / f"{name}.py").write_text("raise ImportError('absent')\n", encoding="utf-8")
    ran = in_process(["info"], tmp_path)
    lines = ran.stdout.splitlines()
    assert (ran.returncode, ran.stderr) == (0, "")
    (torch,) = [line for line in lines if line.startswith("torch ")]
    assert "broken" in torch
    assert "libfoo.so: no such file" in torch
    (faiss,) = [line for line in lines if line.startswith("faiss ")]
    assert faiss.endswith("broken: ValueError: two lines")
    assert [line.split()[:2] for line in lines if line.startswith("numpy ")][-1] == ["numpy", "shared"]


def test_info_tells_what_to_install(tmp_path: Path) -> None:
    """Libraries that are not there come with the command that installs them."""
    for name in ("torch", "jax", "pyarrow", "faiss", "hnswlib", "usearch", "h5py", "safetensors"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('absent')\n", encoding="utf-8")
    ran = in_process(["info"], tmp_path)
    assert "pip install 'matrix-interop[cupy-cuda13]'" in ran.stdout
    assert "files that need none: bin, bvecs," in ran.stdout


# plan -----------------------------------------------------------------------------------------------
def test_plan_shows_what_is_copied_and_why(rows: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The matrix, then the plan as a table."""
    assert main(["plan", str(rows), "--to", "numpy", "--dtype", "float64"]) == 0
    matrix, plan, heading, step = capsys.readouterr().out.splitlines()
    assert matrix == "<HostMatrix 4 x 3 float32, C, numpy, read-only, cpu>, 48 bytes, mapped"
    assert plan.endswith("-> numpy float64 on cpu: copies 96 bytes")
    assert heading.split() == ["step", "bytes", "why"]
    assert step.split(maxsplit=2) == ["copy", "96", "float32 to float64 was asked for"]


def test_plan_of_a_mapped_file_shares(capsys: pytest.CaptureFixture[str]) -> None:
    """The shipped embeddings go into torch without a copy if they are opened copy on write."""
    assert main(["plan", str(embeddings_path()), "--to", "torch", "--mode", "c"]) == 0
    assert "torch float16 on cpu: shares memory" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["plan", "missing.npy"], "missing.npy: No such file or directory"),
        (["plan", "rows.npy", "--to", "tensorbow"], "unknown framework 'tensorbow'"),
        (["plan", "rows.npy", "--dtype", "float99"], "unknown data type 'float99'"),
        (["plan", "rows.npy::x"], "rows.npy: npy files know no dataset='x'"),
        (["convert", "rows.npy", "out.xyz"], "out.xyz: the suffix '.xyz' tells no format"),
        (["convert", "rows.npy", "out.u8bin"], "a .u8bin file holds uint8, not float32"),
        (["convert", "rows.npy", "none/out.npy"], "none/out.npy: No such file or directory (a new file in "),
        (["search", "rows.npy", "other.npy"], "queries have 2 columns"),
        (["search", "rows.npy", "rows.npy", "--out", "ids.xyz"], "ids.xyz: the suffix '.xyz' tells no format"),
        (["search", "rows.npy", "rows.npy", "--out", "ids.fvecs"], "a .fvecs file holds float32, not int64"),
        (["search", "rows.npy", "rows.npy", "--distances", "d.ivecs"], "a .ivecs file holds int32, not float32"),
        (["search", "rows.npy", "rows.npy", "--out", "none/ids.npy"], "none: No such file or directory"),
        (["search", "rows.npy", "rows.npy", "--out", "o.npy", "--distances", "./o.npy"], "o.npy is both --out and"),
        (["search", "rows.npy", "rows.npy", "--engine", "numpy", "--device", "cuda"], "engine 'numpy' searches on the"),
    ],
)
def test_refusals_take_one_line(
    arguments: list[str],
    line: str,
    rows: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Bad files, names, types and shapes: exit status 2, one line on standard error, nothing written."""
    monkeypatch.chdir(rows.parent)
    np.save("other.npy", np.zeros((1, 2), np.float32))
    before = sorted(rows.parent.iterdir())
    assert refused(arguments, capsys).startswith(line)
    assert sorted(rows.parent.iterdir()) == before


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["fly"],
        ["plan"],
        ["search", "a", "b", "-k", "0"],
        ["search", "a", "b", "-k", str(2**62)],
        ["convert", "a", "b", "--rows", "5"],
        ["bench", "nosuch"],
    ],
)
def test_wrong_usage_exits_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """argparse prints the usage."""
    with pytest.raises(SystemExit) as exit_:
        main(arguments)
    assert exit_.value.code == 2
    assert capsys.readouterr().err.startswith("usage: matrix-interop")


# convert --------------------------------------------------------------------------------------------
def test_convert_changes_format_dtype_and_rows(rows: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rows 1 and 2 as bytes in an .u8bin file."""
    out = rows.with_name("out.u8bin")
    assert main(["convert", str(rows), str(out), "--dtype", "uint8", "--rows", "1:-1"]) == 0
    np.testing.assert_array_equal(np.asarray(open_matrix(out)), ROWS[1:3].astype(np.uint8))
    assert capsys.readouterr().out == f"{out}: 2 x 3 uint8, 14 bytes\n"


def test_convert_normalizes_block_by_block(tmp_path: Path) -> None:
    """Integers become float32 rows of length 1, over more than one block; a row of zeros stays."""
    wide = np.random.default_rng(0).integers(-9, 9, (40_000, 70), dtype=np.int32)
    wide[7] = 0
    np.save(tmp_path / "wide.npy", wide)
    assert main(["convert", str(tmp_path / "wide.npy"), str(tmp_path / "out.fvecs"), "--normalize"]) == 0
    found = np.asarray(open_matrix(tmp_path / "out.fvecs"))
    lengths = np.linalg.norm(wide, axis=1, keepdims=True)
    np.testing.assert_allclose(found, wide / np.where(lengths, lengths, 1), rtol=1e-6)


def test_convert_onto_itself(rows: Path) -> None:
    """Reading goes on from the old file until the new one, whole, takes its name."""
    assert main(["convert", str(rows), str(rows), "--dtype", "float16"]) == 0
    np.testing.assert_array_equal(np.load(rows), ROWS.astype(np.float16))


@pytest.mark.parametrize(
    ("value", "dtype"), [(300, "uint8"), (-1, "uint8"), (0.5, "int32"), (np.nan, "int8"), (1e5, "float16")]
)
def test_convert_refuses_what_does_not_fit(
    value: float, dtype: str, rows: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is cut, wrapped or made infinite: the line names the row, and the old file stays."""
    array = ROWS.copy()
    array[2, 1] = value
    np.save(rows, array)
    out = rows.with_name("out.npy")
    out.write_bytes(b"old")
    line = refused(["convert", str(rows), str(out), "--dtype", dtype], capsys)
    assert line == f"row 2 holds {array[2, 1]} in column 1, which {dtype} cannot hold"
    assert out.read_bytes() == b"old"
    assert sorted(rows.parent.iterdir()) == [out, rows]


def test_convert_loses_no_imaginary_part(rows: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Complex rows become real ones where nothing but zeros is left out, rounded as any others."""
    out = rows.with_name("out.npy")
    np.save(rows, ROWS * (0.1 + 0j))
    assert main(["convert", str(rows), str(out), "--dtype", "float16"]) == 0
    np.testing.assert_array_equal(np.load(out), (ROWS * 0.1).astype(np.float16))
    np.save(rows, ROWS * 1j)
    capsys.readouterr()
    assert refused(["convert", str(rows), str(out), "--dtype", "float32"], capsys).startswith(
        "row 0 holds 1j in column 1"
    )


def test_colons_in_a_name(tmp_path: Path) -> None:
    """A file that is there is meant as a whole."""
    np.save(tmp_path / "a::b.npy", ROWS)
    assert main(["convert", f"{tmp_path / 'a::b.npy'}", str(tmp_path / "out.npy")]) == 0
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), ROWS)


def test_archives_are_read_without_a_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The first line of the plan says that an .npz is not mapped."""
    np.savez(tmp_path / "x.npz", a=ROWS)
    assert main(["plan", str(tmp_path / "x.npz")]) == 0
    out, err = capsys.readouterr()
    assert (out.splitlines()[0].rpartition(", ")[2], err) == ("read into memory", "")


def test_convert_reads_a_named_tensor(tmp_path: Path) -> None:
    """FILE::NAME is one array of an .npz."""
    np.savez(tmp_path / "two.npz", a=ROWS, b=ROWS + 1)
    assert main(["convert", f"{tmp_path / 'two.npz'}::b", str(tmp_path / "out.npy")]) == 0
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), ROWS + 1)


# search ---------------------------------------------------------------------------------------------
def test_search_prints_and_writes_neighbours(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The nearest rows with their distances; all of them in the files, missing ones as -1 and infinity."""
    base, queries, ids, distances = (tmp_path / name for name in ("b.fvecs", "q.npy", "ids.IVECS", "d.npy"))
    save_matrix(base, ROWS)
    np.save(queries, ROWS[[3, 0]])
    arguments = ["search", str(base), str(queries), "-k", "5", "--engine", "numpy", "--show", "1"]
    assert main([*arguments, "--out", str(ids), "--distances", str(distances)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("2 queries in 4 rows of 3 values, sqeuclidean: ")
    assert lines[3] == "0      3 (0)  2 (27)  1 (108)  0 (243)"
    assert lines[4] == "... and 1 more"
    np.testing.assert_array_equal(np.asarray(open_matrix(ids)), [[3, 2, 1, 0, -1], [0, 1, 2, 3, -1]])
    np.testing.assert_array_equal(np.load(distances), [[0, 27, 108, 243, np.inf]] * 2)


# bench and the process ------------------------------------------------------------------------------
def test_bench_lists_the_suites(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a suite each is listed with what it measures."""
    assert main(["bench"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(SUITES)
    assert [line for line in lines if len(line.split()) < 5] == []


def test_bench_passes_arguments_to_the_suite(capsys: pytest.CaptureFixture[str]) -> None:
    """What stands after the suite's name is its own."""
    with pytest.raises(SystemExit) as exit_:
        main(["bench", "exchange", "--help"])
    assert exit_.value.code == 0
    assert capsys.readouterr().out.startswith("usage: matrix-interop bench exchange")


def test_a_closed_pipe_is_no_error(rows: Path) -> None:
    """`matrix-interop plan FILE | true` ends quietly."""
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "matrix_interop", "plan", str(rows)]
    ran = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": str(SOURCE)}, stdout=write, stderr=subprocess.PIPE, check=False
    )
    os.close(write)
    assert (ran.returncode, ran.stderr) == (141, b"")


def test_a_closed_standard_output_is_no_error(rows: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`matrix-interop plan FILE >&-`: Python has no stream then."""
    monkeypatch.setattr(sys, "stdout", None)
    assert main(["plan", str(rows)]) == 0


def test_help_loads_no_framework() -> None:
    """The parser alone is loaded: no framework, no search library."""
    code = "import sys\nfrom matrix_interop.cli import main\ntry: main(['--help'])\nexcept SystemExit: pass\n"
    code += "print(sorted({'torch', 'jax', 'pyarrow', 'faiss', 'matrix_interop.search'} & set(sys.modules)))"
    ran = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.splitlines()[-1] == "[]"


# progress -------------------------------------------------------------------------------------------
class Terminal(io.StringIO):
    """A text stream that says it is a terminal, and tells when something was written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = threading.Event()

    def isatty(self) -> bool:
        return True

    def flush(self) -> None:
        self.written.set()


def on_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Standard error, on which progress shows at once."""
    made = Terminal()
    monkeypatch.setattr("sys.stderr", made)
    monkeypatch.setattr(progress_module, "_AFTER", 0.0)
    return made


def test_progress_is_one_line_that_goes_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is there before the first row is done, and the end takes it away."""
    terminal = on_terminal(monkeypatch)
    with Progress("convert", 4000):
        assert terminal.written.wait(60)
    shown = "convert: 0 of 4,000 rows"
    assert terminal.getvalue() in (f"\r{shown}" * turns + f"\r{' ' * len(shown)}\r" for turns in range(1, 100))


def test_progress_says_how_long_it_will_take(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the rows done so far; a long move between host and device stands beside them until it is over."""
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    progress = Progress("search", 4000)
    now[0] = 2.0
    progress.advance(1000)
    assert progress.line() == "search: 1,000 of 4,000 rows, 25%, about 6 s left"
    with progress:
        tell = reporter(1 << 40)
        assert tell is not None
        tell(3 << 20, 9 << 20)
        assert progress.line().endswith("6 s left; 3 of 9 MiB between host and device")
        tell(9 << 20, 9 << 20)
        assert progress.line().endswith("6 s left")
    assert reporter(1 << 40) is None


def test_progress_is_silent_in_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long it takes, and where there is no standard error at all."""
    monkeypatch.setattr(progress_module, "_AFTER", 0.0)
    for stream in (io.StringIO(), None):
        monkeypatch.setattr("sys.stderr", stream)
        with Progress("convert", 2) as progress:
            progress.advance(2)
            assert progress._writer is None
        assert stream is None or stream.getvalue() == ""


FORMATS = ("npy", "npz", "fvecs", "fbin", "raw", "safetensors", "hdf5", "arrow", "arrows", "feather", "parquet")


@pytest.mark.parametrize("suffix", FORMATS)
def test_convert_counts_every_row_of_every_format(
    suffix: str, rows: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """To the format and back: the line is there while it takes long, and ends at all rows."""
    needs = {"safetensors": "safetensors", "hdf5": "h5py", "arrow": "pyarrow", "arrows": "pyarrow"}
    pytest.importorskip(needs.get(suffix, "pyarrow" if suffix in ("feather", "parquet") else "numpy"))
    made: list[Progress] = []

    class Slow(Progress):
        """Rows arrive only once the line was seen."""

        def advance(self, rows: int) -> None:
            made.append(self)
            assert terminal.written.wait(60)
            super().advance(rows)

    monkeypatch.setattr(files, "Progress", Slow)
    terminal = on_terminal(monkeypatch)
    there = rows.with_name(f"there.{suffix}")
    assert main(["convert", str(rows), str(there)]) == 0
    if suffix != "raw":  # which cannot say what it holds
        assert main(["convert", str(there), str(rows.with_name("back.npy"))]) == 0
        np.testing.assert_array_equal(np.load(rows.with_name("back.npy")), ROWS)
    assert [progress._done for progress in dict.fromkeys(made)] == [4] * (1 if suffix == "raw" else 2)
    assert terminal.getvalue().count("convert: 0 of 4 rows") >= len(dict.fromkeys(made))
    assert terminal.getvalue().endswith(" \r")
    assert "4 x 3 float32" in capsys.readouterr().out


@pytest.mark.parametrize("count", [4, 0])
def test_search_counts_every_row(
    count: int, rows: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The base is read once; an empty one has nothing to count."""
    np.save(rows.with_name("base.npy"), ROWS[:count])
    counted: list[int] = []
    monkeypatch.setattr(Progress, "advance", lambda _, rows: counted.append(rows))
    assert main(["search", str(rows.with_name("base.npy")), str(rows), "-k", "1", "--engine", "numpy"]) == 0
    assert sum(counted) == count
    assert capsys.readouterr().err == ""


def test_search_on_a_device_that_is_not_there(rows: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--device is refused in one line."""
    assert "toaster:0" in refused(["search", str(rows), str(rows), "--device", "toaster:0"], capsys)
