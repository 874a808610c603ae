"""httpx2 on Towline's engine: `towline.httpx2.Client` and `AsyncClient` in place of `httpx2.Client` and `AsyncClient`.

    import towline.httpx2

    with towline.httpx2.Client(base_url="http://127.0.0.1:8000") as client:
        print(client.get("/").text)

They are subclasses with the same arguments, and return the responses and raise the errors of the package; only the
transport is replaced. `Transport` and `AsyncTransport` replace `HTTPTransport` and `AsyncHTTPTransport` as arguments
(`transport=`, `mounts=`). docs/dropins.md lists the differences.
"""

from __future__ import annotations

import httpx2

from ._dropins import _httpx as shared

__all__ = ["AsyncClient", "AsyncTransport", "Client", "Transport"]

_PACKAGE = shared.Package(httpx2, "2.0")


class _Body(shared.SyncBody, httpx2.SyncByteStream):
    pass


class _AsyncBody(shared.AsyncBody, httpx2.AsyncByteStream):
    pass


class Transport(shared.SyncExchange, httpx2.HTTPTransport):
    """`httpx2.HTTPTransport` on Towline's engine, with the same arguments."""

    package = _PACKAGE
    body_type = _Body


class AsyncTransport(shared.AsyncExchange, httpx2.AsyncHTTPTransport):
    """`httpx2.AsyncHTTPTransport` on Towline's engine, with the same arguments. It works in any number of event loops."""

    package = _PACKAGE
    body_type = _AsyncBody


class Client(shared.ClientTransports, httpx2.Client):
    """`httpx2.Client` whose transports, including those for proxies, are `Transport`."""

    transport_type = Transport


class AsyncClient(shared.ClientTransports, httpx2.AsyncClient):
    """`httpx2.AsyncClient` whose transports, including those for proxies, are `AsyncTransport`."""

    transport_type = AsyncTransport
