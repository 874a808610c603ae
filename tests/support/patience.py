"""How long tests wait for what has to happen."""

from __future__ import annotations

import os

PATIENCE = float(os.environ.get("TOWLINE_TEST_PATIENCE", "1"))
"""Factor of these times, for emulated processors and interpreters under a checker."""
