"""examples/web_frameworks: each entry starts with its command, as the Dockerfile there runs it, and keeps the contract of .spec there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import towline
import yaml

from tests.support.process import eventually
from tests.support.programs import free_port

PYTHON = Path(__file__).parents[2] / "examples" / "web_frameworks" / "python"
ENTRIES = sorted(one.parent.name for one in PYTHON.glob("*/config.yaml"))


def merged(entry: str) -> tuple[str, dict[str, str]]:
    """Command and environment of the engine, the entry's over the language's."""
    language, own = (
        yaml.safe_load(file.read_text()) for file in (PYTHON / "config.yaml", PYTHON / entry / "config.yaml")
    )
    assert own["framework"]["engines"] == ["towline"]
    engine = language["language"]["engines"]["towline"]
    changed = own.get("language", {}).get("engines", {}).get("towline", {})
    return engine["command"], {**engine["environment"], **changed.get("environment", {})}


@contextmanager
def served(entry: str) -> Iterator[str]:
    command, environment = merged(entry)
    port = free_port()
    # A shell runs the line, as ENTRYPOINT does; the entry is installed there, and is the folder here.
    line, changes = re.subn(r"0\.0\.0\.0:3000", f"127.0.0.1:{port}", command)
    assert changes == 1
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    process = subprocess.Popen(
        ["sh", "-c", f"exec {line}"], cwd=PYTHON / entry, env={**os.environ, **environment, "PATH": path}
    )
    try:
        url = f"http://127.0.0.1:{port}"
        eventually(lambda: process.poll() is not None or responds(url), "start")
        assert process.poll() is None, "the command ended"
        yield url
    finally:
        process.terminate()
        assert process.wait(20) == 0


def responds(url: str) -> bool:
    try:
        return towline.get(url).status_code < 500
    except towline.TransportError:
        return False


def test_there_are_the_five_entries() -> None:
    assert ENTRIES == ["django", "fastapi", "flask", "towline", "towline-wsgi"]


@pytest.mark.parametrize("entry", ENTRIES)
def test_an_entry_keeps_the_contract(entry: str) -> None:
    with served(entry) as url:
        index = towline.get(f"{url}/")
        user = towline.get(f"{url}/user/0")
        created = towline.post(f"{url}/user", headers={"Content-Type": "text/plain"})
        assert [(one.status_code, one.text) for one in (index, user, created)] == [
            (200, ""),
            (200, "0"),
            (200, ""),
        ]
        assert towline.get(f"{url}/user/123").text == "123"
        assert towline.get(f"{url}/nothing").status_code == 404
        assert towline.post(f"{url}/").status_code == 405
