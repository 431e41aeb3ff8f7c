"""One file a framework, all the same shape. `registry` finds the one that owns a tensor, `streams` orders work."""

from __future__ import annotations

from matrix_interop.frameworks.registry import Framework, FrameworkInfo, frameworks, read, register_framework
from matrix_interop.frameworks.streams import make_ready, producer_stream
from matrix_interop.view import TensorView

__all__ = ["Framework", "FrameworkInfo", "frameworks", "register_framework"]


class _Frameworks:
    """What a `TensorView`, which the frameworks rest on, asks of them."""

    read = staticmethod(read)
    make_ready = staticmethod(make_ready)
    producer_stream = staticmethod(producer_stream)


TensorView.frameworks = _Frameworks()
