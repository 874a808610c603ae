"""httpx on Towline: `towline.httpx.Client` and `AsyncClient` in place of `httpx.Client` and `AsyncClient`.

    import towline.httpx

    with towline.httpx.Client(base_url="http://127.0.0.1:8000") as client:
        print(client.get("/").text)

They take the same arguments, are subclasses, and give the package's own responses and errors; only what lies
beneath is ours. `Transport` and `AsyncTransport` stand in for `HTTPTransport` and `AsyncHTTPTransport` where
a transport is asked for (`transport=`, `mounts=`). docs/dropins.md says what differs.
"""

from __future__ import annotations

import httpx

from ._dropins import _httpx as shared

__all__ = ["AsyncClient", "AsyncTransport", "Client", "Transport"]

_PACKAGE = shared.Package(httpx)


class _Body(shared.SyncBody, httpx.SyncByteStream):
    pass


class _AsyncBody(shared.AsyncBody, httpx.AsyncByteStream):
    pass


class Transport(shared.SyncExchange, httpx.HTTPTransport):
    """`httpx.HTTPTransport`, its arguments included, on Towline's engine."""

    package = _PACKAGE
    body_type = _Body


class AsyncTransport(shared.AsyncExchange, httpx.AsyncHTTPTransport):
    """`httpx.AsyncHTTPTransport`, its arguments included, on Towline's engine; good for any number of event loops."""

    package = _PACKAGE
    body_type = _AsyncBody


class Client(shared.ClientTransports, httpx.Client):
    """`httpx.Client` whose transports, those for proxies included, are `Transport`."""

    transport_type = Transport


class AsyncClient(shared.ClientTransports, httpx.AsyncClient):
    """`httpx.AsyncClient` whose transports, those for proxies included, are `AsyncTransport`."""

    transport_type = AsyncTransport
