"""Authentication schemes.

An `Auth` is a generator of requests: it yields one, is sent the response, and may yield another. Programs subclass it as
they do httpx's. `auth=` also takes a (user, password) pair, a function of the request, or any object with such a
generator.
"""

from __future__ import annotations

import os
from base64 import b64encode
from collections.abc import AsyncGenerator, Callable, Generator
from pathlib import Path
from typing import Any, TypeAlias

from .._redact import HIDDEN
from ..errors import UsageError
from .request import Request
from .response import Response

AuthTypes: TypeAlias = "Auth | tuple[str | bytes, str | bytes] | Callable[[Request], Request] | None"


class Auth:
    """The base class: override `auth_flow`, or its blocking and asynchronous forms if the scheme does I/O itself."""

    requires_request_body = False
    requires_response_body = False

    def auth_flow(self, request: Request) -> Generator[Request, Response, None]:
        """Yields the request to send, once or more often; `yield` returns the response."""
        yield request

    def sync_auth_flow(self, request: Request) -> Generator[Request, Response, None]:
        """The flow of a `Client`. By default `auth_flow`, with bodies read first if the class requires them."""
        if self.requires_request_body:
            request.read()
        flow = self.auth_flow(request)
        try:
            request = next(flow)
            while True:
                response = yield request
                if self.requires_response_body:
                    response.read()
                request = flow.send(response)
        except StopIteration:
            return
        finally:
            flow.close()

    async def async_auth_flow(self, request: Request) -> AsyncGenerator[Request, Response]:
        """The flow of an `AsyncClient`. By default `auth_flow`, with bodies read first if the class requires them."""
        if self.requires_request_body:
            await request.aread()
        flow = self.auth_flow(request)
        try:
            request = next(flow)
            while True:
                response = yield request
                if self.requires_response_body:
                    await response.aread()
                request = flow.send(response)
        except StopIteration:
            return
        finally:
            flow.close()


class FunctionAuth(Auth):
    """Calls a function with each request; the function returns it, changed."""

    def __init__(self, func: Callable[[Request], Request]) -> None:
        self._func = func

    def auth_flow(self, request: Request) -> Generator[Request, Response, None]:
        yield self._func(request) or request


class BasicAuth(Auth):
    """HTTP Basic authentication (RFC 7617), in UTF-8."""

    def __init__(self, username: str | bytes, password: str | bytes) -> None:
        self._value = basic(username, password)

    def auth_flow(self, request: Request) -> Generator[Request, Response, None]:
        request.headers["Authorization"] = self._value
        yield request

    def __repr__(self) -> str:
        return f"BasicAuth({HIDDEN})"


class BearerAuth(Auth):
    """Bearer tokens (RFC 6750). `token` may be a function, which is called for each request."""

    def __init__(self, token: str | Callable[[], str]) -> None:
        if not isinstance(token, str) and not callable(token):
            raise UsageError(
                f"auth: a token is str or a function that returns it, not {type(token).__name__}"
            )
        self._token = token

    def auth_flow(self, request: Request) -> Generator[Request, Response, None]:
        token = self._token if isinstance(self._token, str) else self._token()
        request.headers["Authorization"] = f"Bearer {token}"
        yield request

    def __repr__(self) -> str:
        return f"BearerAuth({HIDDEN})"


class NetRCAuth(Auth):
    """User and password by host, from a netrc file: the given one, $NETRC or ~/.netrc."""

    def __init__(self, file: str | os.PathLike[str] | None = None) -> None:
        import netrc

        path = Path(file or os.environ.get("NETRC") or Path.home() / ".netrc")
        try:
            self._entries = netrc.netrc(path)
        except FileNotFoundError:
            raise UsageError(
                f"netrc: {path} does not exist; create it, or pass another file: NetRCAuth(file)"
            ) from None
        except netrc.NetrcParseError as error:
            raise UsageError(f"netrc: {path}, line {error.lineno}: {error.msg}") from None

    def auth_flow(self, request: Request) -> Generator[Request, Response, None]:
        found = self._entries.authenticators(request.url.host)
        if found is not None and found[2]:
            request.headers["Authorization"] = basic(found[0] or "", found[2])
        yield request


def basic(username: str | bytes, password: str | bytes) -> str:
    """Returns the Authorization value for a user and password."""
    return "Basic " + b64encode(utf8(username) + b":" + utf8(password)).decode("ascii")


def build_auth(auth: Any) -> Auth | None:
    """Converts the argument `auth=`. Raises UsageError."""
    if auth is None or isinstance(auth, Auth):
        return auth
    if isinstance(auth, tuple) and len(auth) == 2:
        return BasicAuth(*auth)
    if hasattr(auth, "sync_auth_flow") and hasattr(auth, "async_auth_flow"):
        compatible: Auth = auth  # of httpx, or any object with its methods
        return compatible
    if callable(auth):
        return FunctionAuth(auth)
    raise UsageError("auth: expected (user, password), towline.Auth, a function of the request, or None")


def utf8(value: str | bytes) -> bytes:
    """Encodes a user or a password. Raises UsageError for another type, such as None."""
    if isinstance(value, bytes):
        return value
    if not isinstance(value, str):
        raise UsageError(
            f"auth: user and password are str or bytes, not {type(value).__name__}; without a password write (user, '')"
        )
    return value.encode("utf-8")
