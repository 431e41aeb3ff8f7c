"""The one place that holds the version; pyproject.toml, the docs and `matrix_interop.__version__` read it."""

from __future__ import annotations

__all__ = ["__version__"]

__version__ = "0.1.0"
