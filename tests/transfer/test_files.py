"""Pages of mapped files."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from matrix_interop import FormatError, Matrix, open_matrix
from matrix_interop.search import knn
from matrix_interop.transfer.files import will_need
from simulated.adapter import device_with_arena


class Unadvised(mmap.mmap):
    """A mapping on a system that takes no advice."""

    asked = 0

    def madvise(self, *_: int) -> None:
        self.asked += 1
        raise OSError("not here")


def test_a_system_that_takes_no_advice(tmp_path: Path) -> None:
    """It is asked, and the pages come when they are touched."""
    (tmp_path / "a").write_bytes(b"\1" * 8192)
    with (tmp_path / "a").open("rb") as file:
        mapped = Unadvised(file.fileno(), 8192, access=mmap.ACCESS_READ)
    will_need(np.frombuffer(mapped, np.uint8))
    assert mapped.asked == 1


@pytest.mark.parametrize(
    "use",
    [
        lambda m: list(m.rows()),
        lambda m: list(m.rows([3, 999])),
        lambda m: list(m.blocks(100)),
        lambda m: list(m.blocks(select=[3, 999])),
        lambda m: knn(np.zeros((1, 64), np.float32), m, 3),
        lambda m: m[990:].to_device("ext:0"),
        lambda m: m.to_device("ext:0"),
    ],
    ids=["rows", "some rows", "blocks", "some blocks", "knn", "a small move", "a move"],
)
def test_a_file_that_was_cut(tmp_path: Path, use: Callable[[Matrix], object]) -> None:
    """It is an error that names it, where touching the pages would end the process."""
    np.save(tmp_path / "a.npy", np.ones((1000, 64), np.float32))
    m = open_matrix(tmp_path / "a.npy")
    os.truncate(tmp_path / "a.npy", 5000)
    with device_with_arena(0), pytest.raises(FormatError, match=r"a\.npy: 5000 bytes are left of 256128"):
        use(m)
