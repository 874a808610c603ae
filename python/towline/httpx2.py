"""httpx2 on Towline: `towline.httpx2.Client` and `AsyncClient` in place of `httpx2.Client` and `AsyncClient`.

    import towline.httpx2

    with towline.httpx2.Client(base_url="http://127.0.0.1:8000") as client:
        print(client.get("/").text)

They take the same arguments, are subclasses, and give the package's own responses and errors; only what lies
beneath is ours. `Transport` and `AsyncTransport` stand in for `HTTPTransport` and `AsyncHTTPTransport` where
a transport is asked for (`transport=`, `mounts=`). docs/dropins.md says what differs.
"""

from __future__ import annotations

import httpx2

from ._dropins import _httpx as shared

__all__ = ["AsyncClient", "AsyncTransport", "Client", "Transport"]

_PACKAGE = shared.Package(httpx2)


class _Body(shared.SyncBody, httpx2.SyncByteStream):
    pass


class _AsyncBody(shared.AsyncBody, httpx2.AsyncByteStream):
    pass


class Transport(shared.SyncExchange, httpx2.HTTPTransport):
    """`httpx2.HTTPTransport`, its arguments included, on Towline's engine."""

    package = _PACKAGE
    body_type = _Body


class AsyncTransport(shared.AsyncExchange, httpx2.AsyncHTTPTransport):
    """`httpx2.AsyncHTTPTransport`, its arguments included, on Towline's engine; good for any number of event loops."""

    package = _PACKAGE
    body_type = _AsyncBody


class Client(shared.ClientTransports, httpx2.Client):
    """`httpx2.Client` whose transports, those for proxies included, are `Transport`."""

    transport_type = Transport


class AsyncClient(shared.ClientTransports, httpx2.AsyncClient):
    """`httpx2.AsyncClient` whose transports, those for proxies included, are `AsyncTransport`."""

    transport_type = AsyncTransport
