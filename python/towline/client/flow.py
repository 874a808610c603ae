"""What happens around an exchange: redirects, authentication, retries by status, cookies, hooks. Written once.

```
 call ─► redirect ◄────────────────────────────┐
           └─► authenticate ◄──────────────┐   │ Location
                 └─► retry ◄───────────┐   │   │
                       └─► exchange    │   │   │
                             ├─ status in retries.status ── wait
                             ├─ 401, as the Auth says
                             └─ 3xx ────────────────────────┘
```

These are coroutines without I/O of their own: they await only what a face does for them (send, read, sleep, call
a hook). `AsyncClient` awaits them; `Client` steps them, and as its face never suspends they end at the first step
(`faces.run`). The clock and chance are the face's as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ..errors import TooManyRedirects, TotalTimeout
from .auth import Auth
from .cookies import Cookies
from .options import Retry
from .redirects import redirected, same_trust
from .request import Request
from .response import Response
from .retrying import Budget, delay_s


class Steps(Protocol):
    """An `Auth`'s generator on one of the two faces."""

    async def first(self) -> Request: ...
    async def answer(self, response: Response) -> Request | None: ...
    async def close(self) -> None: ...


class Face(Protocol):
    """What the flow cannot do itself."""

    async def send(self, request: Request, deadline: float | None) -> Response: ...
    async def settle(self, response: Response) -> None: ...
    async def close(self, response: Response) -> None: ...
    async def sleep(self, seconds: float) -> None: ...
    async def call(self, hook: Callable[[Any], Any], argument: Any) -> None: ...
    def steps(self, auth: Auth, request: Request) -> Steps: ...
    def now(self) -> float: ...
    def unix_time(self) -> float: ...
    def chance(self) -> float: ...


@dataclass(frozen=True)
class Terms:
    """What one call goes by."""

    auth: Auth | None
    follow_redirects: bool
    max_redirects: int
    retry: Retry
    cookies: Cookies
    budget: Budget | None = None
    request_hooks: Sequence[Callable[[Any], Any]] = ()
    response_hooks: Sequence[Callable[[Any], Any]] = ()
    deadline: float | None = None  # on the face's clock


async def call(face: Face, terms: Terms, request: Request, given: Response | None = None) -> Response:
    """The last response of a call, its body unread. `given`: one that a plain exchange has brought already."""
    history: list[Response] = []
    trusted = True
    if terms.budget is not None:
        terms.budget.call()
    while True:
        response = await _authenticated(face, terms, request, history, trusted, given)
        given = None
        response.history = list(history)
        if not (terms.follow_redirects and response.has_redirect_location):
            return response
        try:
            onward = redirected(response.request, response)
            if len(history) >= terms.max_redirects:
                raise TooManyRedirects(
                    f"{terms.max_redirects} redirects were followed, and there is another; "
                    "look at the Location fields in error.response.history, or raise max_redirects",
                    request=response.request,
                    response=response,
                )
        except BaseException:
            await face.close(response)
            raise
        await face.settle(response)
        response._followed = True
        history.append(response)
        # credentials that were left behind are not picked up again on the way back
        trusted = trusted and same_trust(response.request.url, onward.url)
        if cookie := terms.cookies.header_for(onward.url, own=trusted):
            onward.headers._append(b"Cookie", cookie)
        request = onward


async def _authenticated(
    face: Face,
    terms: Terms,
    request: Request,
    history: list[Response],
    trusted: bool,
    given: Response | None,
) -> Response:
    auth = terms.auth
    if auth is None or not (trusted or getattr(auth, "by_host", False)):
        return await _retried(face, terms, request, given)
    steps = face.steps(auth, request)
    try:
        request = await steps.first()
        while True:
            response = await _retried(face, terms, request, None)
            try:
                onward = await steps.answer(response)
                if onward is None:
                    return response
                response.history = list(history)
                await face.settle(response)
            except BaseException:
                await face.close(response)
                raise
            history.append(response)
            request = onward
    finally:
        await steps.close()


async def _retried(face: Face, terms: Terms, request: Request, given: Response | None) -> Response:
    attempt = 0
    while True:
        response = given if given is not None else await _exchanged(face, terms, request)
        try:
            terms.cookies.extract_cookies(response)
            if given is None:
                for hook in terms.response_hooks:
                    await face.call(hook, response)
            wait = delay_s(terms.retry, request, response, attempt, face.unix_time(), face.chance())
            if wait is None or _too_late(terms, face.now() + wait):
                return response
            if terms.budget is not None and not terms.budget.take():
                return response
            await face.settle(response)
        except BaseException:
            await face.close(response)
            raise
        await face.sleep(wait)
        given = None
        attempt += 1


async def _exchanged(face: Face, terms: Terms, request: Request) -> Response:
    for hook in terms.request_hooks:
        await face.call(hook, request)
    if _too_late(terms, face.now()):
        raise TotalTimeout(
            "the call was not complete within timeout.total, redirects and retries included; raise it or follow fewer",
            phase="head",
            request=request,
        )
    return await face.send(request, terms.deadline)


def _too_late(terms: Terms, now: float) -> bool:
    return terms.deadline is not None and now >= terms.deadline
