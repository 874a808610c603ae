"""OpenTelemetry spans of requests (`--otel`): names, attributes, parents and errors."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import baggage, trace
from opentelemetry.trace import SpanKind, StatusCode
from towline.config import ServerConfig
from towline.server import application
from towline.testing import Running

from tests.support.feature_server import every_kind, exchange, fetch, serving
from tests.support.http2_client import Client
from tests.support.tracing import Spans, attributes, spans
from tests.support.websocket_server import BOTH_VERSIONS, open_ws

__all__ = ["spans"]

TRACE_ID, PARENT_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACEPARENT = f"traceparent: 00-{TRACE_ID}-{PARENT_ID}-01"


def work(name: str = "work") -> None:
    """A span of the application."""
    with trace.get_tracer("application").start_as_current_span(name):
        pass


async def asgi_app(scope: Any, receive: Any, send: Any) -> None:
    """Behaviours that the tests need, by path."""
    path = scope["path"]
    if path == "/early":
        raise ValueError("before the head")
    work()
    status = int(path[1:]) if path[1:].isdigit() else 200
    await send({"type": "http.response.start", "status": status, "headers": []})
    if path == "/stream":
        for number in range(3):
            work(f"part {number}")
            await send({"type": "http.response.body", "body": b"part", "more_body": True})
    if path == "/late":
        await send({"type": "http.response.body", "body": b"part", "more_body": True})
        raise ValueError("after the head")
    body = baggage.get_baggage("user")
    await send({"type": "http.response.body", "body": str(body).encode()})


def wsgi_app(environ: Any, start_response: Any) -> Any:
    """The application for WSGI."""
    path = environ["PATH_INFO"]
    if path == "/early":
        raise ValueError("before the head")
    work()
    start_response(f"{path[1:]} Status" if path[1:].isdigit() else "200 OK", [])
    if path in ("/stream", "/late"):
        return parts(path)
    return [str(baggage.get_baggage("user")).encode()]


def parts(path: str) -> Iterator[bytes]:
    for number in range(3):
        work(f"part {number}")
        yield b"part"
        if path == "/late":
            raise ValueError("after the head")


def traced(kind: str, **options: Any) -> Any:
    return serving(kind, asgi_app if kind == "asgi" else wsgi_app, otel=True, **options)


@every_kind
def test_a_span_has_the_attributes_of_the_conventions(kind: str, spans: Spans) -> None:
    with traced(kind) as server:
        fetch(server, "/a%20b?x=1&Token=hush&y", "User-Agent: probe/1")
        span = spans.one()
        assert (span.name, span.kind, span.parent) == ("GET", SpanKind.SERVER, None)
        assert span.status.status_code is StatusCode.UNSET
        assert attributes(span) == {
            "http.request.method": "GET",
            "url.scheme": "http",
            "url.path": "/a%20b",
            "url.query": "x=1&Token=[secure]&y",
            "server.address": "test",
            "server.port": 80,
            "client.address": "127.0.0.1",
            "network.protocol.version": "1.1",
            "user_agent.original": "probe/1",
            "http.response.status_code": 200,
        }
        assert span.instrumentation_scope is not None
        assert span.instrumentation_scope.name == "towline.server"


@every_kind
def test_host_and_port_are_those_of_the_client(kind: str, spans: Spans) -> None:
    with traced(kind) as server:
        for host in ("[::1]:8080", "shop.example:8443", ""):
            exchange(
                (server.host, server.port),
                f"GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode(),
            )
        found = [attributes(span) for span in spans.of(SpanKind.SERVER, 3)]
        addresses = [(one["server.address"], one["server.port"]) for one in found]
        assert addresses == [("::1", 8080), ("shop.example", 8443), ("127.0.0.1", server.port)]


@every_kind
def test_the_path_has_the_root_path_that_a_proxy_removed(kind: str, spans: Spans) -> None:
    with traced(kind, root_path="/api") as server:
        fetch(server, "/x")
        assert attributes(spans.one())["url.path"] == "/api/x"


@every_kind
@pytest.mark.parametrize(
    ("request_line", "path", "address"),
    [
        ("OPTIONS * HTTP/1.1", "*", ("test", 80)),
        ("GET http://shop.example:81/p?q HTTP/1.1", "/p", ("shop.example", 81)),
        ("GET http://shop.example?q HTTP/1.1", "/", ("shop.example", 80)),
    ],
)
def test_other_forms_of_the_request_target(
    kind: str, request_line: str, path: str, address: tuple[str, int], spans: Spans
) -> None:
    """RFC 9112 3.2: the absolute form also replaces `Host`."""
    with traced(kind) as server:
        data = f"{request_line}\r\nHost: test\r\nConnection: close\r\n\r\n".encode()
        assert exchange((server.host, server.port), data).status == 200
        found = attributes(spans.one())
        assert found["url.path"] == path
        assert (found["server.address"], found["server.port"]) == address
        assert found.get("url.query") == ("q" if "?" in request_line else None)


@every_kind
def test_the_client_and_scheme_are_those_of_a_trusted_proxy(kind: str, spans: Spans) -> None:
    with traced(kind) as server:
        fetch(server, "/", "X-Forwarded-For: 192.0.2.9", "X-Forwarded-Proto: https")
        found = attributes(spans.one())
        assert (found["client.address"], found["url.scheme"], found["server.port"]) == (
            "192.0.2.9",
            "https",
            443,
        )


@every_kind
def test_spans_of_the_application_are_children(kind: str, spans: Spans) -> None:
    with traced(kind) as server:
        for _ in range(2):
            fetch(server, "/")
        parents = [span.context.span_id for span in spans.of(SpanKind.SERVER, 2) if span.context]
        children = [span.parent.span_id for span in spans.of(SpanKind.INTERNAL, 2) if span.parent]
        assert children == parents
        assert len({span.context.trace_id for span in spans.of(SpanKind.SERVER, 2) if span.context}) == 2


@every_kind
def test_the_trace_of_the_client_is_continued(kind: str, spans: Spans) -> None:
    with traced(kind) as server:
        response = fetch(server, "/", TRACEPARENT, "tracestate: a=1", "tracestate: b=2", "baggage: user=ada")
        span = spans.one()
        assert span.context is not None
        assert span.parent is not None
        assert format(span.context.trace_id, "032x") == TRACE_ID
        assert (format(span.parent.span_id, "016x"), span.parent.is_remote) == (PARENT_ID, True)
        assert dict(span.context.trace_state) == {"a": "1", "b": "2"}
        assert response.body == b"ada"


@every_kind
def test_a_trace_that_the_client_does_not_sample_is_not_recorded(kind: str, spans: Spans) -> None:
    with traced(kind) as server:
        fetch(server, "/", TRACEPARENT[:-1] + "0")
        fetch(server, "/stream", TRACEPARENT[:-1] + "0")
        fetch(server, "/")
        # The application had the trace as well: the spans of one request only.
        assert spans.one().parent is None
        assert len(spans.of(SpanKind.INTERNAL)) == 1


@every_kind
def test_two_traceparents_are_none(kind: str, spans: Spans) -> None:
    """W3C Trace Context 3.2.1: the trace is started again."""
    with traced(kind) as server:
        fetch(server, "/", TRACEPARENT, TRACEPARENT)
        assert spans.one().parent is None


@every_kind
def test_other_methods_have_one_name(kind: str, spans: Spans, monkeypatch: pytest.MonkeyPatch) -> None:
    with traced(kind) as server:
        fetch(server, "/", method="PROPFIND")
        span = spans.one()
        assert span.name == "HTTP"
        assert attributes(span)["http.request.method"] == "_OTHER"
        assert attributes(span)["http.request.method_original"] == "PROPFIND"
    spans.exporter.clear()
    monkeypatch.setenv("OTEL_INSTRUMENTATION_HTTP_KNOWN_METHODS", "GET, PROPFIND")
    with traced(kind) as server:
        fetch(server, "/", method="PROPFIND")
        assert spans.one().name == "PROPFIND"


@every_kind
def test_errors_of_the_server_are_errors_and_those_of_the_client_are_not(kind: str, spans: Spans) -> None:
    with traced(kind) as server:
        fetch(server, "/503")
        fetch(server, "/404")
        failed, refused = spans.of(SpanKind.SERVER, 2)
        assert failed.status.status_code is StatusCode.ERROR
        assert failed.status.description is None
        assert attributes(failed)["error.type"] == "503"
        assert refused.status.status_code is StatusCode.UNSET
        assert "error.type" not in attributes(refused)
        assert attributes(refused)["http.response.status_code"] == 404


@every_kind
@pytest.mark.parametrize(("path", "status"), [("/early", 500), ("/late", 200)])
def test_an_exception_is_recorded(kind: str, path: str, status: int, spans: Spans) -> None:
    with traced(kind) as server:
        data = f"GET {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n".encode()
        with socket.create_connection((server.host, server.port), timeout=10) as conn:
            conn.sendall(data)
            assert conn.recv(1000).startswith(f"HTTP/1.1 {status}".encode())
        span = spans.one()
        assert span.status.status_code is StatusCode.ERROR
        assert attributes(span)["error.type"] == "ValueError"
        assert attributes(span)["http.response.status_code"] == status
        (event,) = span.events
        assert event.name == "exception"
        assert "the head" in str((event.attributes or {})["exception.message"])


@every_kind
def test_a_stream_is_inside_its_span(kind: str, spans: Spans) -> None:
    with traced(kind) as server:
        assert fetch(server, "/stream").body.startswith(b"partpartpart")
        span = spans.one()
        children = spans.of(SpanKind.INTERNAL, 4)
        assert [child.name for child in children] == ["work", "part 0", "part 1", "part 2"]
        assert {child.parent.span_id for child in children if child.parent} == {
            span.context.span_id if span.context else 0
        }
        assert (span.end_time or 0) >= max(child.end_time or 0 for child in children)


def test_work_after_the_response_does_not_extend_the_span(spans: Spans) -> None:
    released = threading.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await asgi_app(scope, receive, send)
        while not released.is_set():
            await asyncio.sleep(0.005)
        if scope["path"] == "/fails":
            raise RuntimeError("in the background")

    with serving("asgi", app, otel=True) as server:
        fetch(server, "/")
        answered = time.time_ns()
        released.set()
        assert (spans.one().end_time or answered) <= answered
        assert spans.one().status.status_code is StatusCode.UNSET
        spans.exporter.clear()
        fetch(server, "/fails")
        assert attributes(spans.one())["error.type"] == "RuntimeError"
        assert attributes(spans.one())["http.response.status_code"] == 200


@pytest.mark.parametrize(("path", "status"), [("/nothing", 500), ("/part", 200)])
def test_an_incomplete_response_is_an_error(path: str, status: int, spans: Spans) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        if path == "/part":
            await send({"type": "http.response.start", "status": 200, "headers": []})

    with serving("asgi", app, otel=True) as server:
        with socket.create_connection((server.host, server.port), timeout=10) as conn:
            conn.sendall(f"GET {path} HTTP/1.1\r\nHost: test\r\n\r\n".encode())
            conn.recv(1000)
        span = spans.one()
        assert span.status.status_code is StatusCode.ERROR
        assert attributes(span)["error.type"] == "incomplete_response"
        assert attributes(span)["http.response.status_code"] == status


def disconnect_early(server: Running, path: str = "/") -> None:
    """Begins to read a response and resets the connection."""
    with socket.create_connection((server.host, server.port), timeout=10) as conn:
        conn.sendall(f"GET {path} HTTP/1.1\r\nHost: test\r\n\r\n".encode())
        assert conn.recv(100)
        conn.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


@pytest.mark.parametrize("way", ["send", "receive", "framework"])
def test_a_client_that_leaves_is_no_error(way: str, spans: Spans) -> None:
    class ClientDisconnect(Exception):
        pass

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        if way == "send":
            while True:
                await send({"type": "http.response.body", "body": bytes(10_000), "more_body": True})
        await send({"type": "http.response.body", "body": b"part", "more_body": True})
        assert (await receive())["type"] == "http.disconnect"
        if way == "framework":
            raise ClientDisconnect

    with serving("asgi", app, otel=True) as server:
        disconnect_early(server)
        span = spans.one()
        assert span.status.status_code is StatusCode.UNSET
        assert [event.name for event in span.events] == ["client.disconnected"]
        assert "error.type" not in attributes(span)
        assert attributes(span)["http.response.status_code"] == 200


def test_an_error_after_the_client_has_left_is_one(spans: Spans) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"part", "more_body": True})
        await receive()
        raise ValueError("while it cleaned up")

    with serving("asgi", app, otel=True) as server:
        disconnect_early(server)
        assert attributes(spans.one())["error.type"] == "ValueError"


def test_a_client_that_leaves_a_wsgi_stream_is_no_error(spans: Spans) -> None:
    def app(environ: Any, start_response: Any) -> Iterator[bytes]:
        start_response("200 OK", [])
        while True:
            yield bytes(10_000)

    with serving("wsgi", app, otel=True) as server:
        disconnect_early(server)
        span = spans.one()
        assert span.status.status_code is StatusCode.UNSET
        assert [event.name for event in span.events] == ["client.disconnected"]


@every_kind
def test_http2(kind: str, spans: Spans) -> None:
    with traced(kind) as server, Client((server.host, server.port)) as client:
        assert client.fetch("GET", "/x?token=a", headers=[("user-agent", "probe/2")]).status == 200
        found = attributes(spans.one())
        assert (found["network.protocol.version"], found["server.address"]) == ("2", "test")
        assert (found["url.path"], found["url.query"]) == ("/x", "token=[secure]")
        assert found["user_agent.original"] == "probe/2"


@BOTH_VERSIONS
def test_a_websocket_is_one_span(version: str, spans: Spans) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        while (message := await receive())["type"] == "websocket.receive":
            work()
            await send({"type": "websocket.send", "text": message["text"]})

    with serving("asgi", app, otel=True) as server:
        headers = {"traceparent": TRACEPARENT.split(": ")[1]}
        with open_ws(server, "/chat?token=x", version=version, additional_headers=headers) as ws:
            for _ in range(2):
                ws.send("hello")
                assert ws.recv() == "hello"
            assert [span.kind for span in spans.exporter.get_finished_spans()] == [SpanKind.INTERNAL] * 2
        span = spans.one()
        found = attributes(span)
        method, status = ("GET", 101) if version == "1.1" else ("CONNECT", 200)
        assert (span.name, found["http.response.status_code"]) == (method, status)
        assert (found["url.path"], found["url.query"]) == ("/chat", "token=[secure]")
        assert (found["url.scheme"], found["network.protocol.version"]) == ("ws", version)
        assert found["client.address"] == "127.0.0.1"
        assert span.parent is not None
        assert format(span.parent.span_id, "016x") == PARENT_ID
        assert span.context is not None
        children = spans.of(SpanKind.INTERNAL, 2)
        assert {child.parent.span_id for child in children if child.parent} == {span.context.span_id}
        assert span.status.status_code is StatusCode.UNSET


@pytest.mark.parametrize(
    ("outcome", "status", "error"),
    [
        ("close", 403, None),
        ("response", 503, "503"),
        ("raise", 500, "RuntimeError"),
        ("return", 500, "incomplete_response"),
        ("raise later", 101, "RuntimeError"),
        ("leave", 101, None),
    ],
)
def test_endings_of_a_websocket(outcome: str, status: int, error: str | None, spans: Spans) -> None:
    class WebSocketDisconnect(Exception):
        pass

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        if outcome == "close":
            await send({"type": "websocket.close"})
        elif outcome == "response":
            await send({"type": "websocket.http.response.start", "status": 503, "headers": []})
            await send({"type": "websocket.http.response.body", "body": b"later"})
        elif outcome == "return":
            return
        elif outcome == "raise":
            raise RuntimeError
        else:
            await send({"type": "websocket.accept"})
            await receive()
            raise RuntimeError if outcome == "raise later" else WebSocketDisconnect

    with serving("asgi", app, otel=True) as server:
        try:
            with open_ws(server) as ws:
                if outcome == "raise later":
                    ws.send("x")
                    ws.recv()
        except Exception as failure:
            assert outcome != "leave", failure
        span = spans.one()
        assert attributes(span)["http.response.status_code"] == status
        assert attributes(span).get("error.type") == error
        assert (span.status.status_code is StatusCode.ERROR) == (error is not None)


def test_the_application_is_called_directly_without_the_option() -> None:
    for app in (asgi_app, wsgi_app):
        assert application.load(ServerConfig(app)).call is app
        assert application.load(ServerConfig(app, otel=True)).call is not app


def test_bodies_keep_what_the_server_looks_at(spans: Spans, tmp_path: Any) -> None:
    """A list, a body of a known length and a file have their Content-Length; `close` is called."""
    closed = []
    path = tmp_path / "file.txt"
    path.write_bytes(b"content")

    class Sized:
        def __iter__(self) -> Iterator[bytes]:
            return iter([b"12345"])

        def __len__(self) -> int:
            return 1

        def close(self) -> None:
            closed.append(1)

    def app(environ: Any, start_response: Any) -> Any:
        start_response("200 OK", [])
        kind = environ["PATH_INFO"][1:]
        if kind == "file":
            return environ["wsgi.file_wrapper"](open(path, "rb"))
        return [b"12345"] if kind == "list" else Sized()

    with serving("wsgi", app, otel=True) as server:
        for kind, body in (("list", b"12345"), ("sized", b"12345"), ("file", b"content")):
            response = fetch(server, f"/{kind}")
            assert (response.body, response.field("content-length")) == (body, str(len(body)))
        assert fetch(server, "/sized", method="HEAD").status == 200
        found = spans.of(SpanKind.SERVER, 4)
        assert [attributes(span)["http.response.status_code"] for span in found] == [200] * 4
        assert [span.events for span in found] == [()] * 4
        assert len(closed) == 2


def test_an_exception_in_close_is_recorded(spans: Spans) -> None:
    class Closing:
        def __iter__(self) -> Iterator[bytes]:
            return iter([b"a", b"b"])

        def close(self) -> None:
            raise KeyError("connection")

    def app(environ: Any, start_response: Any) -> Any:
        start_response("200 OK", [])
        return Closing()

    with serving("wsgi", app, otel=True) as server:
        assert fetch(server, "/").body == b"ab"
        assert attributes(spans.one())["error.type"] == "KeyError"


def test_without_a_provider_the_application_still_has_the_trace(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", None)
    monkeypatch.delenv("OTEL_PYTHON_TRACER_PROVIDER", raising=False)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        trace_id = trace.get_current_span().get_span_context().trace_id
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": format(trace_id, "032x").encode()})

    with serving("asgi", app, otel=True) as server:
        for _ in range(2):
            assert fetch(server, "/", TRACEPARENT).body == TRACE_ID.encode()
    assert sum("no tracer provider" in record.getMessage() for record in caplog.records) == 1
