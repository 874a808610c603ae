"""Subjects that misbehave: one clear line each, bounded in time, and no process remains."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from towline.bench.subjects import Process, Server, SubjectFailed, kill_orphans
from towline.bench.subjects.ports import free_port
from towline.bench.subjects.readiness import readiness_status

from tests.bench.hostile import define, hostile, processes_with
from tests.support.process import eventually


def failure_of(server: Server, timeout_s: float | None = None) -> SubjectFailed:
    """Starts it, which must fail, and stops it; returns the failure, which must be one line."""
    with pytest.raises(SubjectFailed) as caught:
        with Process(server) as process:
            process.wait_ready(timeout_s)
    message = str(caught.value)
    assert message.startswith(f"{server.name}: ")
    assert "\n" not in message
    assert len(message) < 400
    return caught.value


@pytest.fixture(autouse=True)
def no_process_remains(tmp_path: Path):
    started = time.monotonic()
    yield
    assert time.monotonic() - started < 60
    assert processes_with(str(tmp_path)) == []


def test_a_good_subject(tmp_path: Path) -> None:
    with Process(hostile(tmp_path, "serve()")) as process:
        assert 0 < process.wait_ready() < 20
        assert process.alive()
        before = process.usage()
        assert before.cpu_s > 0
        assert before.rss_bytes > 1 << 20
        assert before.processes == 1
        with socket.create_connection(("127.0.0.1", process.port), 5) as connection:
            for _ in range(50):
                connection.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
                assert connection.recv(1000).endswith(b"alive\r\n")
        usage = process.usage().since(before)
        assert usage.cpu_s > 0
        assert usage.switches > 0
        assert process.peaks().rss_bytes >= before.rss_bytes
        result = process.stop()
    assert result.exit_status == -signal.SIGTERM
    assert result.notes("x") == []
    assert not process.alive()


def test_it_never_listens(tmp_path: Path) -> None:
    server = hostile(tmp_path, 'print("loading the model", flush=True); time.sleep(600)')
    message = str(failure_of(server, 0.5))
    assert "not ready after 0.5 s: nothing listens on its port" in message
    assert "output ends with: loading the model" in message


def test_it_exits_before_it_is_ready(tmp_path: Path) -> None:
    failed = failure_of(hostile(tmp_path, 'print("bye", flush=True)'))
    assert "ended before it was ready, exit status 0; a subject must stay in the foreground" in str(failed)
    assert failed.log == "bye"


def test_it_raises_at_the_start(tmp_path: Path) -> None:
    failed = failure_of(hostile(tmp_path, 'raise SystemExit("no configuration")'))
    assert "exit status 1; its output ends with: no configuration" in str(failed)
    failed = failure_of(hostile(tmp_path, "1 / 0"))
    assert "its output ends with: ZeroDivisionError: division by zero" in str(failed)
    assert "Traceback" in failed.log


def test_it_dies_in_the_middle(tmp_path: Path) -> None:
    with Process(hostile(tmp_path, "threading.Timer(0.3, os.abort).start(); serve()")) as process:
        process.wait_ready()
        due = time.monotonic() + 30
        while process.alive() and time.monotonic() < due:
            time.sleep(0.02)
        with pytest.raises(SubjectFailed, match="ended while it was measured, killed by SIGABRT"):
            process.check()
        process.pause()  # as the runner may still do
        process.resume()
        assert process.usage().processes == 0
        assert process.stop().exit_status == -signal.SIGABRT


def test_it_accepts_and_never_responds(tmp_path: Path) -> None:
    failed = failure_of(hostile(tmp_path, "answer = lambda connection: time.sleep(600)\nserve()"), 4.0)
    assert "not ready after 4 s: it accepts, but GET / has no response" in str(failed)


def test_it_sends_a_byte_a_second(tmp_path: Path) -> None:
    source = """
    def answer(connection):
        pieces = 0
        while True:
            connection.sendall(b"HTTP/1.1 200 OK\\r\\n" if pieces == 0 else b"x")
            pieces += 1
            time.sleep(0.05)
    serve()
    """
    started = time.monotonic()
    failed = failure_of(hostile(tmp_path, source), 4.0)
    assert "GET / has no response" in str(failed)
    assert time.monotonic() - started < 20


@pytest.mark.parametrize("garbage", [b"+PONG\r\n", b"\x00\xff" * 500, b"HTTP/1.1 two hundred\r\n\r\n"])
def test_it_sends_garbage(tmp_path: Path, garbage: bytes) -> None:
    source = f"""
    def answer(connection):
        connection.recv(65536)
        connection.sendall({garbage!r})
    serve()
    """
    assert "its response is not HTTP" in str(failure_of(hostile(tmp_path, source)))


def test_it_responds_500(tmp_path: Path) -> None:
    source = """
    def answer(connection):
        connection.recv(65536)
        connection.sendall(b"HTTP/1.1 500 Oh\\r\\nContent-Length: 0\\r\\n\\r\\n")
    serve()
    """
    assert "GET / has status 500" in str(failure_of(hostile(tmp_path, source), 0.5))


def test_it_closes_without_a_response(tmp_path: Path) -> None:
    failed = failure_of(hostile(tmp_path, "answer = lambda connection: None\nserve()"), 0.5)
    assert "without a response" in str(failed) or "reset" in str(failed)


def test_it_ignores_sigterm(tmp_path: Path) -> None:
    server = hostile(tmp_path, "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nserve()", grace_s=0.3)
    with Process(server) as process:
        process.wait_ready()
        result = process.stop()
    assert result.killed
    assert result.exit_status == -signal.SIGKILL
    assert result.strays == ()
    assert result.notes("it") == ["it did not end on SIGTERM and was killed"]
    assert result.seconds < 10


def test_it_leaves_daemons_behind(tmp_path: Path) -> None:
    """Two forks, a session of their own, no environment: only their ancestry relates them to the subject."""
    source = """
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    for _ in range(3):
        daemon(lambda: os.execve("/bin/sleep", ["sleep", "600.25"], {}))
    serve()
    """
    with Process(hostile(tmp_path, source)) as process:
        process.wait_ready()
        assert process.usage().processes == 4
        process.pause()
        process.resume()
        result = process.stop()
    assert len(result.strays) == 3
    assert result.exit_status == 0
    (note,) = result.notes("it")
    assert note.startswith("it left 3 processes behind, now killed: ")
    assert processes_with("600.25") == []


def test_it_forks_without_end(tmp_path: Path) -> None:
    """Each child forks the next and exits: there is always another, younger process to kill."""
    source = """
    def run():
        while True:
            if os.fork() != 0:
                os._exit(0)
            os.setsid()
            time.sleep(0.001)
    daemon(run)
    serve()
    """
    with Process(hostile(tmp_path, source)) as process:
        process.wait_ready()
        result = process.stop()
    assert result.stuck == 0
    assert result.seconds < 30


def test_it_prints_without_end(tmp_path: Path) -> None:
    source = """
    def shout():
        line = b"x" * 65535 + b"\\n"
        while True:
            os.write(1, line)
    threading.Thread(target=shout, daemon=True).start()
    serve()
    """
    with Process(hostile(tmp_path, source)) as process:
        process.wait_ready()
        eventually(lambda: process.log_tail(1000), "the first lines")
        assert len(process.log_tail(1000)) <= 64 * 1024
        assert process.usage().processes == 1
        result = process.stop()
    assert result.seconds < 10
    assert len(process.log_tail(1000)) <= 64 * 1024


def test_its_port_is_taken(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        server = hostile(tmp_path, "serve()", port=port)
        assert str(failure_of(server)) == f"hostile: port {port} is taken by another process"
    # and once it is free the same definition works
    with Process(server) as process:
        process.wait_ready()
        assert process.port == port


def test_its_program_does_not_exist(tmp_path: Path) -> None:
    message = str(failure_of(define(tmp_path, "no-such-server --port {port}")))
    assert message == "hostile: cannot start no-such-server: No such file or directory"
    (tmp_path / "plain").write_text("no program")
    message = str(failure_of(define(tmp_path, "./plain {port}")))
    assert message.startswith("hostile: cannot start plain: ")
    message = str(failure_of(define(tmp_path, "sleep {port}", cwd="nowhere")))
    assert message == "hostile: cannot start sleep: its cwd 'nowhere' is no folder"


def test_others_are_unharmed(tmp_path: Path) -> None:
    with Process(hostile(tmp_path, "serve()", "good")) as good:
        good.wait_ready()
        failure_of(hostile(tmp_path, "1 / 0", "bad"))
        bad = Process(hostile(tmp_path, "daemon(serve)\nserve()", "worse"))
        bad.stop()
        assert good.alive()
        assert readiness_status("127.0.0.1", good.port, "/", 5.0) == 200


def test_a_paused_subject_uses_no_cpu_and_can_be_stopped(tmp_path: Path) -> None:
    source = """
    def spin():
        while True:
            pass
    daemon(spin)
    threading.Thread(target=spin, daemon=True).start()
    serve()
    """
    with Process(hostile(tmp_path, source, grace_s=10.0)) as process:
        process.wait_ready()
        assert process.usage().processes == 2
        process.pause()
        # Each thread waits for its turn, which is late on a busy machine.
        for _ in range(20):
            still = process.usage()
            time.sleep(0.3)
            if process.usage().since(still).cpu_s == 0:
                break
        assert process.usage().since(still).cpu_s == 0
        process.resume()
        eventually(lambda: process.usage().since(still).cpu_s > 0.05, "work after the pause")
        process.pause()
        result = process.stop()
    assert not result.killed
    assert result.seconds < 10


BENCH = """
import sys
from pathlib import Path
from towline.bench.subjects import Process, load_servers
from towline.bench.subjects.reaper import descendants
process = Process(load_servers(Path(sys.argv[1]))["hostile"])
process.wait_ready()
print(process._reaper.pid, process.pid, flush=True)
input()
"""
DAEMON = "daemon(lambda: time.sleep(600))\nserve()"


def bench_with(tmp_path: Path) -> tuple[subprocess.Popen[str], int, int]:
    """A bench in its own process with a subject and a daemon; returns the pids of reaper and subject."""
    server = hostile(tmp_path, textwrap.dedent(DAEMON))
    assert server.name == "hostile"
    bench = subprocess.Popen(
        [sys.executable, "-c", BENCH, str(tmp_path / "hostile.toml")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parent.parent.parent,
    )
    assert bench.stdout is not None
    reaper_process, subject = map(int, bench.stdout.readline().split())
    return bench, reaper_process, subject


def no_process_left(tmp_path: Path) -> bool:
    due = time.monotonic() + 30
    while processes_with(str(tmp_path / "hostile.py")) and time.monotonic() < due:
        time.sleep(0.02)
    return processes_with(str(tmp_path / "hostile.py")) == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_no_process_remains_when_the_bench_is_killed(tmp_path: Path, number: signal.Signals) -> None:
    bench, _, _ = bench_with(tmp_path)
    with bench:
        assert len(processes_with(str(tmp_path / "hostile.py"))) == 2
        bench.send_signal(number)
        bench.wait(30)
        assert no_process_left(tmp_path)


def test_orphans_of_bench_and_reaper_are_killed(tmp_path: Path) -> None:
    bench, reaper_process, subject = bench_with(tmp_path)
    with bench:
        bench.kill()
        bench.wait(30)
        try:
            os.kill(reaper_process, signal.SIGKILL)
        except ProcessLookupError:
            pass  # the reaper was faster: then there is nothing to sweep
        due = time.monotonic() + 30
        while Path(f"/proc/{subject}").exists() and time.monotonic() < due:
            time.sleep(0.02)  # the subject itself ends with its reaper
        assert not Path(f"/proc/{subject}").exists()
        kill_orphans()
        assert no_process_left(tmp_path)


def test_subjects_of_a_living_reaper_are_no_orphans(tmp_path: Path) -> None:
    with Process(hostile(tmp_path, "serve()")) as process:
        process.wait_ready()
        kill_orphans()
        assert process.alive()


def test_free_ports_are_not_those_of_outgoing_connections() -> None:
    first, last = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    assert not first <= free_port() <= last
