"""Looks up whether a subject is installed, and its version, without importing or starting it."""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from ..._version import __version__
from .model import Server

PEERS_BIN = "TOWLINE_BENCH_BIN"
"""Environment variable: a folder that is searched first, for example that of a virtual environment with other
servers."""
SYSTEM_FOLDERS = ("/usr/sbin", "/usr/local/sbin", "/sbin")
ASK_TIMEOUT_S = 20.0

_ASK = """
import importlib.metadata as m, json, sys
found = {}
for name in sys.argv[1:]:
    try: found[name] = m.version(name)
    except m.PackageNotFoundError: pass
print(json.dumps([sys.version.split()[0], found]))
"""


def program(word: str, base: Path | None = None, peers_bin: Path | None = None) -> Path | None:
    """The path of a program. A given folder is searched first, then that of this Python, then PATH.

    `{bin}/name` and `name` are the same; `./name` is relative to the definition's file.
    """
    word = word.removeprefix("{bin}/")
    if word == "{python}":
        return Path(sys.executable)
    if "/" in word:
        path = (base or Path()) / word
        return path if os.access(path, os.X_OK) and path.is_file() else None
    folders = [peers_bin, os.environ.get(PEERS_BIN), Path(sys.executable).parent]
    path_list = [str(one) for one in folders if one]
    path_list += [os.environ.get("PATH", ""), *SYSTEM_FOLDERS]
    found = shutil.which(word, path=os.pathsep.join(path_list))
    # A subject starts in a folder of its own.
    return Path(found).absolute() if found else None


def installed(server: Server, peers_bin: Path | None = None) -> str | None:
    """Why the subject cannot be started here; None when nothing is missing."""
    found = program(server.command[0], server.base, peers_bin)
    if found is None:
        word = server.command[0].removeprefix("{bin}/")
        return f"the program {Path(word).name} is not found next to this Python, on PATH or in --peers-bin"
    python = _python_of(found)
    if python is None or not server.packages:
        return None
    try:
        there = _packages(str(python), _wanted(server))[1]
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        return f"its Python does not list its packages ({type(error).__name__})"
    missing = [name for name in server.packages if name not in there]
    if missing:
        return f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed in {found.name}"
    return None


def versions(server: Server, peers_bin: Path | None = None) -> dict[str, str]:
    """Versions of the packages, of their Python, or from the version command. Unknown ones are left out."""
    found = program(server.command[0], server.base, peers_bin)
    if found is None:
        return {}
    known: dict[str, str] = {}
    if server.version:
        known |= _printed(server, peers_bin)
    python = _python_of(found)
    if python is not None and (server.packages or server.optional):
        try:
            release, there = _packages(str(python), _wanted(server))
        except (OSError, ValueError, subprocess.SubprocessError):
            return known
        known |= there
        known["python"] = release
    return known


def _wanted(server: Server) -> tuple[str, ...]:
    return (*server.packages, *server.optional)


@functools.cache
def _packages(python: str, names: tuple[str, ...]) -> tuple[str, dict[str, str]]:
    # Run outside of the current folder, whose source packages the subject would not import.
    completed = subprocess.run(
        [python, "-c", _ASK, *names],
        capture_output=True,
        text=True,
        timeout=ASK_TIMEOUT_S,
        check=True,
        cwd=Path(__file__).parent,
        stdin=subprocess.DEVNULL,
    )
    release, found = json.loads(completed.stdout)
    if "towline" in names and python == sys.executable:
        found["towline"] = __version__  # a source tree has no metadata
    return str(release), {str(name): str(version) for name, version in found.items()}


def _python_of(path: Path) -> Path | None:
    """The interpreter in the first line of a script; None if it is not a Python program."""
    if re.fullmatch(r"python[\d.]*", path.name):
        return path
    try:
        with path.open("rb") as file:
            first = file.readline(400)
    except OSError:
        return None
    if not first.startswith(b"#!") or b"python" not in first:
        # pip writes a launcher in sh for long paths; the interpreter is then next to it.
        python = path.with_name("python")
        return python if first.startswith(b"#!") and python.exists() else None
    words = first[2:].split()
    if words[0].endswith(b"/env") and len(words) > 1:
        found = shutil.which(os.fsdecode(words[1]))
        return Path(found) if found else None
    return Path(os.fsdecode(words[0]))


def _printed(server: Server, peers_bin: Path | None) -> dict[str, str]:
    found = program(server.version[0], server.base, peers_bin)
    if found is None:
        return {}
    try:
        completed = subprocess.run(
            [str(found), *server.version[1:]],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=ASK_TIMEOUT_S,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.SubprocessError):
        return {}
    number = re.search(r"\d+(\.\d+)+[\w.+-]*", completed.stdout + completed.stderr)
    return {server.name: number[0]} if number else {}
