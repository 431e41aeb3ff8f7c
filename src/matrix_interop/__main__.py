"""``python -m matrix_interop``: the command line."""

from __future__ import annotations

import sys

from matrix_interop.cli import main

sys.exit(main())
