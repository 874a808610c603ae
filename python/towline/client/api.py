"""`towline.get(url)` and similar functions: one call with a temporary client, for scripts.

A program that makes more than a few calls should use a `Client`, which keeps its connections open.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from .client import Client
from .response import Response

# arguments of these functions that are passed to `Client`
_CLIENT_ARGUMENTS = ("verify", "cert", "trust_env", "proxy", "mounts")


def request(method: str, url: Any, **arguments: Any) -> Response:
    """Sends one request. Arguments as for `Client.request`; verify, cert, trust_env, proxy and mounts as for `Client`."""
    with _client(arguments) as client:
        response: Response = client.request(method, url, **arguments)
        return response


@contextlib.contextmanager
def stream(method: str, url: Any, **arguments: Any) -> Iterator[Response]:
    """`with towline.stream("GET", url) as response:` reads the body on demand."""
    with _client(arguments) as client, client.stream(method, url, **arguments) as response:
        yield response


def get(url: Any, **arguments: Any) -> Response:
    return request("GET", url, **arguments)


def head(url: Any, **arguments: Any) -> Response:
    return request("HEAD", url, **arguments)


def options(url: Any, **arguments: Any) -> Response:
    return request("OPTIONS", url, **arguments)


def delete(url: Any, **arguments: Any) -> Response:
    return request("DELETE", url, **arguments)


def post(url: Any, **arguments: Any) -> Response:
    return request("POST", url, **arguments)


def put(url: Any, **arguments: Any) -> Response:
    return request("PUT", url, **arguments)


def patch(url: Any, **arguments: Any) -> Response:
    return request("PATCH", url, **arguments)


def _client(arguments: dict[str, Any]) -> Client:
    return Client(**{name: arguments.pop(name) for name in _CLIENT_ARGUMENTS if name in arguments})
