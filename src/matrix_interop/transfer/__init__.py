"""Moving data between host and device. The lanes are imported where something moves, so that host work stays light."""

from __future__ import annotations

from matrix_interop.transfer.base import Transfer

__all__ = ["Transfer"]
