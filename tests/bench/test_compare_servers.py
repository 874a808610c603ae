"""`towline bench URL URL`, `--app`, `--command`: the real command with real servers, and its errors."""

from __future__ import annotations

import re
import signal
import time
from pathlib import Path

import pytest
from towline.bench import record as records
from towline.cli.bench import main as bench_command

from tests.bench.comparisons import (
    SERVER,
    TINY,
    application,
    commands_of,
    compared,
    concludes,
    flawless,
    running,
    script,
    servers_of,
    serving_with_tls,
)
from tests.bench.test_run import no_process_left, processes_of, program
from tests.support.nightly import nightly
from tests.support.process import eventually


def test_two_running_servers(tmp_path: Path) -> None:
    with running(script(tmp_path, "quick")) as quick, running(script(tmp_path, "slow", 0.01)) as slow:
        lines, record = compared(tmp_path, f"http://127.0.0.1:{slow}/", f"fast=:{quick}", "--no-control")
    first, second = f"127.0.0.1:{slow}", "fast"
    assert lines[0].startswith(
        f"towline bench: compares {first} and {second}: GET /, 4 connections; 2 restarts with 0.2 s of load on each; about "
    )
    assert concludes(lines[-1], record, second, first)
    (experiment,) = record.experiments
    assert [one.name for one in experiment.subjects] == [first, second]
    assert not any(one.failure for one in experiment.subjects)
    assert all(one.answered and not one.failed for one in experiment.slices)
    # Each server's own Host, and the costs of the processes that listen.
    assert any("the bodies" in note or "responses differ" in note for note in experiment.notes)
    assert all(one.subject_cpu_s > 0 for one in experiment.slices if one.subject == second)
    assert all(start.rss_end_bytes > 1 << 20 for one in experiment.subjects for start in one.starts)
    assert any("are not restarted" in note for note in experiment.notes)


def test_two_paths_of_one_server(tmp_path: Path) -> None:
    with running(script(tmp_path, "quick")) as port:
        lines, record = compared(
            tmp_path, f"http://127.0.0.1:{port}/a", f"http://127.0.0.1:{port}/bb?x=1", "--no-control"
        )
    (experiment,) = record.experiments
    host = f"127.0.0.1:{port}"
    assert f"{host}/a and {host}/bb?x=1: GET /a, /bb?x=1, 4 connections" in lines[0]
    assert experiment.title == "GET /a, /bb?x=1"
    assert [one.name for one in experiment.subjects] == [f"{host}/a", f"{host}/bb?x=1"]
    sizes = {one.subject: one.body_bytes / one.answered for one in experiment.slices}
    # Responses after the end of a slice are in body_bytes only.
    assert sizes[f"{host}/a"] == pytest.approx(len(f"/a {host}"), rel=0.05)
    assert sizes[f"{host}/bb?x=1"] == pytest.approx(len(f"/bb?x=1 {host}"), rel=0.05)


def test_servers_of_http_1_0(tmp_path: Path) -> None:
    """`python -m http.server` closes each connection."""
    (tmp_path / "index.html").write_text("hello")
    commands = [
        word for name in ("a", "b") for word in ("--command", f"{name}={{python}} -m http.server {{port}}")
    ]
    _, record = compared(tmp_path, *commands, "--no-control", "--expect", "hello")
    (experiment,) = record.experiments
    assert {"a responds with HTTP/1.0", "b responds with HTTP/1.0"} <= set(experiment.notes)
    assert not any(one.failure for one in experiment.subjects)
    assert all(one.answered and not one.failed for one in experiment.slices)


@pytest.mark.parametrize("protocol", ["h1", "h2"])
def test_a_running_server_with_tls(protocol: str, tmp_path: Path) -> None:
    with serving_with_tls(tmp_path, "--log-level", "error") as port:
        urls = [f"https://127.0.0.1:{port}/{name}" for name in ("a", "bb")]
        _, record = compared(tmp_path, *urls, "--protocol", protocol, "--no-control")
    assert flawless(record, all_cost=True).load.get("protocol", "h1") == protocol


@nightly
def test_a_running_server_over_http3(tmp_path: Path) -> None:
    """Without a port of TCP."""
    options = ("--http3", "--no-http1", "--no-http2")
    with serving_with_tls(tmp_path, *options, over_udp=True) as port:
        urls = [f"127.0.0.1:{port}/{name}" for name in ("a", "bb")]
        load = ["--protocol", "h3", "--streams", "4"]
        _, record = compared(tmp_path, *urls, *load, "--no-control")
    experiment = flawless(record, all_cost=True)
    assert (experiment.load["protocol"], experiment.load["streams"]) == ("h3", 4)


def test_applications_and_commands_over_http3(tmp_path: Path) -> None:
    application(tmp_path)
    command = (
        "{python} -m towline serve shop:app --port {port} --http3 --ssl-certfile {cert} --ssl-keyfile {key}"
    )
    subjects = ("--app", "a=shop:app", "--app", "b=shop:app", "--command", f"c={command}")
    _, record = compared(tmp_path, *subjects, "--protocol", "h3", "--no-control", "--expect", "shop /")
    (experiment,) = record.experiments
    assert {one.subject for one in experiment.slices} == {"a", "b", "c"}
    assert all(one.answered and not one.failed for one in experiment.slices)
    assert experiment.load["protocol"] == "h3"


def test_an_application_on_two_servers(tmp_path: Path) -> None:
    application(tmp_path)
    # Options of one server only would make the comparison unfair.
    (tmp_path / "pyproject.toml").write_text("[tool.towline.serve]\nworkers = 3\n")
    lines, record = compared(
        tmp_path,
        "--app",
        "shop:app",
        "--server",
        "towline,uvicorn",
        "--path",
        "/products",
        "--expect",
        "shop /products",
    )
    assert "compares towline and uvicorn: GET /products, 4 connections" in lines[0]
    experiment, control = record.experiments
    assert [one.name for one in experiment.subjects] == ["towline", "uvicorn"]
    assert [one.name for one in control.subjects] == ["towline", "towline again"]
    assert control.control
    assert experiment.baseline == "towline"
    assert all(one.answered and not one.failed for one in experiment.slices)
    towline = experiment.subjects[0]
    assert "shop:app" in towline.command
    assert "--workers" not in towline.command
    assert all(len(one.starts) == 2 for one in experiment.subjects)
    assert concludes(lines[-1], record, "towline", "uvicorn")
    assert str(tmp_path) not in records.FILE + repr(record)
    assert no_process_left(tmp_path)


def test_towline_ignores_the_options_of_a_project(tmp_path: Path) -> None:
    application(tmp_path)
    (tmp_path / "pyproject.toml").write_text('[tool.towline.serve]\nroot-path = "/elsewhere"\n')
    arguments = (
        "--app",
        "old=shop:app",
        "--app",
        "new=shop:app",
        "--no-control",
        "--expect",
        "shop /x",
        "--path",
        "/x",
    )
    _, record = compared(tmp_path, *arguments)
    assert [one.name for one in record.experiments[0].subjects] == ["old", "new"]
    assert not any(one.failure for one in record.experiments[0].subjects)


def test_two_commands(tmp_path: Path) -> None:
    script(tmp_path, "old", 0.01)
    script(tmp_path, "new")
    lines, record = compared(
        tmp_path,
        "--command",
        "old={python} old.py {port}",
        "--command",
        f"new={{python}} {tmp_path}/new.py {{port}}",
        "--no-control",
        "--baseline",
        "new",
    )
    assert "compares old and new: GET /, 4 connections" in lines[0]
    assert concludes(lines[-1], record, "new", "old")
    (experiment,) = record.experiments
    assert experiment.baseline == "new"
    assert [one.command[1:] for one in experiment.subjects] == [["old.py", "PORT"], ["APPS/new.py", "PORT"]]
    assert no_process_left(tmp_path)


def test_a_rate_gives_latencies(tmp_path: Path) -> None:
    script(tmp_path, "old", 0.01)
    script(tmp_path, "new")
    lines, record = compared(
        tmp_path,
        *commands_of("new", "old"),
        "--no-control",
        "--rate",
        "100",
        "--header",
        "X-Test: 1",
        "-X",
        "put",
    )
    assert "PUT /, 4 connections, 100 requests/s" in lines[0]
    (experiment,) = record.experiments
    assert experiment.question == "latency"
    slow = [one.response.p50_us for one in experiment.slices if one.subject == "old"]
    assert min(slow) > 10_000


def test_an_interrupt_keeps_what_was_measured(tmp_path: Path) -> None:
    script(tmp_path, "old", 0.002)
    script(tmp_path, "new")
    run = program(
        *(
            "--command",
            f"old={{python}} {tmp_path}/old.py {{port}}",
            "--command",
            f"new={{python}} {tmp_path}/new.py {{port}}",
        ),
        *("--runs", "100", "--duration", "0.3", "--warm-up", "0.2", "--no-history", "-o", "out", "-c", "2"),
        *("-H", "Authorization: Bearer secret", "--header=X-Key: secret"),
        cwd=tmp_path,
    )
    assert run.stdout is not None
    assert run.stdout.readline().startswith("towline bench: compares old and new: ")
    # Each start has a fresh port: the trial's servers, those of the first restart, those of the second.
    for what in ("the trial", "the first restart"):
        eventually(lambda: len(servers_of(tmp_path)) >= 2, "both servers run")
        before = servers_of(tmp_path)
        eventually(lambda before=before: not before & servers_of(tmp_path), f"{what} has ended")  # type: ignore[misc]
    run.send_signal(signal.SIGINT)
    out, err = run.communicate(timeout=30)
    assert run.returncode == 130, err
    record = records.load(tmp_path / "out" / "result.json.gz")
    assert record.interrupted
    assert record.experiments[0].slices
    assert "interrupted: only what was measured until then is included" in out
    assert no_process_left(tmp_path)
    # Credentials are not part of a result.
    assert record.command[-3:] == ["-H", "Authorization: ...", "--header=X-Key: ..."]
    assert "secret" not in repr(record)


def test_the_announced_duration_is_corrected_after_the_first_start(tmp_path: Path) -> None:
    for name in ("old", "new"):
        path = script(tmp_path, name)
        path.write_text("import time; time.sleep(2)\n" + path.read_text())
    run = program(*commands_of("new", "old"), *TINY, "--no-control", cwd=tmp_path)
    out, err = run.communicate(timeout=200)
    assert run.returncode == 0, err
    assert out.splitlines()[0].endswith("; about 10 s")
    assert re.search(r"they start in [2-9]\.\d s and respond in \d+ ms: about \d", err)


# --- errors ----------------------------------------------------------------------------------------------


ERRORS = {
    "no server 'nosuch' for an application": ("--app", "shop:app", "--server", "towline,nosuch"),
    "did you mean uvicorn?": ("--app", "shop:app", "--server", "uvicron"),
    "server: gunicorn-sync has no asgi interface": ("--app", "shop:app", "--server", "towline,gunicorn-sync"),
    "no module 'nosuch'": ("--app", "nosuch:app"),
    "'shop' has no attribute 'nope'": ("--app", "shop:nope"),
    "not of the form module:attribute": ("--app", "shop.py"),
    "nothing listens there": ("http://127.0.0.1:9/", "http://127.0.0.1:10/"),
    "the name nosuch.invalid has no address": ("http://nosuch.invalid/", ":9"),
    "is no URL of http or https": ("http://user:secret@127.0.0.1/", ":9"),
    "ended before it was ready, exit status 1": (
        "--command",
        "a=false {port}",
        "--command",
        "b=sleep {port}",
    ),
    "the program nosuch is not found": ("--command", "a=nosuch {port}", "--command", "b=sleep {port}"),
    "write {port} where the port belongs": ("--command", "a=sleep 5", "--command", "b=sleep {port}"),
    "two subjects are named 'a'": ("--command", "a=true {port}", "--command", "a=false {port}"),
    "alone cannot be compared": ("--command", "a=true {port}"),
    "not a git repository": ("--git", "a..b", "--app", "shop:app"),
    "git: needs one --app or one --command": ("--git", "a..b"),
    "baseline: 'c' is none of towline, uvicorn": (
        "--app",
        "shop:app",
        "--server",
        "towline,uvicorn",
        "--baseline",
        "c",
    ),
    "status 200 instead of 404": ("--app", "shop:app", "--server", "towline,uvicorn", "--status", "404"),
    "did you mean --server?": ("--app", "shop:app", "--sever", "towline"),
    "'nope' is neither a URL nor a command": (":9", "nope"),
    "header: expected 'NAME: VALUE'": ("--app", "shop:app", "-H", "nope"),
    "body-file: cannot read nope": ("--app", "shop:app", "--body-file", "nope"),
    "server: names servers for an application": ("--server", "towline", ":9"),
    "path: must start with /": ("--app", "shop:app", "--path", "x"),
    "streams: belong to HTTP/2": ("--app", "shop:app", "--streams", "4"),
    "give a URL of https": ("--protocol", "h3", "http://127.0.0.1:9/", "http://127.0.0.1:10/"),
    "https://127.0.0.1:9: nothing listens there": ("--protocol", "h3", ":9", ":10"),
    "write {cert} and {key} where": (
        *("--protocol", "h3", "--command", "a=true {port}"),
        *("--command", "b=false {port}"),
    ),
    "expected a number of seconds": ("--app", "shop:app", "--time", "long"),
}


@pytest.mark.parametrize("message", ERRORS)
def test_invalid_arguments_are_one_line_and_status_2(
    message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    application(tmp_path)
    monkeypatch.chdir(tmp_path)
    began = time.monotonic()
    assert bench_command([*ERRORS[message], "--quiet", *TINY]) == 2
    out, err = capfd.readouterr()
    (line,) = err.splitlines()
    assert line.startswith("towline bench: ")
    assert message in line
    assert len(out.splitlines()) <= 1
    assert time.monotonic() - began < 30
    assert not Path("out").exists()
    assert processes_of(tmp_path) == []


def test_a_server_that_ends_while_it_is_measured(tmp_path: Path) -> None:
    script(tmp_path, "good")
    (tmp_path / "dying.py").write_text(
        "import os, threading\nthreading.Timer(1.5, os._exit, (7,)).start()\n" + SERVER.format(delay=0)
    )
    lines, record = compared(
        tmp_path,
        *(
            "--command",
            f"good={{python}} {tmp_path}/good.py {{port}}",
            "--command",
            "dying={python} dying.py {port}",
        ),
        status=1,
        tiny=("--runs", "2", "--duration", "3", "--warm-up", "0.3", "--no-history", "-o", "out", "-c", "2"),
    )
    assert lines[-1].startswith("dying has no figures: ")
    assert len(record.experiments) == 1
    assert "exit status 7" in (record.experiments[0].subjects[1].failure or "")
    assert no_process_left(tmp_path)
