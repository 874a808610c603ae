"""Small runs of the program with real servers and the real generator, with every way to end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from towline import bench
from towline.bench import record as records
from towline.bench.record import Record
from towline.cli.bench import main as bench_command
from towline.errors import UsageError

TINY = ("--runs", "2", "--duration", "0.2", "--warm-up", "0.3", "--no-history")
SERVER = """
import socketserver, sys, os, time
seen = []
class Handler(socketserver.StreamRequestHandler):
    def handle(self):
        while True:
            line = self.rfile.readline()
            if not line:
                return
            while self.rfile.readline() not in (b"\\r\\n", b""):
                pass
            {conduct}
            self.wfile.write(b"HTTP/1.1 200 OK\\r\\ncontent-type: text/plain\\r\\ncontent-length: 7\\r\\n\\r\\n" + {body})
class Server(socketserver.ThreadingTCPServer):
    daemon_threads = allow_reuse_address = True
    request_queue_size = 100
Server(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def definition(name: str, script: Path, more: str = "") -> str:
    return f'[{name}]\ncommand = ["{{python}}", "{script}", "{{port}}"]\ngrace_s = 1\nstart_timeout_s = 5\n{more}\n'


def script(folder: Path, name: str, conduct: str = "pass", body: str = 'b"alive\\r\\n"') -> Path:
    path = folder / f"{name}.py"
    path.write_text(SERVER.format(conduct=conduct, body=body))
    return path


def program(*arguments: str, cwd: Path, **other: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "towline", "bench", *arguments],
        cwd=cwd,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        **other,  # type: ignore[call-overload]
    )


def processes_of(folder: Path) -> list[str]:
    """Command lines of processes that run a program in this folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(folder) in line and int(path.parent.name) != os.getpid():
            found.append(line)
    return found


def no_process_left(folder: Path) -> bool:
    for _ in range(200):
        if not processes_of(folder):
            return True
        time.sleep(0.1)
    return False


def result(folder: Path) -> Record:
    return records.load(folder / "result.json.gz")


def run_servers(folder: Path, *arguments: str) -> tuple[Record, str]:
    """The record and the output of `towline bench servers` with the subjects of servers.toml."""
    run = program("servers", "--servers", "servers.toml", *arguments, "-o", "out", *TINY, cwd=folder)
    out, err = run.communicate(timeout=200)
    assert run.returncode == 0, err
    assert "Traceback" not in err + out
    return result(folder / "out"), out


HELLO = ("-s", "hello", "--interface", "asgi", "--no-latency")


def test_a_small_run_from_the_command_line_to_the_report(tmp_path: Path) -> None:
    (tmp_path / "servers.toml").write_text(definition("plain", script(tmp_path, "plain")))
    chosen = ("-S", "plain,towline", *HELLO, "--protocol", "h1", "-c", "4")
    record, out = run_servers(tmp_path, *chosen, "--baseline", "plain", "--seed", "7")
    experiment, control = record.experiments
    assert control.control
    assert [one.name for one in control.subjects] == ["plain", "plain again"]
    assert {one.name: one.failure for one in experiment.subjects} == {"towline": None, "plain": None}
    assert all(len(one.starts) == 2 for one in experiment.subjects)
    assert {(one.restart, one.subject) for one in experiment.slices} == {
        (r, s) for r in (0, 1) for s in ("towline", "plain")
    }
    assert all(one.failed == 0 for one in experiment.slices)
    # Slices as short as these may fall into a moment in which the machine is busy.
    for name in ("towline", "plain"):
        own = [one for one in experiment.slices if one.subject == name]
        assert any(one.answered > 0 and one.histogram for one in own)
        assert sum(one.subject_cpu_s for one in own) > 0
        assert sum(one.driver_cpu_s for one in own) > 0
    assert all(start.rss_peak_bytes > 1 << 20 for one in experiment.subjects for start in one.starts)
    assert record.seed == 7
    assert not record.interrupted
    assert "plain" in out
    assert (tmp_path / "out" / "report.html").stat().st_size > 10_000
    assert f"report: {(tmp_path / 'out' / 'report.html').as_uri()}" in out
    assert no_process_left(tmp_path)


CURL = "curl -H 'x-one: a, b' 'http://127.0.0.1:1/qs?page=2&size=10'"


def test_a_curl_line_over_an_emulated_network(tmp_path: Path) -> None:
    (tmp_path / "servers.toml").write_text(definition("plain", script(tmp_path, "plain")))
    chosen = ("-S", "plain,towline", "--curl", CURL, "-c", "4", "--net", "rtt=10ms")
    record, _ = run_servers(tmp_path, *chosen, "--no-latency", "--no-control")
    (experiment,) = record.experiments
    assert experiment.scenario == "curl"
    assert {one.name: one.failure for one in experiment.subjects} == {"towline": None, "plain": None}
    # Not below the requested time, however slow the machine is.
    measured = [one for one in experiment.slices if one.answered]
    assert {one.subject for one in measured} == {"towline", "plain"}
    assert all(not one.failed and one.response.min_us > 9_500 for one in measured)
    assert record.net is not None
    assert record.net["measured_rtt_s"] > 0.0095
    assert experiment.load["net"] == "rtt=10ms"
    assert any(note.startswith("network: rtt=10ms; as measured ") for note in experiment.notes)
    assert record.settings["subject"] == ["plain", "towline"]
    command = next(one.command for one in experiment.subjects if one.name == "towline")
    assert "127.0.0.1:PORT" in command
    assert no_process_left(tmp_path)


BAD = {
    "never-starts": ("import sys; sys.exit('no such database')", "no such database"),
    "deaf": ("import time; time.sleep(600)", "nothing listens"),
}


def test_hostile_subjects_together_with_a_good_one(tmp_path: Path) -> None:
    """Each ends as one line; the good one has its figures; no process remains."""
    text = definition("good", script(tmp_path, "good"))
    text += definition("wrong", script(tmp_path, "wrong", body='b"alive!\\r"'))
    # Twenty requests: more than a start and its check take, fewer than any load sends.
    for name, end in (("dies", "os._exit(3)"), ("hangs", "time.sleep(600)")):
        text += definition(name, script(tmp_path, name, f"seen.append(0) or len(seen) < 20 or {end}"))
    for name, (source, _) in BAD.items():
        (tmp_path / f"{name}.py").write_text(source)
        text += definition(name, tmp_path / f"{name}.py").replace(
            "start_timeout_s = 5", "start_timeout_s = 1"
        )
    (tmp_path / "servers.toml").write_text(text)
    chosen = ("-S", "good,wrong,dies,hangs,never-starts,deaf", *HELLO, "-c", "2")
    record, _ = run_servers(tmp_path, *chosen, "--no-control")
    experiment = record.experiments[0]
    failures = {one.name: one.failure or "" for one in experiment.subjects}
    assert failures["good"] == ""
    assert sum(one.subject == "good" for one in experiment.slices) >= 2
    assert "wrong response" in failures["wrong"]
    assert "exit status 3" in failures["dies"] or "ended" in failures["dies"]
    assert "no request succeeds any more" in failures["hangs"]
    for name, (_, message) in BAD.items():
        assert message in failures[name], failures[name]
    assert all("\n" not in failure for failure in failures.values())
    assert no_process_left(tmp_path)


@pytest.mark.parametrize(
    ("number", "after_s"),
    [(signal.SIGINT, 0.0), (signal.SIGINT, 0.5), (signal.SIGINT, 3.0), (signal.SIGTERM, 1.0)],
)
def test_an_interrupt_keeps_the_measurements_and_leaves_no_process(
    tmp_path: Path, number: signal.Signals, after_s: float
) -> None:
    (tmp_path / "servers.toml").write_text(definition("plain", script(tmp_path, "plain")))
    chosen = ("servers", "--servers", "servers.toml", "-S", "plain", *HELLO, "-c", "2", "--no-control")
    length = ("--runs", "50", "--duration", "0.3", "--warm-up", "0.3", "--no-history")
    run = program(*chosen, *length, "-o", "out", cwd=tmp_path)
    assert run.stderr is not None
    assert "plain" in run.stderr.readline(), "the first experiment begins"
    time.sleep(after_s)
    os.kill(run.pid, number)
    time.sleep(0.05)
    if run.poll() is None:
        os.kill(run.pid, number)  # a second one is ignored
    out, err = run.communicate(timeout=200)
    assert "Traceback" not in err
    assert no_process_left(tmp_path)
    assert run.returncode == 128 + number
    assert "measurements are kept" in err
    record = result(tmp_path / "out")
    assert record.interrupted
    assert [one.failure for experiment in record.experiments for one in experiment.subjects] == [None] * len(
        record.experiments
    )
    assert "report:" in out


def test_names_choose_among_all_parts_of_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        bench_command(["all", "--list", "-s", "hello,get_async,800x40,llm_sequential", "-S", "towline"]) == 0
    )
    listed = {line.split()[0] for line in capsys.readouterr().out.splitlines() if line.startswith("  ")}
    assert listed == {"hello", "get_async", "800x40", "llm_sequential", "towline"}
    assert bench_command(["quick", "--list", "-S", "uvicorn-h11"]) == 0
    assert "clients:" not in capsys.readouterr().out
    assert bench_command(["all", "--list", "-c", "41", "-s", "hello,800x40"]) == 0
    assert "800x40" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("serves",), "did you mean servers?"),
        (("all", "-s", "hello,nonsense"), "no scenario 'nonsense' in any of servers, clients, webhooks, llm"),
        (("all", "-S", "pycurl", "-s", "hello"), "both the requested scenarios and subjects"),
        (("webhooks", "--net", "rtt=1ms"), "webhooks cannot emulate a network"),
        (("servers", "--net", "rtt=fast"), "'fast' is not a time"),
        (("servers", "--scenaro", "hello"), "did you mean --scenario?"),
        (("servers", "-s", "helo"), "did you mean hello?"),
        (("servers", "-S", "uvicorn"), "did you mean uvicorn-h11?"),
        (("clients", "-S", "request"), "did you mean requests?"),
        (("servers", "--cores", "0"), "expected SUBJECTS/DRIVER like 0/1"),
        (("servers", "--precision", "3"), "expected more than 0 and less than 100 %"),
        (("servers", "--looks", "--precision", "1%"), "two rules for ending"),
        (("servers", "--runs", "0"), "runs: must be a number of at least 1"),
        (("report", "nowhere.json"), "cannot read nowhere.json"),
    ],
)
def test_errors_name_a_remedy(tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    run = program(*arguments, cwd=tmp_path)
    _, err = run.communicate(timeout=60)
    assert run.returncode == 2
    assert message in err
    assert "Traceback" not in err
    assert list(tmp_path.iterdir()) == []


def test_variables_are_options(monkeypatch: pytest.MonkeyPatch) -> None:
    from towline.cli.bench import parse

    options = parse([], {"RUNS": "5", "DURATION": "1.5"})
    assert (options.design().rule.most, options.design().seconds) == (5, 1.5)
    assert parse(["--runs", "2"], {"RUNS": "5"}).runs == 2


@pytest.mark.parametrize("command", ["quick", "servers", "clients", "selftest"])
def test_help_fits_a_screen(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    from towline._options import groups_of
    from towline.bench.runner.plan import Options
    from towline.cli import bench as cli

    for words in (
        [command, "--help"],
        *([command, "--help", group] for group in groups_of(Options)),
        ["--help"],
    ):
        assert cli.main(words) == 0
        output = capsys.readouterr().out
        assert len(output.splitlines()) <= 44, words
        assert max(map(len, output.splitlines())) <= 110


# --- from Python ----------------------------------------------------------------------------------------

APP = """
async def app(scope, receive, send):
    if scope["type"] != "http":
        return
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"7")]})
    await send({"type": "http.response.body", "body": b"alive\\r\\n"})
"""


def test_compare_from_python(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(textwrap.dedent(APP))
    found = bench.compare(
        {
            "new": bench.App("shop:app", folder=tmp_path),
            "old": bench.Command([sys.executable, str(script(tmp_path, "old")), "{port}"]),
            "broken": bench.Command(
                [sys.executable, "-c", "raise SystemExit('broken on purpose')", "{port}"]
            ),
        },
        expect=b"alive\r\n",
        connections=4,
        runs=2,
        duration=0.2,
        warm_up=0.3,
    )
    assert found.baseline == "new"
    assert found["old"].subject == "new"
    assert found["old"].restarts == 2
    assert found.figure("new").value > 0
    assert "broken on purpose" in found.failures["broken"]
    with pytest.raises(KeyError, match="broken on purpose"):
        found["broken"]
    assert "old" in found.text()
    paths = found.write(tmp_path / "out")
    assert {path.name for path in paths} >= {"result.json.gz", "report.html"}
    assert no_process_left(tmp_path)


def test_compare_refuses_invalid_arguments(tmp_path: Path) -> None:
    for subjects, message in (
        ({}, "at least one subject"),
        ({"a": bench.Command("python3 server.py")}, "write {port}"),
        ({"a": bench.App("shop:app", server="apache")}, "no server 'apache'"),
    ):
        with pytest.raises(UsageError, match=message):
            bench.compare(subjects, runs=1, duration=0.1)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="must start with /"):
        bench.compare({"a": "shop:app"}, "index.html")


def test_the_names_of_the_bench() -> None:
    assert all(getattr(bench, name) is not None for name in bench.__all__)
