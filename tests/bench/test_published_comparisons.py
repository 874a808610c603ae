"""The commands of docs/published_comparisons.md that stand for the scripts of the published comparisons: each runs to its end, made short."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import towline.testing

from benches import published_comparisons
from benches.published_comparisons import FULL, MEASURING, SHORT, kind_of, options_of, run
from tests.support.nightly import by_night

COMMANDS = published_comparisons.commands()
MORE = published_comparisons.SHORT_OF


def test_every_comparison_has_its_commands() -> None:
    assert {script.partition(":")[0] for script in COMMANDS} == {
        "Roadrunner",
        "Hornbeam",
        "httpcorexyz",
        "Nous",
        "HTTPotion",
    }
    measuring = {script for script, command in COMMANDS.items() if kind_of(command) in MEASURING}
    assert measuring - {script for script in measuring if "SKIP_BENCH" in script} == set(FULL)


def test_the_full_runs_are_listed_with_their_time(capsys: pytest.CaptureFixture[str]) -> None:
    assert published_comparisons.main(["--list", "--postgresql", "postgresql://127.0.0.1/x"]) == 0
    shown = capsys.readouterr().out
    names = [one.name for one in FULL.values()]
    assert all(f"{name}: about " in shown for name in [*names, published_comparisons.POSTGRESQL.name])
    assert "RUNS=3 DURATION=5 towline bench servers -s tag:matrix -S towline," in shown
    assert "--database postgresql://127.0.0.1/x" in shown
    assert "in all about " in shown


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ("httpotion,relay", "there is no relay; there are "),
        ("httpotion_postgresql", "needs a server: --postgresql URL"),
    ],
)
def test_a_run_that_would_do_nothing_is_refused(
    names: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        published_comparisons.main(["--only", names])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


LONG = [
    "Roadrunner: all its scenarios",
    "httpcorexyz: streams with 1 to 200 threads",
    "httpcorexyz: the pool and partial writes",
]


@pytest.mark.parametrize("script", [*(name for name in FULL if name not in LONG), *by_night(LONG)])
def test_a_script_runs_to_its_end(script: str, tmp_path: Path) -> None:
    command = COMMANDS[script]
    output = () if "FOLDER" in command else ("-o", str(tmp_path))
    done = run(command, tmp_path, *options_of(script, FULL[script], short=True), *output)
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
    assert "hello (Roadrunner, capacity)" in again.stdout
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
