"""Moving data between host and device. Lanes and settings load when something moves, so that host work stays light."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from matrix_interop.transfer.base import Transfer

if TYPE_CHECKING:
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

#: Loaded on first use: name -> module.
_LATER = {
    "copy_values_in_pool": "copying",
    "download": "lanes",
    "report_progress": "progress",
    "start_download": "lanes",
    "transfer_setting": "settings",
    "upload": "lanes",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_LATER[name]}"), name)
