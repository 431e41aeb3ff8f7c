"""Capsules: every forged field is refused before a library sees it, and every deleter runs exactly once."""

from __future__ import annotations

import datetime as dt
import gc
import sys
import threading
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from hostile import NULL, Producer, consume, live_structs
from matrix_interop import TensorView, UnsupportedDtypeError, UnsupportedTensorError
from matrix_interop.devices import CPU, Device
from matrix_interop.dlpack import Capsule, capsule_of, check_extent, header_of

FORMS = ["versioned", "legacy"]
HUGE = 2**62


@pytest.fixture(autouse=True)
def every_structure_is_deleted_once() -> Iterator[None]:
    """Whatever a test forges: nothing is left behind and nothing is deleted twice."""
    stray = Producer.stray_deletes
    yield
    if live_structs():
        gc.collect()  # slow, and rarely needed: only a traceback in a cycle can hold a structure
    assert (live_structs(), Producer.stray_deletes) == (0, stray)


def matrix() -> np.ndarray:
    """Six float32 values, 2 x 3."""
    return np.arange(6, dtype=np.float32).reshape(2, 3)


REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("device type", {"device": (19, 0)}),
    ("device type", {"device": (0, 0)}),
    ("device type", {"device": (-1, 0)}),
    ("device id", {"device": (2, -1)}),
    ("no shape", {"shape": NULL}),
    ("dimensions", {"ndim": -1}),
    ("dimensions", {"ndim": -(2**31)}),
    ("dimensions", {"ndim": 65}),
    ("dimensions", {"ndim": 2**31 - 1}),
    ("negative length", {"shape": (2, -3)}),
    ("negative length", {"shape": (0, -3)}),
    ("bytes", {"shape": (HUGE, 4), "strides": (4, 1)}),
    ("bytes", {"shape": (HUGE, 4), "strides": NULL}),
    ("bytes", {"shape": (2**40, 2**40, 0)}),
    ("bytes", {"shape": (2**16,) * 64, "strides": (0,) * 64}),
    ("bytes", {"strides": (HUGE, 1)}),
    ("bytes", {"strides": (-HUGE, 1)}),
    ("bytes", {"strides": (2**63 - 1, 2**63 - 1)}),
    ("bytes", {"strides": (-(2**63), 1)}),
    ("no memory", {"data": NULL}),
    ("no memory", {"data": NULL, "byte_offset": 64}),
    ("address space", {"byte_offset": 2**64 - 1}),
    ("address space", {"data": 2**64 - 8}),
    ("address space", {"data": 4, "strides": (-3, 1)}),
]


@pytest.mark.parametrize("forms", FORMS)
@pytest.mark.parametrize(("why", "forged"), REFUSED)
def test_a_forged_field_is_refused(forms: str, why: str, forged: dict[str, Any]) -> None:
    """One UnsupportedTensorError names the producer; the tensor goes back to it."""
    producer = Producer(matrix(), forms=forms, method=(1, 0), **forged)
    with pytest.raises(UnsupportedTensorError, match=r"hostile.dlpack.Producer cannot be read over DLPack") as caught:
        TensorView(producer)
    words = {"device type": "unknown DLPack device", "device id": "unknown DLPack device"}
    assert words.get(why, why) in str(caught.value)
    del caught  # it holds this frame, and this frame it
    assert (producer.made, producer.deleted) == (1, 1)


@pytest.mark.parametrize("forms", FORMS)
@pytest.mark.parametrize(
    "dtype",
    [
        (3, 64, 1),  # opaque handle
        (99, 32, 1),
        (255, 255, 65535),
        (2, 32, 0),
        (2, 32, 4),  # vector lanes
        (2, 0, 1),
        (2, 33, 1),
        (2, 128, 1),
        (0, 4, 1),
        (5, 32, 1),  # complex32
        (6, 1, 1),  # packed bits
        (17, 4, 2),  # fp4, torch's way
        (15, 6, 1),
    ],
)
def test_a_dtype_without_numpy_form_is_refused(forms: str, dtype: tuple[int, int, int]) -> None:
    """Code, bits and lanes are named, with the way out."""
    code, bits, lanes = dtype
    producer = Producer(matrix(), forms=forms, dtype=dtype)
    with pytest.raises(UnsupportedDtypeError, match=f"type code {code}, {bits} bits, {lanes} lanes.*float32"):
        TensorView(producer)


@pytest.mark.parametrize("version", [(0, 8), (2, 0), (2**32 - 1, 0)])
def test_another_major_version_is_refused(version: tuple[int, int]) -> None:
    """Of such a structure only the deleter may be touched; it is called."""
    producer = Producer(matrix(), version=version, ndim=-1, data=NULL)
    with pytest.raises(UnsupportedTensorError, match=f"DLPack version {version[0]}.{version[1]}"):
        TensorView(producer)


@pytest.mark.parametrize("offers", [3, "dltensor", object(), dt.datetime_CAPI])
def test_something_else_than_a_capsule_is_refused(offers: Any) -> None:
    """Numbers, text and capsules of other libraries."""
    with pytest.raises(UnsupportedTensorError, match="not an unused DLPack capsule"):
        TensorView(Producer(matrix(), offers=offers))


@pytest.mark.parametrize("name", [b"tensor", b"used_dltensor", b"dltensor_versioned_", b""])
def test_a_capsule_under_another_name_is_refused(name: bytes) -> None:
    """Only the two names of unused capsules will do."""
    producer = Producer(matrix(), name=name)
    with pytest.raises(UnsupportedTensorError, match="not an unused DLPack capsule"):
        TensorView(producer)
    producer.forget()  # nobody can delete it under that name


@pytest.mark.parametrize("forms", FORMS)
def test_a_used_capsule_is_refused(forms: str) -> None:
    """A capsule is good for one consumer."""
    producer = Producer(matrix())
    capsule = producer.capsule(versioned=forms == "versioned")
    first = np.from_dlpack(Producer(matrix(), offers=capsule))
    with pytest.raises(UnsupportedTensorError, match="not an unused DLPack capsule"):
        TensorView(Producer(matrix(), offers=capsule))
    assert first.tolist() == matrix().tolist()


ACCEPTED: list[tuple[dict[str, Any], Any]] = [
    ({}, [[0, 1, 2], [3, 4, 5]]),
    ({"version": (1, 99)}, [[0, 1, 2], [3, 4, 5]]),
    ({"flags": 2**63 | 2**40}, [[0, 1, 2], [3, 4, 5]]),
    ({"strides": NULL}, [[0, 1, 2], [3, 4, 5]]),
    ({"byte_offset": 8, "shape": (2, 2), "strides": (2, 1)}, [[2, 3], [4, 5]]),
    ({"byte_offset": 20, "shape": (2, 3), "strides": (-3, -1)}, [[5, 4, 3], [2, 1, 0]]),
    ({"shape": (3, 2), "strides": (1, 3)}, [[0, 3], [1, 4], [2, 5]]),
    ({"strides": (0, 1)}, [[0, 1, 2], [0, 1, 2]]),
    ({"shape": (1, 3), "strides": (-HUGE, 1)}, [[0, 1, 2]]),
    ({"shape": (), "strides": ()}, 0),
    ({"shape": NULL, "strides": NULL, "ndim": 0}, 0),
    ({"shape": (0, 3), "data": NULL}, []),
    ({"shape": (0, 3), "data": 1, "strides": (-5, HUGE)}, []),
    ({"device": (3, 0)}, [[0, 1, 2], [3, 4, 5]]),
    ({"device": (11, 0)}, [[0, 1, 2], [3, 4, 5]]),
    ({"device": (1, 5)}, [[0, 1, 2], [3, 4, 5]]),
    ({"device": (3, -1), "method": (1, 7)}, [[0, 1, 2], [3, 4, 5]]),
    ({"deleter": NULL}, [[0, 1, 2], [3, 4, 5]]),
]


@pytest.mark.parametrize("forms", FORMS)
@pytest.mark.parametrize(("forged", "values"), ACCEPTED)
def test_what_the_text_allows_is_read(forms: str, forged: dict[str, Any], values: Any) -> None:
    """Offsets, NULL strides, pinned labels, odd strides of length-1 axes, any pointer behind no entries."""
    producer = Producer(matrix(), forms=forms, **forged)
    view = TensorView(producer)
    assert (np.asarray(view).tolist(), view.device) == (values, "cpu")
    assert view.readonly == (forms == "legacy") or not view.size  # a legacy capsule cannot say that it may be written
    assert view.header.__dlpack_device__() == (1, 0)
    if "deleter" in forged:
        producer.forget()


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e3m4", "float8_e8m0fnu"])
def test_a_dtype_that_numpy_cannot_name_is_read(name: str) -> None:
    """bfloat16 and the 8-bit floats come in under their ml_dtypes type, over the same bytes."""
    dtype = np.dtype(getattr(ml_dtypes, name))
    codes = {
        "bfloat16": (4, 16, 1),
        "float8_e3m4": (7, 8, 1),
        "float8_e4m3fn": (10, 8, 1),
        "float8_e5m2": (12, 8, 1),
        "float8_e8m0fnu": (14, 8, 1),
    }
    array = np.arange(6, dtype=f"u{dtype.itemsize}").reshape(2, 3)
    view = TensorView(Producer(array, dtype=codes[name]))
    assert (view.dtype, view.pointer) == (dtype, array.ctypes.data)
    assert view.header.view(array.dtype).tolist() == array.tolist()


def test_flags_are_kept() -> None:
    """READ_ONLY makes the view read-only; IS_COPIED becomes a note for readers of a plan."""
    assert [TensorView(Producer(matrix(), flags=flags)).readonly for flags in (0, 1, 2, 3)] == [
        False,
        True,
        False,
        True,
    ]
    assert [TensorView(Producer(matrix(), flags=flags)).note for flags in (0, 2)] == ["", "the producer made a copy"]


def test_device_memory_is_only_described() -> None:
    """A device tensor becomes a header; the labels in the producer's own structure stay as they were."""
    producer = Producer(matrix(), device=(2, 3), dtype=(4, 32, 1))  # no such type: reads as far as the label
    with pytest.raises(UnsupportedDtypeError):
        TensorView(producer)
    capsule = Producer(matrix().view(np.uint32)[:, ::2], device=(13, 1)).capsule(versioned=True)
    reader = Capsule(capsule, "a stub")
    header = reader.header()
    assert (reader.device, header.shape, header.strides) == ("cuda:1", (2, 2), (12, 8))
    tensor = reader._managed.tensor
    assert (tensor.device.code, tensor.device.index, tensor.dtype.code) == (13, 1, 1)


@pytest.mark.parametrize("forms", FORMS)
def test_the_deleter_waits_for_the_last_view(forms: str) -> None:
    """A slice of a view of a dead producer still keeps the memory; dropped in another thread, it gives it back once."""
    producer = Producer(matrix(), forms=forms)
    kept = [np.asarray(TensorView(producer))[1:, ::2]]
    assert (producer.deleted, kept[0].tolist()) == (0, [[3, 5]])
    thread = threading.Thread(target=kept.clear)
    thread.start()
    thread.join()
    assert (producer.made, producer.deleted) == (1, 1)


def test_one_capsule_is_consumed_by_one_thread() -> None:
    """Eight threads get one and the same capsule of relabelled memory: one has it, the others are refused."""
    for _ in range(200):
        array = np.arange(6, dtype=np.uint16).reshape(2, 3)
        producer = Producer(array, dtype=(4, 16, 1))
        offer = Producer(array, offers=producer.capsule(versioned=True))
        outcomes: list[Any] = []
        start = threading.Barrier(8)

        def read(offer: Producer = offer, outcomes: list[Any] = outcomes, start: threading.Barrier = start) -> None:
            start.wait()
            try:
                outcomes.append(TensorView(offer).dtype)
            except UnsupportedTensorError:
                outcomes.append(None)

        threads = [threading.Thread(target=read) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        del offer
        assert sorted(outcomes, key=str) == [None] * 7 + [np.dtype(ml_dtypes.bfloat16)]
        assert producer.deleted == 1


# Export -------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("max_version", "version"), [(None, None), ((0, 8), None), ((1, 0), (1, 0)), ((9, 9), (1, 0))])
def test_both_forms_are_made(max_version: tuple[int, int] | None, version: tuple[int, int] | None) -> None:
    """Legacy for consumers that name no version, versioned for the others; always labelled (1, 0)."""
    received = consume(capsule_of(matrix(), CPU, max_version=max_version))
    assert received.version == version
    assert received.data == matrix().tobytes()
    assert received[1:5] == ((2, 3), (3, 1), (1, 0), (2, 32, 1))


@pytest.mark.parametrize("max_version", [None, (1, 0)])
def test_labels_are_true(max_version: tuple[int, int] | None) -> None:
    """Type and device that NumPy cannot name are written into its capsule; the memory is shared and given back."""
    array = np.array([[1, -2.5]], ml_dtypes.bfloat16)
    before = sys.getrefcount(array)
    received = consume(capsule_of(array, Device("cuda", 1), max_version=max_version))
    assert (received.device, received.dtype) == ((2, 1), (4, 16, 1))
    if max_version is not None:
        assert received.version == (1, 1)  # the first that knows such types
    received = consume(capsule_of(array, CPU, max_version=max_version))
    assert received.data == b"\x80\x3f\x20\xc0"
    assert sys.getrefcount(array) == before


def test_flags_are_written() -> None:
    """READ_ONLY for read-only memory, IS_COPIED for a copy; read-only memory has no legacy form."""
    frozen = matrix()
    frozen.flags.writeable = False
    assert consume(capsule_of(frozen, CPU, max_version=(1, 0))).flags == 1
    assert consume(capsule_of(matrix(), CPU, max_version=(1, 0), copied=True)).flags == 2
    with pytest.raises(BufferError):
        capsule_of(frozen, CPU, max_version=None)


def test_pinned_memory_is_exported_as_host_memory() -> None:
    """An array that NumPy imported from page-locked memory says so; our capsule says (1, 0), which torch takes too."""
    pinned = np.from_dlpack(Producer(matrix(), device=(3, 0)))
    assert pinned.__dlpack_device__() == (3, 0)
    assert consume(capsule_of(pinned, CPU, max_version=(1, 0))).device == (1, 0)
    del pinned


def test_an_unused_capsule_gives_its_memory_back() -> None:
    """A capsule nobody consumed frees what it holds."""
    array = matrix()
    before = sys.getrefcount(array)
    for max_version in (None, (1, 0)):
        capsule = capsule_of(array, CPU, max_version=max_version)
        assert sys.getrefcount(array) == before + 1
        del capsule
        assert sys.getrefcount(array) == before


def test_header_keeps_its_owner() -> None:
    """A header over an address holds the owner until the last view of it is gone."""
    owner = matrix()
    before = sys.getrefcount(owner)
    header = header_of(owner.ctypes.data, (3, 2), (4, 12), owner.dtype, readonly=True, owner=owner)
    rows = header[1:]
    del header
    assert (rows.tolist(), rows.flags.writeable, sys.getrefcount(owner)) == ([[1, 4], [2, 5]], False, before + 1)
    del rows
    assert sys.getrefcount(owner) == before


@pytest.mark.parametrize(
    ("address", "shape", "strides"),
    [
        (16, (2, 3), (12, 4)),
        (16, (2, 3), None),
        (16, (2,), (-8,)),
        (0, (0, 5), None),
        (1, (1, 1), (2**63, -(2**63))),
        (2**64 - 4, (), None),
        (16, (2, 2**59), (0, 0)),
    ],
)
def test_possible_memory(address: int, shape: tuple[int, ...], strides: tuple[int, ...] | None) -> None:
    """All that an address space can hold passes."""
    assert check_extent(address, shape, strides, 4) is None
