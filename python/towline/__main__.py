"""`python -m towline` is the `towline` program."""

from __future__ import annotations

import sys

from .cli import main

sys.exit(main())
