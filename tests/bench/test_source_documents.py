"""The commands of docs/measure.md that stand for the scripts of the five documents: each runs to its end, made short."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import towline.testing

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"^\| (.+?) \| `((?:[A-Z_]+=\S+ )*towline bench [^`]+)`.*\|$", re.MULTILINE)
PAGE = (ROOT / "docs" / "measure.md").read_text()
COMMANDS: dict[str, str] = dict(ROW.findall(PAGE.partition("## The scripts behind")[2]))
SHORT = ("--runs", "1", "--duration", "0.05", "--warm-up", "0.05", "--no-history", "--quiet")
MORE = {
    "servers": ("--no-latency", "--no-control", "-S", "towline"),
    "clients": ("--no-control", "-S", "towline"),
    "webhooks": ("-s", "800x40", "-S", "towline"),
    "llm": ("--scale", "0.02", "-S", "towline"),
}
"""What makes each command short: Towline alone, and of the webhooks one row."""


def run(command: str, folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    words = shlex.split(command.replace("FOLDER", str(folder)))
    variables = dict(word.split("=", 1) for word in words if re.match(r"[A-Z_]+=", word))
    arguments = words[len(variables) + 1 :]
    return subprocess.run(
        [sys.executable, "-m", "towline", *arguments, *more],
        cwd=ROOT,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def kind_of(command: str) -> str:
    return command.partition("towline bench ")[2].split()[0]


MEASURING = {script: command for script, command in COMMANDS.items() if kind_of(command) in MORE}


def test_every_document_has_its_commands() -> None:
    assert {script.partition(":")[0] for script in COMMANDS} == {
        "Roadrunner",
        "Hornbeam",
        "httpcorexyz",
        "Nous",
        "HTTPotion",
    }
    assert len(MEASURING) == 11


@pytest.mark.parametrize("script", [script for script in MEASURING if "SKIP_BENCH" not in script])
def test_a_script_runs_to_its_end(script: str, tmp_path: Path) -> None:
    command = MEASURING[script]
    output = () if "FOLDER" in command else ("-o", str(tmp_path))
    done = run(command, tmp_path, *SHORT, *MORE[kind_of(command)], *output)
    assert done.returncode == 0, done.stdout + done.stderr
    verdicts = json.loads((tmp_path / "verdicts.json").read_text())
    assert verdicts["experiments"]
    for experiment in verdicts["experiments"]:
        for subject in experiment["subjects"]:
            assert subject["failure"] is None, (experiment["name"], subject)
            assert subject["answered"] > 0


def test_tables_and_charts_are_made_again(tmp_path: Path) -> None:
    skipping, charts = (
        next(command for command in COMMANDS.values() if part in command) for part in ("SKIP_BENCH", "--svg")
    )
    missing = run(skipping.replace(" -o FOLDER", ""), tmp_path)
    assert missing.returncode == 2
    assert "give its folder as --output FOLDER" in missing.stderr
    measured = run(
        "towline bench servers -s hello -o FOLDER --interface asgi", tmp_path, *SHORT, *MORE["servers"]
    )
    assert measured.returncode == 0, measured.stderr
    record = (tmp_path / "result.json.gz").read_bytes()
    (tmp_path / "report.md").unlink()
    again = run(skipping, tmp_path, "--no-history")
    assert again.returncode == 0, again.stderr
    assert "hello (A, capacity)" in again.stdout
    assert (tmp_path / "report.md").exists()
    assert (tmp_path / "result.json.gz").read_bytes() == record, "nothing was measured"
    assert run(charts, tmp_path).returncode == 0
    assert (tmp_path / "hello.svg").exists()
    assert (tmp_path / "hello.png").exists()


async def app(_scope: object, _receive: object, send: object) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})  # type: ignore[operator]
    await send({"type": "http.response.body", "body": b"ok"})  # type: ignore[operator]


def test_two_servers_that_run_already(tmp_path: Path) -> None:
    command = next(command for command in COMMANDS.values() if "http://127.0.0.1:8000/" in command)
    with (
        towline.testing.serve(app, lifespan="off") as one,
        towline.testing.serve(app, lifespan="off") as other,
    ):
        there = command.replace(":8000", f":{one.port}").replace(":9000", f":{other.port}")
        done = run(
            there, tmp_path, "--runs", "2", "--duration", "0.1", "--warm-up", "0.05", "-o", str(tmp_path)
        )
    assert done.returncode == 0, done.stdout + done.stderr
