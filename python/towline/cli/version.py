"""`towline version`: the version; with `-v` also what a report of a bug needs."""

from __future__ import annotations

import importlib.metadata
import platform
import sys
from collections.abc import Sequence

from .._version import __version__

PACKAGES = ("uvloop", "watchfiles", "pyyaml", "rich", "uvicorn", "starlette", "fastapi", "django", "flask")


def main(arguments: Sequence[str]) -> int:
    sys.stdout.write(f"towline {__version__}\n")
    if any(each in ("-v", "--verbose") for each in arguments):
        sys.stdout.write(
            f"{platform.python_implementation()} {platform.python_version()}\n{platform.platform()}\n"
        )
        for name in PACKAGES:
            try:
                sys.stdout.write(f"{name} {importlib.metadata.version(name)}\n")
            except importlib.metadata.PackageNotFoundError:
                pass
    return 0
