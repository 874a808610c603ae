"""Applications that block, wait for ever or send invalid responses: only their own request fails."""

from __future__ import annotations

import contextlib
import select
import time
from collections.abc import Iterator

import pytest

from tests.support.process import Program, connect, eventually, request, running
from tests.support.process_resources import (
    HERE,
    descriptors,
    every_front_end,
    open_socket,
    reset,
    stable_descriptors,
    worker,
)

from . import apps


@pytest.fixture(scope="module")
def asgi_program() -> Iterator[Program]:
    with running("apps:asgi", cwd=HERE) as program:
        yield program


@pytest.fixture(scope="module", params=["1", "3"], ids=["inline", "threads"])
def wsgi_program(request: pytest.FixtureRequest) -> Iterator[Program]:
    with running("apps:wsgi", "--threads", request.param, cwd=HERE) as program:
        yield program


@pytest.mark.parametrize("path", apps.ASGI_NONSENSE)
def test_invalid_responses_from_asgi(path: str, asgi_program: Program) -> None:
    misbehave(asgi_program, path)


@pytest.mark.parametrize("path", [*apps.WSGI_NONSENSE, "late-raise"])
def test_invalid_responses_from_wsgi(path: str, wsgi_program: Program) -> None:
    misbehave(wsgi_program, path)


def misbehave(program: Program, path: str) -> None:
    """A 500 or a connection that ends before the response is complete; a traceback or a message; no more.

    Of a body that is longer than its Content-Length, that much is sent, as gunicorn and uvicorn do.
    """
    pid, lines_before = worker(program), len(program.lines)
    with contextlib.suppress(ConnectionError):
        assert request(program.port, f"/{path}", 5).status == (200 if path == "body-long" else 500)
    assert request(program.port, "/ok").body == b"ok"
    eventually(lambda: len(program.lines) > lines_before, "a line in the log")
    assert worker(program) == pid


@pytest.mark.parametrize("app", ["apps:asgi", "apps:wsgi"])
def test_a_blocked_worker_does_not_stop_the_other(app: str) -> None:
    with running(app, "--workers", "2", cwd=HERE) as program, connect(program.port) as blocked:
        blocked.send("/block/6")
        time.sleep(0.2)
        for _ in range(30):
            assert request(program.port, "/ok").body == b"ok"
        # All of them while the other was blocked.
        assert not select.select([blocked.sock], [], [], 0)[0]
        assert blocked.response().body == b"ok"


@every_front_end
@pytest.mark.parametrize("path", ["/listen", "/stream"])
def test_disconnects_release_everything(serving: list[str], path: str) -> None:
    with running(*serving, cwd=HERE) as program:
        request(program.port, "/ok")
        baseline = stable_descriptors(worker(program))
        head = f"POST {path} HTTP/1.1\r\nhost: test\r\ncontent-length: 10\r\n\r\n12345".encode()
        for disconnect in (reset, lambda sock: sock.close()):
            sockets = [open_socket(program.port, head) for _ in range(3)]
            time.sleep(0.2)
            for sock in sockets:
                disconnect(sock)
        assert request(program.port, "/ok").body == b"ok"
        eventually(lambda: len(descriptors(worker(program))) <= baseline, "the end of their sockets")


def test_an_asgi_application_that_never_responds_holds_no_socket() -> None:
    with running("apps:asgi", cwd=HERE) as program:
        request(program.port, "/ok")
        baseline = stable_descriptors(worker(program))
        sockets = [open_socket(program.port, b"GET /never HTTP/1.1\r\nhost: test\r\n\r\n") for _ in range(20)]
        eventually(lambda: len(descriptors(worker(program))) >= baseline + 20, "twenty connections")
        for sock in sockets:
            reset(sock)
        eventually(lambda: len(descriptors(worker(program))) <= baseline, "the end of their sockets")
        assert request(program.port, "/ok").body == b"ok"
