"""OpenTelemetry traces (`--otel`): one SERVER span for each request or WebSocket, through opentelemetry-api only.

The application is wrapped, so that the server runs no code for spans without the option. Importing this module
requires opentelemetry-api. Names and values follow the stable semantic conventions of HTTP
(https://opentelemetry.io/docs/specs/semconv/http/http-spans/).

A request has a context of its own under ASGI and WSGI, which ends with it: the span becomes current there, and is
never detached.
"""

from __future__ import annotations

import logging
import os
import re
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import Any

from opentelemetry import context, propagate, trace

from .._redact import HIDDEN
from .._version import __version__
from ..config import ServerConfig
from .interface import Interface
from .trace_outcome import error_type, is_disconnect
from .trace_routes import asgi_route, wsgi_route

logger = logging.getLogger("towline.server")

SCHEMA_URL = "https://opentelemetry.io/schemas/1.38.0"
"""Every attribute used here is stable since 1.23.0."""
KNOWN_METHODS = "CONNECT,DELETE,GET,HEAD,OPTIONS,PATCH,POST,PUT,TRACE"
"""RFC 9110 and RFC 5789. Other methods are `_OTHER`, which bounds the number of span names."""
OVERRIDDEN_METHODS = "OTEL_INSTRUMENTATION_HTTP_KNOWN_METHODS"
FLUSH_TIMEOUT = 2.0
"""Seconds for the provider to export the last spans of a worker: with cancellation (1 s) and exit (3 s) it stays
within the margin after which the supervisor kills a worker (6 s)."""
DEFAULT_PORTS = {"http": 80, "https": 443, "ws": 80, "wss": 443}
AUTHORITY = re.compile(r"(?:\[([^\]]+)\]|([^:@/?#\[\]]+))(?::(\d{1,5}))?")
NO_PROVIDER = (
    "--otel: there is no tracer provider, so no spans are recorded; start the server with opentelemetry-instrument, "
    "or call opentelemetry.trace.set_tracer_provider() in the application"
)

Attributes = dict[str, Any]
Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
StartResponse = Callable[..., Callable[[bytes], object]]


class Tracing:
    """Wraps applications. The tracer is that of the global provider, also of one that is set later."""

    def __init__(self, config: ServerConfig) -> None:
        self._tracer = trace.get_tracer("towline.server", __version__, schema_url=SCHEMA_URL)
        known = os.environ.get(OVERRIDDEN_METHODS, "").strip() or KNOWN_METHODS
        self._methods = frozenset(method.strip() for method in known.split(","))
        self._secrets = frozenset(name.lower() for name in config.access_log_redact)
        self._root = config.root_path
        self._has_provider = False

    def wrap(self, app: Any, interface: Interface) -> Any:
        """`app` with a span around each request."""
        return self._wsgi(app) if interface == "wsgi" else self._asgi(app)

    def _asgi(self, app: Any) -> Callable[[Any, Receive, Send], Awaitable[None]]:
        async def traced(scope: dict[str, Any], receive: Receive, send: Send) -> None:
            headers = _asgi_headers(scope["headers"])
            request = self._start(self._asgi_attributes(scope, headers), headers, HeadersGetter())
            if not request.is_recording:
                await app(scope, receive, send)
                return
            kind = WebSocketSpan if scope["type"] == "websocket" else HttpSpan
            observed = kind(request, scope, receive, send)
            try:
                await app(scope, observed.receive, observed.send)
                observed.on_return()
            except BaseException as error:
                observed.on_error(error)
                raise
            finally:
                request.route = asgi_route(scope)
                request.end()

        def application(scope: dict[str, Any], receive: Receive, send: Send) -> Any:
            # Lifespan: what the application returns is for the server to judge.
            return app(scope, receive, send) if scope["type"] == "lifespan" else traced(scope, receive, send)

        return application

    def _wsgi(self, app: Any) -> Callable[[dict[str, Any], StartResponse], Iterable[bytes]]:
        def application(environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
            request = self._start(self._wsgi_attributes(environ), environ, EnvironGetter())
            if not request.is_recording:
                response: Iterable[bytes] = app(environ, start_response)
                return response
            try:
                result = app(environ, _observed_start(start_response, request, environ))
            except BaseException as error:
                request.on_wsgi_error(error)
                request.end()
                raise
            # The server sends these itself, a file with sendfile: nothing of the application runs any more.
            if type(result) in (list, tuple, environ.get("wsgi.file_wrapper")):
                request.end()
                return result  # type: ignore[no-any-return]
            kind = SizedBody if hasattr(result, "__len__") else Body
            return kind(result, request, environ)

        return application

    def _start(self, attributes: Attributes, carrier: Mapping[str, Any], getter: Any) -> RequestSpan:
        """Start the span of a request, as a child of the client's, and make it current."""
        if not self._has_provider:
            self._has_provider = True
            if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
                logger.warning(NO_PROVIDER)
        # An empty context: in an embedding program the span that starts the server is no parent of requests.
        parent = propagate.extract(carrier, context.Context(), getter)
        method = attributes["http.request.method"]
        if method not in self._methods:
            attributes["http.request.method_original"] = method
            attributes["http.request.method"] = "_OTHER"
            method = "HTTP"
        span = self._tracer.start_span(method, parent, trace.SpanKind.SERVER, attributes)
        context.attach(trace.set_span_in_context(span, parent))
        return RequestSpan(span, method)

    def _asgi_attributes(self, scope: dict[str, Any], headers: dict[str, str]) -> Attributes:
        # A WebSocket over HTTP/2 is opened by CONNECT (RFC 8441), one over HTTP/1.1 by GET.
        method = scope.get("method") or ("CONNECT" if scope["http_version"] == "2" else "GET")
        attributes = {
            "http.request.method": method,
            "url.scheme": scope["scheme"],
            # Empty in `http://host?query`, where it means the same (RFC 9110 4.2.3).
            "url.path": scope["raw_path"].decode("latin-1") or "/",
            "network.protocol.version": scope["http_version"],
        }
        server = scope.get("server") or (None, None)
        self._add(
            attributes,
            scope["query_string"].decode("latin-1"),
            (scope.get("client") or (None,))[0],
            server_address(headers.get("host"), scope["scheme"], server),
            headers.get("user-agent"),
        )
        return attributes

    def _wsgi_attributes(self, environ: dict[str, Any]) -> Attributes:
        scheme = environ["wsgi.url_scheme"]
        target, _, query = environ["REQUEST_URI"].partition("?")
        attributes = {
            "http.request.method": environ["REQUEST_METHOD"],
            "url.scheme": scheme,
            "url.path": self._below_root(target),
            "network.protocol.version": environ["SERVER_PROTOCOL"].removeprefix("HTTP/").replace("2.0", "2"),
        }
        server = (environ["SERVER_NAME"], int(environ["SERVER_PORT"]))
        self._add(
            attributes,
            query,
            environ["REMOTE_ADDR"],
            server_address(environ.get("HTTP_HOST"), scheme, server),
            environ.get("HTTP_USER_AGENT"),
        )
        return attributes

    def _below_root(self, target: str) -> str:
        """The path of a request target, with the root path that a proxy has removed, as under ASGI."""
        if "://" in target and not target.startswith("/"):
            # The absolute form (RFC 9112 3.2.2).
            target = "/" + target.partition("://")[2].partition("/")[2]
        if self._root and not (target + "/").startswith(self._root + "/"):
            return self._root + target
        return target

    def _add(
        self,
        attributes: Attributes,
        query: str,
        client: str | None,
        server: tuple[str | None, int | None],
        user_agent: str | None,
    ) -> None:
        """Add those that a request may lack."""
        if query:
            attributes["url.query"] = self._without_secrets(query)
        if client:
            attributes["client.address"] = client
        if server[0]:
            attributes["server.address"] = server[0]
            if server[1] is not None:
                attributes["server.port"] = server[1]
        if user_agent is not None:
            attributes["user_agent.original"] = user_agent

    def _without_secrets(self, query: str) -> str:
        """Hides the values of the parameters of `--access-log-redact`."""
        parts = (part.partition("=") for part in query.split("&"))
        return "&".join(
            f"{name}={HIDDEN}" if equals and name.lower() in self._secrets else name + equals + value
            for name, equals, value in parts
        )


class RequestSpan:
    """The span of one request, and what is known of the response when it ends."""

    def __init__(self, span: trace.Span, method: str) -> None:
        self._span, self._method = span, method
        self.is_recording = span.is_recording()
        self.status: int | None = None
        self.route: str | None = None
        self._error = ""
        self._ended_at: int | None = None

    def complete(self) -> None:
        """The response has been sent. The span ends now, although the application may run on."""
        if self._ended_at is None:
            self._ended_at = time.time_ns()

    @property
    def is_complete(self) -> bool:
        return self._ended_at is not None

    def on_disconnect(self) -> None:
        """The client has left before the end of the response, which is no error of the server."""
        self._span.add_event("client.disconnected")

    def on_error(self, error: BaseException) -> None:
        """The application has raised an exception."""
        self._error = error_type(error)
        self._span.record_exception(error)
        self._span.set_status(trace.Status(trace.StatusCode.ERROR, f"{self._error}: {error}"))

    def on_incomplete(self) -> None:
        """The application has returned before the end of its response."""
        self._error = "incomplete_response"
        self._span.set_status(
            trace.Status(trace.StatusCode.ERROR, "the application did not complete its response")
        )

    def on_wsgi_error(self, error: BaseException) -> None:
        if is_disconnect(error, has_left=False):
            self.on_disconnect()
        else:
            # Without a head the server responds with 500.
            self.status = self.status or 500
            self.on_error(error)

    def end(self) -> None:
        span = self._span
        if self.route is not None:
            span.set_attribute("http.route", self.route)
            span.update_name(f"{self._method} {self.route}")
        if self.status is not None:
            span.set_attribute("http.response.status_code", self.status)
            if self.status >= 500 and not self._error:
                self._error = str(self.status)
                span.set_status(trace.Status(trace.StatusCode.ERROR))
        if self._error:
            span.set_attribute("error.type", self._error)
        span.end(self._ended_at)


class HttpSpan:
    """Observes the messages of an http scope."""

    def __init__(self, request: RequestSpan, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        self._request, self._receive, self._send = request, receive, send
        self._has_trailers = False
        self._has_left = False

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.disconnect" and not self._request.is_complete:
            self._on_disconnect()
        return message

    async def send(self, message: Message) -> None:
        try:
            await self._send(message)
        except BaseException as error:
            if is_disconnect(error, has_left=False):
                self._on_disconnect()
            raise
        kind = message["type"]
        if kind == "http.response.start":
            self._request.status = int(message["status"])
            self._has_trailers = bool(message.get("trailers"))
        elif kind == "http.response.body":
            if not message.get("more_body") and not self._has_trailers:
                self._request.complete()
        elif kind == "http.response.pathsend" or (
            kind == "http.response.trailers" and not message.get("more_trailers")
        ):
            self._request.complete()

    def on_return(self) -> None:
        request = self._request
        if not request.is_complete and not self._has_left:
            request.status = request.status or 500
            request.on_incomplete()

    def on_error(self, error: BaseException) -> None:
        request = self._request
        if is_disconnect(error, has_left=self._has_left):
            self._on_disconnect()
            return
        if not self._has_left:
            request.status = request.status or 500
        request.on_error(error)

    def _on_disconnect(self) -> None:
        if not self._has_left:
            self._has_left = True
            self._request.on_disconnect()


class WebSocketSpan:
    """Observes the messages of a websocket scope. The span ends with the WebSocket."""

    def __init__(self, request: RequestSpan, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        self._request, self._receive, self._send = request, receive, send
        self._accepted = 200 if scope["http_version"] == "2" else 101

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] == "websocket.disconnect":
            self._request.complete()
        return message

    async def send(self, message: Message) -> None:
        await self._send(message)
        kind = message["type"]
        if kind == "websocket.accept":
            self._request.status = self._accepted
        elif kind == "websocket.close":
            self._request.status = self._request.status or 403
            self._request.complete()
        elif kind == "websocket.http.response.start":
            self._request.status = int(message["status"])
        elif kind == "websocket.http.response.body" and not message.get("more_body"):
            self._request.complete()

    def on_return(self) -> None:
        if self._request.status is None and not self._request.is_complete:
            self._request.status = 500
            self._request.on_incomplete()

    def on_error(self, error: BaseException) -> None:
        request = self._request
        if is_disconnect(error, has_left=request.is_complete):
            return
        request.status = request.status or 500
        request.on_error(error)


def _observed_start(
    start_response: StartResponse, request: RequestSpan, environ: dict[str, Any]
) -> StartResponse:
    def start(status: str, *arguments: Any, **keywords: Any) -> Callable[[bytes], object]:
        write = start_response(status, *arguments, **keywords)
        request.status = int(status[:3])
        # Flask removes it from the environ before it returns.
        request.route = wsgi_route(environ)
        return write

    return start


class Body:
    """The response of a WSGI application. The span ends when it is closed."""

    def __init__(self, result: Iterable[bytes], request: RequestSpan, environ: dict[str, Any]) -> None:
        self._result, self._request, self._environ = result, request, environ
        self._iterator: Iterator[bytes] | None = None
        self._ended = False

    def __iter__(self) -> Body:
        return self

    def __next__(self) -> bytes:
        try:
            if self._iterator is None:
                self._iterator = iter(self._result)
            return next(self._iterator)
        except StopIteration:
            self._ended = True
            raise
        except BaseException as error:
            self._ended = True
            self._request.on_wsgi_error(error)
            raise

    def close(self) -> None:
        # Without a body in the response, the server does not iterate to the end either.
        if not (
            self._ended or self._environ["REQUEST_METHOD"] == "HEAD" or self._request.status in (204, 304)
        ):
            self._request.on_disconnect()
        try:
            close = getattr(self._result, "close", None)
            if close is not None:
                close()
        except BaseException as error:
            self._request.on_error(error)
            raise
        finally:
            self._request.end()


class SizedBody(Body):
    """One whose length the server uses for Content-Length (PEP 3333)."""

    def __len__(self) -> int:
        return len(self._result)  # type: ignore[arg-type]


class HeadersGetter:
    """Reads the headers of propagators from a dict with names in lower case."""

    def get(self, carrier: Mapping[str, str], key: str) -> list[str] | None:
        value = carrier.get(key.lower())
        return None if value is None else [value]

    def keys(self, carrier: Mapping[str, str]) -> list[str]:
        return list(carrier)


class EnvironGetter:
    """Reads the headers of propagators from a WSGI environ."""

    def get(self, carrier: Mapping[str, Any], key: str) -> list[str] | None:
        value = carrier.get("HTTP_" + key.upper().replace("-", "_"))
        return None if value is None else [value]

    def keys(self, carrier: Mapping[str, Any]) -> list[str]:
        return [key[5:].lower().replace("_", "-") for key in carrier if key.startswith("HTTP_")]


def _asgi_headers(pairs: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Headers by name. Several of one name are joined, as in an environ: two `traceparent` are then none."""
    headers: dict[str, str] = {}
    for name, value in pairs:
        key, text = name.decode("latin-1"), value.decode("latin-1")
        headers[key] = f"{headers[key]},{text}" if key in headers else text
    return headers


def server_address(
    host: str | None, scheme: str, server: tuple[str | None, int | None]
) -> tuple[str | None, int | None]:
    """`server.address` and `server.port`: those that the client has used (`Host`, `:authority`), else the socket's."""
    match = AUTHORITY.fullmatch(host) if host else None
    if match is None:
        return server
    address = match[1] or match[2]
    return address, int(match[3]) if match[3] else DEFAULT_PORTS.get(scheme)


def flush() -> None:
    """Let the global provider export its last spans, for FLUSH_TIMEOUT at most. A provider without an SDK has none."""
    force_flush = getattr(trace.get_tracer_provider(), "force_flush", None)
    if force_flush is None:
        return

    def run() -> None:
        try:
            force_flush(int(FLUSH_TIMEOUT * 1000))
        except Exception:
            logger.exception("--otel: the tracer provider raised an exception while it was flushed")

    # An exporter may ignore the timeout.
    thread = threading.Thread(target=run, name="towline-otel", daemon=True)
    thread.start()
    thread.join(FLUSH_TIMEOUT)
    if thread.is_alive():
        logger.warning("--otel: the last spans are lost: they were not exported within %g s", FLUSH_TIMEOUT)
