"""The `trace` extension, with httpcore's event names.

`http11.send_request_headers.started` (`http2.` over HTTP/2, `http3.` over HTTP/3) is sent before anything is written, and
`http11.receive_response_headers.complete` when the head has arrived, so that their distance is the time to the first
byte. A native call does not report the steps between them, so their events are sent together when the head has arrived:
those of a new connection, then those of the request. The HTTP version is known only then; if it is not the expected one,
the first event is sent again with the right name.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from . import errors

Event = tuple[str, dict[str, Any]]


class TraceEvents:
    """The events of one call. `notify`: the callback of the program; `http2`: HTTP/2 is expected."""

    def __init__(self, request: Any, http2: bool) -> None:
        self.notify = request.extensions["trace"]
        self._request = request
        self._wire = "http2" if http2 else "http11"

    def before(self) -> list[Event]:
        return [self._event("send_request_headers.started", self._request_info())]

    def with_head(self, reply: Any, extensions: dict[str, Any]) -> list[Event]:
        version, info = extensions["http_version"], self._request_info()
        wire = _WIRES.get(version, "http11")
        corrected, self._wire = self._wire != wire, wire
        head: tuple[Any, ...] = (reply.status, reply.headers)
        if wire == "http11":
            head = (version, reply.status, extensions["reason_phrase"], reply.headers)
        return [
            *([] if reply.reused else _connection_events(self._request, extensions["network_stream"], wire)),
            *(self.before() if corrected else []),
            self._event("send_request_headers.complete", {"return_value": None}),
            self._event("send_request_body.started", info),
            self._event("send_request_body.complete", {"return_value": None}),
            self._event("receive_response_headers.started", info),
            self._event("receive_response_headers.complete", {"return_value": head}),
        ]

    def after_failure(self, error: BaseException) -> list[Event]:
        """Returns the events of the failed step, which the class of the error determines."""
        failure, request = {"exception": error}, self._request
        if isinstance(error, errors.TLSError):
            return [("connection.start_tls.started", _tls(request)), ("connection.start_tls.failed", failure)]
        if isinstance(
            error, (errors.ConnectError, errors.DNSError, errors.ConnectTimeout, errors.ProxyError)
        ):
            return [
                ("connection.connect_tcp.started", _tcp(request)),
                ("connection.connect_tcp.failed", failure),
            ]
        if isinstance(error, (errors.WriteError, errors.WriteTimeout)):
            return [self._event("send_request_body.failed", failure)]
        if isinstance(error, (errors.ReadError, errors.ReadTimeout, errors.ProtocolError)):
            return [
                self._event("send_request_headers.complete", {"return_value": None}),
                self._event("receive_response_headers.started", self._request_info()),
                self._event("receive_response_headers.failed", failure),
            ]
        return [self._event("send_request_headers.failed", failure)]

    def body(self, step: str, **info: Any) -> Event:
        """Returns a `receive_response_body` event. `step`: started, complete or failed."""
        return self._event(f"receive_response_body.{step}", info or self._request_info())

    def closed(self, step: str) -> Event:
        info = self._request_info() if step == "started" else {"return_value": None}
        return self._event(f"response_closed.{step}", info)

    def _event(self, name: str, info: dict[str, Any]) -> Event:
        return f"{self._wire}.{name}", info

    def _request_info(self) -> dict[str, Any]:
        return {"request": _as_httpcore(self._request)}


_WIRES = {b"HTTP/2": "http2", b"HTTP/3": "http3"}


def _as_httpcore(request: Any) -> SimpleNamespace:
    """Returns the request in the form of httpcore, whose parts are bytes."""
    url, extensions = request.url, request.extensions
    target = extensions.get("target") or url.raw_path
    core_url = SimpleNamespace(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=target)
    method = request.method.encode("ascii")
    return SimpleNamespace(method=method, url=core_url, headers=request.headers.raw, extensions=extensions)


def _connection_events(request: Any, network_stream: Any, wire: str) -> list[Event]:
    done = {"return_value": network_stream}
    if wire == "http3":
        return [
            ("connection.connect_quic.started", _tls(request)),
            ("connection.connect_quic.complete", done),
        ]
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
