"""The command line: ``matrix-interop demo | info | plan | convert | search | bench``."""

from __future__ import annotations

from matrix_interop.cli.arguments import main

__all__ = ["main"]
