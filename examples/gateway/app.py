"""A gateway to a language model: passes requests to an upstream, streams the responses back, counts tokens.

    towline serve app:app --app-dir examples/gateway

README.md in this folder has its rules and settings.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import towline
import towline.state
from metering import Meter, TokenCounter

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
RawHeaders = Iterable[tuple[bytes, bytes]]

log = logging.getLogger("gateway")

# No other path reaches the upstream, so that no path of a client can leave its API.
ENDPOINTS = {
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/messages",
    "/v1/responses",
}
HOP_BY_HOP = {  # RFC 9110 7.6.1
    *(b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"transfer-encoding", b"upgrade"),
    *(b"proxy-authenticate", b"proxy-authorization"),
}
SET_BY_CLIENT = {b"host", b"content-length", b"expect", b"accept-encoding"}
"""Request headers that our own client sets: tokens cannot be counted in a compressed response."""


@dataclass(frozen=True)
class Settings:
    """From the environment: GATEWAY_ and the name in capitals."""

    upstream: str = "http://127.0.0.1:11434"  # an OpenAI-compatible API; this is the address of Ollama
    width: int = 100  # requests to the upstream at a time, of one worker; as many again may wait
    queue_timeout: float = 5.0  # seconds for which a request waits for its turn
    connect_timeout: float = 5.0
    silence_timeout: float = (
        60.0  # seconds without a byte from the upstream, before the first token or after it
    )
    total_timeout: float = 600.0
    max_body_bytes: int = 8 << 20
    state: str = ""  # where the metrics are; by default the store that the workers of this server share

    def __post_init__(self) -> None:
        if not self.upstream.startswith(("http://", "https://")):
            raise ValueError(f"GATEWAY_UPSTREAM={self.upstream}: a URL was expected")

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Settings:
        """Raises ValueError with the name of a variable that is wrong."""
        given: dict[str, Any] = {}
        for name in cls.__dataclass_fields__:
            variable = f"GATEWAY_{name.upper()}"
            if value := environment.get(variable):
                try:
                    given[name] = type(getattr(cls, name))(value)
                except ValueError:
                    raise ValueError(f"{variable}={value}: a number was expected") from None
        return cls(**given)


class Refused(Exception):
    """A request that the gateway does not pass on."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class UpstreamFailed(Exception):
    """The upstream failed within its response. The server closes the connection, so that the client notices."""


class ClientLeft(Exception):
    """The client has disconnected."""


@dataclass
class Exchange:
    """One request that is passed on, and what is known of its response."""

    path: str
    model: str
    headers: RawHeaders
    body: bytes
    tokens: TokenCounter = field(default_factory=TokenCounter)
    status: int = 0  # 0: no response
    is_event_stream: bool = False
    is_over: bool = False  # for another reason than the client's
    failure: str = ""  # of the upstream: name of the exception


class Gateway:
    """The ASGI application."""

    _client: towline.AsyncClient
    _meter: Meter

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] != "http":
            raise NotImplementedError(f"http only, not {scope['type']}")
        elif scope["path"] == "/metrics":
            await respond(send, 200, await self._meter.page(), b"text/plain; version=0.0.4")
        else:
            await self._respond(scope, receive, send)

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        async with contextlib.AsyncExitStack() as stack:
            try:
                state = towline.state.open_async(self._settings.state or None, namespace="gateway")
                self._meter = Meter(await stack.enter_async_context(state))
                self._client = await stack.enter_async_context(client_of(self._settings))
            except Exception as error:  # an exception would mean that the application has no lifespan
                await send({"type": "lifespan.startup.failed", "message": str(error)})
                return
            await send({"type": "lifespan.startup.complete"})
            await receive()
        await send({"type": "lifespan.shutdown.complete"})

    async def _respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            exchange = await exchange_of(scope, receive, self._settings.max_body_bytes)
        except Refused as error:
            await refuse(send, error.status, str(error))
        except ClientLeft:
            pass  # before its request was complete
        else:
            try:
                await unless_client_leaves(self._pass_on(exchange, send), receive)
            finally:
                status = exchange.status if exchange.is_over else 499
                await self._meter.record(
                    exchange.model, exchange.tokens, status=status, failure=exchange.failure
                )

    async def _pass_on(self, exchange: Exchange, send: Send) -> None:
        try:
            await self._stream(exchange, send)
        except towline.PoolTimeout:
            exchange.status, exchange.is_over = 503, True  # our own limit: the upstream was not asked
            await refuse(send, 503, "too many requests wait for the upstream")
        except towline.TransportError as error:
            exchange.failure, exchange.is_over = type(error).__name__, True
            log.warning("upstream: %s", error)
            if exchange.status:
                # The head has been sent: only a connection that is closed too early tells that the rest is missing.
                if exchange.is_event_stream:
                    await send({"type": "http.response.body", "body": error_event(error), "more_body": True})
                raise UpstreamFailed(str(error)) from error
            exchange.status = 504 if isinstance(error, towline.TimeoutError) else 502  # RFC 9110 15.6
            await refuse(send, exchange.status, f"the upstream failed: {exchange.failure}")

    async def _stream(self, exchange: Exchange, send: Send) -> None:
        """Holds one piece at a time: `send` waits for a slow client, and meanwhile nothing is read from the upstream."""
        url = self._settings.upstream.rstrip("/") + exchange.path
        headers = [*passed_on(exchange.headers, SET_BY_CLIENT), (b"accept-encoding", b"identity")]
        async with self._client.stream("POST", url, content=exchange.body, headers=headers) as response:
            exchange.status = response.status_code
            exchange.is_event_stream = response.headers.get("content-type", "").startswith(
                "text/event-stream"
            )
            head = {"status": response.status_code, "headers": passed_on(response.headers.raw)}
            await send({"type": "http.response.start", **head})
            async for piece in response.aiter_raw():
                exchange.tokens.feed(piece)
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            exchange.is_over = True
            await send({"type": "http.response.body"})


def client_of(settings: Settings) -> towline.AsyncClient:
    return towline.AsyncClient(
        timeout=towline.Timeout(
            connect=settings.connect_timeout,
            read=settings.silence_timeout,
            write=settings.silence_timeout,
            pool=settings.queue_timeout,
            total=settings.total_timeout,
        ),
        limits=towline.Limits(
            max_connections=settings.width,
            max_connections_per_host=settings.width,
            max_queue=settings.width,
        ),
        # Only requests that have generated nothing are sent again: no connection, a connection that was closed while
        # idle, and statuses of a server that has declined. Never after a timeout: tokens are paid for.
        retries=towline.Retry(
            connect=1,
            stale="any",
            status=(429, 502, 503),
            methods=("POST",),
            times=2,
            backoff=0.2,
            max_delay=2.0,  # a longer Retry-After is the client's to wait for
            budget=0.1,  # retries must not multiply the load on an overloaded upstream
        ),
    )


async def exchange_of(scope: Scope, receive: Receive, max_body_bytes: int) -> Exchange:
    """Reads and checks a request. Raises Refused and ClientLeft."""
    if scope["path"] not in ENDPOINTS:
        raise Refused(404, "no such endpoint")
    if scope["method"] != "POST":
        raise Refused(405, "use POST")
    body = await read_body(receive, max_body_bytes)
    try:
        model = json.loads(body)["model"]
    except (ValueError, TypeError, KeyError):
        raise Refused(400, "the body is a JSON object with a model") from None
    if not isinstance(model, str):
        raise Refused(400, "model is a string")
    return Exchange(scope["path"], model, scope["headers"], body)


async def read_body(receive: Receive, max_bytes: int) -> bytes:
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientLeft
        body += message.get("body", b"")
        if len(body) > max_bytes:
            raise Refused(413, f"a request has at most {max_bytes} bytes")
        if not message.get("more_body", False):
            return bytes(body)


async def unless_client_leaves(work: Coroutine[Any, Any, None], receive: Receive) -> None:
    """Runs `work` until the client disconnects: cancelling it closes the connection to the upstream."""
    running = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(disconnect(receive))
    try:
        await asyncio.wait({running, leaving}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        leaving.cancel()
        running.cancel()  # without effect if it is done
        await asyncio.wait({running, leaving})
    if not running.cancelled():
        running.result()


async def disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def passed_on(headers: RawHeaders, dropped: Iterable[bytes] = ()) -> list[tuple[bytes, bytes]]:
    """Headers without those of the connection, also those that its `Connection` header names."""
    pairs = [(name.lower(), value) for name, value in headers]
    named = {
        token.strip().lower() for name, value in pairs if name == b"connection" for token in value.split(b",")
    }
    left_out = HOP_BY_HOP | named | set(dropped)
    return [(name, value) for name, value in pairs if name not in left_out]


def error_event(error: Exception) -> bytes:
    """The last event of a stream that has failed; the SDKs raise an error for it."""
    return b"\n\ndata: " + error_body(502, type(error).__name__) + b"\n\n"


def error_body(status: int, reason: str) -> bytes:
    """An error in the form of the OpenAI API, which SDKs parse."""
    kind = "invalid_request_error" if status < 500 else "gateway_error"
    return json.dumps({"error": {"message": reason, "type": kind, "code": status}}).encode()


async def refuse(send: Send, status: int, reason: str) -> None:
    headers = [(b"retry-after", b"1")] if status == 503 else [(b"allow", b"POST")] if status == 405 else []
    await respond(send, status, error_body(status, reason), b"application/json", headers)


async def respond(
    send: Send, status: int, body: bytes, content_type: bytes, headers: RawHeaders = ()
) -> None:
    fields = [(b"content-type", content_type), (b"content-length", b"%d" % len(body)), *headers]
    await send({"type": "http.response.start", "status": status, "headers": fields})
    await send({"type": "http.response.body", "body": body})


app = Gateway(Settings.of(os.environ))
