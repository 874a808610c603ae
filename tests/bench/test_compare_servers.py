"""`towline bench URL URL`, `--app`, `--command`, `--git`: the real command with real servers, and its errors."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from towline._options import groups_of
from towline.bench import record as records
from towline.bench.analysis import Comparison
from towline.bench.compare_servers.options import CompareOptions, estimated_s, seconds_within
from towline.bench.compare_servers.requests import requests_of, title_for
from towline.bench.compare_servers.run import sentence
from towline.bench.compare_servers.subjects import is_url, named
from towline.bench.record import Record
from towline.bench.subjects import make_certificate
from towline.bench.subjects.attached import Address, listeners
from towline.bench.subjects.ports import free_port, is_free
from towline.bench.verdict import Verdict
from towline.cli.bench import main as bench_command
from towline.errors import ConfigError

from tests.bench.test_run import no_process_left, processes_of, program
from tests.support.nightly import by_night, nightly
from tests.support.process import eventually

TINY = ("--runs", "2", "--duration", "0.2", "--warm-up", "0.3", "--no-history", "-o", "out", "-c", "4")
SERVER = """
import socketserver, sys, time
class Handler(socketserver.StreamRequestHandler):
    def handle(self):
        while line := self.rfile.readline():
            host = b""
            while (field := self.rfile.readline()) not in (b"\\r\\n", b""):
                if field.lower().startswith(b"host:"):
                    host = field[5:].strip()
            time.sleep({delay})
            path = line.split()[1]
            body = path + b" " + host
            self.wfile.write(b"HTTP/1.1 200 OK\\r\\ncontent-length: %d\\r\\n\\r\\n" % len(body) + body)
class Server(socketserver.ThreadingTCPServer):
    daemon_threads = allow_reuse_address = True
    request_queue_size = 100
Server(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""
APP = """
async def app(scope, receive, send):
    assert scope["type"] == "http"
    body = b"{body} " + scope["path"].encode()
    headers = [(b"content-length", str(len(body)).encode())]
    await send({{"type": "http.response.start", "status": 200, "headers": headers}})
    await send({{"type": "http.response.body", "body": body}})
"""


def servers_of(folder: Path) -> set[str]:
    """Command lines of the servers of `script` that run, without that of the bench, which names them."""
    return {line for line in processes_of(folder) if "--command" not in line}


def script(folder: Path, name: str, delay: float = 0.0) -> Path:
    path = folder / f"{name}.py"
    path.write_text(SERVER.format(delay=delay))
    return path


@contextmanager
def running(path: Path) -> Iterator[int]:
    """The server of a script, started by somebody else."""
    port = free_port()
    server = subprocess.Popen([sys.executable, str(path), str(port)])
    try:
        eventually(lambda: not is_free(port), "the server listens")
        yield port
        assert server.poll() is None, "the bench has stopped a server that it had not started"
    finally:
        server.kill()
        server.wait()


def compared(
    folder: Path, *arguments: str, status: int = 0, tiny: Sequence[str] = TINY
) -> tuple[list[str], Record]:
    """The lines of output and the record."""
    run = program(*arguments, *tiny, cwd=folder)
    out, err = run.communicate(timeout=200)
    assert run.returncode == status, err + out
    return out.splitlines(), records.load(folder / "out" / "result.json.gz")


def concludes(line: str, record: Record, faster: str, slower: str) -> bool:
    """Whether the figures have this order, and the line is about it; other load on the machine may leave no verdict."""
    rates = {
        name: median(one.per_s for one in record.experiments[0].slices if one.subject == name)
        for name in (faster, slower)
    }
    either = {
        f"{a} {words} {b}: "
        for a, b in ((faster, slower), (slower, faster))
        for words in ("compared with", "and")
    }
    undecided = any(pair.removesuffix(": ") in line for pair in either)
    return rates[faster] > rates[slower] and (
        line.startswith(f"{faster} is faster than {slower}: ") or undecided
    )


# --- the four forms --------------------------------------------------------------------------------------


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


def test_the_title_has_the_paths_of_the_urls() -> None:
    scenario = requests_of(CompareOptions(path="/p", method="PUT")).scenario
    for own_targets, title in (
        ({"a": None, "b": None}, "PUT /p"),
        ({"a": "/x?y=1", "b": "/x?y=1"}, "PUT /x?y=1"),
        ({"a": "/x", "b": None}, "PUT /x (a), /p (b)"),
        ({"h:1/x": "/x", "h:1/y": "/y", "z": "/y"}, "PUT /x, /y, /y (z)"),
        ({"a": "/"}, "PUT /"),
    ):
        assert title_for(scenario, own_targets) == title


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
    (tmp_path / "shop.py").write_text(APP.format(body="shop"))
    certificate, key = make_certificate(tmp_path).tls
    port = free_port()
    serve = [
        sys.executable,
        "-m",
        "towline",
        "serve",
        "shop:app",
        "--port",
        str(port),
        "--log-level",
        "error",
    ]
    tls = ["--ssl-certfile", str(certificate), "--ssl-keyfile", str(key)]
    with subprocess.Popen([*serve, *tls], cwd=tmp_path) as server:
        try:
            eventually(lambda: not is_free(port), "the server listens")
            urls = [f"https://127.0.0.1:{port}/{name}" for name in ("a", "bb")]
            _, record = compared(tmp_path, *urls, "--protocol", protocol, "--no-control")
        finally:
            server.terminate()
    (experiment,) = record.experiments
    assert not any(one.failure for one in experiment.subjects)
    assert all(one.answered and not one.failed and one.subject_cpu_s > 0 for one in experiment.slices)
    assert experiment.load.get("protocol", "h1") == protocol


@nightly
def test_a_running_server_over_http3(tmp_path: Path) -> None:
    """Without a port of TCP."""
    (tmp_path / "shop.py").write_text(APP.format(body="shop"))
    certificate, key = make_certificate(tmp_path).tls
    port = free_port()
    serve = [
        sys.executable,
        "-m",
        "towline",
        "serve",
        "shop:app",
        "--port",
        str(port),
        "--http3",
        "--no-http1",
        "--no-http2",
    ]
    tls = ["--ssl-certfile", str(certificate), "--ssl-keyfile", str(key)]
    address = Address("https", "127.0.0.1", port, "/", over_udp=True)
    with subprocess.Popen([*serve, *tls], cwd=tmp_path) as server:
        try:
            eventually(lambda: address.connect() is None, "the server listens")
            urls = [f"127.0.0.1:{port}/{name}" for name in ("a", "bb")]
            load = ["--protocol", "h3", "--streams", "4"]
            _, record = compared(tmp_path, *urls, *load, "--no-control")
        finally:
            server.terminate()
    (experiment,) = record.experiments
    assert not any(one.failure for one in experiment.subjects)
    assert all(one.answered and not one.failed and one.subject_cpu_s > 0 for one in experiment.slices)
    assert (experiment.load["protocol"], experiment.load["streams"]) == ("h3", 4)


def test_applications_and_commands_over_http3(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(APP.format(body="shop"))
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
    (tmp_path / "shop.py").write_text(APP.format(body="shop"))
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
    (tmp_path / "shop.py").write_text(APP.format(body="shop"))
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
    commands = [
        word for name in ("new", "old") for word in ("--command", f"{name}={{python}} {name}.py {{port}}")
    ]
    lines, record = compared(
        tmp_path, *commands, "--no-control", "--rate", "100", "--header", "X-Test: 1", "-X", "put"
    )
    assert "PUT /, 4 connections, 100 requests/s" in lines[0]
    (experiment,) = record.experiments
    assert experiment.question == "latency"
    slow = [one.response.p50_us for one in experiment.slices if one.subject == "old"]
    assert min(slow) > 10_000


def git(folder: Path, *arguments: str) -> str:
    identity = (
        "-c",
        "user.name=nobody",
        "-c",
        "user.email=nobody@example.org",
        "-c",
        "init.defaultBranch=main",
    )
    return subprocess.run(
        ["git", *identity, *arguments], cwd=folder, check=True, capture_output=True, text=True
    ).stdout


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """main has a longer response than `feature`, which is checked out, with a change that is not committed."""
    folder = tmp_path / "shop"
    (folder / "service").mkdir(parents=True)
    git(folder, "init", "--quiet")
    app = folder / "service" / "shop.py"
    app.write_text(APP.format(body="main " * 20))
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "-m", "one")
    git(folder, "checkout", "--quiet", "-b", "feature")
    app.write_text(APP.format(body="feature"))
    git(folder, "commit", "--quiet", "-am", "two")
    app.write_text(APP.format(body="present files"))
    return folder


def sizes_of(record: Record) -> dict[str, int]:
    found = {one.subject: one.body_bytes / one.answered for one in record.experiments[0].slices}
    return {name: round(size) for name, size in found.items()}


def test_two_revisions(repository: Path) -> None:
    build = "echo built >> ../built; cat service/shop.py > /dev/null"
    commits = [git(repository, "rev-parse", name).strip() for name in ("main", "feature")]
    lines, record = compared(
        repository,
        *(
            "--git",
            "main..feature",
            "--app",
            "shop:app",
            "--app-dir",
            "service",
            "--build",
            build,
            "--no-control",
        ),
    )
    assert "compares main and feature: GET /, 4 connections" in lines[0]
    assert lines[0].endswith(" after the builds")
    assert record.experiments[0].baseline == "feature"
    assert f"main is commit {commits[0]}, feature is commit {commits[1]}" in record.experiments[0].notes
    sizes = sizes_of(record)
    assert sizes["main"] == pytest.approx(len("main " * 20 + " /"), abs=4)
    assert sizes["feature"] == pytest.approx(len("feature /"), abs=1)
    # The user's files and branches are as they were, and the work trees are gone.
    assert git(repository, "worktree", "list").count("\n") == 1
    assert git(repository, "status", "--porcelain").splitlines()[0] == " M service/shop.py"
    assert not (repository.parent / "built").exists()
    assert no_process_left(repository)


def test_a_revision_and_the_present_files_with_a_command(repository: Path) -> None:
    command = (
        "{python} -m towline serve shop:app --app-dir service --bind 127.0.0.1:{port} --log-level warning"
    )
    _, record = compared(repository, "--git", "HEAD", "--command", command, "--no-control")
    sizes = sizes_of(record)
    assert sizes["HEAD"] == pytest.approx(len("feature /"), abs=1)
    assert sizes["present"] == pytest.approx(len("present files /"), abs=1)


def test_an_interrupt_during_a_build_removes_the_work_trees(repository: Path) -> None:
    run = program(
        "--git", "main..feature", "--app", "shop:app", "--build", "sleep 600", *TINY, cwd=repository
    )
    try:
        eventually(lambda: git(repository, "worktree", "list").count("\n") == 3, "the work trees are there")
        eventually(lambda: processes_with_parent(run.pid), "the build runs")
        run.send_signal(signal.SIGINT)
        run.communicate(timeout=20)
    finally:
        run.kill()
    assert run.returncode == 130
    assert git(repository, "worktree", "list").count("\n") == 1


def processes_with_parent(pid: int) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, fields = path.read_text().partition(" (")[2].rpartition(") ")
        except OSError:
            continue
        if fields.split()[1] == str(pid) and name in ("sleep", "sh"):
            found.append(name)
    return found


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
    commands = [
        word for name in ("new", "old") for word in ("--command", f"{name}={{python}} {name}.py {{port}}")
    ]
    run = program(*commands, *TINY, "--no-control", cwd=tmp_path)
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
    (tmp_path / "shop.py").write_text(APP.format(body="shop"))
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


def test_revisions_that_cannot_be_compared(
    repository: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(repository)
    for arguments, message in (
        (("--git", "nosuch..main"), "git: no revision 'nosuch' in this repository"),
        (("--git=--all..main",), "git: '--all' is no revision"),
        (("--git", "feature..HEAD"), "are the same commit"),
        (("--git", "main.."), "git: one application, on one server"),
        (("--git", "main..feature", "--build", "echo no compiler; exit 3"), "build: of main ("),
        (("--git", "main..feature", "--app-dir", "nope"), "app-dir: "),
    ):
        more = ("--server", "towline,uvicorn") if "one server" in message else ()
        assert bench_command([*arguments, "--app", "shop:app", *more, *TINY, "-q"]) == 2
        err = capfd.readouterr().err
        assert message in err
        assert len(err.splitlines()) == 1
        assert ("its output ends with: no compiler" in err) == ("build: " in message)
    assert git(repository, "worktree", "list").count("\n") == 1


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


# --- parts -----------------------------------------------------------------------------------------------


def test_help_is_complete_and_grouped(capsys: pytest.CaptureFixture[str]) -> None:
    def page(*words: str) -> str:
        assert bench_command(words) == 0
        return capsys.readouterr().out

    whole = page("--help", "all")
    for name in CompareOptions.__dataclass_fields__.keys() - {"urls"}:
        assert f"  --{name.replace('_', '-')}" in whole
    common = page("--help", "common")
    assert "more options (towline bench --help GROUP, or all):" in common
    assert page(":8000", ":9000", "--help") == page("common", "--help") == common
    assert page("load", "--help") == page("--help", "load")
    assert page("load", "--help").startswith("load: ")
    overview = page("--help")
    assert page() == overview
    assert "towline bench --git main..HEAD" in overview
    assert all(f"\n  {name}" in overview for name in ("quick", "servers", "report", "compare"))
    assert all(f"{group}, " in " ".join(overview.split()) for group in ("common", *groups_of(CompareOptions)))
    for one in (overview, common, *(page("--help", group) for group in groups_of(CompareOptions))):
        assert len(one.splitlines()) <= 44
        assert max(map(len, one.splitlines())) <= 80


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("http://a/", True),
        ("old=http://a/", True),
        (":8000", True),
        ("localhost:8000/x", True),
        ("[::1]:8000", True),
        ("new=[::1]:8000/", True),
        ("servers", False),
        ("shop:app", False),
        ("result.json.gz", False),
    ],
)
def test_urls_and_commands(text: str, expected: bool) -> None:
    assert is_url(text) is expected


def test_names_before_an_equals_sign() -> None:
    assert named("old=./old --port {port}") == ("old", "./old --port {port}")
    assert named("./run --set a=b") == (None, "./run --set a=b")
    assert named("http://a/?b=c") == (None, "http://a/?b=c")


def test_addresses() -> None:
    one = Address.of("http://[::1]:8000/a b?c=d")
    assert (one.host, one.port, one.authority, one.target) == ("::1", 8000, "[::1]:8000", "/a%20b?c=d")
    assert Address.of("https://example.org").origin == "https://example.org"
    assert Address.of("https://example.org").port == 443
    for wrong in ("ftp://a/", "http://", "http://a:99999/", "http://u:p@a/"):
        with pytest.raises(ConfigError):
            Address.of(wrong)


def test_the_load_fits_into_the_time() -> None:
    two = CompareOptions(app=("shop:app",), server=("towline", "uvicorn"))
    seconds = two.design(2, "towline").seconds
    assert 2 < seconds < 2.5
    assert seconds_within(120, 8 * 10) == 0.4
    assert CompareOptions(time=30.0).design(2, "a").seconds < seconds
    assert CompareOptions(duration=0.1).design(9, "a").seconds == 0.1


def test_a_short_time_has_fewer_restarts() -> None:
    for given, restarts in ((120.0, 8), (50.0, 6), (20.0, 4), (1.0, 4)):
        assert CompareOptions(time=given).design(2, "a").rule.most == restarts
        within = estimated_s(CompareOptions(time=given).design(2, "a"), 4)
        assert within <= max(given, 32.0) + 1
    assert CompareOptions(time=20.0, runs=8).design(2, "a").rule.most == 8


def test_verdicts_in_words() -> None:
    def words(verdict: Verdict, ratio: float, metric: str = "per_s", **more: Any) -> str:
        one = Comparison("a", "b", metric, ratio, ratio - 0.05, ratio + 0.05, 0.01, verdict, **more)
        return sentence(one, 0.02)

    assert words(Verdict.FASTER, 1.25) == "a is faster than b: 1.25 times the requests/s (1.2 to 1.3)"
    assert words(Verdict.SLOWER, 0.8) == "b is faster than a: 1.25 times the requests/s (1.18 to 1.33)"
    assert (
        words(Verdict.FASTER, 0.5, "p50_us")
        == "a is faster than b: 0.5 times the median latency (0.45 to 0.55)"
    )
    assert words(Verdict.EQUIVALENT, 1.0).startswith("a and b are equivalent, within 2%: ")
    assert words(Verdict.REFUSED, 1.0, reason="b: it failed") == "no verdict on a and b: b: it failed"
    undecided = words(Verdict.UNDECIDED, 1.0, restarts_needed=30)
    assert undecided.endswith(
        "is undecided: 1 times the requests/s (0.95 to 1.05); about 30 restarts would decide (--runs)"
    )


def test_processes_of_a_port() -> None:
    port = free_port()
    command = f"import socket, time; s = socket.create_server(('127.0.0.1', {port})); print(flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", command], stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        server.stdout.readline()
        assert listeners(Address.of(f"http://localhost:{port}/")) == [server.pid]
        assert listeners(Address.of(f"http://192.0.2.1:{port}/")) == []
        server.kill()
    assert listeners(Address.of(f"http://localhost:{port}/")) == []


# --- files of requests -----------------------------------------------------------------------------------

ITEMS = """
import json
async def app(scope, receive, send):
    assert scope["type"] == "http"
    found = scope["path"] in ("/", "/cart", "/items")
    body = json.dumps([scope["method"], scope["path"]]).encode()
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200 if found else 404, "headers": headers})
    await send({"type": "http.response.body", "body": body})
"""
FILES = {
    "curl": "curl http://shop.example.org/\ncurl -d a=1 http://shop.example.org/cart\n",
    "vegeta": "GET http://shop.example.org/\n\nPOST http://shop.example.org/cart\n",
    "har": (
        '{"log": {"entries": [{"request": {"method": "GET", "url": "https://shop.example.org/"}, "response": '
        '{"status": 200}}, {"request": {"method": "POST", "url": "https://shop.example.org/cart", "postData": {"text": '
        '"a=1"}}, "response": {"status": 200}}, {"request": {"method": "GET", "url": "https://shop.example.org/icon"}, '
        '"response": {"status": 404}}]}}'
    ),
    "openapi": (
        '{"openapi": "3.0.0", "paths": {"/items": {"get": {}}, "/items/{item}": {"get": {"parameters": [{"name": '
        '"item", "in": "path", "required": true, "schema": {"type": "integer"}}]}, "delete": {}}}}'
    ),
}


@pytest.mark.parametrize("name", ["openapi", *by_night(name for name in FILES if name != "openapi")])
def test_requests_of_a_file(name: str, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(ITEMS)
    (tmp_path / name).write_text(FILES[name])
    arguments = ("--app", "old=shop:app", "--app", "new=shop:app", "--no-control", "--requests", name)
    lines, record = compared(tmp_path, *arguments, "--header", "Authorization: Bearer x")
    first = {"openapi": "GET /items and 1 more", "har": "GET / and 2 more"}.get(name, "GET / and 1 more")
    assert f"compares old and new: {first}, in turn" in lines[0]
    (experiment,) = record.experiments
    assert all(one.answered and not one.failed for one in experiment.slices)
    left_out = [note for note in experiment.notes if note.startswith("left out")]
    if name == "openapi":
        assert left_out == [
            "left out, not repeatable: DELETE /items/{item}",
            "left out, refused with values that were made up: /items/1",
        ]
    else:
        assert not left_out


def test_requests_of_a_file_to_running_servers(tmp_path: Path) -> None:
    (tmp_path / "requests.curl").write_text("curl http://shop.example.org/a\n")
    with running(script(tmp_path, "quick")) as port:
        _, record = compared(
            tmp_path,
            *(f"one=:{port}", f"two=http://localhost:{port}", "--requests", "requests.curl", "--no-control"),
        )
    # The path of the file, with each server's own Host.
    sizes = sizes_of(record)
    assert sizes["one"] == pytest.approx(len(f"/a 127.0.0.1:{port}"), abs=1)
    assert sizes["two"] == pytest.approx(len(f"/a localhost:{port}"), abs=1)


def test_files_of_requests_that_cannot_be_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "shop.py").write_text(ITEMS)
    (tmp_path / "bad.har").write_text("{")
    (tmp_path / "curl").write_text("curl http://a/nowhere\n")
    (tmp_path / "openapi.json").write_text(FILES["openapi"].replace('"/items": {"get": {}}, ', ""))
    monkeypatch.chdir(tmp_path)
    for arguments, message in (
        (("--requests", "none.har"), "cannot read none.har: No such file"),
        (("--requests", "bad.har"), "bad.har: is not JSON"),
        (("--requests", "curl"), "GET /nowhere: status 404 instead of 2xx or 3xx"),
        (("--requests", "openapi.json"), "requests: no request succeeds; the first one is GET /items/1"),
        (("--requests", "curl", "--path", "/"), "path: the requests are those of --requests"),
    ):
        assert (
            bench_command(["--app", "a=shop:app", "--app", "b=shop:app", *arguments, "--quiet", *TINY]) == 2
        )
        (line,) = capfd.readouterr().err.splitlines()
        assert message in line
