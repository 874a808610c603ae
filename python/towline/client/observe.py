"""Logging and tracing of exchanges: the logger `towline.client`, and the tracer of `towline.opentelemetry`.

Both see what `Backend.send` sees: one request, and its response or failure. Redirects, retries and authentication are
exchanges of their own. While neither is on, calls take the native fast path, which checks one flag for both.

```
 setLevel, disable ─► _LevelCache.clear ─┐
 set_tracer ─────────────────────────────┴─► _update ─► _native.observe_calls
```
"""

from __future__ import annotations

import contextlib
import logging
from typing import Any, Protocol

from .. import _native
from .options import UNSET
from .request import Request
from .response import Response

logger = logging.getLogger("towline.client")

# Shorter waits are those of the code around the queue.
_NOTABLE_WAIT_S = 0.001


class ExchangeSpan(Protocol):
    """The span of one exchange."""

    def current(self) -> contextlib.AbstractContextManager[Any]:
        """Makes the span the current one, so that log records have its id."""

    def on_response(self, response: Response) -> None:
        """The head of the response has arrived. Ends the span."""

    def on_error(self, error: BaseException) -> None:
        """There is no response. Ends the span."""


class Tracer(Protocol):
    def start(self, request: Request, resend_count: int) -> ExchangeSpan | None:
        """Starts the span of an exchange and adds the headers that propagate it."""


_tracer: Tracer | None = None
# Transports of active mocks, the innermost last. Each replaces the network for every client.
_interceptors: list[Any] = []


def push_interceptor(transport: Any) -> None:
    _interceptors.append(transport)
    _update()


def remove_interceptor(transport: Any) -> None:
    _interceptors.remove(transport)
    _update()


def interceptor() -> Any:
    """Returns the transport to use in place of the network, or None."""
    return _interceptors[-1] if _interceptors else None


def set_tracer(tracer: Tracer | None) -> None:
    """Sets the tracer of every client that has none of its own."""
    global _tracer
    _tracer = tracer
    _update()


def get_tracer() -> Tracer | None:
    return _tracer


class Observation:
    """One exchange, from before it is sent. `tracer`: the client's own; UNSET: the global one."""

    def __init__(self, request: Request, tracer: Any, resend_count: int) -> None:
        log_events()
        self._request = request
        chosen = _tracer if tracer is UNSET else tracer
        self._span = None if chosen is None else chosen.start(request, resend_count)

    def on_response(self, response: Response) -> None:
        request, span = self._request, self._span
        with contextlib.nullcontext() if span is None else span.current():
            if logger.isEnabledFor(logging.DEBUG):
                _log_connection(request, response)
            if logger.isEnabledFor(logging.INFO):
                logger.info(
                    'HTTP Request: %s %s "%s %d %s"',
                    request.method,
                    request.url._redacted(),
                    response.http_version,
                    response.status_code,
                    # Bytes above 0x7F (RFC 9112 4) may be control characters of a terminal.
                    response.reason_phrase.encode("ascii", "replace").decode("ascii"),
                )
        if span is not None:
            span.on_response(response)

    def on_error(self, error: BaseException) -> None:
        request, span = self._request, self._span
        with contextlib.nullcontext() if span is None else span.current():
            log_events()
            if logger.isEnabledFor(logging.DEBUG):
                name, url = type(error).__name__, request.url._redacted()
                logger.debug("HTTP Request failed: %s %s: %s: %s", request.method, url, name, error)
        if span is not None:
            span.on_error(error)


def begin(request: Request, tracer: Any, resend_count: int) -> Observation | None:
    """Returns None unless the exchange is logged or traced."""
    traced = _tracer is not None if tracer is UNSET else tracer is not None
    if traced or logger.isEnabledFor(logging.INFO):
        return Observation(request, tracer, resend_count)
    return None


def log_redirect(request: Request, response: Response) -> None:
    """`request`: the one that follows."""
    if logger.isEnabledFor(logging.DEBUG):
        url = request.url._redacted()
        logger.debug("redirect: %d, following to %s %s", response.status_code, request.method, url)


def log_retry(request: Request, response: Response, attempt: int, wait_s: float) -> None:
    """`attempt` counts from 1."""
    if logger.isEnabledFor(logging.DEBUG):
        logger.debug(
            "retry %d in %.3g s: %s %s responded %d",
            attempt,
            wait_s,
            request.method,
            request.url._redacted(),
            response.status_code,
        )


def log_events() -> None:
    """Logs what happened to connections apart from responses, such as the end of an idle one."""
    if not logger.isEnabledFor(logging.DEBUG):
        return
    for event, local, remote in _native.take_connection_events():
        ends = _ends(local, remote)
        if event == "closed":
            logger.debug("connection closed: %s", ends)
        else:
            logger.debug("request sent again: the connection %s ended without a response", ends)


def _log_connection(request: Request, response: Response) -> None:
    reply: Any = response._reply
    log_events()
    if reply is None:
        return  # of a transport without connections of ours
    seconds: dict[str, float] = reply.timings
    if (wait_s := seconds["queue"]) >= _NOTABLE_WAIT_S:
        host = request.url.netloc.decode("ascii")
        logger.debug("waited %.1f ms for a connection to %s", wait_s * 1000, host)
    ends = _ends(reply.local_address, reply.remote_address)
    if reply.reused:
        logger.debug("connection reused: %s", ends)
        return
    names = (("dns", "DNS"), ("connect", "connect"), ("tls", "TLS"), ("quic", "QUIC"))
    facts = [f"{shown} {seconds[name] * 1000:.1f} ms" for name, shown in names if name in seconds]
    if tls := reply.tls:
        facts += [fact for fact in (tls["version"], tls["cipher"], tls["alpn"]) if fact]
    logger.debug("connection opened: %s (%s)", ends, ", ".join(facts))


def _ends(local: Any, remote: Any) -> str:
    return f"{_address(local)} -> {_address(remote)}"


def _address(address: tuple[str, int] | str | None) -> str:
    if isinstance(address, tuple):
        host, port = address
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return "-" if address is None else f"unix:{address}"


class _LevelCache(dict[int, bool]):
    """`Logger._cache`, which `logging` clears whenever a level may have changed."""

    def clear(self) -> None:
        super().clear()
        _update()


def _update() -> None:
    # Not `isEnabledFor`, which depends on `Logger.disabled`, too, and that changes without notice.
    level = max(logger.getEffectiveLevel(), logger.manager.disable + 1)
    _native.observe_calls(
        calls=bool(_interceptors) or _tracer is not None or level <= logging.INFO,
        connections=level <= logging.DEBUG,
    )


if isinstance(getattr(logger, "_cache", None), dict):
    logger._cache = _LevelCache()  # type: ignore[attr-defined]
    _update()
else:  # another implementation of `logging`: no notice of changes
    _native.observe_calls(calls=True, connections=True)
