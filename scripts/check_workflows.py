"""Checks .github/ and the workflow of examples/ci: `python scripts/check_workflows.py`.

Our own rules: an action is pinned by its commit, with its version in a comment; a command that names a `make` target
or a script names one that is there. Then zizmor (security, of PyPI) and actionlint (syntax, expressions and shell), which
is built from the Go module proxy into build/tools where Go is installed, and left out where it cannot be built.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EXAMPLE = ROOT / "examples/ci/towline-bench.yml"
ACTIONLINT = "v1.7.12"
MODULE = f"github.com/rhysd/actionlint/cmd/actionlint@{ACTIONLINT}"
TOOLS = ROOT / "build" / "tools"

USES = re.compile(r"^\s*(?:- )?uses: (?P<action>\S+)(?: # (?P<version>\S+))?$")
PINNED = re.compile(r"[\w.-]+(?:/[\w.-]+)+@[0-9a-f]{40}")
VERSION = re.compile(r"v\d+(?:\.\d+)*")
MAKE = re.compile(r"\bmake (?P<target>[a-z][a-z-]*)")
SCRIPT = re.compile(r"(?<![\w/.-])(?:new/)?(?P<path>(?:scripts|examples|tests)/[\w./-]+\.(?:sh|py))")


def files() -> list[Path]:
    return [*sorted((ROOT / ".github").rglob("*.yml")), EXAMPLE]


def targets() -> set[str]:
    return set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def problems_of(text: str) -> Iterator[str]:
    for line in text.splitlines():
        if found := USES.match(line):
            yield from action_problems(found["action"], found["version"])
        yield from (f"make {name}: no such target" for name in MAKE.findall(line) if name not in targets())
        yield from (f"{path}: no such file" for path in SCRIPT.findall(line) if not (ROOT / path).exists())


def action_problems(action: str, version: str | None) -> Iterator[str]:
    if action.startswith("./"):
        path = ROOT / action.removeprefix("./").removeprefix("new/")
        if not path.exists():
            yield f"{action}: no such file"
    elif PINNED.fullmatch(action) is None:
        yield f"{action}: pin it by the commit's full hash"
    elif version is None or VERSION.fullmatch(version) is None:
        yield f"{action}: name its version in a comment"


def actionlint() -> Path | None:
    """The program, built if it is not there; `None` where it cannot be."""
    program = TOOLS / f"actionlint-{ACTIONLINT}" / "actionlint"
    if not program.exists():
        if shutil.which("go") is None:
            return None
        environment = {**os.environ, "GOBIN": str(program.parent)}
        command = ["go", "install", MODULE]
        built = subprocess.run(
            command, cwd=tempfile.gettempdir(), env=environment, capture_output=True, text=True, check=False
        )
        if built.returncode != 0:
            print(f"actionlint: not built: {built.stderr.strip()[-300:]}")
            return None
    return program


def run(*command: str | Path) -> bool:
    return subprocess.run(command, cwd=ROOT, check=False).returncode == 0


def main() -> int:
    problems = [
        f"{path.relative_to(ROOT)}: {problem}"
        for path in files()
        for problem in problems_of(path.read_text())
    ]
    print("\n".join(problems) if problems else f"workflows: {len(files())} files name what is there")
    programs = Path(sys.prefix, "bin")
    good = run(programs / "zizmor", "--offline", "--quiet", "--no-progress", ".github", EXAMPLE)
    if (program := actionlint()) is None:
        print("actionlint: left out; it is built where Go is installed")
    else:
        lint = (program, "-shellcheck", programs / "shellcheck", "-pyflakes", "")
        good &= run(*lint) and run(*lint, EXAMPLE)
    return int(bool(problems) or not good)


if __name__ == "__main__":
    sys.exit(main())
