"""The flow around an exchange: redirects, authentication, retries by status, cookies, hooks.

```
 call ─► redirect ◄────────────────────────────┐
           └─► authenticate ◄──────────────┐   │ Location
                 └─► retry ◄───────────┐   │   │
                       └─► exchange    │   │   │
                             ├─ status in retries.status ── wait
                             ├─ 401, as the Auth decides
                             └─ 3xx ────────────────────────┘
```

Both clients use the same coroutines. These do no I/O: they await only the methods of a `Backend` (send, sleep, call a
hook, read the clock). `AsyncClient` awaits them. `Client` runs them to the end in one step (`backends.run`), since its
backend never suspends.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ..errors import TooManyRedirects, TotalTimeout
from .auth import Auth
from .cookies import Cookies
from .observe import log_redirect, log_retry
from .options import Retry
from .redirects import redirect_request, same_trust
from .request import Request
from .response import Response
from .status_retry import Budget, retry_delay


class AuthSteps(Protocol):
    """The generator of an `Auth`, synchronous or asynchronous."""

    async def first_request(self) -> Request: ...
    async def next_request(self, response: Response) -> Request | None: ...
    async def close(self) -> None: ...


class Backend(Protocol):
    """Everything that the flow waits for, and its sources of time and randomness."""

    async def send(self, request: Request, deadline: float | None) -> Response: ...
    async def drain_and_release(self, response: Response) -> None:
        """Reads the beginning of the content, for `history`, and releases the connection."""

    async def close(self, response: Response) -> None: ...
    async def sleep(self, seconds: float) -> None: ...
    async def call(self, hook: Callable[[Any], Any], argument: Any) -> None: ...
    def auth_steps(self, auth: Auth, request: Request) -> AuthSteps: ...
    def now(self) -> float: ...
    def unix_time(self) -> float: ...
    def random(self) -> float: ...


@dataclass(frozen=True)
class CallSettings:
    """The settings of one call."""

    auth: Auth | None
    follow_redirects: bool
    max_redirects: int
    retry: Retry
    cookies: Cookies
    budget: Budget | None = None
    request_hooks: Sequence[Callable[[Any], Any]] = ()
    response_hooks: Sequence[Callable[[Any], Any]] = ()
    deadline: float | None = None  # on the backend's clock
    credential_headers: frozenset[str] = frozenset()  # in lower case; not sent to another origin


async def call(
    backend: Backend, settings: CallSettings, request: Request, received: Response | None = None
) -> Response:
    """Returns the last response of a call, its body unread. `received`: the first one, if it has been received already."""
    history: list[Response] = []
    trusted = True
    if settings.budget is not None:
        settings.budget.deposit()
    while True:
        response = await _send_with_auth(backend, settings, request, history, trusted, received)
        received = None
        response.history = list(history)
        if not (settings.follow_redirects and response.has_redirect_location):
            return response
        try:
            following = redirect_request(response.request, response, settings.credential_headers)
            if len(history) >= settings.max_redirects:
                raise TooManyRedirects(
                    f"followed {settings.max_redirects} redirects and got another one; "
                    "see the Location headers in error.response.history, or raise max_redirects",
                    request=response.request,
                    response=response,
                )
        except BaseException:
            await backend.close(response)
            raise
        await backend.drain_and_release(response)
        response._followed = True
        history.append(response)
        # once credentials have been removed, a redirect back does not restore them
        trusted = trusted and same_trust(response.request.url, following.url)
        if cookie := settings.cookies.header_for(following.url, own=trusted):
            following.headers._append(b"Cookie", cookie)
        log_redirect(following, response)
        request = following


async def _send_with_auth(
    backend: Backend,
    settings: CallSettings,
    request: Request,
    history: list[Response],
    trusted: bool,
    received: Response | None,
) -> Response:
    auth = settings.auth
    if auth is None or not (trusted or getattr(auth, "by_host", False)):
        return await _send_with_retries(backend, settings, request, received)
    steps = backend.auth_steps(auth, request)
    try:
        request = await steps.first_request()
        while True:
            response = await _send_with_retries(backend, settings, request, None)
            try:
                following = await steps.next_request(response)
                if following is None:
                    return response
                response.history = list(history)
                await backend.drain_and_release(response)
            except BaseException:
                await backend.close(response)
                raise
            history.append(response)
            request = following
    finally:
        await steps.close()


async def _send_with_retries(
    backend: Backend, settings: CallSettings, request: Request, received: Response | None
) -> Response:
    attempt = 0
    while True:
        response = received if received is not None else await _send(backend, settings, request)
        try:
            settings.cookies.extract_cookies(response)
            if received is None:
                for hook in settings.response_hooks:
                    await backend.call(hook, response)
            wait = retry_delay(
                settings.retry, request, response, attempt, backend.unix_time(), backend.random()
            )
            if wait is None or _is_past_deadline(settings, backend.now() + wait):
                return response
            if settings.budget is not None and not settings.budget.withdraw():
                return response
            await backend.drain_and_release(response)
        except BaseException:
            await backend.close(response)
            raise
        attempt += 1
        log_retry(request, response, attempt, wait)
        await backend.sleep(wait)
        received = None


async def _send(backend: Backend, settings: CallSettings, request: Request) -> Response:
    for hook in settings.request_hooks:
        await backend.call(hook, request)
    if _is_past_deadline(settings, backend.now()):
        raise TotalTimeout(
            "the call, with its redirects and retries, did not complete within timeout.total; raise it or allow fewer",
            phase="head",
            request=request,
        )
    return await backend.send(request, settings.deadline)


def _is_past_deadline(settings: CallSettings, now: float) -> bool:
    return settings.deadline is not None and now >= settings.deadline
