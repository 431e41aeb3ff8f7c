"""Parquet and Arrow IPC: columns as rows."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from matrix_interop.errors import FormatError, UnsupportedDtypeError, UnsupportedLayoutError
from matrix_interop.io import is_mapped, open_matrix, open_rows

ROWS = np.arange(30, dtype=np.float32).reshape(10, 3)
TABLE = pa.table(
    {
        "id": pa.array(range(10), pa.int32()),
        "vector": pa.array(ROWS.tolist(), pa.list_(pa.float32(), 3)),
        "ragged": pa.array([[0.0] * (i % 2 + 1) for i in range(10)], pa.list_(pa.float32())),
        "even": pa.array(ROWS.tolist(), pa.list_(pa.float32())),
        "x": pa.array(ROWS[:, 0]),
        "y": pa.array(ROWS[:, 1]),
        "text": pa.array(["a"] * 10),
    }
)


def write(path, table, rows_a_batch=4):
    """A file of several row groups or batches, a shorter one at the end."""
    if path.suffix == ".parquet":
        pq.write_table(table, path, row_group_size=rows_a_batch)
    else:
        new = pa.ipc.new_stream if path.suffix == ".arrows" else pa.ipc.new_file
        with new(path, table.schema) as writer:
            writer.write_table(table, max_chunksize=rows_a_batch)
    return path


@pytest.fixture(params=["parquet", "arrow", "arrows"])
def path(request, tmp_path):
    """The table as a file of each format."""
    return write(tmp_path / f"x.{request.param}", TABLE)


def test_the_only_fixed_size_list_needs_no_name(path):
    """Over all row groups and batches, in ranges, in any order."""
    np.testing.assert_array_equal(np.asarray(open_matrix(path)), ROWS, strict=True)
    with open_rows(path, columns="vector") as rows:
        np.testing.assert_array_equal(rows.read(3, 9), ROWS[3:9], strict=True)
        np.testing.assert_array_equal(rows.take([9, 0, 5, 9]), ROWS[[9, 0, 5, 9]], strict=True)
        np.testing.assert_array_equal(np.concatenate(list(rows.blocks(3))), ROWS, strict=True)


def test_numbers_stand_side_by_side_and_lists_take_the_length_given(path):
    """Several columns make up a row; lists of any length need dim= and keep to it."""
    np.testing.assert_array_equal(np.asarray(open_matrix(path, columns=["y", "x"])), ROWS[:, [1, 0]], strict=True)
    np.testing.assert_array_equal(np.asarray(open_matrix(path, columns="even", dim=3)), ROWS, strict=True)
    with pytest.raises(FormatError, match="dim="):
        open_matrix(path, columns="even")
    with pytest.raises(FormatError, match="row 1 of column 'ragged' has 2 values, dim=1"):
        open_matrix(path, columns="ragged", dim=1)


def test_wrong_columns_are_named(path):
    """Unknown names, texts, and types that differ."""
    with pytest.raises(FormatError, match=r"no column is named 'z'; it has \['id', 'vector'"):
        open_matrix(path, columns="z")
    for columns in ("text", ["id", "x"]):
        with pytest.raises(UnsupportedDtypeError):
            open_matrix(path, columns=columns)


@pytest.mark.parametrize("values", [[[1, 2], None], [[1, None], [2, 3]]])
@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_nulls_are_refused(tmp_path, suffix, values):
    """A missing row and a missing value: no number can stand for them unasked."""
    table = pa.table({"vector": pa.array(values, pa.list_(pa.float32(), 2))})
    with pytest.raises(UnsupportedLayoutError, match="null"):
        open_matrix(write(tmp_path / f"x.{suffix}", table))


def test_one_plain_batch_is_mapped(tmp_path):
    """One batch yes; two batches, or compressed ones, no: all read the same."""
    write(tmp_path / "one.arrow", TABLE, 10)
    write(tmp_path / "two.arrow", TABLE, 5)
    with pa.ipc.new_file(
        tmp_path / "zip.arrow", TABLE.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")
    ) as out:
        out.write_table(TABLE)
    for name, mapped in {"one": True, "two": False, "zip": False}.items():
        m = open_matrix(tmp_path / f"{name}.arrow")
        assert (is_mapped(m), np.asarray(m).tolist()) == (mapped, ROWS.tolist())


def test_a_stream_that_was_cut_between_batches_is_refused(tmp_path):
    """Nothing but the end mark tells it from a whole one."""
    path = write(tmp_path / "x.arrows", TABLE)
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(FormatError, match="cut off"):
        open_matrix(path)
