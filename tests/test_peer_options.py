"""The snapshot of other projects' options (scripts/peer_options.py) is that of what is installed, and differences are reported."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]


def script() -> Any:
    spec = importlib.util.spec_from_file_location("peer_options", ROOT / "scripts" / "peer_options.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


PEERS = script()
SNAPSHOT = json.loads(PEERS.SNAPSHOT.read_text())


def numbers(version: str) -> list[int]:
    return [int(part) for part in version.split(".") if part.isdecimal()]


def test_the_snapshot_has_every_peer() -> None:
    assert SNAPSHOT.keys() == PEERS.PEERS.keys()
    for package, known in SNAPSHOT.items():
        assert known["options"], package


@pytest.mark.parametrize(
    "package", ["uvicorn", "gunicorn", "granian", "hypercorn", "httpx", "httpx2", "requests", "aiohttp"]
)
def test_what_is_installed_has_the_options_of_the_snapshot(package: str) -> None:
    """A release that changes an option fails here: look at the pages, then `scripts/peer_options.py --install --write`."""
    installed = PEERS.collect([package])
    if not installed:
        pytest.skip(f"{package} is not installed")
    now, known = installed[package], SNAPSHOT[package]
    if numbers(now["version"]) < numbers(known["version"]):
        pytest.skip(f"the snapshot has {known['version']}")
    assert PEERS.differences(known["options"], now["options"]) == {}


def test_the_comparison_has_the_versions_of_the_snapshot() -> None:
    """A new snapshot fails until the page names its versions."""
    page = (ROOT / "docs" / "comparison.md").read_text()
    others = {"peregrine": "peregrine-server", "weft": "weft-server"}
    named = {
        others.get(name.lower(), name.lower()): version
        for name, version in re.findall(r"\| (\w+) (\d+(?:\.\d+)*)(?= \|)", page)
    }
    compared = {name: version for name, version in named.items() if name in SNAPSHOT}
    assert len(compared) > 15
    for name, version in compared.items():
        assert f"{SNAPSHOT[name]['version']}.".startswith(f"{version}."), name


def test_differences_name_the_rows_and_the_pages(capsys: pytest.CaptureFixture[str]) -> None:
    before = {
        "uvicorn": {"version": "0.1", "options": {"--reload-delay": "0.25", "--workers": "1", "--gone": ""}}
    }
    after = {
        "uvicorn": {"version": "0.2", "options": {"--reload-delay": "0.5", "--workers": "1", "--new": "3"}}
    }
    assert PEERS.report(before, after) == 3
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "uvicorn 0.1 -> 0.2: 3 differences"
    assert lines[1:3] == ["  --gone: removed", "  --new: new, default 3"]
    assert lines[3].startswith(
        "  --reload-delay: default 0.25 is now 0.5  [_migration.py: row --reload-delay; docs/migrate.md:"
    )
    assert lines[4].startswith("  pages that name it: docs/comparison.md:")
    assert PEERS.report(after, after) == 0


def test_arguments_of_clients_are_options() -> None:
    assert SNAPSHOT["httpx"]["options"]["Client(max_redirects)"] == "20"
    assert "AsyncClient(http2)" in SNAPSHOT["httpx"]["options"]
    assert SNAPSHOT["requests"]["options"]["Session.request(allow_redirects)"] == "True"
    assert SNAPSHOT["h2corn"]["options"]["--backlog"] == "1024"


def test_without_a_network_nothing_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "")
    monkeypatch.setattr(PEERS, "PEERS", {"httpx": PEERS.PEERS["httpx"]})
    monkeypatch.setattr(sys, "argv", ["peer_options.py", "--install"])
    assert PEERS.main() == 0
    assert "nothing was compared" in capsys.readouterr().out
