"""OpenTelemetry traces of the client: one CLIENT span for each request that is sent, through opentelemetry-api only.

    import towline.opentelemetry

    towline.opentelemetry.instrument()          # every Client and AsyncClient, also those that exist already
    towline.opentelemetry.instrument(client)    # one client

A redirect, a retry and a response to an authentication challenge are requests of their own, with
`http.request.resend_count`. A span ends when the head of the response has arrived, since the program decides when, and
whether, the body is read. Names and values follow the stable semantic conventions of HTTP
(https://opentelemetry.io/docs/specs/semconv/http/http-spans/).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from opentelemetry import context, propagate, trace
from opentelemetry.propagators import textmap

from ._version import __version__
from .client import observe
from .client.base import BaseClient
from .client.headers import Headers
from .client.request import Request
from .client.response import Response
from .client.url import DEFAULT_PORTS

__all__ = ["instrument", "uninstrument"]

SCHEMA_URL = "https://opentelemetry.io/schemas/1.38.0"
"""Every attribute used here is stable since 1.23.0."""
KNOWN_METHODS = "CONNECT,DELETE,GET,HEAD,OPTIONS,PATCH,POST,PUT,TRACE"
"""RFC 9110 and RFC 5789. Other methods are `_OTHER`, which bounds the number of span names."""
OVERRIDDEN_METHODS = "OTEL_INSTRUMENTATION_HTTP_KNOWN_METHODS"
REDACTED = "REDACTED"
"""The semantic conventions prescribe this word for `url.full`; everything else of Towline writes `[secure]`."""
SUPPRESSIONS = [
    key
    for name in ("_SUPPRESS_INSTRUMENTATION_KEY", "_SUPPRESS_HTTP_INSTRUMENTATION_KEY")
    if (key := getattr(context, name, None)) is not None
]
"""Keys of the context that an exporter sets around its own requests."""

RequestHook = Callable[[trace.Span, Request], None]
ResponseHook = Callable[[trace.Span, Request, Response], None]


def instrument(
    client: BaseClient | None = None,
    *,
    tracer_provider: trace.TracerProvider | None = None,
    request_hook: RequestHook | None = None,
    response_hook: ResponseHook | None = None,
) -> None:
    """Starts to trace the calls of one client, or of all clients that are not instrumented one by one.

    - tracer_provider: default: the global one, also one that is set later
    - request_hook: called with span and request before the request is sent, and before `traceparent` is added
    - response_hook: called with span, request and response before the span ends; the body is unread

    A hook is a plain function; if it raises an exception, that is logged, and the call continues.
    """
    tracer = ClientTracer(tracer_provider, request_hook, response_hook)
    if client is None:
        observe.set_tracer(tracer)
    else:
        _set_tracer(client, tracer)


def uninstrument(client: BaseClient | None = None) -> None:
    """Stops to trace the calls of one client, which `instrument()` does not trace any more either, or of all others."""
    if client is None:
        observe.set_tracer(None)
    else:
        _set_tracer(client, None)


def _set_tracer(client: BaseClient, tracer: ClientTracer | None) -> None:
    if not isinstance(client, BaseClient):
        raise TypeError(
            f"expected a towline.Client or AsyncClient, not {type(client).__name__}; "
            "for towline.httpx use opentelemetry-instrumentation-httpx"
        )
    client._tracer = tracer
    client._refresh()


class ClientTracer:
    """Starts spans; one per call of `instrument`."""

    def __init__(
        self,
        provider: trace.TracerProvider | None,
        request_hook: RequestHook | None,
        response_hook: ResponseHook | None,
    ) -> None:
        self._tracer = trace.get_tracer("towline.client", __version__, provider, schema_url=SCHEMA_URL)
        self._request_hook, self._response_hook = request_hook, response_hook
        known = os.environ.get(OVERRIDDEN_METHODS, "").strip() or KNOWN_METHODS
        self._methods = frozenset(method.strip() for method in known.split(","))

    def start(self, request: Request, resend_count: int) -> ClientSpan | None:
        """Starts the span of a request as a child of the current one, and adds its trace context to the headers."""
        if any(context.get_value(key) for key in SUPPRESSIONS):
            return None
        attributes = self._attributes(request, resend_count)
        method = attributes["http.request.method"]
        name = "HTTP" if method == "_OTHER" else method
        span = self._tracer.start_span(name, kind=trace.SpanKind.CLIENT, attributes=attributes)
        if self._request_hook is not None:
            _call_hook(self._request_hook, span, request)
        propagate.inject(request.headers, trace.set_span_in_context(span), HeadersSetter())
        return ClientSpan(span, request, self._response_hook)

    def _attributes(self, request: Request, resend_count: int) -> dict[str, Any]:
        url = request.url
        attributes: dict[str, Any] = {
            "http.request.method": request.method,
            "server.address": url.host,
            "url.full": url._redacted(f"{REDACTED}:{REDACTED}", REDACTED),
        }
        if request.method not in self._methods:
            attributes["http.request.method_original"] = request.method
            attributes["http.request.method"] = "_OTHER"
        if (port := url.port or DEFAULT_PORTS.get(url.scheme)) is not None:
            attributes["server.port"] = port
        if resend_count:
            attributes["http.request.resend_count"] = resend_count
        return attributes


class ClientSpan:
    """The span of one request."""

    def __init__(self, span: trace.Span, request: Request, response_hook: ResponseHook | None) -> None:
        self._span, self._request, self._response_hook = span, request, response_hook

    def current(self) -> AbstractContextManager[Any]:
        return trace.use_span(self._span, record_exception=False, set_status_on_exception=False)

    def on_response(self, response: Response) -> None:
        span, status = self._span, response.status_code
        if span.is_recording():
            span.set_attribute("http.response.status_code", status)
            span.set_attribute("network.protocol.version", response.http_version.removeprefix("HTTP/"))
            peer = getattr(response._reply, "remote_address", None)
            if isinstance(peer, tuple):
                span.set_attribute("network.peer.address", peer[0])
                span.set_attribute("network.peer.port", peer[1])
            elif peer is not None:
                span.set_attribute("network.peer.address", peer)
            if status >= 400:
                span.set_attribute("error.type", str(status))
                span.set_status(trace.Status(trace.StatusCode.ERROR))
        if self._response_hook is not None:
            _call_hook(self._response_hook, span, self._request, response)
        span.end()

    def on_error(self, error: BaseException) -> None:
        span, kind = self._span, type(error)
        if span.is_recording():
            is_builtin = kind.__module__ == "builtins"
            name = kind.__qualname__ if is_builtin else f"{kind.__module__}.{kind.__qualname__}"
            span.set_attribute("error.type", name)
            span.record_exception(error)
            span.set_status(trace.Status(trace.StatusCode.ERROR, f"{kind.__name__}: {error}"))
        span.end()


class HeadersSetter(textmap.Setter[Headers]):
    """Writes the headers of propagators; those of an earlier attempt are replaced."""

    def set(self, carrier: Headers, key: str, value: str) -> None:
        carrier[key] = value


def _call_hook(hook: Callable[..., None], *arguments: Any) -> None:
    try:
        hook(*arguments)
    except Exception:
        observe.logger.exception("towline.opentelemetry: the hook %r raised an exception", hook)
