"""A webhook forwarder: `POST /api/webhooks/<id>` stores a webhook, responds, and forwards it in the background.

README.md in this folder describes its guarantees and how to run it.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import towline

from .forwarder import Forwarder
from .store import Headers, Store, StoreError

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]

log = logging.getLogger("webhooks")

PREFIX = "/api/webhooks/"
# Connection-specific headers (RFC 9110 7.6.1), and headers that the client sets anew.
NOT_FORWARDED = {
    *(b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"transfer-encoding", b"upgrade"),
    *(b"host", b"content-length", b"expect", b"proxy-authorization", b"webhook-id", b"webhook-attempt"),
}


@dataclass(frozen=True)
class Settings:
    """From the environment: WEBHOOKS_ and the name in capitals."""

    destination: str = "http://127.0.0.1:9000"
    database: str = "webhooks.sqlite"
    width: int = 100  # attempts at a time
    timeout: float = 30.0  # seconds for an attempt
    give_up_after: float = 24 * 3600.0  # seconds from a webhook's arrival
    grace: float = 5.0  # seconds for attempts under way when the webhook forwarder stops
    max_body_bytes: int = 1 << 20

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Settings:
        given = {name: environment.get(f"WEBHOOKS_{name.upper()}") for name in cls.__dataclass_fields__}
        return cls(**{name: type(getattr(cls, name))(value) for name, value in given.items() if value})


class TooLarge(Exception):
    """The body exceeds `max_body_bytes`."""


class WebhookApp:
    """The ASGI application. It works between the lifespan events startup and shutdown."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "http":
            await self._respond_to(scope, receive, send)

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        try:
            await self._start()
        except Exception as error:
            log.exception("the webhook forwarder cannot start")
            await send({"type": "lifespan.startup.failed", "message": f"{type(error).__name__}: {error}"})
            return
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self._stop()
        await send({"type": "lifespan.shutdown.complete"})

    async def _start(self) -> None:
        settings = self._settings
        self._store = Store(settings.database)
        await self._store.open()
        self._client = towline.AsyncClient(
            timeout=towline.Timeout(connect=5.0, total=settings.timeout),
            limits=towline.Limits(max_connections=settings.width, max_connections_per_host=settings.width),
            max_response_size=16 << 20,
        )
        self._forwarder = Forwarder(
            self._store,
            self._client,
            settings.destination,
            width=settings.width,
            give_up_after=settings.give_up_after,
        )
        self._forwarder.start()

    async def _stop(self) -> None:
        """The server has ended all requests: everything accepted is in the store."""
        await self._forwarder.stop(self._settings.grace)
        await self._client.aclose()
        await self._store.close()

    async def _respond_to(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope["path"]
        if path == "/api/status" and scope["method"] == "GET":
            counts = await self._store.query(lambda database: database.counts())
            await _respond(send, 200, counts)
        elif not path.startswith(PREFIX) or not path[len(PREFIX) :]:
            await _respond(send, 404, {"error": "no such resource"})
        elif scope["method"] != "POST":
            await _respond(send, 405, {"error": "a webhook is a POST"}, [(b"allow", b"POST")])
        else:
            await self._accept(scope, receive, send)

    async def _accept(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The response confirms that the webhook is stored, so it follows the commit."""
        # The path as sent: an id may contain an encoded slash.
        hook = unquote(scope["raw_path"].decode("latin-1").partition("?")[0][len(PREFIX) :])
        try:
            body = await _body(receive, self._settings.max_body_bytes)
            if body is None:
                return  # the client disconnected before the end of the body
            number = await self._store.accept(hook, _forwarded(scope["headers"]), body)
        except TooLarge:
            await _respond(
                send, 413, {"error": f"a webhook has at most {self._settings.max_body_bytes} bytes"}
            )
        except StoreError as error:
            log.error("a webhook was refused: %s", error)
            await _respond(send, 503, {"error": "the webhook could not be stored"}, [(b"retry-after", b"5")])
        else:
            await _respond(send, 202, {"id": number})
        finally:
            self._forwarder.wake()


async def _body(receive: Receive, max_bytes: int) -> bytes | None:
    pieces, size = [], 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        pieces.append(message.get("body", b""))
        size += len(pieces[-1])
        if size > max_bytes:
            raise TooLarge
        if not message.get("more_body", False):
            return b"".join(pieces)


def _forwarded(headers: list[tuple[bytes, bytes]]) -> Headers:
    named = {
        token.strip().lower()
        for name, value in headers
        if name == b"connection"
        for token in value.split(b",")
    }
    dropped = NOT_FORWARDED | named
    return [
        (name.decode("latin-1"), value.decode("latin-1")) for name, value in headers if name not in dropped
    ]


async def _respond(send: Send, status: int, value: Any, headers: Any = ()) -> None:
    body = json.dumps(value).encode()
    fields = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body)), *headers]
    await send({"type": "http.response.start", "status": status, "headers": fields})
    await send({"type": "http.response.body", "body": body})


app = WebhookApp(Settings.of(os.environ))
