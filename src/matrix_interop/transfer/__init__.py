"""Moving data between host and device."""

from __future__ import annotations

from matrix_interop.transfer.base import Transfer
from matrix_interop.transfer.lanes import download, upload

__all__ = ["Transfer", "download", "upload"]
