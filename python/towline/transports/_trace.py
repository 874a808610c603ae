"""The `trace` extension: httpcore's event names, told as well as one native call allows.

`http11.send_request_headers.started` comes before anything is sent and `http11.receive_response_headers.complete`
with the head, so their distance is the time to the first byte. What happens between them happens natively, and is
told together when the head is there: a connection that had to be opened first, then the request.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from .. import errors

Event = tuple[str, dict[str, Any]]


def before(request: Any) -> list[Event]:
    return [("http11.send_request_headers.started", {"request": _as_httpcore(request)})]


def with_head(request: Any, reply: Any, extensions: dict[str, Any]) -> list[Event]:
    asked = {"request": _as_httpcore(request)}
    head = (extensions["http_version"], reply.status, extensions["reason_phrase"], reply.headers)
    return [
        *([] if reply.reused else _opened(request, extensions["network_stream"])),
        ("http11.send_request_headers.complete", {"return_value": None}),
        ("http11.send_request_body.started", asked),
        ("http11.send_request_body.complete", {"return_value": None}),
        ("http11.receive_response_headers.started", asked),
        ("http11.receive_response_headers.complete", {"return_value": head}),
    ]


def after_failure(request: Any, error: BaseException) -> list[Event]:
    """The step that failed, as far as the error's class says."""
    failure = {"exception": error}
    if isinstance(error, errors.TLSError):
        return [("connection.start_tls.started", _tls(request)), ("connection.start_tls.failed", failure)]
    if isinstance(error, (errors.ConnectError, errors.DNSError, errors.ConnectTimeout, errors.ProxyError)):
        return [("connection.connect_tcp.started", _tcp(request)), ("connection.connect_tcp.failed", failure)]
    if isinstance(error, (errors.WriteError, errors.WriteTimeout)):
        return [("http11.send_request_body.failed", failure)]
    if isinstance(error, (errors.ReadError, errors.ReadTimeout, errors.ProtocolError)):
        return [
            ("http11.send_request_headers.complete", {"return_value": None}),
            ("http11.receive_response_headers.started", {"request": _as_httpcore(request)}),
            ("http11.receive_response_headers.failed", failure),
        ]
    return [("http11.send_request_headers.failed", failure)]


def body(request: Any, step: str, **info: Any) -> Event:
    """`step` is started, complete or failed."""
    return f"http11.receive_response_body.{step}", info or {"request": _as_httpcore(request)}


def closed(request: Any, step: str) -> Event:
    info = {"request": _as_httpcore(request)} if step == "started" else {"return_value": None}
    return f"http11.response_closed.{step}", info


def _as_httpcore(request: Any) -> SimpleNamespace:
    """The request in the shape that listeners know: httpcore's, whose parts are bytes."""
    url, extensions = request.url, request.extensions
    target = extensions.get("target") or url.raw_path
    core_url = SimpleNamespace(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=target)
    method = request.method.encode("ascii")
    return SimpleNamespace(method=method, url=core_url, headers=request.headers.raw, extensions=extensions)


def _opened(request: Any, network_stream: Any) -> list[Event]:
    done = {"return_value": network_stream}
    events: list[Event] = [
        ("connection.connect_tcp.started", _tcp(request)),
        ("connection.connect_tcp.complete", done),
    ]
    if request.url.scheme == "https":
        events += [("connection.start_tls.started", _tls(request)), ("connection.start_tls.complete", done)]
    return events


def _tcp(request: Any) -> dict[str, Any]:
    url = request.url
    port = url.port or (443 if url.scheme == "https" else 80)
    return {"host": url.raw_host.decode("ascii"), "port": port, "timeout": _connect_timeout(request)}


def _tls(request: Any) -> dict[str, Any]:
    name = request.extensions.get("sni_hostname") or request.url.raw_host.decode("ascii")
    return {"server_hostname": name, "timeout": _connect_timeout(request)}


def _connect_timeout(request: Any) -> float | None:
    timeout: float | None = request.extensions.get("timeout", {}).get("connect")
    return timeout
