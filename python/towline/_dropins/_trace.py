"""The `trace` extension: httpcore's event names, told as well as one native call allows.

`http11.send_request_headers.started` (over HTTP/2 `http2.` and so on) comes before anything is sent and
`http11.receive_response_headers.complete` with the head, so their distance is the time to the first byte. What happens
between them happens natively, and is told together when the head is there: a connection that had to be opened first,
then the request. Which version is spoken is known only then; where it is not the expected one, the first event is told
again by its true name.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from .. import errors

Event = tuple[str, dict[str, Any]]


class TraceEvents:
    """The events of one exchange. `tell`: what they are told to; `http2`: it is expected to be spoken."""

    def __init__(self, request: Any, http2: bool) -> None:
        self.notify = request.extensions["trace"]
        self._request = request
        self._wire = _wire(http2)

    def before(self) -> list[Event]:
        return [self._event("send_request_headers.started", self._request_info())]

    def with_head(self, reply: Any, extensions: dict[str, Any]) -> list[Event]:
        version, asked = extensions["http_version"], self._request_info()
        is_http2 = version == b"HTTP/2"
        corrected, self._wire = self._wire != _wire(is_http2), _wire(is_http2)
        head: tuple[Any, ...] = (reply.status, reply.headers)
        if not is_http2:
            head = (version, reply.status, extensions["reason_phrase"], reply.headers)
        return [
            *([] if reply.reused else _connection_events(self._request, extensions["network_stream"])),
            *(self.before() if corrected else []),
            self._event("send_request_headers.complete", {"return_value": None}),
            self._event("send_request_body.started", asked),
            self._event("send_request_body.complete", {"return_value": None}),
            self._event("receive_response_headers.started", asked),
            self._event("receive_response_headers.complete", {"return_value": head}),
        ]

    def after_failure(self, error: BaseException) -> list[Event]:
        """The step that failed, as far as the error's class says."""
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
        """`step` is started, complete or failed."""
        return self._event(f"receive_response_body.{step}", info or self._request_info())

    def closed(self, step: str) -> Event:
        info = self._request_info() if step == "started" else {"return_value": None}
        return self._event(f"response_closed.{step}", info)

    def _event(self, name: str, info: dict[str, Any]) -> Event:
        return f"{self._wire}.{name}", info

    def _request_info(self) -> dict[str, Any]:
        return {"request": _as_httpcore(self._request)}


def _wire(http2: bool) -> str:
    return "http2" if http2 else "http11"


def _as_httpcore(request: Any) -> SimpleNamespace:
    """The request in the shape that listeners know: httpcore's, whose parts are bytes."""
    url, extensions = request.url, request.extensions
    target = extensions.get("target") or url.raw_path
    core_url = SimpleNamespace(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=target)
    method = request.method.encode("ascii")
    return SimpleNamespace(method=method, url=core_url, headers=request.headers.raw, extensions=extensions)


def _connection_events(request: Any, network_stream: Any) -> list[Event]:
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
