"""Clients as subjects: every installed one runs every load, and failures are clear lines."""

import contextlib
import os
import signal
import socket
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from towline.bench import hdr
from towline.bench.clients import process
from towline.bench.clients.jobs import client_scenarios, experiments_of
from towline.bench.clients.measure import ClientEnvironment, ClientExperiment, versions_in
from towline.bench.clients.process import ClientProcess, Worker
from towline.bench.clients.subjects import CLIENTS, Interpreters, Missing
from towline.bench.clients.worker import histogram
from towline.bench.clients.worker.job import Job
from towline.bench.clients.worker.sockets import shrink_send_buffers
from towline.bench.clients.worker.window import Window
from towline.bench.responder import Responder
from towline.bench.runner.protocol import Failed, SliceSpec, StartConfig
from towline.cli.bench import main as bench_command

PYTHON = Path(sys.executable)
REQ = {"path": "/req", "answer_text": "x", "answer_repeat": 2000}
UPLOAD = {"path": "/upload", "answer_text": "100000", "body_bytes": 100_000}
# As in the experiments, with a few requests each.
LOADS = {
    "get": Job("get", "async", concurrency=5, answer_text="alive\r\n"),
    "get, counted": Job("get", "async", concurrency=5, count=20, **REQ),
    "upload": Job("upload", "async", count=3, **UPLOAD),
    "post_json": Job("post_json", "async", path="/json", body_bytes=900),
    "batch": Job("post_json", "async", path="/json", body_bytes=900, batch=4),
    "stream": Job("stream", "async", concurrency=5, count=10, **REQ),
}
SLOW = {"slow_pieces": "/endless?chunked", "slow_events": "/sse?per_s=500&bytes=200"}


@pytest.fixture(scope="module")
def responder():
    with Responder() as found:
        yield found


def job_for(client, job):
    return Job(**{**job.plain(), "backend": client.backend})


def installed(client):
    """Skips with the reason. CI installs only some of the clients."""
    absent = [package for package in client.packages if versions_in(PYTHON)[package] is None]
    if absent:
        pytest.skip(f"{client.name} needs {', '.join(absent)}, which is not installed here")


@pytest.mark.parametrize("name", CLIENTS)
def test_every_client_runs_every_load(name, responder):
    client = CLIENTS[name]
    installed(client)
    worker = Worker(PYTHON)
    try:
        for title, load in LOADS.items():
            job = job_for(client, load)
            opened = {"adapter": client.adapter, "packages": client.packages, "job": job.plain()}
            reply = worker.call(30, op="open", library=client.library, bases=[responder.base_url], **opened)
            assert reply["versions"].keys() == {*client.packages, "python"}
            worker.call(30, op="verify")
            found = worker.call(30, op="slice", seconds=0.05, discard_s=0.005, count=None)["found"]
            assert (found["failed"], found["first_failure"]) == (0, None), title
            assert found["answered"] == (load.count or found["answered"]) > 0, title
            assert found["response"]["count"] == hdr.decode(found["histogram"]).total, title
            # The rate counts by the end of a call, the latencies by its beginning: at both edges of a window that
            # time closes, calls are in flight.
            at_the_edges = 0 if load.count else load.concurrency
            assert abs(found["response"]["count"] - found["answered"]) <= at_the_edges, title
            assert (
                0 < found["response"]["min_us"] <= found["response"]["p99_us"] <= found["response"]["max_us"]
            )
            assert 0 < found["measured_s"] <= found["whole_s"]
            assert found["cpu_s"] > 0
        for work, path in SLOW.items():
            job = Job(work, client.backend, path=path)
            opened = {"adapter": client.adapter, "packages": client.packages, "job": job.plain()}
            worker.call(30, op="open", library=client.library, bases=[responder.base_url], **opened)
            found = worker.call(30, op="slice", seconds=0.2, discard_s=0.0, count=None)["found"]
            assert found["extra"]["taken_bytes"] > 100, work
            assert found["extra"]["stopped_for_growth"] == 0
    finally:
        worker.stop()


OVER_H2 = {
    "get": Job("get", "async", concurrency=20, answer_text="alive\r\n", protocol="h2"),
    "large": Job(
        "get", "async", concurrency=5, path="/large", answer_text="x", answer_repeat=65536, protocol="h2"
    ),
    "upload": Job("upload", "async", concurrency=3, count=6, protocol="h2", **UPLOAD),
    "batch": Job("post_json", "async", path="/json", body_bytes=900, batch=10, protocol="h2"),
    "stream": Job("stream", "async", concurrency=5, count=10, protocol="h2", **REQ),
}


# Threads that share a connection of httpx2 sometimes send frames in the wrong order (pydantic/httpx2#1153).
NOT_FOR_THREADS = {"httpx-sync", "httpx2-sync", "httpcore-sync", "httpcorexyz-sync"}


@pytest.fixture(scope="module")
def http2_alone():
    with Responder("--protocol", "h2") as found:
        yield found


@pytest.mark.parametrize("name", [name for name, client in CLIENTS.items() if client.supports("h2")])
def test_every_client_with_http2_uses_it(name, http2_alone):
    """By prior knowledge; a response of this responder proves the use of HTTP/2."""
    client = CLIENTS[name]
    installed(client)
    worker = Worker(PYTHON)
    try:
        for title, load in OVER_H2.items():
            if name in NOT_FOR_THREADS:
                load = replace(load, concurrency=1, batch=1)
            opened = {
                "adapter": client.adapter,
                "packages": client.packages,
                "job": job_for(client, load).plain(),
            }
            worker.call(30, op="open", library=client.library, bases=[http2_alone.base_url], **opened)
            worker.call(30, op="verify")
            found = worker.call(30, op="slice", seconds=0.05, discard_s=0.005, count=None)["found"]
            assert (found["failed"], found["first_failure"]) == (0, None), title
            assert found["answered"] == (load.count or found["answered"]) > 0, title
    finally:
        worker.stop()


def test_http1_gets_no_response_from_an_http2_responder(http2_alone):
    running = ClientProcess(CLIENTS["towline"], LOADS["get"], [http2_alone.base_url], PYTHON)
    try:
        with pytest.raises(Failed):
            running.verify()
    finally:
        running.stop()


def test_a_client_without_http2_is_in_no_http2_experiment():
    for name in ("hello_h2_async", "hello_h2_sync"):
        for experiment in experiments_of(client_scenarios()[name]):
            libraries = {client.library for client in experiment.clients()}
            assert {"towline", "httpx2", "pycurl", "niquests"} <= libraries
            assert not libraries & {"aiohttp", "urllib3", "requests"}
            assert experiment.clients(["aiohttp", "urllib3"]) == []
            assert any("aiohttp" in note for note in experiment.notes)


def test_connections_replace_the_loads_of_a_scenario():
    experiments = experiments_of(client_scenarios()["hello_async"], connections=(3, 250))
    assert [experiment.name for experiment in experiments] == ["hello_async_3", "hello_async_250"]
    assert [(one.job.concurrency, one.job.pool, one.job.count) for one in experiments] == [
        (3, 100, None),
        (250, 250, None),
    ]


def test_connections_are_refused_where_the_load_is_something_else(capsys):
    assert bench_command(["clients", "--scenario", "hello_sync,small_post", "-c", "3"]) == 2
    assert "connections: small_post has a load of its own" in capsys.readouterr().err


@pytest.mark.parametrize("scenario", ["pool_assignment", "uncontended_acquire"])
@pytest.mark.parametrize("backend", ["async", "sync"])
def test_pools_by_themselves(scenario, backend):
    experiment = next(
        experiment
        for experiment in experiments_of(client_scenarios()[scenario])
        if experiment.job.backend == backend
    )
    measured = 0
    with ClientEnvironment(experiment) as environment:
        for client in experiment.clients():
            subject = environment.subject(client)
            if subject.missing():
                continue
            running = subject.start(StartConfig(None, 0, 1))
            try:
                running.verify()
                found = running.slice(SliceSpec(0.2, 0.02))
            finally:
                running.stop()
            assert found.answered > 0
            assert found.failed == 0
            # the time of the slice is that of the steps alone
            assert found.measured_s == pytest.approx(found.answered * found.response.mean_us / 1e6, rel=0.05)
            measured += 1
    assert measured >= 2


def test_a_pool_that_cannot_be_driven_is_an_error(responder):
    job = Job("uncontended_acquire", "async", parameters={"connections": 1, "requests": 1, "origins": 1})
    with pytest.raises(Failed, match="the pool of httpx cannot be driven by itself; those of towline"):
        ClientProcess(CLIENTS["httpx"], job, [responder.base_url], PYTHON)


@pytest.mark.parametrize("backend", ["async", "sync"])
def test_partial_writes_over_a_small_send_buffer(backend):
    experiments = experiments_of(client_scenarios()["partial_write"])
    experiment = next(
        experiment
        for experiment in experiments
        if experiment.job.backend == backend and experiment.job.body_bytes == 256 * 1024
    )
    with ClientEnvironment(experiment) as environment:
        running = environment.subject(CLIENTS["towline" if backend == "async" else "towline-sync"]).start(
            StartConfig(None, 0, 1)
        )
        try:
            running.verify()
            found = running.slice(SliceSpec(0.1, 0.01))
        finally:
            running.stop()
    assert (found.answered, found.failed) == (50, 0)
    assert found.extra["upload_mib_per_s"] == pytest.approx(50 / 4 / found.measured_s)


@pytest.mark.parametrize("name", sorted(client_scenarios()))
def test_the_responder_serves_client_scenarios(name):
    """The first experiment of each scenario as a run starts it: Towline verifies every response."""
    experiment = experiments_of(client_scenarios()[name])[0]
    clients = [client for client in experiment.clients() if client.library.startswith("towline")]
    if clients[0].library != "towline":
        installed(clients[0])
    with ClientEnvironment(experiment) as environment:
        running = environment.subject(clients[0]).start(StartConfig(None, 0, 1))
        try:
            running.verify()
        finally:
            running.stop()


def test_a_subject_as_the_runner_sees_it():
    experiment = next(experiment for experiment in experiments_of(client_scenarios()["get_sync"]))
    with ClientEnvironment(experiment) as environment:
        subject = environment.subject(CLIENTS["towline-sync"])
        described = subject.describe()
        assert (described.name, described.kind, described.failure) == ("towline", "client", None)
        assert described.options == {"backend": "sync", "pool": "100"}
        running = subject.start(StartConfig(None, 100, 1))
        running.verify()
        running.pause()
        running.resume()
        found = running.slice(SliceSpec(0.1, 0.01, requests=40))
        memory = running.memory()
        pid = running.process.worker.pid
        assert running.stop() is None
    assert (found.subject, found.answered, found.failed) == ("towline", 40, 0)
    # 20 at once, 10 ms each
    assert found.measured_s >= 0.02
    assert found.response.min_us >= 10_000
    assert 1 << 20 < memory.now_bytes <= memory.peak_bytes
    assert not Path(f"/proc/{pid}").exists()


# --- what is wrong ------------------------------------------------------------------------------


@contextmanager
def responding(*bodies):
    """Server that sends these bodies in turn, the last one repeatedly; None: no response."""
    listener = socket.create_server(("127.0.0.1", 0))
    remaining, lock = list(bodies), threading.Lock()

    def serve(conn):
        with conn, contextlib.suppress(OSError):
            while data := conn.recv(65536):
                if b"HTTP/1.1\r\n" not in data:  # more of a body
                    continue
                with lock:
                    body = remaining.pop(0) if len(remaining) > 1 else remaining[0]
                if body is not None:
                    conn.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))

    def accept():
        while True:
            try:
                conn, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(conn,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    with listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)


@contextmanager
def opened(name, job, base):
    client = ClientProcess(CLIENTS[name], job_for(CLIENTS[name], job), [base], PYTHON)
    try:
        yield client
    finally:
        client.stop()


@pytest.mark.parametrize("name", ["towline", "httpx-sync"])
@pytest.mark.parametrize(
    ("job", "message"),
    [
        (Job("get", "async"), "200 with 13 bytes, not 13: b'Hello, World\\?'"),
        (Job("upload", "async", **UPLOAD), "200 with 13 bytes, not 6"),
        (Job("stream", "async"), "200 with 13 bytes"),
    ],
    ids=["get", "upload", "stream"],
)
def test_one_wrong_byte_is_detected(name, job, message):
    with responding(b"Hello, World?") as base, opened(name, job, base) as client:
        with pytest.raises(Failed, match=f"WrongResponse: {message}"):
            client.verify()


def test_json_that_differs_is_caught():
    job = Job("post_json", "async", path="/json", body_bytes=3)
    with responding(b'{"hello":"aab"}') as base, opened("towline", job, base) as client:
        with pytest.raises(Failed, match=r"not the JSON that was sent: .*aab"):
            client.verify()


def test_a_wrong_response_within_a_slice_is_counted():
    good, bad = b"Hello, World!", b"Hello, World"
    with (
        responding(*[good] * 7, bad, good) as base,
        opened("towline-sync", Job("get", "async"), base) as client,
    ):
        client.verify()
        found = client.slice(0.1, 0.01, 20)
    # after two of the warm-up and two of the verification
    assert (found["answered"], found["failed"], found["errors"]) == (19, 1, {"content": 1})
    assert "200 with 12 bytes" in found["first_failure"]


def test_only_failures_end_early():
    good, bad = b"Hello, World!", b"no"
    with responding(good, good, bad) as base, opened("towline", Job("get", "async"), base) as client:
        client.verify()
        found = client.slice(30.0, 0.01)
    assert found["answered"] == 0
    assert found["errors"] == {"content": 100}
    assert found["whole_s"] < 20


def test_a_client_that_hangs(monkeypatch):
    monkeypatch.setattr(process, "VERIFY_TIMEOUT_S", 0.5)
    with responding(None) as base, opened("towline-sync", Job("get", "async"), base) as client:
        with pytest.raises(Failed, match="it hangs: no reply within 0 s"):
            client.verify()


def test_a_client_that_dies(responder):
    with opened("towline", Job("get", "async"), responder.base_url) as client:
        os.kill(client.worker.pid, signal.SIGKILL)
        with pytest.raises(Failed, match="it ended with status -9"):
            client.verify()
        assert not client.worker.alive()


def script(folder, text):
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("read line; echo 'no JSON'; sleep 20", "it replied garbage: b'no JSON'"),
        ("echo 'libfoo.so is missing' >&2; exit 7", "it ended with status 7: libfoo.so is missing"),
        ('read line; sleep 60 & echo "{\\"error\\": \\"$!\\"}"; wait', "^[0-9]+$"),
    ],
    ids=["garbage", "ends at once", "leaves a child"],
)
def test_an_invalid_interpreter(tmp_path, text, message):
    worker = Worker(script(tmp_path, text))
    try:
        with pytest.raises(Failed, match=message) as failed:
            worker.call(10, op="versions", packages=[])
    finally:
        worker.stop()
    child = str(failed.value)
    if child.isdigit():  # ended with its parent, within a moment
        deadline = time.monotonic() + 20
        while running(child) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not running(child)


def running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_interpreters(tmp_path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").touch()
    niquests, httpx = CLIENTS["niquests"], CLIENTS["httpx"]
    assert Interpreters.usual().of(httpx) == PYTHON
    named = Interpreters({"httpx": tmp_path, "niquests": tmp_path / "gone"}, PYTHON)
    assert named.of(httpx) == tmp_path / "bin" / "python"
    with pytest.raises(Missing, match=r"there is no interpreter .*gone"):
        named.of(niquests)
    for_all = Interpreters({"all": tmp_path, "httpx": PYTHON}, PYTHON)
    assert (for_all.of(httpx), for_all.of(niquests)) == (PYTHON, tmp_path / "bin" / "python")


def test_a_missing_client_is_reported(tmp_path):
    experiment = ClientExperiment("x", "x", "x", "towline", Job("get", "async"))
    with ClientEnvironment(
        experiment, interpreters=Interpreters({"niquests": tmp_path / "none"}, PYTHON)
    ) as environment:
        subject = environment.subject(CLIENTS["niquests"])
        assert "there is no interpreter" in (subject.missing() or "")
        assert "there is no interpreter" in (subject.describe().failure or "")
        with pytest.raises(Failed, match="not installed: niquests: there is no interpreter"):
            subject.start(StartConfig(None, 0, 1))
        here = {name: environment.subject(CLIENTS[name]).missing() for name in ("towline", "wreq")}
    assert here["towline"] is None
    if versions_in(PYTHON)["wreq"] is None:
        assert here["wreq"] == f"wreq: not installed in {PYTHON}"


# --- the arithmetic -----------------------------------------------------------------------------


def test_a_window_counts_responses_that_end_inside_it(monkeypatch):
    window = Window(1.0, 0.1)
    monkeypatch.setattr(time, "perf_counter", lambda: 100.0)
    window.begin()
    for started, ended in (
        (100.0, 100.05),
        (100.05, 100.12),
        (100.12, 100.5),
        (100.4, 101.2),
        (100.5, 101.3),
    ):
        window.note(started, ended)
    monkeypatch.setattr(time, "perf_counter", lambda: 101.4)
    window.end()
    found = window.found(13)
    # opened by the response at 0.12, closed by the one at 1.2; that of 1.3 was in flight: only its latency counts
    assert found["answered"] == 2
    assert found["measured_s"] == pytest.approx(1.08)
    assert found["whole_s"] == pytest.approx(1.4)
    assert found["response"]["count"] == 3
    assert found["response"]["min_us"] == pytest.approx(380_000)
    assert found["response"]["max_us"] == pytest.approx(800_000)
    assert found["body_bytes"] == 26


def test_a_window_that_opens_late_has_its_whole_length(monkeypatch):
    window = Window(1.0, 0.1)
    monkeypatch.setattr(time, "perf_counter", lambda: 100.0)
    window.begin()
    # A stall that began before the slice delays the opening to 103; one that begins in it counts as a whole.
    for started, ended in ((100.0, 103.0), (100.0, 103.1), (103.0, 103.5), (103.1, 106.0), (103.5, 106.0)):
        window.note(started, ended)
    window.end()
    found = window.found(13)
    assert found["answered"] == 3
    assert found["measured_s"] == pytest.approx(3.0)
    assert found["response"]["count"] == 3
    assert found["response"]["max_us"] == pytest.approx(2_900_000)


def test_histograms_are_readable_by_hdrhistogram():
    times = [1e-9, 5e-7, 0.0123, 0.0124, 1.5, 3.25, 5000.0]
    found = hdr.decode(histogram.encode(times * 3))
    assert found.total == 21
    for share, value in (
        (0.14, 1),
        (0.28, 500),
        (0.42, 12_300_000),
        (0.71, 1_500_000_000),
        (1.0, 3_600_000_000_000),
    ):
        assert found.at(share) == pytest.approx(value, rel=0.001)


@cache
def all_experiments():
    return [experiment for scenario in client_scenarios().values() for experiment in experiments_of(scenario)]


def test_experiments_are_complete_and_name_known_clients():
    names = [experiment.name for experiment in all_experiments()]
    assert len(set(names)) == len(names)
    libraries = {client.library for client in CLIENTS.values()}
    for experiment in all_experiments():
        assert experiment.clients(), experiment.name
        assert {experiment.baseline, *(experiment.libraries or ())} <= libraries
        assert experiment.baseline in {client.library for client in experiment.clients()}
    by_name = {experiment.name: experiment for experiment in all_experiments()}
    for name in ("get_async", "get_sync"):  # 5,000 as 10 x 500
        assert (by_name[name].slices, by_name[name].job.count, by_name[name].floor_s) == (10, 500, 0.25)
    assert by_name["stream_sync_200"].job.count == 200 * 50
    assert (by_name["parallel_50_async"].job.batch, by_name["parallel_50_async"].job.concurrency) == (50, 1)
    assert by_name["post_async_64m"].job.answer_text == str(64 << 20)
    assert by_name["hello_async_500"].job.pool == 500
    assert by_name["dropin_httpx2_async"].baseline == "towline.httpx2"


def test_an_experiment_has_the_chosen_clients():
    by_name = {experiment.name: experiment for experiment in all_experiments()}
    assert [client.name for client in by_name["hello_sync_20"].clients(["httpx", "aiohttp"])] == [
        "httpx-sync"
    ]
    assert [client.name for client in by_name["dropin_requests"].clients(["requests", "httpx"])] == [
        "requests"
    ]
    assert "towline.httpx" not in {client.library for client in by_name["hello_async_1"].clients()}


def test_the_search_for_sockets_leaves_no_descriptor_open():
    with socket.socket() as other, open(__file__, "rb"):
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(3):
            assert shrink_send_buffers("/nowhere", 4096) == 0
        assert len(os.listdir("/proc/self/fd")) == before
        assert other.fileno() > 0
