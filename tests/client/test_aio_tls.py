"""TLS through the program's own `ssl.SSLContext`, on every loop."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Iterator

import pytest
import towline
import trustme
from towline import AsyncClient

from tests.support.asyncio_client import BACKENDS, run

BODY = b"x" * 300_000


class Server:
    """Responds on one TLS connection after another, in threads."""

    def __init__(self, authority: trustme.CA, name: str) -> None:
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert(name).configure_cert(self.context)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                sock, _ = self.listener.accept()
                threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, raw: socket.socket) -> None:
        with contextlib.suppress(OSError), self.context.wrap_socket(raw, server_side=True) as sock:
            data = b""
            while piece := sock.recv(65536):
                data += piece
                while b"\r\n\r\n" in data:
                    data = data.partition(b"\r\n\r\n")[2]
                    sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(BODY) + BODY)


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def server(authority: trustme.CA) -> Iterator[Server]:
    server = Server(authority, "localhost")
    yield server
    server.listener.close()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_context_of_the_program(backend: str, authority: trustme.CA, server: Server) -> None:
    context = ssl.create_default_context()
    authority.configure_trust(context)

    async def main() -> None:
        async with AsyncClient(verify=context, trust_env=False) as client:
            for reused in (False, True):
                response = await client.get(f"https://localhost:{server.port}/")
                assert response.content == BODY
                assert response.reused is reused
            async with client.stream("GET", f"https://localhost:{server.port}/") as streamed:
                assert await streamed.aread() == BODY

    run(backend, main)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_refusal_of_the_context_fails_the_call(backend: str, server: Server) -> None:
    async def main() -> None:
        async with AsyncClient(verify=ssl.create_default_context(), trust_env=False) as client:
            with pytest.raises(towline.TLSError) as caught:
                await client.get(f"https://localhost:{server.port}/")
            assert "certificate" in str(caught.value)
            assert caught.value.phase == "tls"

    run(backend, main)
