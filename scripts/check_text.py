"""Finds paths of one particular machine and secrets in the files of the repository, and comments that mean nothing alone.

A comment, and a docstring, names its subject: the first line of one does not begin with "The same", "Of", "It" or "What".
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HERE = Path(__file__).resolve().relative_to(ROOT)
PATTERNS = {
    "path of one machine": re.compile(r"(?<![\w.*~-])/(root|work|Users|home/\w+)/\w"),
    "private key": re.compile(r"^-----BEGIN [A-Z ]*PRIVATE KEY-----$"),
}
OPENING = re.compile(r"(?:The same|Of|Its?|They|Those|What|Whose|Who|Also)\b")
COMMENTS = {
    ".rs": re.compile(r"\s*//[/!]?\s?(?P<text>.*)"),
    ".py": re.compile(r"\s*(?:#|[rb]?\"\"\")\s?(?P<text>.*)"),
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
    lines = list(enumerate(text.splitlines(), 1))
    found = [
        f"{path}:{number}: {kind}: {line.strip()[:80]}"
        for number, line in lines
        for kind, pattern in PATTERNS.items()
        if pattern.search(line)
    ]
    return found + [f"{path}:{number}: begins with {word!r}" for number, word in openings(path, lines)]


def openings(path: Path, lines: list[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """Lines that begin a comment with a word that has no subject."""
    pattern = COMMENTS.get(path.suffix.replace(".pyi", ".py"))
    goes_on = False
    for number, line in lines if pattern else ():
        comment = pattern.match(line) if pattern else None
        if comment and not goes_on and (word := OPENING.match(comment["text"])):
            yield number, word[0]
        goes_on = bool(comment) and not line.strip().startswith(('"""', 'r"""', 'b"""'))


def main() -> int:
    paths = [path for path in tracked() if path.suffix not in DATA and path != HERE]
    problems = [problem for path in paths for problem in problems_in(path)]
    print(
        "\n".join(problems)
        if problems
        else f"text: {len(paths)} files name no machine, and their comments name a subject"
    )
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
