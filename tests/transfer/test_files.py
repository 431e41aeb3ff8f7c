"""Pages of mapped files."""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np

from matrix_interop.transfer.files import will_need


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
