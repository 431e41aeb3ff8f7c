"""One file a framework, all the same shape; `registry` finds the one that owns a tensor."""

from matrix_interop.frameworks.registry import Framework, FrameworkInfo, frameworks, register_framework

__all__ = ["Framework", "FrameworkInfo", "frameworks", "register_framework"]
