"""Sphinx settings; `make docs` builds with warnings as errors."""

from __future__ import annotations

from matrix_interop._version import __version__

project = "matrix-interop"
author = "The matrix-interop contributors"
copyright = author
release = version = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["_build"]
myst_heading_anchors = 3
autodoc_member_order = "groupwise"
autodoc_typehints = "signature"
html_theme = "furo"
html_title = f"matrix-interop {release}"
