"""For Starlette and FastAPI: `RateLimit`, a dependency, and the ASGI middlewares `RateLimitMiddleware`, `IdempotencyMiddleware`."""

# No `from __future__ import annotations`: FastAPI reads the annotations of `RateLimit.__call__`.

from collections.abc import Callable
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from .idempotency import IdempotencyMiddleware
from .rate_limit import Limiter, RateLimitMiddleware, Scope, client_address

__all__ = ["IdempotencyMiddleware", "RateLimit", "RateLimitMiddleware", "client_address"]


class RateLimit:
    """A dependency that limits the requests to some routes: `Depends(RateLimit(5, 60, name="login"))`.

    `key` is a function of the request; without a key there is no limit. The other arguments are those of `Limiter`.
    """

    def __init__(
        self,
        limit: int,
        seconds: float,
        *,
        key: Callable[[Request], str | None] | None = None,
        **options: Any,
    ) -> None:
        self._key = key
        self._limiter = Limiter(limit, seconds, **options)

    async def __call__(self, request: Request, response: Response) -> None:
        scope: Scope = request.scope
        key = client_address(scope) if self._key is None else self._key(request)
        decision = None if key is None else await self._limiter.decide(key)
        if decision is None:
            return
        fields = self._limiter.fields(decision)
        if not decision:
            raise HTTPException(429, "rate limit exceeded", headers=fields)
        response.headers.update(fields)
