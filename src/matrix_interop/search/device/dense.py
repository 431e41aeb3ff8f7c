"""Rows as libraries on a device take them."""

from __future__ import annotations

from typing import Any

import numpy as np

from matrix_interop.devices import as_device
from matrix_interop.errors import DeviceUnavailableError
from matrix_interop.frameworks.registry import device_framework
from matrix_interop.frameworks.registry import framework as framework_of
from matrix_interop.matrix import DeviceMatrix, from_tensor
from matrix_interop.search.sources import require_numbers

__all__ = ["dense_rows"]


def dense_rows(m: Any, device: Any = None, *, copy: bool | None = None) -> DeviceMatrix:
    """The rows of ``m`` (n, d) as float32, dense, on a CUDA device; shared where they are that already.

    ``device``: None for where they are, else the current device.  Raises `CopyRequiredError` for ``copy=False`` where
    they are not, `UnsupportedDtypeError` for complex numbers.
    """
    matrix = from_tensor(m)
    require_numbers("rows", np.empty(0, matrix.dtype))
    target = framework_of(matrix.framework)
    if not target.computes or "cuda" not in target.device_types:
        target = device_framework("cuda")
    if device is not None:
        there = as_device(device)
    else:
        there = target.current_device() if matrix.device.is_host else matrix.device
    if there.is_host:
        raise DeviceUnavailableError(f"{matrix!r} cannot go to a CUDA device: {target.name} sees none here")
    native = matrix.to_tensor(target.name, device=there, dtype="float32", order="C", copy=copy, share_readonly=True)
    made = from_tensor(native)
    assert isinstance(made, DeviceMatrix)  # noqa: S101 - for the type checker: it was just put there
    return made
