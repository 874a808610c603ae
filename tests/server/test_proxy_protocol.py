"""The PROXY protocol over real sockets."""

from __future__ import annotations

import socket
import struct
import time

import pytest

from tests.support.feature_server import every_kind, fetch, parse, serving

V1 = b"PROXY TCP4 192.0.2.9 198.51.100.7 5555 80\r\n"
V2 = (
    b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0f"
    + bytes([192, 0, 2, 9, 198, 51, 100, 7])
    + struct.pack("!HH", 5555, 80)
)
V2 += b"\x04\0\0"  # a TLV that says nothing


@every_kind
@pytest.mark.parametrize("header", [V1, V2], ids=["v1", "v2"])
def test_the_header_names_the_client(kind: str, header: bytes) -> None:
    with serving(kind, proxy_protocol=True) as server:
        assert fetch(server, "/client", before=header).body == b"http 192.0.2.9 5555"


def test_local_and_unknown_keep_the_sockets_own_address() -> None:
    with serving("asgi", proxy_protocol=True) as server:
        local = b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0"
        for header in (b"PROXY UNKNOWN\r\n", local):
            assert fetch(server, "/client", before=header).body.startswith(b"http 127.0.0.1 ")


@pytest.mark.parametrize("header", [V1, V2], ids=["v1", "v2"])
def test_it_may_come_byte_by_byte(header: bytes) -> None:
    with (
        serving("asgi", proxy_protocol=True) as server,
        socket.create_connection((server.host, server.port)) as client,
    ):
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        client.settimeout(10)
        for byte in header + b"GET /client HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n":
            client.sendall(bytes([byte]))
            time.sleep(0.0005)
        received = b""
        while part := client.recv(65536):
            received += part
    assert parse(received).body == b"http 192.0.2.9 5555"


@pytest.mark.parametrize("header", [b"", b"PROXY TCP4 1.2.3 4.5.6.7 1 2\r\n", b"PROXY " + b"x" * 200])
def test_a_connection_without_a_valid_header_gets_no_answer(header: bytes) -> None:
    with (
        serving("asgi", proxy_protocol=True) as server,
        socket.create_connection((server.host, server.port)) as client,
    ):
        client.settimeout(10)
        client.sendall(header + b"GET / HTTP/1.1\r\nHost: test\r\n\r\n")
        try:
            assert client.recv(100) == b""
        except ConnectionResetError:
            pass


def test_peers_that_are_not_trusted_speak_http_at_once() -> None:
    with serving("asgi", proxy_protocol=True, forwarded_allow_ips=("10.0.0.0/8",)) as server:
        assert fetch(server, "/a").body == b"/a"
        assert fetch(server, "/a", before=V1).status == 400
