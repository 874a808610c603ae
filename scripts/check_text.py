"""Finds paths of one particular machine and secrets in the files of the repository."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HERE = Path(__file__).resolve().relative_to(ROOT)
PATTERNS = {
    "path of one machine": re.compile(r"(?<![\w.*~-])/(root|work|Users|home/\w+)/\w"),
    "private key": re.compile(r"^-----BEGIN [A-Z ]*PRIVATE KEY-----$"),
}
DATA = {".json", ".lock", ".gz", ".png", ".bin"}  # corpora and lists, written elsewhere


def tracked() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if listed.returncode != 0:  # an unpacked archive
        return []
    return [Path(name) for name in listed.stdout.decode().split("\0") if name]


def problems_in(path: Path) -> list[str]:
    try:
        text = (ROOT / path).read_text()
    except (UnicodeDecodeError, FileNotFoundError):
        return []
    return [
        f"{path}:{number}: {kind}: {line.strip()[:80]}"
        for number, line in enumerate(text.splitlines(), 1)
        for kind, pattern in PATTERNS.items()
        if pattern.search(line)
    ]


def main() -> int:
    paths = [path for path in tracked() if path.suffix not in DATA and path != HERE]
    problems = [problem for path in paths for problem in problems_in(path)]
    print("\n".join(problems) if problems else f"text: {len(paths)} files name no machine")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
