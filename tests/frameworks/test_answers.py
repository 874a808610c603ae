"""Applications of PyPI's frameworks answer under Towline as they do under the reference server.

ASGI applications are compared with Uvicorn, WSGI applications with the standard library's wsgiref.
"""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator

import pytest

from tests.support.compared_servers import (
    TOWLINE,
    UVICORN,
    WSGIREF,
    Request,
    Response,
    command,
    fetch,
    running,
)

PLAIN = {"Content-Type": "text/plain; charset=utf-8"}
URLENCODED = {"Content-Type": "application/x-www-form-urlencoded"}
MULTIPART = {"Content-Type": "multipart/form-data; boundary=cut"}
UPLOAD = (
    b'--cut\r\nContent-Disposition: form-data; name="a"\r\n\r\n1\r\n'
    b'--cut\r\nContent-Disposition: form-data; name="file"; filename="x.bin"\r\n'
    b"Content-Type: application/octet-stream\r\n\r\n" + b"z" * 200_000 + b"\r\n--cut--\r\n"
)

COMMON = [
    Request("/text"),
    Request("/text", "HEAD"),
    Request("/text", "OPTIONS"),
    Request("/text", "DELETE"),
    Request("/text", twice=True),
    Request("/json?a=1&b=%20x%2B&b=2"),
    Request("/missing"),
    Request("/echo", "POST", PLAIN, b"x" * 10),
    Request("/echo", "POST", PLAIN, b""),
    Request("/echo", "POST", PLAIN, bytes(range(256)) * 4096),
    Request("/stream"),
    Request("/redirect"),
    Request("/cookies", headers={"Cookie": "a=1; b=two"}),
    Request("/error"),
]
FORMS = [Request("/form", "POST", URLENCODED, b"a=1&b=%C3%A9"), Request("/form", "POST", MULTIPART, UPLOAD)]
UNICODE = Request("/p%C3%A4th/%C3%BC?q=%F0%9F%9A%A2")

ASGI = {
    "starlette_app:app": [
        *COMMON,
        *FORMS,
        UNICODE,
        *[Request(path) for path in ("/sse", "/empty", "/state", "/tasks", "/mounted/json", "/text/")],
        Request("/context", twice=True),
        Request("/echo", "PUT", PLAIN, b"put"),
    ],
    "fastapi_app:app": [
        *COMMON,
        *FORMS,
        *[Request(path) for path in ("/openapi.json", "/docs", "/json?q=no")],
        Request("/items", "POST", {"Content-Type": "application/json"}, b'{"name": "rope"}'),
        Request("/items", "POST", {"Content-Type": "application/json"}, b'{"name": '),
    ],
    "litestar_app:app": COMMON,
    "quart_app:app": [*COMMON, *FORMS],
    "django_app:asgi": [*COMMON, *FORMS, UNICODE, Request("/async_json"), Request("/file")],
}
WSGI = {
    "flask_app:app": [*COMMON, *FORMS, UNICODE, Request("/file")],
    "django_app:wsgi": [*COMMON, *FORMS, UNICODE, Request("/async_json"), Request("/file")],
}


def responses_of(server: list[str], questions: list[Request]) -> list[Response]:
    with running(server) as port:
        return [fetch(port, question) for question in questions]


def compare(reference: list[str], ours: list[str], questions: list[Request]) -> None:
    expected, found = responses_of(reference, questions), responses_of(ours, questions)
    differing = [
        f"{question}\n  expected {want}\n  found    {got}"
        for question, want, got in zip(questions, expected, found, strict=True)
        if want != got
    ]
    if differing:
        pytest.fail("\n".join(differing), pytrace=False)


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
@pytest.mark.parametrize("app", ASGI)
def test_asgi_frameworks_answer_as_under_uvicorn(app: str, loop: str) -> None:
    compare(command(UVICORN, app, "--loop", loop), command(TOWLINE, app, "--loop", loop), ASGI[app])


@pytest.mark.parametrize("threads", ["1", "4"])
@pytest.mark.parametrize("app", WSGI)
def test_wsgi_frameworks_answer_as_under_wsgiref(app: str, threads: str) -> None:
    compare(command(WSGIREF, app), command(TOWLINE, app, "--threads", threads), WSGI[app])


@pytest.fixture(params=["starlette_app:app", "fastapi_app:app"])
def port(request: pytest.FixtureRequest) -> Iterator[int]:
    with running(command(TOWLINE, request.param)) as found:
        yield found


def test_a_background_task_runs_after_the_answer(port: int) -> None:
    assert fetch(port, Request("/background")).status == 200
    deadline = time.monotonic() + 20
    while "background" not in json.loads(fetch(port, Request("/tally")).body):
        assert time.monotonic() < deadline, "the background task never ran"
        time.sleep(0.02)


def test_a_client_that_leaves_in_the_middle_of_its_body_is_noticed() -> None:
    with running(command(TOWLINE, "starlette_app:app")) as port:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=15)
        connection.putrequest("POST", "/echo")
        connection.putheader("Content-Length", "100")
        connection.endheaders(b"only a part")
        connection.close()
        deadline = time.monotonic() + 20
        while "disconnected" not in json.loads(fetch(port, Request("/tally")).body):
            assert time.monotonic() < deadline, "the application was not told"
            time.sleep(0.02)
