""".npz: members by name, never mapped."""

from __future__ import annotations

import io
import zipfile

import numpy as np
import pytest

from matrix_interop.errors import FormatError
from matrix_interop.io import is_mapped, open_matrix, open_rows


def test_an_archive_says_that_it_is_not_mapped(tmp_path):
    """T64: a warning where a mapping was asked for; is_mapped tells; an .npy is mapped."""
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.savez(tmp_path / "x.npz", array)
    np.save(tmp_path / "x.npy", array)
    with pytest.warns(UserWarning, match=r"never mapped, 24 bytes are read"):
        m = open_matrix(tmp_path / "x.npz", mmap=True)
    assert (is_mapped(m), is_mapped(open_matrix(tmp_path / "x.npy", mmap=True))) == (False, True)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_members_by_name(tmp_path, save):
    """Stored or compressed, C or Fortran; without a name only where there is one."""
    a, b = np.arange(6).reshape(2, 3), np.asfortranarray(np.arange(8.0).reshape(4, 2))
    save(tmp_path / "x.npz", a=a, b=b)
    for name, array in {"a": a, "b": b}.items():
        np.testing.assert_array_equal(
            np.asarray(open_matrix(tmp_path / "x.npz", dataset=name, mmap=False)), array, strict=True
        )
        with open_rows(tmp_path / "x.npz", dataset=name) as rows:
            np.testing.assert_array_equal(rows.take([1, 0]), array[[1, 0]], strict=True)
    for wanted in (None, "c"):
        with pytest.raises(FormatError, match="'a', 'b'"):
            open_matrix(tmp_path / "x.npz", dataset=wanted)


def test_a_member_that_claims_more_than_deflate_can_give_is_refused(tmp_path):
    """A petabyte in the directory and in the array's header."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "|u1", "fortran_order": False, "shape": (10**9, 10**6)})
    member = zipfile.ZipInfo("x.npy")
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr(member, header.getvalue())
        member.file_size = member.compress_size = 10**15
    with pytest.raises(FormatError, match="cannot hold"):
        open_matrix(tmp_path / "x.npz")
