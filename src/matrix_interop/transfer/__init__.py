"""Moving data between host and device."""

from __future__ import annotations

from matrix_interop.transfer.base import Transfer
from matrix_interop.transfer.copying import copy_values_in_pool
from matrix_interop.transfer.lanes import download, start_download, upload
from matrix_interop.transfer.progress import report_progress
from matrix_interop.transfer.settings import transfer_setting

__all__ = [
    "Transfer",
    "copy_values_in_pool",
    "download",
    "report_progress",
    "start_download",
    "transfer_setting",
    "upload",
]
