"""Prints the members of a dependency group, one per line: `python scripts/group.py test`."""

from __future__ import annotations

import sys
from pathlib import Path

try:
    import tomllib
except ModuleNotFoundError:  # CPython 3.10
    from pip._vendor import tomli as tomllib

groups = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())["dependency-groups"]
print("\n".join(member for member in groups[sys.argv[1]] if isinstance(member, str)))
