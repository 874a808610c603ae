"""`towline.opentelemetry`: spans of real exchanges, with the names and values of the semantic conventions of HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import towline
import towline.opentelemetry
from opentelemetry import context, trace
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanKind, StatusCode
from towline import testing

from tests.support.client_callers import BACKENDS, Caller
from tests.support.http1_peer import OK, Listener, Peer, respond_with, scripted
from tests.support.tls import Trust
from tests.support.tracing import Spans, attributes, spans

__all__ = ["spans"]

OTHERS = {
    "/away": b"HTTP/1.1 302 Found\r\nLocation: /end\r\nContent-Length: 0\r\n\r\n",
    "/busy": b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n",
    "/private": b"HTTP/1.1 401 Unauthorized\r\nWWW-Authenticate: Digest realm=r, nonce=n, qop=auth\r\n"
    b"Content-Length: 0\r\n\r\n",
}


def by_path(peer: Peer) -> None:
    """/busy and /private respond with success to the second request of a connection; /silent never does."""
    count = 0
    while head := peer.head():
        count += 1
        path = head.split(b" ")[1].decode().partition("?")[0]
        if path == "/silent":
            peer.closed_by_client()
            return
        is_repeated = count > 1 and path in ("/busy", "/private")
        peer.send(OK if is_repeated else OTHERS.get(path, OK))


@pytest.fixture
def server() -> Iterator[Listener]:
    with scripted(by_path) as listener:
        yield listener


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def instrumented(spans: Spans) -> Iterator[Spans]:
    towline.opentelemetry.instrument()
    yield spans
    towline.opentelemetry.uninstrument()


def parent_of(head: bytes) -> tuple[int, int]:
    """Trace and span of the `traceparent` of a request."""
    (value,) = [line[13:] for line in head.split(b"\r\n") if line.lower().startswith(b"traceparent: ")]
    version, trace_id, span_id, _ = value.split(b"-")
    assert version == b"00"
    return int(trace_id, 16), int(span_id, 16)


def ids(span: ReadableSpan) -> tuple[int, int]:
    return span.context.trace_id, span.context.span_id


def test_a_call_is_a_client_span(server: Listener, backend: str, instrumented: Spans) -> None:
    caller = Caller(backend)
    with trace.get_tracer("program").start_as_current_span("work") as work:
        assert caller.get(f"{server.url}/x?a=1#part").status_code == 200
    caller.close()
    (span,) = instrumented.of(SpanKind.CLIENT)
    assert span.name == "GET"
    assert attributes(span) == {
        "http.request.method": "GET",
        "http.response.status_code": 200,
        "network.peer.address": "127.0.0.1",
        "network.peer.port": server.port,
        "network.protocol.version": "1.1",
        "server.address": "127.0.0.1",
        "server.port": server.port,
        "url.full": f"{server.url}/x?a=1",
    }
    assert span.status.status_code is StatusCode.UNSET
    assert span.parent is not None
    assert span.parent.span_id == work.get_span_context().span_id
    assert parent_of(server.heads[0]) == ids(span)
    assert span.instrumentation_scope is not None
    assert span.instrumentation_scope.name == "towline.client"


def test_a_streamed_response_is_a_span(server: Listener, backend: str, instrumented: Spans) -> None:
    caller = Caller(backend)
    _, body = caller.read_stream("GET", server.url)
    caller.close()
    assert body == b"hello"
    (span,) = instrumented.of(SpanKind.CLIENT)
    assert attributes(span)["http.response.status_code"] == 200
    assert parent_of(server.heads[0]) == ids(span)


@pytest.mark.parametrize(
    ("path", "settings", "statuses"),
    [
        ("/away", {"follow_redirects": True}, [302, 200]),
        ("/busy", {"retries": towline.Retry(status=(503,), backoff=0.001)}, [503, 200]),
        ("/private", {"auth": towline.DigestAuth("user", "secret")}, [401, 200]),
    ],
)
def test_each_resend_is_a_span(
    server: Listener,
    backend: str,
    instrumented: Spans,
    path: str,
    settings: dict[str, Any],
    statuses: list[int],
) -> None:
    caller = Caller(backend, **settings)
    assert caller.get(server.url + path).status_code == 200
    caller.close()
    found = instrumented.of(SpanKind.CLIENT, 2)
    assert [attributes(span)["http.response.status_code"] for span in found] == statuses
    assert [attributes(span).get("http.request.resend_count") for span in found] == [None, 1]
    assert [parent_of(head) for head in server.heads] == [ids(span) for span in found]


def test_an_error_status_is_an_error(server: Listener, backend: str, instrumented: Spans) -> None:
    caller = Caller(backend)
    caller.get(f"{server.url}/busy")
    caller.close()
    (span,) = instrumented.of(SpanKind.CLIENT)
    assert attributes(span)["error.type"] == "503"
    assert span.status.status_code is StatusCode.ERROR


def test_a_failure_is_an_error(backend: str, instrumented: Spans) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    caller = Caller(backend, retries=None)
    with pytest.raises(towline.ConnectError):
        caller.get(f"http://127.0.0.1:{port}/")
    caller.close()
    (span,) = instrumented.of(SpanKind.CLIENT)
    found = attributes(span)
    assert found["error.type"] == "towline.errors.ConnectError"
    assert found["server.port"] == port
    assert "http.response.status_code" not in found
    assert span.status.status_code is StatusCode.ERROR
    assert [event.name for event in span.events] == ["exception"]


def test_a_timeout_and_a_cancellation_are_errors(server: Listener, instrumented: Spans) -> None:
    async def main() -> None:
        async with towline.AsyncClient() as client:
            with pytest.raises(towline.ReadTimeout):
                await client.get(f"{server.url}/silent", timeout=0.05)
            task = asyncio.create_task(client.get(f"{server.url}/silent"))
            await asyncio.sleep(0.05)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(main())
    found = [attributes(span)["error.type"] for span in instrumented.of(SpanKind.CLIENT, 2)]
    assert found == ["towline.errors.ReadTimeout", "asyncio.exceptions.CancelledError"]


def test_concurrent_calls_have_their_own_parents(server: Listener, instrumented: Spans) -> None:
    tracer = trace.get_tracer("program")

    async def work(client: towline.AsyncClient, number: int) -> int:
        with tracer.start_as_current_span(f"work {number}") as span:
            await client.get(f"{server.url}/{number}")
            return span.get_span_context().span_id

    async def main() -> list[int]:
        async with towline.AsyncClient() as client:
            return await asyncio.gather(*(work(client, number) for number in range(5)))

    parents = asyncio.run(main())
    found = {attributes(span)["url.full"]: span.parent for span in instrumented.of(SpanKind.CLIENT, 5)}
    for number, parent in enumerate(parents):
        given = found[f"{server.url}/{number}"]
        assert given is not None
        assert given.span_id == parent


def test_no_credential_is_in_a_span(server: Listener, backend: str, instrumented: Spans) -> None:
    caller = Caller(backend)
    url = server.url.replace("://", "://user:pa55@")
    caller.get(f"{url}/x?sig=pa55&a=1", headers={"X-Api-Key": "pa55"})
    caller.close()
    (span,) = instrumented.of(SpanKind.CLIENT)
    host = server.url.removeprefix("http://")
    assert attributes(span)["url.full"] == f"http://REDACTED:REDACTED@{host}/x?sig=REDACTED&a=1"
    assert "pa55" not in span.to_json()


def test_an_unknown_method_is_other(server: Listener, backend: str, instrumented: Spans) -> None:
    caller = Caller(backend)
    caller.request("PURGE", server.url)
    caller.close()
    (span,) = instrumented.of(SpanKind.CLIENT)
    assert span.name == "HTTP"
    assert attributes(span)["http.request.method"] == "_OTHER"
    assert attributes(span)["http.request.method_original"] == "PURGE"


def test_the_default_port_and_a_unix_socket(tmp_path: Any, backend: str, instrumented: Spans) -> None:
    path = str(tmp_path / "socket")
    with scripted(respond_with(OK), uds=path):
        caller = Caller(backend, uds=path)
        caller.get("http://service.example/")
        caller.close()
    (span,) = instrumented.of(SpanKind.CLIENT)
    assert attributes(span)["server.address"] == "service.example"
    assert attributes(span)["server.port"] == 80
    assert attributes(span)["network.peer.address"] == path


def test_http2_and_websockets(backend: str, instrumented: Spans) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.accept"})
            await send({"type": "websocket.close"})
            return
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})

    with testing.serve(app, lifespan="off") as server:
        caller = Caller(backend, http1=False, http2=True)
        caller.get(server.url)
        caller.close()
        with towline.Client() as client, client.websocket(server.url):
            pass
    plain, upgraded = instrumented.of(SpanKind.CLIENT, 2)
    assert attributes(plain)["network.protocol.version"] == "2"
    assert attributes(plain)["http.response.status_code"] == 204
    assert attributes(upgraded)["http.response.status_code"] == 101
    assert upgraded.status.status_code is StatusCode.UNSET


def test_a_call_over_tls(tmp_path: Any, backend: str, instrumented: Spans) -> None:
    trust = Trust(tmp_path)
    with scripted(respond_with(OK), trust.server()) as server:
        caller = Caller(backend, verify=trust.path)
        caller.get(server.url)
        caller.close()
    (span,) = instrumented.of(SpanKind.CLIENT)
    assert attributes(span)["url.full"] == server.url
    assert attributes(span)["server.port"] == server.port


def test_hooks_and_one_client(server: Listener, spans: Spans, caplog: pytest.LogCaptureFixture) -> None:
    def on_response(span: trace.Span, request: towline.Request, response: towline.Response) -> None:
        span.set_attribute("status seen", response.status_code)
        raise RuntimeError("of the hook")

    with towline.Client() as client, towline.Client() as other:
        client.get(server.url)
        towline.opentelemetry.instrument(
            client,
            request_hook=lambda span, request: span.set_attribute("path", request.url.path),
            response_hook=on_response,
        )
        assert client.get(f"{server.url}/hooked").text == "hello"
        other.get(server.url)
        towline.opentelemetry.uninstrument(client)
        client.get(server.url)
    (span,) = spans.of(SpanKind.CLIENT)
    assert attributes(span)["path"] == "/hooked"
    assert attributes(span)["status seen"] == 200
    assert "raised an exception" in caplog.text
    assert not any(b"traceparent" in head.lower() for index, head in enumerate(server.heads) if index != 1)


def test_a_client_that_is_not_traced_among_all(server: Listener, instrumented: Spans) -> None:
    with towline.Client() as client, towline.Client() as other:
        towline.opentelemetry.uninstrument(client)
        client.get(server.url)
        other.get(f"{server.url}/other")
    (span,) = instrumented.of(SpanKind.CLIENT)
    assert attributes(span)["url.full"].endswith("/other")


def test_a_provider_of_its_own(server: Listener, spans: Spans) -> None:
    with towline.Client() as client:
        towline.opentelemetry.instrument(client, tracer_provider=trace.NoOpTracerProvider())
        client.get(server.url)
    assert spans.exporter.get_finished_spans() == ()


def test_a_suppressed_call_has_no_span(server: Listener, instrumented: Spans) -> None:
    """Exporters suppress the spans of their own requests."""
    for key in towline.opentelemetry.SUPPRESSIONS:
        token = context.attach(context.set_value(key, True))
        try:
            with towline.Client() as client:
                client.get(server.url)
        finally:
            context.detach(token)
    assert len(towline.opentelemetry.SUPPRESSIONS) == 2
    assert instrumented.exporter.get_finished_spans() == ()


def test_log_lines_are_within_the_span(
    server: Listener, backend: str, instrumented: Spans, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[int] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            seen.append(trace.get_current_span().get_span_context().span_id)

    handler = Handler()
    logger = logging.getLogger("towline.client")
    logger.addHandler(handler)
    try:
        with caplog.at_level(logging.INFO, "towline.client"):
            caller = Caller(backend)
            caller.get(server.url)
            caller.close()
    finally:
        logger.removeHandler(handler)
    (span,) = instrumented.of(SpanKind.CLIENT)
    assert seen == [span.context.span_id]


def test_the_api_alone_is_enough(server: Listener) -> None:
    """Without an SDK: no span is recorded, and calls work."""
    program = (
        "import sys\n"
        "sys.modules['opentelemetry.sdk'] = None\n"
        "import towline, towline.opentelemetry\n"
        "towline.opentelemetry.instrument()\n"
        f"with towline.Client() as client:\n    print(client.get({server.url!r}).text)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("hello\n", "")


def test_only_clients_of_towline_are_instrumented() -> None:
    with contextlib.suppress(ImportError):
        import towline.httpx

        with (
            towline.httpx.Client() as client,
            pytest.raises(TypeError, match="opentelemetry-instrumentation-httpx"),
        ):
            towline.opentelemetry.instrument(client)  # type: ignore[arg-type]
