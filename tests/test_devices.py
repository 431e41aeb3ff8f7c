"""Devices: text, DLPack pairs and the objects of other frameworks."""

from __future__ import annotations

import copy
import pickle

import array_api_strict
import jax
import numpy as np
import pytest
import torch

from matrix_interop import DeviceUnavailableError
from matrix_interop.devices import CPU, Device, as_device, device_of_dlpack


def test_equal_to_its_text() -> None:
    """A device compares, hashes, prints and formats as its text, and knows its parts."""
    device = as_device("cuda:1")
    assert (device, device.type, device.index, device.is_host, device.dlpack) == ("cuda:1", "cuda", 1, False, (2, 1))
    assert {device: 1}["cuda:1"] == 1
    assert f"{device}" == "cuda:1"
    assert (CPU, CPU.type, CPU.index, CPU.is_host, CPU.dlpack) == ("cpu", "cpu", 0, True, (1, 0))


@pytest.mark.parametrize(
    ("named", "text"),
    [
        ("cpu", "cpu"),
        ("cpu:0", "cpu"),
        ("cuda", "cuda:0"),
        ("gpu:2", "cuda:2"),
        ("xpu:1", "oneapi:1"),
        ("mps", "metal:0"),
        ((1, 0), "cpu"),
        ((3, 0), "cpu"),
        ((11, 0), "cpu"),
        ((2, 3), "cuda:3"),
        ((13, 0), "cuda:0"),
        ((np.int64(10), np.int32(1)), "rocm:1"),
        (np.zeros(1).__dlpack_device__(), "cpu"),
        (torch.device("cpu"), "cpu"),
        (torch.device("cpu", 0), "cpu"),
        (torch.device("cuda"), "cuda:0"),
        (torch.device("cuda", 1), "cuda:1"),
        (torch.device("mps"), "metal:0"),
        (jax.devices("cpu")[0], "cpu"),
        (np.zeros(1).device, "cpu"),
        (Device("cuda", 4), "cuda:4"),
    ],
    ids=str,
)
def test_names(named: object, text: str) -> None:
    """Every spelling leads to one device; page-locked memory is the host's, managed memory CUDA's."""
    assert as_device(named) == text


@pytest.mark.parametrize(
    "named",
    [
        "",
        "tpu",
        "cuda:",
        "cuda:-1",
        "cuda:x",
        "cuda:1.0",
        "CPU",
        "cpu;",
        5,
        None,
        ("cuda", 0),
        ([1], 0),
        (2,),
        (2, 0, 0),
    ],
    ids=repr,
)
def test_what_names_no_device(named: object) -> None:
    """The message says what was written."""
    with pytest.raises(DeviceUnavailableError, match="unknown device"):
        as_device(named)


@pytest.mark.parametrize("pair", [(0, 0), (99, 0), (2, -1), (2, 2**31), (-1, 0)], ids=str)
def test_unknown_pairs(pair: tuple[int, int]) -> None:
    """Type codes nobody assigned and impossible ids are refused."""
    with pytest.raises(DeviceUnavailableError, match="unknown DLPack device"):
        device_of_dlpack(*pair)


def test_array_api_devices() -> None:
    """A device object of a framework that nobody registered is known by its text, or refused."""
    with pytest.raises(DeviceUnavailableError, match="CPU_DEVICE"):
        as_device(array_api_strict.asarray(1).device)


@pytest.mark.parametrize("device", [CPU, Device("cuda", 1)])
def test_copies_and_pickles(device: Device) -> None:
    """Devices survive pickling; the host stays one object, which the fast paths compare by identity."""
    for again in (pickle.loads(pickle.dumps(device)), copy.copy(device), copy.deepcopy(device)):
        assert (again, again.type, again.index) == (device, device.type, device.index)
        assert (again is CPU) == (device is CPU)
