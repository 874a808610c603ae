"""Prints the changes of a version: `python scripts/release_notes.py 0.2.0`.

Fails unless it is the version of pyproject.toml and Cargo.toml, and CHANGELOG.md has a section `## 0.2.0` with text.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def version_in(text: str) -> str:
    found = re.search(r'^version = "([^"]+)"$', text, re.MULTILINE)
    return found[1] if found else ""


def section(changelog: str, version: str) -> str:
    """Text below the version's heading, which may end with a date; empty: there is none."""
    heading = re.compile(rf"^## \[?{re.escape(version)}\]?(?: .*)?$", re.MULTILINE)
    if (found := heading.search(changelog)) is None:
        return ""
    return re.split(r"^## ", changelog[found.end() :], maxsplit=1, flags=re.MULTILINE)[0].strip()


def main() -> int:
    version = sys.argv[1]
    for name in ("pyproject.toml", "Cargo.toml"):
        if (ours := version_in((ROOT / name).read_text())) != version:
            sys.exit(f"{name} has version {ours}, the tag {version}")
    notes = section((ROOT / "CHANGELOG.md").read_text(), version)
    if not notes:
        sys.exit(f"CHANGELOG.md has no section for {version}")
    print(notes)
    return 0


if __name__ == "__main__":
    sys.exit(main())
