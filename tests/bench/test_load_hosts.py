"""One load from several agents over a real OpenSSH server (crates/towline-load/tests/hosts.rs has the rest)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from towline.bench.responder import Responder

from tests.support.process import eventually

from . import namespaces
from .loads import LOAD, agents, processes, run, running, until_no_agent
from .sshd import SSHD, SshServer, client_config, keys, on_loopback, on_machines

pytestmark = pytest.mark.skipif(SSHD is None, reason="no sshd (Debian: openssh-server)")


@pytest.fixture(scope="module")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshServer]:
    with on_loopback(tmp_path_factory.mktemp("sshd")) as sshd:
        yield sshd


@pytest.fixture(scope="module")
def responder() -> Iterator[Responder]:
    with Responder() as responder:
        yield responder


@pytest.fixture(scope="module")
def url(responder: Responder) -> str:
    return f"{responder.base_url}/"


def on_hosts(sshd: SshServer, hosts: str, *more: str) -> list[str]:
    return ["--hosts", hosts, *sshd.options(), *more]


def marked(sshd: SshServer, hosts: str, mark: str, *more: str) -> list[str]:
    """Options of a load whose agents have `mark` as an argument."""
    agent = f"{sys.executable} -X {mark} -m towline load --agent"
    return ["--hosts", hosts, "--ssh", sshd.ssh, "--agent-command", agent, *more]


def clients(sshd: SshServer) -> dict[int, list[str]]:
    """Clients of ssh with the configuration of the server; those of jump hosts included."""
    config = str(sshd.folder / "config")
    return {pid: line for pid, line in processes() if Path(line[0]).name == "ssh" and config in line}


def test_four_agents_send_one_load(sshd: SshServer, url: str) -> None:
    status, report, stderr = run(*on_hosts(sshd, "a,b,c,jumped", "-R", "2000", "-d", "2", "-c", "8", url))
    assert status == 0, stderr
    assert report["answered"] == 4000
    assert [agent["answered"] for agent in report["agents"]] == [1000] * 4
    assert [agent["name"] for agent in report["agents"]] == ["a", "b", "c", "jumped"]
    for agent in report["agents"]:
        assert agent["clock_error_us"] < 20_000
    assert report["response"]["count"] == 4000


def test_the_report_has_a_line_for_each_agent(sshd: SshServer, url: str) -> None:
    line = [*LOAD[:-1], *on_hosts(sshd, "a,b=2", "-n", "300", "-c", "6", url)]
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
    status, _, stderr = run(*on_hosts(other, "b", "-d", "1", url))
    assert status == 2
    assert "no agent on b: " in stderr
    assert "Host key verification failed" in stderr
    # A key that is not authorized.
    (tmp_path / "known_hosts").write_text((sshd.folder / "known_hosts").read_text())
    status, _, stderr = run(*on_hosts(other, "b", "-d", "1", url))
    assert status == 2
    assert "no agent on b: " in stderr
    assert "Permission denied" in stderr
    # A host that does not exist.
    status, _, stderr = run(*on_hosts(sshd, "a,nowhere.invalid", "-d", "1", url))
    assert status == 2
    assert "no agent on nowhere.invalid: " in stderr


WITHOUT_PROGRAMS = """
import os, sys
*options, command = sys.argv[1:]
where = "$PATH:$HOME/.local/bin:/usr/local/bin"
assert where in command
os.execvp("ssh", ["ssh", *options, command.replace(where, "/nowhere")])
"""


def test_a_host_without_towline_is_named(sshd: SshServer, url: str, tmp_path: Path) -> None:
    # The host looks for it in a folder that does not exist: this machine may have one on sshd's PATH.
    client = tmp_path / "client.py"
    client.write_text(WITHOUT_PROGRAMS)
    ssh = f"{sys.executable} {client} {sshd.ssh.removeprefix('ssh ')}"
    status, _, stderr = run("--hosts", "a", "--ssh", ssh, "-d", "1", url)
    assert status == 2
    assert "no agent on a: neither towline nor towline-load is on its PATH" in stderr


def test_ctrl_c_ends_every_agent(sshd: SshServer, responder: Responder) -> None:
    options = marked(sshd, "a,b,jumped", "ctrl-c", "-R", "100", "-d", "600")
    with running(responder, *options) as load:
        assert len(agents("ctrl-c")) == 3
        load.send_signal(signal.SIGINT)
        out, stderr = load.communicate(timeout=30)
    assert load.returncode == 0, stderr
    assert json.loads(out)["answered"] > 0
    until_no_agent("ctrl-c")
    eventually(lambda: not clients(sshd), "ssh has ended")


def test_nothing_is_left_of_a_killed_controller(sshd: SshServer, responder: Responder) -> None:
    options = marked(sshd, "a,b,jumped", "killed", "-R", "100", "-d", "600")
    with running(responder, *options) as load:
        assert len(agents("killed")) == 3
        load.kill()
        load.communicate()
    until_no_agent("killed")
    eventually(lambda: not clients(sshd), "ssh has ended")


def test_a_lost_connection_of_ssh_is_named_and_ends_its_agent(sshd: SshServer, responder: Responder) -> None:
    with running(responder, *marked(sshd, "a,b", "cut", "-R", "200", "-d", "4")) as load:
        (client,) = (pid for pid, line in clients(sshd).items() if "b" in line)
        os.kill(client, signal.SIGKILL)
        out, stderr = load.communicate(timeout=30)
    assert load.returncode == 1
    assert "b: lost: ssh: signal: 9 (SIGKILL)" in stderr
    report = json.loads(out)
    assert report["answered"] == 400
    assert any("b was lost after" in warning for warning in report["warnings"])
    until_no_agent("cut")


def test_a_killed_agent_is_named(sshd: SshServer, responder: Responder) -> None:
    with running(responder, *marked(sshd, "a,b", "dead", "-R", "200", "-d", "4")) as load:
        os.kill(agents("dead")[0], signal.SIGKILL)
        out, stderr = load.communicate(timeout=30)
    assert load.returncode == 1
    assert ": lost: " in stderr
    assert [agent["lost"] is None for agent in json.loads(out)["agents"]].count(False) == 1
    until_no_agent("dead")


@pytest.mark.skipif(not namespaces.are_available(), reason="needs root and network namespaces")
def test_machines_with_networks_of_their_own(tmp_path: Path) -> None:
    """Four namespaces with an interface and an sshd each; the server is outside of them."""
    with on_machines(tmp_path, 4, "200mbit") as (sshd, machines), Responder("--host", "0.0.0.0") as responder:
        url = f"http://{machines[0][2]}:{responder.port}/"
        status, report, stderr = run(*on_hosts(sshd, "a,b,c,d", "-R", "2000", "-d", "2", "-c", "8", url))
        assert status == 0, stderr
        assert [agent["answered"] for agent in report["agents"]] == [1000] * 4
        for agent in report["agents"]:
            # Namespaces share the clock, so that the true difference is 0.
            assert abs(agent["clock_ahead_us"]) <= agent["clock_error_us"] + 1
        # A machine whose cable is cut is silent, then lost; its agent ends by itself.
        cut = machines[1][0]
        options = marked(sshd, "a,b", "cable", "-R", "200", "-d", "14", "-c", "4")
        # The server by an address of the other end: on a machine of its own 0.0.0.0 is the agent's.
        with running(responder, *options, url=url) as load:
            namespaces.run("ip", "netns", "exec", cut, "ip", "link", "set", "eth0", "down")
            out, stderr = load.communicate(timeout=60)
        assert load.returncode == 1
        assert "b: nothing was heard of it for 2" in stderr
        assert "b: lost: nothing was heard of it for 10 s" in stderr
        assert json.loads(out)["answered"] == 1400
        until_no_agent("cable")
