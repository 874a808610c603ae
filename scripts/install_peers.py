"""Installs the servers and clients to compare with into the environment of this Python: `make peers`.

All at once, or one by one where that fails. One line names each that is left out, and why.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from pip._vendor.packaging.requirements import Requirement

try:
    import tomllib
except ModuleNotFoundError:  # CPython 3.10
    from pip._vendor import tomli as tomllib

GROUPS = ("peers", "client-peers")
FROM_SOURCE = ("bjoern", "gunicorn_h1c", "urllib3-future")
"""Have no wheels and are built in seconds; urllib3-future's wheel would replace urllib3."""


def pip_install(*peers: str) -> str:
    """Returns the error message of pip; empty if it succeeds."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    command += ["--only-binary", ":all:", "--no-binary", ",".join(FROM_SOURCE), *peers]
    done = subprocess.run(
        command, env={**os.environ, "URLLIB3_NO_OVERRIDE": "1"}, capture_output=True, text=True
    )
    return done.stderr.strip() or "pip failed" if done.returncode else ""


def reason(name: str, said: str) -> str:
    if "No matching distribution" in said:
        return f"it has no wheel for CPython {sys.version_info[0]}.{sys.version_info[1]} on this platform"
    if name in FROM_SOURCE:
        return "it has no wheel, and its source does not build here"
    return said.splitlines()[-1]


def main() -> None:
    groups = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())["dependency-groups"]
    members = [Requirement(one) for group in GROUPS for one in groups[group] if isinstance(one, str)]
    wanted = [one for one in members if one.marker is None or one.marker.evaluate()]
    for name in sorted({one.name for one in members} - {one.name for one in wanted}):
        print(f"without {name}: it needs {next(one.marker for one in members if one.name == name)}")
    if said := pip_install("--group", "frameworks"):
        sys.exit(said)
    if pip_install(*map(str, wanted)):
        for one in wanted:
            if said := pip_install(str(one)):
                print(f"without {one.name}: {reason(one.name, said)}")


if __name__ == "__main__":
    main()
