"""Runs the test suites of other projects with Towline in their place: `python tests/suites/run.py [SUITE [TESTS...]]`.

For the server: uvicorn, starlette. For the client's transports: httpx, httpx2 (with httpx's tests, as it
ships none), requests. Downloads the source distributions of the installed versions into build/suites, and runs their tests with a
plugin. The suites are not kept in the project.
"""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
import tarfile
from pathlib import Path

HERE = Path(__file__).parent
BUILD = HERE.parents[1] / "build" / "suites"
SUITES = {
    "uvicorn": [
        "tests/protocols/test_http.py",
        "tests/protocols/test_websocket.py",
        "tests/test_default_headers.py",
        "tests/test_ssl.py",
        "tests/test_main.py::test_run",
    ],
    "starlette": ["tests", "--ignore=tests/test_testclient.py"],
    "httpx": ["tests", "-m", "not network"],
    "httpx2": ["tests", "-m", "not network"],
    # Left out: an address that swallows packets, and names of the Internet.
    "requests": [
        "tests",
        "-k",
        "not connect_timeout and not timeout_connect and not use_proxy_from_environment",
    ],
}
SOURCES = {"httpx2": "httpx"}  # package whose tests are used, if not its own


def source_of(package: str) -> Path:
    """The unpacked source distribution of the installed version."""
    name = f"{package}-{importlib.metadata.version(package)}"
    folder = BUILD / name
    if not folder.exists():
        BUILD.mkdir(parents=True, exist_ok=True)
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:"]
        subprocess.run([*pip, "--dest", str(BUILD), name.replace("-", "==")], check=True)
        with tarfile.open(BUILD / f"{name}.tar.gz") as archive:
            archive.extractall(BUILD, filter="data")
    return folder


def run(package: str, arguments: list[str]) -> int:
    environment = {**os.environ, "PYTHONPATH": str(HERE)}
    plugin = ["-p", f"{package}_plugin", "-p", "no:cacheprovider", "-o", "addopts=", "-o", "filterwarnings="]
    command = [sys.executable, "-m", "pytest", "-q", "-rfEX", "--timeout=60", *plugin]
    print(f"== {package}'s own tests, with Towline", flush=True)
    tests = arguments or SUITES[package]
    return subprocess.run(
        [*command, *tests], cwd=source_of(SOURCES.get(package, package)), env=environment, check=False
    ).returncode


def main() -> int:
    chosen = [sys.argv[1]] if len(sys.argv) > 1 else list(SUITES)
    return max(run(package, sys.argv[2:]) for package in chosen)


if __name__ == "__main__":
    sys.exit(main())
