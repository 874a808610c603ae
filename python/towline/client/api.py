"""`towline.get(url)` and similar functions: one call with a temporary client, for scripts.

A program that makes more than a few calls should use a `Client`, which keeps its connections open.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from . import hints
from .client import Client
from .response import Response
from .url import URL

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .call_options import SingleCallOptions

# arguments of these functions that are passed to `Client`
_CLIENT_ARGUMENTS = ("verify", "cert", "trust_env", "proxy", "mounts")


def request(method: str, url: URL | str, **arguments: Unpack[SingleCallOptions]) -> Response:
    """Sends one request and returns its `Response`, whose body is read.

    Arguments and errors as for `Client.request`; `verify`, `cert`, `trust_env`, `proxy` and `mounts` as for `Client`.
    """
    given: dict[str, Any] = {**arguments}
    with _client(given) as client:
        return client.request(method, url, **given)


@contextlib.contextmanager
def stream(method: str, url: URL | str, **arguments: Unpack[SingleCallOptions]) -> Iterator[Response]:
    """`with towline.stream("GET", url) as response:` reads the body on demand. Arguments as for `towline.request`."""
    given: dict[str, Any] = {**arguments}
    with _client(given) as client, client.stream(method, url, **given) as response:
        yield response


def get(url: URL | str, **arguments: Unpack[SingleCallOptions]) -> Response:
    """Sends one GET request (RFC 9110 9.3.1) and returns its `Response`. Arguments as for `towline.request`."""
    return request("GET", url, **arguments)


def head(url: URL | str, **arguments: Unpack[SingleCallOptions]) -> Response:
    """Sends one HEAD request (RFC 9110 9.3.2) and returns its `Response`. Arguments as for `towline.request`."""
    return request("HEAD", url, **arguments)


def options(url: URL | str, **arguments: Unpack[SingleCallOptions]) -> Response:
    """Sends one OPTIONS request (RFC 9110 9.3.7) and returns its `Response`. Arguments as for `towline.request`."""
    return request("OPTIONS", url, **arguments)


def delete(url: URL | str, **arguments: Unpack[SingleCallOptions]) -> Response:
    """Sends one DELETE request (RFC 9110 9.3.5) and returns its `Response`. Arguments as for `towline.request`."""
    return request("DELETE", url, **arguments)


def post(url: URL | str, **arguments: Unpack[SingleCallOptions]) -> Response:
    """Sends one POST request (RFC 9110 9.3.3) and returns its `Response`. Arguments as for `towline.request`."""
    return request("POST", url, **arguments)


def put(url: URL | str, **arguments: Unpack[SingleCallOptions]) -> Response:
    """Sends one PUT request (RFC 9110 9.3.4) and returns its `Response`. Arguments as for `towline.request`."""
    return request("PUT", url, **arguments)


def patch(url: URL | str, **arguments: Unpack[SingleCallOptions]) -> Response:
    """Sends one PATCH request (RFC 5789) and returns its `Response`. Arguments as for `towline.request`."""
    return request("PATCH", url, **arguments)


for _name in ("delete", "get", "head", "options", "patch", "post", "put", "request", "stream"):
    globals()[_name] = hints.explained(
        hints.CALL, "name the arguments after the URL: params={...} or data={...}"
    )(globals()[_name])


def _client(arguments: dict[str, Any]) -> Client:
    """Makes the client, and takes its arguments out of `arguments`."""
    return Client(**{name: arguments.pop(name) for name in _CLIENT_ARGUMENTS if name in arguments})
