"""Idempotency keys (draft-ietf-httpapi-idempotency-key-header), in all workers together: an ASGI middleware.

A request with the header field Idempotency-Key runs once. A repetition gets the stored response; 409 while the first one runs;
422 if it is another request with the same key.

    absent ── first request ──► running ── response below 500 ──► done ── `ttl` ──► absent
                                   └────── 500 and above, exception, or `lease` ──► absent
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Callable, Collection
from typing import Any

from ..async_state import AsyncState
from ._shared import LazyState, short_name
from .rate_limit import App, Message, Receive, Scope, Send

METHODS = ("POST", "PATCH")


def caller(scope: Scope) -> str:
    """Credentials of the request: whoever has them may see the stored response."""
    return "\n".join(
        value.decode("latin-1") for name, value in scope["headers"] if name in (b"authorization", b"cookie")
    )


class IdempotencyMiddleware:
    """Runs requests with an idempotency key once.

    - `state`: a state, or the argument of `open_async()`.
    - `methods`: of the requests; others, and requests without the header field, pass.
    - `required`: whether a request of these methods without a key gets 400.
    - `ttl`: seconds for which a response is stored; `lease`: seconds after which a request that has not ended, because
      its worker died, may run again. Longer than the slowest request.
    - `max_bytes`: bound of a request's body (413 above), and of a stored response: a longer one is sent, but a
      repetition gets 409.
    - `owner`: a function of the scope for whoever may see a response; by default the fields Authorization and Cookie.
    """

    def __init__(
        self,
        app: App,
        *,
        state: AsyncState[Any] | str | None = None,
        methods: Collection[str] = METHODS,
        required: bool = False,
        ttl: float = 86_400,
        lease: float = 300,
        max_bytes: int = 1 << 20,
        owner: Callable[[Scope], str] = caller,
    ) -> None:
        self._app = app
        self._state = LazyState(state, "idempotency")
        self._methods = frozenset(methods)
        self._required = required
        self._ttl = ttl
        self._lease = lease
        self._max_bytes = max_bytes
        self._owner = owner

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] not in self._methods:
            return await self._app(scope, receive, send)
        keys = [value for name, value in scope["headers"] if name == b"idempotency-key"]
        if not keys and not self._required:
            return await self._app(scope, receive, send)
        if len(keys) != 1 or not keys[0].strip():
            return await _problem(send, 400, "The header field Idempotency-Key must be given once")
        body = await _body_of(receive, self._max_bytes)
        if body is None:
            return await _problem(send, 413, "The body is too large for a request with an idempotency key")
        return await self._run_once(keys[0].decode("latin-1"), body, scope, receive, send)

    async def _run_once(self, key: str, body: bytes, scope: Scope, receive: Receive, send: Send) -> None:
        name = short_name(f"{_hash(self._owner(scope))}/{key}")
        claim = {"request": _fingerprint(scope, body), "run": os.urandom(12).hex()}
        state = self._state.get()
        if not await state.set_if_absent(name, claim, ttl=self._lease):
            found = await state.get(name)
            if found is not None:
                return await _repeat(found, claim["request"], send)
            # The first request has just ended without a result.
            if not await state.set_if_absent(name, claim, ttl=self._lease):
                return await _problem(send, 409, "The same request is running")
        recorder = _Recorder(send, self._max_bytes)
        try:
            await self._app(scope, _replayed(body, receive), recorder.send)
        except BaseException:
            await state.compare_and_set(name, claim, None)
            raise
        if recorder.is_complete() and recorder.status < 500:
            await state.compare_and_set(name, claim, {**claim, "response": recorder.record()}, ttl=self._ttl)
        else:
            await state.compare_and_set(name, claim, None)
        # Sent after it was stored: a response that the client has seen is the response of every repetition.
        await recorder.flush()
        return None


class _Recorder:
    """Holds the messages of a response back, up to a number of bytes; passes a longer one on."""

    def __init__(self, send: Send, max_bytes: int) -> None:
        self._send = send
        self._max_bytes = max_bytes
        self._held: list[Message] = []
        self._body = bytearray()
        self._is_too_long = False
        self._has_ended = False
        self.status = 0
        self._headers: list[tuple[bytes, bytes]] = []

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self._headers = [(bytes(name), bytes(value)) for name, value in message.get("headers", ())]
        elif message["type"] == "http.response.body":
            self._body += message.get("body", b"")
            self._has_ended = not message.get("more_body", False)
        else:  # trailers, files: a message that is not stored
            self._is_too_long = True
            self._has_ended = self._has_ended or message["type"] == "http.response.pathsend"
        self._held.append(message)
        if len(self._body) > self._max_bytes or self._is_too_long:
            self._is_too_long = True
            self._body.clear()
            await self.flush()

    def is_complete(self) -> bool:
        return self._has_ended

    def record(self) -> dict[str, Any] | None:
        """The response for the store; None for one that was not kept."""
        if self._is_too_long:
            return None
        headers = [[name.decode("latin-1"), value.decode("latin-1")] for name, value in self._headers]
        return {"status": self.status, "headers": headers, "body": base64.b64encode(self._body).decode()}

    async def flush(self) -> None:
        held, self._held = self._held, []
        for message in held:
            await self._send(message)


async def _repeat(found: dict[str, Any], fingerprint: str, send: Send) -> None:
    """The response to a repeated request."""
    if found["request"] != fingerprint:
        return await _problem(send, 422, "The idempotency key was used for another request")
    if "response" not in found:
        return await _problem(send, 409, "The same request is running")
    response = found["response"]
    if response is None:
        return await _problem(send, 409, "The request has run; its response was too long to be stored")
    headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in response["headers"]]
    headers.append((b"idempotent-replayed", b"true"))
    await send({"type": "http.response.start", "status": response["status"], "headers": headers})
    return await send({"type": "http.response.body", "body": base64.b64decode(response["body"])})


async def _problem(send: Send, status: int, title: str) -> None:
    body = json.dumps({"title": title, "status": status}).encode()
    headers = [(b"content-type", b"application/problem+json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _body_of(receive: Receive, limit: int) -> bytes | None:
    """The whole body; None if it is longer than the limit."""
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return bytes(body)
        body += message.get("body", b"")
        if len(body) > limit:
            return None
        if not message.get("more_body", False):
            return bytes(body)


def _replayed(body: bytes, receive: Receive) -> Receive:
    """A `receive` that begins with a body that was read before."""
    is_given = False

    async def replay() -> Message:
        nonlocal is_given
        if is_given:
            return await receive()
        is_given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay


def _fingerprint(scope: Scope, body: bytes) -> str:
    types = [value for name, value in scope["headers"] if name == b"content-type"]
    parts = [scope["method"].encode(), scope["path"].encode(), scope.get("query_string", b""), *types]
    return _hash("\n".join(part.decode("latin-1") for part in parts), body)


def _hash(text: str, more: bytes = b"") -> str:
    return hashlib.blake2b(text.encode() + b"\0" + more, digest_size=16).hexdigest()
