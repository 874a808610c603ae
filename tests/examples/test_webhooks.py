"""The webhook forwarder as users run it: it responds, forwards, and loses nothing when a process ends."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from towline.bench.subjects.ports import free_port

from tests.support.databases import rows
from tests.support.process import Program, eventually, running

ROOT = Path(__file__).resolve().parent.parent.parent
APP = "examples.webhooks.app:app"
BODY = b'{"first_name":"Jony"}'
FINAL = "SELECT count(*) FROM webhooks WHERE state <> 'accepted'"


class Destination(ThreadingHTTPServer):
    """Responds with the next of `statuses`, or 200, and records the requests."""

    daemon_threads = True
    request_queue_size = 1024

    def __init__(self, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.statuses: list[int] = []
        self.seen: Counter[str] = Counter()
        self.requests: list[tuple[str, dict[str, str], bytes]] = []
        self.delay = 0.0
        self.may_respond = threading.Event()
        self.may_respond.set()
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/hooks"

    def close(self) -> None:
        self.shutdown()
        self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A forwarder that was killed leaves connections behind."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Destination

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.server.requests.append((self.path, dict(self.headers), body))
        self.server.seen[self.headers["webhook-id"]] += 1
        time.sleep(self.server.delay)
        self.server.may_respond.wait(60)
        self.send_response(self.server.statuses.pop(0) if self.server.statuses else 200)
        self.send_header("Content-Length", "6")
        self.send_header("X-Answer", "yes")
        self.end_headers()
        self.wfile.write(b"thanks")

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def destination() -> Iterator[Destination]:
    created = Destination()
    yield created
    created.close()


@contextlib.contextmanager
def program_of(database: str, destination: str, **settings: object) -> Iterator[Program]:
    environment = {"WEBHOOKS_DATABASE": database, "WEBHOOKS_DESTINATION": destination}
    environment |= {f"WEBHOOKS_{name.upper()}": str(value) for name, value in settings.items()}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        context = running(APP, cwd=ROOT)
        program = context.__enter__()
    with contextlib.ExitStack() as stack:
        stack.push(context.__exit__)
        yield program


def call(
    port: int, method: str, path: str, body: bytes = BODY, headers: dict[str, str] | None = None
) -> tuple[int, Any]:
    connection = HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request(method, path, body, headers or {})
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


def post(port: int, hook: str = "one", **arguments: Any) -> int:
    status, reply = call(port, "POST", f"/api/webhooks/{hook}", **arguments)
    assert status == 202
    number: int = reply["id"]
    return number


def finished(database: str, count: int) -> None:
    eventually(lambda: rows(database, FINAL)[0][0] >= count, f"{count} webhooks forwarded")


class Senders:
    """Threads that post until they are stopped; `accepted` are the ids in the responses."""

    def __init__(self, port: int, threads: int = 8) -> None:
        self.accepted: list[int] = []
        self._stopped = threading.Event()
        self._threads = [threading.Thread(target=self._send, args=(port,)) for _ in range(threads)]
        for thread in self._threads:
            thread.start()

    def _send(self, port: int) -> None:
        connection = HTTPConnection("127.0.0.1", port, timeout=20)
        with contextlib.suppress(OSError, HTTPException):
            while not self._stopped.is_set():
                connection.request("POST", "/api/webhooks/load", BODY)
                response = connection.getresponse()
                reply = json.loads(response.read())
                if response.status == 202:
                    self.accepted.append(reply["id"])
        connection.close()

    def stop(self) -> list[int]:
        self._stopped.set()
        for thread in self._threads:
            thread.join(30)
        return self.accepted


def test_forwarded_and_stored(database: str, destination: Destination) -> None:
    headers = {
        "Content-Type": "application/json",
        "X-Signature": "abc",
        "Connection": "keep-alive, x-hop",
        "X-Hop": "1",
    }
    with program_of(database, destination.url) as program:
        number = post(program.port, "a%2Fb%20c", headers=headers)
        finished(database, 1)
    ((path, sent, body),) = destination.requests
    sent = {name.lower(): value for name, value in sent.items()}
    assert (path, body) == ("/hooks/a%2Fb%20c", BODY)
    assert sent["x-signature"] == "abc"
    assert (sent["webhook-id"], sent["webhook-attempt"]) == (str(number), "1")
    assert "x-hop" not in sent
    query = (
        "SELECT state, attempts, duration, status, response_headers, response_body, error, hook FROM webhooks"
    )
    ((state, attempts, duration, status, fields, reply, error, hook),) = rows(database, query)
    assert (state, attempts, status, bytes(reply), error, hook) == (
        "forwarded",
        1,
        200,
        b"thanks",
        None,
        "a/b c",
    )
    assert 0 < duration < 20
    assert ["x-answer", "yes"] in json.loads(fields)


def test_the_response_does_not_wait_for_the_destination(database: str, destination: Destination) -> None:
    destination.may_respond.clear()
    with program_of(database, destination.url) as program:
        for _ in range(6):
            post(program.port)
        destination.may_respond.set()
        finished(database, 6)


def test_invalid_requests_are_refused(tmp_path: Path, destination: Destination) -> None:
    with program_of(str(tmp_path / "db"), destination.url, max_body_bytes=1000) as program:
        port = program.port
        assert call(port, "POST", "/api/webhooks/x", bytes(1001))[0] == 413
        assert call(port, "POST", "/api/webhooks/")[0] == 404
        assert call(port, "POST", "/elsewhere")[0] == 404
        assert call(port, "PUT", "/api/webhooks/x")[0] == 405
        post(port, body=bytes(1000))
        eventually(lambda: call(port, "GET", "/api/status", b"")[1] == {"forwarded": 1}, "status")


def test_a_failed_forward_is_retried(database: str, destination: Destination) -> None:
    destination.statuses = [500, 429]
    with program_of(database, destination.url) as program:
        number = post(program.port)
        finished(database, 1)
    assert destination.seen[str(number)] == 3
    assert rows(database, "SELECT state, attempts, status, error FROM webhooks") == [
        ("forwarded", 3, 200, None)
    ]


def test_a_refusal_is_an_outcome(database: str, destination: Destination) -> None:
    destination.statuses = [404]
    with program_of(database, destination.url) as program:
        post(program.port)
        finished(database, 1)
    assert rows(database, "SELECT state, attempts, status FROM webhooks") == [("forwarded", 1, 404)]


def test_an_old_webhook_is_given_up_with_its_error(tmp_path: Path) -> None:
    database = str(tmp_path / "db")
    with program_of(database, f"http://127.0.0.1:{free_port()}", give_up_after=0.1) as program:
        post(program.port)
        finished(database, 1)
    ((state, error, status),) = rows(database, "SELECT state, error, status FROM webhooks")
    assert (state, status) == ("given up", None)
    assert "ConnectError" in error


def test_a_destination_that_is_down_and_recovers(database: str) -> None:
    port = free_port()
    with program_of(database, f"http://127.0.0.1:{port}/hooks") as program:
        numbers = [post(program.port) for _ in range(30)]
        tried = "SELECT count(*) FROM webhooks WHERE attempts > 0 AND error LIKE 'ConnectError%'"
        eventually(lambda: rows(database, tried)[0][0] == 30, "30 attempts")
        destination = Destination(port)
        finished(database, 30)
        destination.close()
    assert destination.seen == Counter(map(str, numbers))


def test_killed_under_load_and_started_again(database: str, destination: Destination) -> None:
    destination.delay = 0.01
    accepted: list[int] = []
    for _ in range(2):
        with program_of(database, destination.url) as program:
            senders = Senders(program.port)
            eventually(lambda senders=senders: len(senders.accepted) > 100, "load")
            for pid in (program.pid, *program.children()):
                os.kill(pid, signal.SIGKILL)
            program.wait()
            accepted += senders.stop()
    assert len(accepted) == len(set(accepted)) > 200
    all_of_them = rows(database, "SELECT count(*) FROM webhooks")[0][0]
    with program_of(database, destination.url):
        finished(database, all_of_them)
    forwarded = {number for (number,) in rows(database, "SELECT id FROM webhooks WHERE status = 200")}
    assert set(accepted) <= forwarded
    assert set(map(str, accepted)) <= set(destination.seen)


def test_stopped_under_load(database: str, destination: Destination) -> None:
    with program_of(database, destination.url) as program:
        senders = Senders(program.port)
        eventually(lambda: len(senders.accepted) > 100, "load")
        program.signal(signal.SIGTERM)
        assert program.wait() == 0
        accepted = senders.stop()
    assert set(accepted) <= {number for (number,) in rows(database, "SELECT id FROM webhooks")}
    with program_of(database, destination.url):
        finished(database, len(accepted))
    # Nothing was interrupted, so nothing was sent twice.
    assert destination.seen == Counter(str(number) for (number,) in rows(database, "SELECT id FROM webhooks"))


def test_stopped_while_the_destination_hangs(tmp_path: Path, destination: Destination) -> None:
    database = str(tmp_path / "db")
    destination.delay = 60.0
    with program_of(database, destination.url, grace=0.3) as program:
        for _ in range(5):
            post(program.port)
        eventually(lambda: len(destination.seen) == 5, "five attempts under way")
        program.signal(signal.SIGTERM)
        assert program.wait() == 0
    assert rows(database, "SELECT state, attempts FROM webhooks") == [("accepted", 0)] * 5
    destination.delay = 0.0
    with program_of(database, destination.url):
        finished(database, 5)


def test_more_callers_than_attempts_at_a_time(database: str, destination: Destination) -> None:
    with program_of(database, destination.url, width=5) as program:
        senders = Senders(program.port, threads=40)
        eventually(lambda: len(senders.accepted) > 400, "load")
        accepted = senders.stop()
        finished(database, len(accepted))
    assert destination.seen == Counter(map(str, accepted))
