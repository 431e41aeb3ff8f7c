"""A region that grows in place."""

from __future__ import annotations

import mmap
import sys
import weakref
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from matrix_interop.memory import Region, pages
from matrix_interop.memory.region import HUGE_PAGE

F4 = np.dtype(np.float32)
on_linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs Linux, which moves pages")


def test_growing_moves_nothing():
    """A small array and a larger one made later lie at the same address and share the bytes."""
    region = Region()
    small = region.array((10, 4), F4)
    small[:] = 2
    region.touch(5 << 20)
    large = region.array((100_000, 4), F4)
    large[10:] = 3
    assert (small.ctypes.data, large.ctypes.data, region.address % HUGE_PAGE) == (region.address, region.address, 0)
    assert (float(large[:10].sum()), float(small.sum()), float(large.sum())) == (80.0, 80.0, 80.0 + 3 * 4 * 99_990)


def test_the_memory_lives_as_long_as_an_array():
    """Arrays outlive the region object, and the mapping dies with the last of them."""
    region = Region()
    row = region.array((5, 8), np.dtype(ml_dtypes.bfloat16), offset=256, order="F")[3]
    row[:] = 1
    mapping = weakref.ref(region._mapping._map)
    del region
    assert (mapping() is not None, row.tolist()) == (True, [1.0] * 8)
    del row
    assert mapping() is None


def address_space() -> int:
    """Bytes that this process has mapped."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * mmap.PAGESIZE


@pytest.mark.parametrize("stays", [True, pytest.param(False, marks=on_linux)], ids=["stays", "moves"])
def test_finish_gives_back_what_is_beyond_the_end(monkeypatch, stays):
    """After finish the pages past the end are gone (they read as zeroes), those before it are kept."""
    region = Region()
    array = region.array((1 << 20,), np.dtype(np.uint8))
    array[:] = 9
    region.touch(1 << 20)
    monkeypatch.setattr(pages, "_mremap", None if stays else pages._mremap)
    region.finish(4096)
    kept = region.array((4096,), np.dtype(np.uint8))
    assert (int(kept.min()), int(array[4096:].max()), region.nbytes) == (9, 0 if stays else 9, 4096)
    assert (kept.ctypes.data == array.ctypes.data) == stays


@on_linux
def test_finish_gives_address_space_back():
    """What is kept of many regions takes hardly more than its size."""

    def kept() -> np.ndarray:
        region = Region()
        region.array((10,), F4)[:] = 7
        region.finish(40)
        return region.array((10,), F4)

    before = address_space()
    arrays = [kept() for _ in range(64)]
    assert address_space() - before < 1 << 30
    assert all(float(array.sum()) == 70.0 for array in arrays)


@on_linux
def test_many_regions_leave_address_space_to_others():
    """They share it, and one that knows its capacity takes no more than that."""
    before = address_space()
    regions = [Region() for _ in range(64)]
    assert regions[0].nbytes > 4 * regions[-1].nbytes > 0
    assert address_space() - before < 32 * regions[0].nbytes
    assert Region(1 << 20).nbytes == 1 << 20
    del regions
    assert Region().nbytes > 1 << 20


def test_an_array_beyond_the_end_is_refused():
    """More than the region has is an error, not a crash."""
    region = Region()
    with pytest.raises(TypeError):
        region.array((region.nbytes + 1,), np.dtype(np.uint8))


def test_less_address_space_gives_a_smaller_region(monkeypatch):
    """Where the system allows little address space the region takes what it gets, but not less than asked for."""
    real = pages.Mapping.__init__

    def limited(self, nbytes):
        if nbytes > 200 << 20:
            raise MemoryError
        real(self, nbytes)

    monkeypatch.setattr(pages.Mapping, "__init__", limited)
    assert 100 << 20 <= Region().nbytes <= 200 << 20
    assert 150 << 20 <= Region(150 << 20).nbytes <= 200 << 20
    with pytest.raises(MemoryError):
        Region(300 << 20)
