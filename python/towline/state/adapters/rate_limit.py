"""Rate limits of HTTP requests and WebSocket handshakes, in all workers together: an ASGI middleware.

Responses have the header fields of draft-ietf-httpapi-ratelimit-headers, `RateLimit-Policy` and `RateLimit`. A request over
the limit gets 429 (RFC 6585 4) with Retry-After (RFC 9110 10.2.3) and a problem document (RFC 9457).
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Literal, TypeAlias

from ...errors import StateError, UsageError
from ..async_state import AsyncState
from ..view import Decision
from ._shared import LazyState, short_name

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]
Fields: TypeAlias = list[tuple[bytes, bytes]]
Algorithm = Literal["sliding_window", "token_bucket"]

LONGEST_WAIT = 86_400
"""Seconds in Retry-After for a request that no waiting would allow."""
logger = logging.getLogger("towline.state")


def client_address(scope: Scope) -> str | None:
    """The address of the client, as the server knows it; None on a Unix socket."""
    client = scope.get("client")
    return str(client[0]) if client else None


class Limiter:
    """`limit` requests in `seconds`, for each key.

    - `state`: a state, or the argument of `open_async()`.
    - `name`: of the policy, for the header fields; limits with different names count apart.
    - `algorithm`: "sliding_window"; or "token_bucket", which allows a burst of `limit` and `limit / seconds` on average.
    - `fail_open`: whether requests are allowed while the store cannot be reached.
    """

    def __init__(
        self,
        limit: int,
        seconds: float,
        *,
        state: AsyncState[Any] | str | None = None,
        name: str = "default",
        algorithm: Algorithm = "sliding_window",
        fail_open: bool = True,
    ) -> None:
        if limit < 1 or not seconds > 0:
            raise UsageError(
                f"a rate limit is at least 1 request in more than 0 seconds, not {limit} in {seconds}"
            )
        if algorithm not in ("sliding_window", "token_bucket"):
            raise UsageError(f'algorithm is "sliding_window" or "token_bucket", not {algorithm!r}')
        self._limit = limit
        self._seconds = seconds
        self._name = name
        self._algorithm = algorithm
        self._fail_open = fail_open
        self._state = LazyState(state, "rate-limit")

    async def decide(self, key: str) -> Decision | None:
        """Count a request. None: the store is unavailable and requests are allowed meanwhile."""
        name = f"{self._name}/{short_name(key)}"
        try:
            state = self._state.get()
            if self._algorithm == "token_bucket":
                return await state.token_bucket(name, self._limit, self._limit / self._seconds)
            return await state.sliding_window(name, self._limit, self._seconds)
        except StateError as error:
            if not self._fail_open:
                raise
            logger.warning("rate limit %r: no decision, the request is allowed: %s", self._name, error)
            return None

    def fields(self, decision: Decision) -> dict[str, str]:
        """The header fields of a response."""
        name = json.dumps(self._name)  # a String of RFC 8941 for names of printable ASCII
        wait = self.retry_after(decision)
        found = {
            "ratelimit-policy": f"{name};q={self._limit};w={math.ceil(self._seconds)}",
            "ratelimit": f"{name};r={max(0, math.floor(decision.remaining + 1e-6))};t={wait or math.ceil(self._seconds)}",
        }
        return found if decision else {**found, "retry-after": str(wait)}

    @staticmethod
    def retry_after(decision: Decision) -> int:
        """Whole seconds to wait."""
        return LONGEST_WAIT if decision.retry_after > LONGEST_WAIT else math.ceil(decision.retry_after)

    def problem(self) -> bytes:
        """The body of a refusal."""
        return json.dumps(
            {
                "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
                "title": "Request cannot be satisfied as assigned quota has been exceeded",
                "status": 429,
                "violated-policies": [self._name],
            }
        ).encode()


class RateLimitMiddleware:
    """Limits the requests to an ASGI application. `key`: a function of the scope; without a key there is no limit.

    The other arguments are those of `Limiter`.
    """

    def __init__(
        self,
        app: App,
        limit: int,
        seconds: float,
        *,
        key: Callable[[Scope], str | None] = client_address,
        **options: Any,
    ) -> None:
        self._app = app
        self._key = key
        self._limiter = Limiter(limit, seconds, **options)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        key = self._key(scope) if scope["type"] in ("http", "websocket") else None
        decision = None if key is None else await self._limiter.decide(key)
        if decision is None:
            return await self._app(scope, receive, send)
        fields = [(name.encode(), value.encode()) for name, value in self._limiter.fields(decision).items()]
        if not decision:
            return await self._refuse(scope, send, fields)

        async def send_with_fields(message: Message) -> None:
            if message["type"] in ("http.response.start", "websocket.accept"):
                message = {**message, "headers": [*message.get("headers", ()), *fields]}
            await send(message)

        return await self._app(scope, receive, send_with_fields)

    async def _refuse(self, scope: Scope, send: Send, fields: Fields) -> None:
        prefix = "http"
        if scope["type"] == "websocket":
            if "websocket.http.response" not in (scope.get("extensions") or {}):
                return await send({"type": "websocket.close", "code": 1008, "reason": "rate limit"})
            prefix = "websocket.http"
        body = self._limiter.problem()
        fields = [
            *fields,
            (b"content-type", b"application/problem+json"),
            (b"content-length", str(len(body)).encode()),
        ]
        await send({"type": f"{prefix}.response.start", "status": 429, "headers": fields})
        await send({"type": f"{prefix}.response.body", "body": body})
        return None
