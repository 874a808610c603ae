"""`Mock`: routes instead of the network, for every client of the process while it is active.

```
 call ─► client._transport_for ─► a transport that the program passed (MockTransport, ASGITransport): unchanged
                              └─► a transport to the network ─► the innermost active Mock
```

While a mock is active, the native fast path is off, as it is for tracing. A call without one pays nothing.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import inspect
import re
import threading
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

from .._either import maybe_await
from ..errors import UsageError
from . import observe
from .request import Request
from .response import Response
from .transports.base import AsyncBaseTransport, BaseTransport

Outcome = Response | Exception | type[Exception] | Callable[[Request], Any]
"""A response; an exception to raise; or a function of the request that returns or raises one, for `AsyncClient` also `async`."""


class UnexpectedRequest(AssertionError):
    """A request that no route matches. It was not sent."""


class Route:
    """A method, a pattern of URLs, and the outcome of requests that match. `calls`: these requests, in their order."""

    def __init__(
        self, method: str, url: str | re.Pattern[str], make: Callable[[Request], Any], times: int | None
    ) -> None:
        self.method = method.upper()
        self.url = url
        self.times = times
        self.calls: list[Request] = []
        self._make = make
        self._takes_query = not isinstance(url, str) or "?" in url

    @property
    def called(self) -> bool:
        """Whether a request has matched."""
        return bool(self.calls)

    def _matches(self, request: Request) -> bool:
        if self.method not in ("*", request.method) or (
            self.times is not None and len(self.calls) >= self.times
        ):
            return False
        url = str(request.url)
        if isinstance(self.url, re.Pattern):
            return self.url.search(url) is not None
        return _matches_glob(self.url, url if self._takes_query else url.partition("?")[0])

    def _missing(self) -> str | None:
        expected = 1 if self.times is None else self.times
        if len(self.calls) >= expected:
            return None
        return f"{self}: called {len(self.calls)} of {expected} times"

    def __repr__(self) -> str:
        pattern = self.url.pattern if isinstance(self.url, re.Pattern) else self.url
        return f"{self.method} {pattern}"


def _matches_glob(pattern: str, url: str) -> bool:
    """`*` stands for any characters; the other characters, `?` and `[` among them, for themselves."""
    literal = pattern.replace("[", "[[]").replace("?", "[?]")
    pairs = [(literal, url)]
    if pattern.count("/") == 2:  # no path: the root
        pairs.append((literal + "/", url))
    return any(fnmatch.fnmatchcase(text, glob) for glob, text in pairs)


class Mock:
    """Responds to the calls of `towline.Client`, `towline.AsyncClient` and `towline.get` while it is active.

    Routes are tried in the order in which they were added. Nothing reaches the network: a request that no route matches
    raises `UnexpectedRequest`, also at the end, in case that the program has caught it. At the end every route must have been
    called, those with `times` as often; `assert_all_called=False` turns that off.
    """

    def __init__(self, *, assert_all_called: bool = True) -> None:
        self.assert_all_called = assert_all_called
        self.routes: list[Route] = []
        self.calls: list[Request] = []
        self._unexpected: list[str] = []
        self._lock = threading.Lock()
        self._transport = _MockedNetwork(self)

    def route(
        self,
        method: str,
        url: str | re.Pattern[str],
        outcome: Outcome | None = None,
        *,
        status_code: int = 200,
        headers: Mapping[str, str] | None = None,
        content: Any = None,
        text: str | None = None,
        html: str | None = None,
        json: Any = None,
        times: int | None = None,
    ) -> Route:
        """Adds a route: requests with `method` (`*`: any) and `url` get `outcome`, or a response of the other arguments.

        - url: the whole URL, with `*` for any characters, or a compiled expression that is searched in it; without `?` any
          query matches
        - outcome: a `Response`, an exception, or a function of the request
        - times: the number of requests that match, after which the next route is tried; None: any number, at least one
        """
        arguments = _ResponseArguments(status_code, headers, content, text, html, json)
        if outcome is not None and arguments != _ResponseArguments():
            raise UsageError("route: either an outcome, or the arguments of a response")
        if times is not None and times < 1:
            raise UsageError("route: times must be at least 1")
        made = Route(method, url, _maker(arguments if outcome is None else outcome), times)
        self.routes.append(made)
        return made

    def get(self, url: str | re.Pattern[str], outcome: Outcome | None = None, **response: Any) -> Route:
        """Adds a route for GET, with the arguments of `route`."""
        return self.route("GET", url, outcome, **response)

    def post(self, url: str | re.Pattern[str], outcome: Outcome | None = None, **response: Any) -> Route:
        """Adds a route for POST, with the arguments of `route`."""
        return self.route("POST", url, outcome, **response)

    def put(self, url: str | re.Pattern[str], outcome: Outcome | None = None, **response: Any) -> Route:
        """Adds a route for PUT, with the arguments of `route`."""
        return self.route("PUT", url, outcome, **response)

    def patch(self, url: str | re.Pattern[str], outcome: Outcome | None = None, **response: Any) -> Route:
        """Adds a route for PATCH, with the arguments of `route`."""
        return self.route("PATCH", url, outcome, **response)

    def delete(self, url: str | re.Pattern[str], outcome: Outcome | None = None, **response: Any) -> Route:
        """Adds a route for DELETE, with the arguments of `route`."""
        return self.route("DELETE", url, outcome, **response)

    def _outcome_of(self, request: Request) -> Any:
        with self._lock:
            self.calls.append(request)
            found = next((route for route in self.routes if route._matches(request)), None)
            if found is not None:
                found.calls.append(request)
        if found is not None:
            return found._make(request)
        shown = f"{request.method} {request.url._redacted()}"
        self._unexpected.append(shown)
        routes = "".join(f"\n  {route}" for route in self.routes) or " none"
        raise UnexpectedRequest(f"no route matches {shown}; routes:{routes}")

    def verify(self) -> None:
        """Raises AssertionError for requests without a route, and for routes that were not called."""
        if self._unexpected:
            raise UnexpectedRequest(f"no route matched: {', '.join(self._unexpected)}")
        missing = [text for route in self.routes if (text := route._missing())]
        if missing and self.assert_all_called:
            raise AssertionError("; ".join(missing))

    def __enter__(self) -> Mock:
        observe.push_interceptor(self._transport)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        observe.remove_interceptor(self._transport)
        if kind is None:
            self.verify()


@dataclasses.dataclass(frozen=True)
class _ResponseArguments:
    """The arguments of a response, which is made anew for each request."""

    status_code: int = 200
    headers: Mapping[str, str] | None = None
    content: Any = None
    text: str | None = None
    html: str | None = None
    json: Any = None

    def __call__(self, request: Request) -> Response:
        return Response(
            self.status_code,
            headers=self.headers,
            content=self.content,
            text=self.text,
            html=self.html,
            json=self.json,
        )


def _maker(outcome: Any) -> Callable[[Request], Any]:
    if isinstance(outcome, Response):
        return _copies_of(outcome)
    if isinstance(outcome, BaseException) or (
        isinstance(outcome, type) and issubclass(outcome, BaseException)
    ):
        return _raiser(outcome)
    if not callable(outcome):
        raise UsageError(
            f"route: expected a Response, an exception or a function, not {type(outcome).__name__}"
        )
    made: Callable[[Request], Any] = outcome
    return made


def _copies_of(response: Response) -> Callable[[Request], Response]:
    """Returns the response itself at first: a stream can be read once. Later ones are copies of its content."""
    first = [response]

    def make(request: Request) -> Response:
        if first:
            return first.pop()
        headers = [
            (name, value)
            for name, value in response.headers.raw
            if name.lower() not in (b"content-encoding", b"content-length")
        ]
        return Response(response.status_code, headers=headers, content=response.content)

    return make


def _raiser(error: Any) -> Callable[[Request], Any]:
    def make(request: Request) -> Any:
        raise error if isinstance(error, BaseException) else error(f"raised by the mock for {request.url}")

    return make


class _MockedNetwork(AsyncBaseTransport, BaseTransport):
    honours_trace = False

    def __init__(self, mock: Mock) -> None:
        self._mock = mock

    def handle_request(self, request: Request) -> Response:
        request.read()
        made = self._mock._outcome_of(request)
        if inspect.iscoroutine(made):
            made.close()
            raise UsageError("the function of the route is asynchronous; a blocking Client needs a plain one")
        return _response_of(made)

    async def handle_async_request(self, request: Request) -> Response:
        await request.aread()
        return _response_of(await maybe_await(self._mock._outcome_of(request)))


def _response_of(made: Any) -> Response:
    if not isinstance(made, Response):
        raise UsageError(f"the function of the route returned {type(made).__name__}, not a towline.Response")
    return made
