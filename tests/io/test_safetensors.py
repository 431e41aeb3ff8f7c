"""safetensors: the header is checked entry by entry."""

from __future__ import annotations

import json

import numpy as np
import pytest

from matrix_interop.errors import FormatError, UnsupportedDtypeError
from matrix_interop.io import open_matrix, open_rows

GOOD = {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}


def write(path, header, values=bytes(24)):
    """A file of this header, a dictionary or its text."""
    text = (header if isinstance(header, str) else json.dumps(header)).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + values)
    return path


def test_tensors_by_name(tmp_path):
    """Metadata is no tensor; offsets count from the buffer's start; content tells the format."""
    values = np.arange(12, dtype="<f4")
    header = {"__metadata__": {"format": "pt"}, "b": {**GOOD, "data_offsets": [24, 48]}, "a": GOOD}
    path = write(tmp_path / "model", header, values.tobytes())
    assert np.asarray(open_matrix(path, dataset="b")).tolist() == [[6, 7, 8], [9, 10, 11]]
    with open_rows(path, dataset="a") as rows:
        assert rows.read(1, 2).tolist() == [[3, 4, 5]]
    with pytest.raises(FormatError, match="2 tensors: 'b', 'a'"):
        open_matrix(path)


@pytest.mark.parametrize(
    "header",
    [
        {"a": {**GOOD, "data_offsets": [0, 20]}},
        {"a": {**GOOD, "data_offsets": [4, 28]}},
        {"a": {**GOOD, "data_offsets": [24, 0]}},
        {"a": {**GOOD, "shape": [2, -3]}},
        {"a": {**GOOD, "shape": [2.0, 3]}},
        {"a": {**GOOD, "shape": [True, 6]}},
        {"a": {**GOOD, "shape": 6}},
        {"a": {**GOOD, "dtype": "F33"}},
        {"a": {**GOOD, "dtype": ["F32"]}},
        {"a": {**GOOD, "more": 1}},
        {"a": {"dtype": "F32"}},
        {"a": GOOD, "b": GOOD},
        {"a": {**GOOD, "shape": [1, 3], "data_offsets": [0, 12]}},
        {"a": 5},
        [],
        '{"a": {"dtype": "F32", "dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}}',
        "{" * 5000,
        '{"a": ' + "9" * 5000 + "}",
    ],
)
def test_a_damaged_header_is_refused(tmp_path, header):
    """Sizes that disagree, gaps, overlaps, unused bytes, wrong kinds, names that stand twice."""
    with pytest.raises(FormatError):
        open_matrix(write(tmp_path / "x.safetensors", header))


def test_a_cut_file_gives_whole_rows_when_asked(tmp_path):
    """The tensor whose last row is cut; the tensors before it stay whole."""
    header = {"a": GOOD, "b": {**GOOD, "data_offsets": [24, 48]}}
    path = write(tmp_path / "x.safetensors", header, np.arange(12, dtype="<f4").tobytes()[:-1])
    with pytest.raises(FormatError, match="partial=True"):
        open_matrix(path, dataset="b")
    assert np.asarray(open_matrix(path, dataset="b", partial=True)).tolist() == [[6, 7, 8]]
    assert open_matrix(path, dataset="a", partial=True).shape == (2, 3)


def test_types_narrower_than_a_byte_are_refused_by_name(tmp_path):
    """F4 is in the format, and in no array library."""
    header = {"a": {"dtype": "F4", "shape": [6, 8], "data_offsets": [0, 24]}}
    with pytest.raises(UnsupportedDtypeError, match="F4"):
        open_matrix(write(tmp_path / "x.safetensors", header))
