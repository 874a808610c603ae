"""Agents of `towline load` on clusters: a Dask cluster of four processes, a Kubernetes API that is imitated, and Ray where
it is installed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from towline.bench.responder import Responder
from towline.bench.subjects.ports import free_port
from towline.load_agents.kubernetes import JobOptions, manifest, pod_state
from towline.load_agents.reception import Address, PlacementFailed, Reception, socket_list

from tests.support.server_processes import started, until_listening

from .loads import LOAD, agents, run, running, until_no_agent

HERE = Path(__file__).resolve().parent
CONNECTS = "--connect"
"""Argument of the agents that Dask and Ray start."""
POD = "pod_of_a_test"
"""Argument of the agents in pods."""


@pytest.fixture(scope="module")
def responder() -> Iterator[Responder]:
    with Responder() as responder:
        yield responder


@pytest.fixture(scope="module")
def url(responder: Responder) -> str:
    return f"{responder.base_url}/"


@contextmanager
def process(*command: str, **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """A process of this environment's Python, killed in the end if it still runs."""
    with subprocess.Popen([sys.executable, "-m", *command], **options) as one:
        try:
            yield one
        finally:
            one.kill()


@contextmanager
def connecting_agent(reception: Reception, **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """An agent named `a`, as a cluster starts it."""
    command = ("towline", "load", "--agent", CONNECTS, str(reception.address))
    with process(*command, env={**os.environ, **reception.environment("a")}, **options) as agent:
        yield agent


class TestReception:
    def test_an_agent_shows_the_token_first(self) -> None:
        with Reception(Address("127.0.0.1", 0)) as reception:
            where = (reception.address.host, reception.address.port)
            lines = [
                b"nonsense\n",
                b"[]\n",
                json.dumps({"token": "x" * 43, "name": "a"}).encode() + b"\n",
                json.dumps({"token": reception.token, "name": "stranger"}).encode() + b"\n",
                json.dumps({"token": reception.token, "name": "a"}).encode() + b"\n",
                b"x" * 5000,
            ]
            connections = []
            for line in lines:
                connections.append(socket.create_connection(where))
                connections[-1].sendall(line)
            ((name, accepted),) = reception.receive(["a"], 20, dict)
            assert name == "a"
            connections[4].sendall(b"hello")
            accepted.settimeout(20)
            assert accepted.recv(5) == b"hello"
            accepted.close()
            for connection in connections:
                connection.close()

    def test_missing_agents_are_named(self) -> None:
        with Reception(Address("127.0.0.1", 0)) as reception:
            with pytest.raises(PlacementFailed, match="no agent on a, b has connected"):
                list(reception.receive(["a", "b"], 0.1, dict))
            with pytest.raises(PlacementFailed, match="b: no memory"):
                list(reception.receive(["a", "b"], 20, lambda: {"b": "no memory"}))

    def test_addresses(self) -> None:
        assert Address.parse("a:7", port=0) == Address("a", 7)
        assert Address.parse("10.0.0.1", port=0) == Address("10.0.0.1", 0)
        assert str(Address.parse("[::1]:8")) == "[::1]:8"
        assert Address.parse("[::1]", port=5) == Address("::1", 5)
        for text in ("", "a", ":1", "a:+1", "a:70000"):
            with pytest.raises(ValueError, match="HOST:PORT"):
                Address.parse(text)

    def test_an_agent_connects_and_ends_with_its_controller(self) -> None:
        with (
            Reception(Address("127.0.0.1", 0)) as reception,
            connecting_agent(reception, stdin=subprocess.DEVNULL) as agent,
        ):
            ((_, connection),) = reception.receive(["a"], 20, dict)
            with connection:
                connection.sendall(b'{"op":"clock"}\n')
                assert b'"clock":' in connection.makefile("rb").readline()
            assert agent.wait(20) == 0

    def test_an_agent_ends_with_its_parent(self) -> None:
        with (
            Reception(Address("127.0.0.1", 0)) as reception,
            connecting_agent(reception, stdin=subprocess.PIPE) as agent,
        ):
            sockets = list(reception.receive(["a"], 20, dict))
            assert agent.stdin is not None
            agent.stdin.close()
            assert agent.wait(20) == 1
            option = socket_list(iter(sockets))
            assert option.startswith("a=")
            os.close(int(option.removeprefix("a=")))


class Cluster:
    """A scheduler of Dask with its workers, each a process of its own."""

    def __init__(self, stack: ExitStack) -> None:
        distributed: Any = pytest.importorskip("distributed")
        self.address = f"127.0.0.1:{free_port()}"
        self._stack = stack
        where = ("--host", "127.0.0.1", "--port", self.address.rpartition(":")[2], "--no-dashboard")
        self._start("distributed.cli.dask_scheduler", *where)
        self._client = stack.enter_context(
            distributed.Client(f"tcp://{self.address}", timeout="60s", set_as_default=False)
        )

    def add_worker(self) -> subprocess.Popen[bytes]:
        where = (f"tcp://{self.address}", "--nthreads", "1", "--no-nanny", "--no-dashboard")
        return self._start("distributed.cli.dask_worker", *where)

    def wait_for_workers(self, count: int) -> None:
        self._client.wait_for_workers(count, timeout=60)

    def _start(self, *command: str) -> subprocess.Popen[bytes]:
        quiet = process(*command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return self._stack.enter_context(quiet)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with ExitStack() as stack:
        cluster = Cluster(stack)
        for _ in range(4):
            cluster.add_worker()
        cluster.wait_for_workers(4)
        yield cluster


class TestDask:
    def test_an_agent_on_each_worker_or_node(self, cluster: Cluster, url: str) -> None:
        where = ("--cluster", f"dask://{cluster.address}?per=worker")
        status, report, stderr = run(*where, "-R", "800", "-d", "1", "-c", "8", url)
        assert status == 0, stderr
        assert [agent["answered"] for agent in report["agents"]] == [200] * 4
        assert report["answered"] == 800
        status, report, stderr = run("--cluster", f"dask://{cluster.address}", "-n", "100", url)
        assert status == 0, stderr
        assert [agent["name"] for agent in report["agents"]] == ["127.0.0.1"]
        until_no_agent(CONNECTS)

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
    def test_ctrl_c_and_a_killed_controller_end_every_agent(
        self, cluster: Cluster, responder: Responder, number: signal.Signals
    ) -> None:
        where = ("--cluster", f"dask://{cluster.address}?per=worker")
        with running(responder, *where, "-R", "100", "-d", "600") as load:
            assert len(agents(CONNECTS)) == 4
            load.send_signal(number)
            out, stderr = load.communicate(timeout=60)
        if number == signal.SIGINT:
            assert load.returncode == 0, stderr
            assert len(json.loads(out)["agents"]) == 4
        until_no_agent(CONNECTS)

    def test_a_killed_worker_is_named(self, cluster: Cluster, responder: Responder) -> None:
        victim = cluster.add_worker()
        cluster.wait_for_workers(5)
        where = ("--cluster", f"dask://{cluster.address}?per=worker")
        with running(responder, *where, "-R", "100", "-d", "5") as load:
            victim.kill()
            out, stderr = load.communicate(timeout=60)
        assert load.returncode == 1
        assert ": lost: the connection was closed" in stderr
        assert [agent["lost"] is None for agent in json.loads(out)["agents"]].count(False) == 1
        until_no_agent(CONNECTS)


class TestRay:
    def test_an_agent_on_each_node(self, url: str) -> None:
        ray = pytest.importorskip("ray")
        port, client_port = free_port(), free_port()
        options = ["--head", f"--port={port}", f"--ray-client-server-port={client_port}", "--num-cpus=2"]
        more = ["--include-dashboard=false", "--disable-usage-stats", "--object-store-memory=100000000"]
        # Not from a fixed range, in which a free port of this test may be.
        more += ["--min-worker-port=0", "--max-worker-port=0"]
        program = [sys.executable, "-m", "ray.scripts.scripts"]
        assert ray.__version__
        try:
            subprocess.run([*program, "start", *options, *more], check=True, capture_output=True, timeout=120)
            where = ("--cluster", f"ray://127.0.0.1:{client_port}")
            status, report, stderr = run(*where, "-n", "100", "-c", "2", url)
            assert status == 0, stderr
            assert (report["answered"], len(report["agents"])) == (100, 1)
            until_no_agent(CONNECTS)
        finally:
            subprocess.run([*program, "stop", "--force"], check=False, capture_output=True, timeout=120)


class TestKubernetes:
    @pytest.fixture
    def api(
        self, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
    ) -> Iterator[tuple[str, Path]]:
        """A command of kubectl, and the requests of the server."""
        if shutil.which("kubectl") is None:
            pytest.skip("no kubectl")
        port, log = free_port(), tmp_path / "requests"
        agent = [sys.executable, "-X", POD, "-m", "towline", "load", "--agent"]
        variables = {"AGENT": json.dumps(agent), "LOG": str(log), **getattr(request, "param", {})}
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        config = tmp_path / "kubeconfig"
        config.write_text(
            f"apiVersion: v1\nkind: Config\ncurrent-context: c\n"
            f"clusters: [{{name: c, cluster: {{server: 'http://127.0.0.1:{port}'}}}}]\n"
            "contexts: [{name: c, context: {cluster: c, user: u, namespace: default}}]\nusers: [{name: u, user: {}}]\n"
        )
        command = [sys.executable, "-m", "towline", "serve", "kubernetes_api:app", "--app-dir", str(HERE)]
        output = tmp_path / "server"
        with started([*command, "--port", str(port)], output) as server:
            until_listening(port, server, output)
            yield f"kubectl --kubeconfig {config} --cache-dir {tmp_path / 'cache'}", log

    def test_a_job_sends_one_load_and_is_deleted(self, api: tuple[str, Path], url: str) -> None:
        kubectl, log = api
        options = ("--kubernetes", "3", "--image", "registry.example/towline:1", "--kubectl", kubectl)
        status, report, stderr = run(*options, "-R", "600", "-d", "1", "-c", "6", url)
        assert status == 0, stderr
        assert [agent["answered"] for agent in report["agents"]] == [200] * 3
        assert report["agents"][0]["name"].startswith("node0/towline-load-0-0-")
        lines = log.read_text().splitlines()
        assert any(line.startswith("POST /apis/batch/v1/namespaces/default/jobs") for line in lines)
        attached = [line for line in lines if "/attach?" in line]
        assert len(attached) == 3
        assert all("stdin=true" in line for line in attached)
        assert any(
            line.startswith("DELETE /apis/batch/v1/namespaces/default/jobs/towline-load-0") for line in lines
        )
        until_no_agent(POD)

    @pytest.mark.parametrize("api", [{"BROKEN": "ErrImagePull"}], indirect=True)
    def test_a_pod_that_cannot_start_is_named(self, api: tuple[str, Path], url: str) -> None:
        kubectl, log = api
        status, _, stderr = run("--kubernetes", "2", "--image", "x", "--kubectl", kubectl, "-d", "1", url)
        assert status == 2
        assert "pod towline-load-0-1-abcde: ErrImagePull: because" in stderr
        assert any(line.startswith("DELETE ") for line in log.read_text().splitlines())

    def test_a_killed_controller_leaves_no_agent(self, api: tuple[str, Path], responder: Responder) -> None:
        kubectl, _ = api
        options = ("--kubernetes", "2", "--image", "x", "--kubectl", kubectl)
        with running(responder, *options, "-R", "100", "-d", "600") as load:
            assert len(agents(POD)) == 2
            load.kill()
            load.communicate()
            until_no_agent(POD)

    def test_states_of_pods(self) -> None:
        def state(**status: Any) -> tuple[str, str]:
            return pod_state({"status": status})

        waiting = {"waiting": {"reason": "ContainerCreating"}}
        assert state(containerStatuses=[{"state": waiting}]) == ("waiting", "ContainerCreating")
        ended = {"terminated": {"exitCode": 127, "reason": "Error"}}
        assert state(containerStatuses=[{"state": ended}]) == (
            "failed",
            "its agent ended with status 127 (Error)",
        )
        unscheduled = {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": "no node",
        }
        assert state(phase="Pending", conditions=[unscheduled]) == ("waiting", "Unschedulable: no node")
        assert state(phase="Failed", reason="DeadlineExceeded") == ("failed", "DeadlineExceeded")
        assert state() == ("waiting", "Pending")

    def test_the_job_is_valid(self) -> None:
        validate = pytest.importorskip("kubernetes_validate")
        validate.validate(manifest(JobOptions(4, "x")), validate.latest_version(), strict=True)


@pytest.mark.parametrize(
    ("options", "part"),
    [
        (["--cluster", "spark://a:1"], "dask://HOST:PORT"),
        (["--cluster", "ray://a:1?per=worker"], "?per is node"),
        (["--cluster"], "needs a value"),
        (["--cluster", "dask://a:1", "--kubernetes", "2"], "exclude"),
        (["--kubernetes", "0", "--image", "x"], "1 to 1000"),
        (["--kubernetes", "2"], "needs --image"),
        (["--kubernetes", "1", "--image", "x", "--kubectl", "no-such-kubectl"], "no-such-kubectl"),
    ],
)
def test_mistakes_are_named(options: list[str], part: str) -> None:
    status, _, stderr = run("http://127.0.0.1:1/", *options)
    assert status == 2
    assert part in stderr


def test_a_job_is_written(tmp_path: Path) -> None:
    path = tmp_path / "job.json"
    done = subprocess.run(
        [*LOAD[:-1], "--kubernetes=3", "--image=x", "-t", "2", f"--write-job={path}"], check=False, timeout=60
    )
    assert done.returncode == 0
    job = json.loads(path.read_text())
    assert (job["spec"]["completions"], job["spec"]["parallelism"]) == (3, 3)
    container = job["spec"]["template"]["spec"]["containers"][0]
    assert container["stdin"]
    assert container["stdinOnce"]
    assert container["resources"]["requests"]["cpu"] == "2"


def test_the_help_has_a_screen() -> None:
    done = subprocess.run([*LOAD[:-1], "--help", "clusters"], capture_output=True, text=True, check=True)
    assert len(done.stdout.splitlines()) <= 24
    assert all(len(line) <= 80 for line in done.stdout.splitlines())
