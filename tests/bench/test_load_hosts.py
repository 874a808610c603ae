"""One load from several agents over a real OpenSSH server (crates/towline-load/tests/hosts.rs has the rest)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from towline.bench.responder import Responder

from . import namespaces
from .sshd import SSHD, SshServer, client_config, free_port, keys, server

pytestmark = pytest.mark.skipif(SSHD is None, reason="no sshd (Debian: openssh-server)")

LOAD = [sys.executable, "-m", "towline", "load", "--json"]


@pytest.fixture(scope="module")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshServer]:
    folder = tmp_path_factory.mktemp("sshd")
    keys(folder)
    port = free_port()
    client_config(folder, dict.fromkeys("abcd", "127.0.0.1"), port)
    with server(folder, "127.0.0.1", port):
        yield SshServer(folder, "127.0.0.1", port)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with Responder() as responder:
        yield f"{responder.base_url}/"


def command(sshd: SshServer, hosts: str, *more: str) -> list[str]:
    return [*LOAD, "--hosts", hosts, *sshd.options(), *more]


def run(sshd: SshServer, hosts: str, *more: str) -> tuple[int, dict[str, Any], str]:
    done = subprocess.run(
        command(sshd, hosts, *more), capture_output=True, text=True, timeout=60, check=False
    )
    return done.returncode, json.loads(done.stdout or "{}"), done.stderr


def processes(part: str) -> dict[int, str]:
    """Processes whose command line contains `part`."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if part in line:
            found[int(entry.name)] = line
    return found


def until(condition: Callable[[], bool], reason: str) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, reason
        time.sleep(0.02)


def start(sshd: SshServer, hosts: str, mark: str, *more: str) -> subprocess.Popen[str]:
    """Starts a load whose agents have `mark` in their command lines, and waits for them."""
    agent = f"{sys.executable} -X towline_test={mark} -m towline load --agent"
    program = subprocess.Popen(
        [*LOAD, "--hosts", hosts, "--ssh", sshd.ssh, "--agent-command", agent, *more],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    count = hosts.count(",") + 1
    until(lambda: len(agents(mark)) == count, f"{count} agents")
    # They have begun.
    time.sleep(1.5)
    return program


def agents(mark: str) -> list[int]:
    lines = processes(f"towline_test={mark}")
    return [
        pid for pid, line in lines.items() if line.startswith(f"{sys.executable} -X") and "--ssh" not in line
    ]


def test_four_agents_send_one_load(sshd: SshServer, url: str) -> None:
    status, report, stderr = run(sshd, "a,b,c,jumped", "-R", "2000", "-d", "2", "-c", "8", url)
    assert status == 0, stderr
    assert report["answered"] == 4000
    assert [agent["answered"] for agent in report["agents"]] == [1000] * 4
    assert [agent["name"] for agent in report["agents"]] == ["a", "b", "c", "jumped"]
    for agent in report["agents"]:
        assert agent["clock_error_us"] < 20_000
    assert report["response"]["count"] == 4000


def test_the_report_has_a_line_for_each_agent(sshd: SshServer, url: str) -> None:
    line = [part for part in command(sshd, "a,b=2", "-n", "300", "-c", "6", url) if part != "--json"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    table = done.stdout[done.stdout.index("by agent") :].splitlines()
    assert table[1].split()[:4] == ["a", "1", "100", "0"]
    assert table[2].split()[:4] == ["b", "2", "200", "0"]


def test_refusals_of_ssh_are_named(sshd: SshServer, url: str, tmp_path: Path) -> None:
    keys(tmp_path)
    client_config(tmp_path, {"a": "127.0.0.1", "b": "127.0.0.1"}, sshd.port)
    other = SshServer(tmp_path, "127.0.0.1", sshd.port)
    # Another host key than the known one.
    status, _, stderr = run(other, "b", "-d", "1", url)
    assert status == 2
    assert "no agent on b: " in stderr
    assert "Host key verification failed" in stderr
    # A key that is not authorized.
    (tmp_path / "known_hosts").write_text((sshd.folder / "known_hosts").read_text())
    status, _, stderr = run(other, "b", "-d", "1", url)
    assert status == 2
    assert "no agent on b: " in stderr
    assert "Permission denied" in stderr
    # A host that does not exist.
    status, _, stderr = run(sshd, "a,nowhere.invalid", "-d", "1", url)
    assert status == 2
    assert "no agent on nowhere.invalid: " in stderr


def test_a_host_without_towline_is_named(sshd: SshServer, url: str) -> None:
    # The remote shell's PATH is sshd's, without the environment of the tests.
    line = [*LOAD, "--hosts", "a", "--ssh", sshd.ssh, "-d", "1", url]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode != 0:
        assert "no agent on a: neither towline nor towline-load is on its PATH" in done.stderr


def test_ctrl_c_ends_every_agent(sshd: SshServer, url: str) -> None:
    program = start(sshd, "a,b,jumped", "ctrl-c", "-R", "100", "-d", "600", url)
    program.send_signal(signal.SIGINT)
    out, stderr = program.communicate(timeout=30)
    assert program.returncode == 0, stderr
    assert json.loads(out)["answered"] > 0
    until(lambda: not agents("ctrl-c"), "agents still run")
    until(lambda: not processes(f"{sshd.ssh} "), "ssh still runs")


def test_nothing_is_left_of_a_killed_controller(sshd: SshServer, url: str) -> None:
    program = start(sshd, "a,b,jumped", "killed", "-R", "100", "-d", "600", url)
    program.kill()
    program.communicate()
    until(lambda: not agents("killed"), "agents still run")
    until(lambda: not processes(f"{sshd.ssh} "), "ssh still runs")


def test_a_lost_connection_of_ssh_is_named_and_ends_its_agent(sshd: SshServer, url: str) -> None:
    program = start(sshd, "a,b", "cut", "-R", "200", "-d", "4", url)
    (client,) = (
        pid for pid, line in processes(sshd.ssh).items() if " -- b " in line and line.startswith("ssh")
    )
    os.kill(client, signal.SIGKILL)
    out, stderr = program.communicate(timeout=30)
    assert program.returncode == 1
    assert "b: lost: ssh: signal: 9 (SIGKILL)" in stderr
    report = json.loads(out)
    assert report["answered"] == 400
    assert any("b was lost after" in warning for warning in report["warnings"])
    until(lambda: not agents("cut"), "agents still run")


def test_a_killed_agent_is_named(sshd: SshServer, url: str) -> None:
    program = start(sshd, "a,b", "dead", "-R", "200", "-d", "4", url)
    os.kill(agents("dead")[0], signal.SIGKILL)
    out, stderr = program.communicate(timeout=30)
    assert program.returncode == 1
    assert ": lost: " in stderr
    assert [agent["lost"] is None for agent in json.loads(out)["agents"]].count(False) == 1
    until(lambda: not agents("dead"), "agents still run")


@pytest.mark.skipif(not namespaces.are_available(), reason="needs root and network namespaces")
def test_machines_with_networks_of_their_own(tmp_path: Path) -> None:
    """Four namespaces with an interface and an sshd each; the server is outside of them."""
    keys(tmp_path)
    port = free_port()
    with ExitStack() as stack:
        machines = stack.enter_context(namespaces.machines(4, "200mbit"))
        for name, inner, _ in machines:
            stack.enter_context(server(tmp_path, inner, port, ("ip", "netns", "exec", name)))
        client_config(tmp_path, dict(zip("abcd", (inner for _, inner, _ in machines), strict=True)), port)
        responder = stack.enter_context(Responder("--host", "0.0.0.0"))
        url = f"http://{machines[0][2]}:{responder.port}/"
        sshd = SshServer(tmp_path, machines[0][1], port)
        status, report, stderr = run(sshd, "a,b,c,d", "-R", "2000", "-d", "2", "-c", "8", url)
        assert status == 0, stderr
        assert [agent["answered"] for agent in report["agents"]] == [1000] * 4
        for agent in report["agents"]:
            # Namespaces share the clock, so that the true difference is 0.
            assert abs(agent["clock_ahead_us"]) <= agent["clock_error_us"] + 1
        # A machine whose cable is cut is silent, then lost; its agent ends by itself.
        cut = machines[1][0]
        agent = f"{sys.executable} -X towline_test=cable -m towline load --agent"
        line = [*LOAD, "--hosts", "a,b", "--ssh", sshd.ssh, "--agent-command", agent]
        program = subprocess.Popen(
            [*line, "-R", "200", "-d", "14", "-c", "4", url],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        until(lambda: len(agents("cable")) == 2, "two agents")
        time.sleep(2.0)
        namespaces.run("ip", "netns", "exec", cut, "ip", "link", "set", "eth0", "down")
        out, stderr = program.communicate(timeout=60)
        assert program.returncode == 1
        assert "b: nothing was heard of it for 2" in stderr
        assert "b: lost: nothing was heard of it for 10 s" in stderr
        assert json.loads(out)["answered"] == 1400
        until(lambda: not agents("cable"), "agents still run")
