"""``from_dlpack`` of three libraries over 2-D matrices: the assertions of the outside suites, and properties."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from matrix_interop import HostMatrix, from_tensor

strict = pytest.importorskip("array_api_strict")
torch = pytest.importorskip("torch")

REAL = [np.bool, *(np.dtype(f"{kind}{size}") for kind in "iu" for size in (1, 2, 4, 8)), np.float32, np.float64]
EVERY = [np.dtype(kind) for kind in (*REAL, np.complex64, np.complex128)]


@dataclass(frozen=True)
class Consumer:
    """A library: its ``from_dlpack``, its name for the host, and how a test looks at what it made."""

    from_dlpack: Callable[..., Any]
    device: Any
    show: Callable[[Any], np.ndarray]
    keeps_readonly: bool


CONSUMERS = {
    "numpy": Consumer(np.from_dlpack, "cpu", lambda y: y, True),
    "torch": Consumer(torch.from_dlpack, "cpu", lambda y: y.numpy(), False),
    "strict": Consumer(strict.from_dlpack, strict.Device("CPU_DEVICE"), np.from_dlpack, True),
}


@pytest.fixture(params=CONSUMERS)
def consumer(request: pytest.FixtureRequest) -> Consumer:
    """Each of the libraries."""
    return CONSUMERS[request.param]


def sample(dtype: Any = np.float32) -> np.ndarray:
    """2 x 3 different values, as far as the dtype has them."""
    return np.arange(6).reshape(2, 3).astype(dtype)


def flat_address(a: np.ndarray) -> int:
    """Where the first entry lies."""
    return int(a.__array_interface__["data"][0])


# As in NumPy's and pyarrow's suites, over matrices -----------------------------------------------
@pytest.mark.parametrize("dtype", EVERY, ids=str)
def test_dtype_and_values_pass(consumer: Consumer, dtype: np.dtype[Any]) -> None:
    """Every dtype that all three know, shared."""
    a = sample(dtype)
    shown = consumer.show(consumer.from_dlpack(from_tensor(a)))
    assert (shown.dtype, shown.tolist(), flat_address(shown)) == (a.dtype, a.tolist(), flat_address(a))


def test_references_come_back(consumer: Consumer) -> None:
    """The result keeps the memory alive, whoever dies first, and lets it go."""
    a = sample()
    before = sys.getrefcount(a)
    m = from_tensor(a)
    y = consumer.from_dlpack(m)
    del m
    assert sys.getrefcount(a) > before
    assert consumer.show(y).tolist() == a.tolist()
    del y
    assert sys.getrefcount(a) == before


@pytest.mark.parametrize(
    "layout",
    [lambda a: a[::2], lambda a: a[:, ::2], lambda a: a.T, lambda a: a[:, 1:2], lambda a: a[1:2], lambda a: a[:0]],
    ids=["rows", "columns", "transposed", "one column", "one row", "no rows"],
)
def test_layouts_pass(consumer: Consumer, layout: Any) -> None:
    """Strided matrices are shared as they lie."""
    a = layout(np.arange(20, dtype=np.int32).reshape(4, 5))
    shown = consumer.show(consumer.from_dlpack(from_tensor(a)))
    assert (shown.shape, shown.tolist()) == (a.shape, a.tolist())
    if a.size:
        assert flat_address(shown) == flat_address(a)


def test_readonly_passes_where_it_can(consumer: Consumer) -> None:
    """The mark is in the capsule; a library without read-only arrays ignores it, as the standard lets it."""
    a = sample()
    a.flags.writeable = False
    shown = consumer.show(consumer.from_dlpack(from_tensor(a)))
    assert (shown.tolist(), shown.flags.writeable) == (a.tolist(), not consumer.keeps_readonly)


def test_writes_are_seen_on_both_sides(consumer: Consumer) -> None:
    """One memory."""
    a = sample()
    y = consumer.from_dlpack(from_tensor(a))
    a[0, 0] = 7
    y[1, 1] = 8
    assert (consumer.show(y)[0, 0], a[1, 1]) == (7, 8)


def test_copy_argument(consumer: Consumer) -> None:
    """True never shares, False and None do."""
    a = sample()
    for copy in (None, False):
        assert flat_address(consumer.show(consumer.from_dlpack(from_tensor(a), copy=copy))) == flat_address(a)
    y = consumer.from_dlpack(from_tensor(a), copy=True)
    y[0, 0] = 9
    assert (a[0, 0], consumer.show(y).tolist()[1]) == (0, a[1].tolist())


def test_device_argument(consumer: Consumer) -> None:
    """The host by the library's own name for it."""
    a = sample()
    for device in (None, consumer.device):
        assert consumer.show(consumer.from_dlpack(from_tensor(a), device=device)).tolist() == a.tolist()


def test_backwards_rows(consumer: Consumer) -> None:
    """Copied for the consumer if it may be; copy=False is refused before any library sees the strides."""
    m = from_tensor(sample())[::-1]
    assert consumer.show(consumer.from_dlpack(m)).tolist() == sample()[::-1].tolist()
    with pytest.raises((BufferError, ValueError)):
        consumer.from_dlpack(m, copy=False)


def test_what_no_capsule_describes_is_refused(consumer: Consumer) -> None:
    """Foreign byte order: a BufferError in every library."""
    with pytest.raises(BufferError):
        consumer.from_dlpack(from_tensor(sample(">f4")))


def test_a_matrix_of_a_consumer_goes_on(consumer: Consumer) -> None:
    """What came out goes in again, and the memory is still the same."""
    a = sample()
    again = from_tensor(consumer.from_dlpack(from_tensor(consumer.from_dlpack(from_tensor(a)))))
    assert isinstance(again, HostMatrix)
    assert (np.asarray(again).tolist(), flat_address(np.asarray(again))) == (a.tolist(), flat_address(a))


# Properties, in the manner of the array-API suite ------------------------------------------------
MATRICES = hnp.arrays(st.sampled_from(EVERY), hnp.array_shapes(min_dims=2, max_dims=2, min_side=0, max_side=6))
STEPS = st.sampled_from([1, 2, 3, -1, -2])


@pytest.mark.parametrize("name", CONSUMERS)
@given(a=MATRICES, steps=st.tuples(STEPS, STEPS), turn=st.booleans(), copy=st.sampled_from([None, True, False]))
def test_from_dlpack(name: str, a: np.ndarray, steps: tuple[int, int], turn: bool, copy: bool | None) -> None:
    """Shape, dtype and bits arrive; memory is shared exactly if no copy was asked for or needed."""
    consumer = CONSUMERS[name]
    a = a[:: steps[0], :: steps[1]]
    a = a.T if turn else a
    must_copy = any(step < 0 and n > 1 for n, step in zip(a.shape, a.strides, strict=True)) and a.size > 0
    if must_copy and copy is False:
        with pytest.raises((BufferError, ValueError)):
            consumer.from_dlpack(from_tensor(a), copy=False)
        return
    shown = consumer.show(consumer.from_dlpack(from_tensor(a), copy=copy))
    assert (shown.shape, shown.dtype, shown.tobytes()) == (a.shape, a.dtype, a.tobytes())
    if a.size:
        assert (flat_address(shown) == flat_address(a)) == (copy is not True and not must_copy)
