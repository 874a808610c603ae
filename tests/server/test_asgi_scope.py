"""Scope of an application (ASGI 3.0, HTTP 2.5)."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest
from towline import _native

from tests.support.asgi_server import LOOPS, Receive, Scope, Send, respond, serving

seen: list[Scope] = []


async def keep(scope: Scope, receive: Receive, send: Send) -> None:
    seen.append(scope)
    await respond(send)


def scope_of(wire: bytes, **options: Any) -> Scope:
    seen.clear()
    with serving(keep, **options) as served:
        reply = served.raw(wire)
    assert reply.startswith(b"HTTP/1."), reply
    assert b" 200 " in reply.split(b"\r\n")[0], reply
    return seen[-1]


def get(target: bytes = b"/", *fields: bytes, version: bytes = b"HTTP/1.1") -> bytes:
    lines = [b"GET " + target + b" " + version, b"Host: example.org", b"Connection: close", *fields]
    return b"\r\n".join(lines) + b"\r\n\r\n"


@pytest.mark.parametrize("loop", LOOPS)
def test_every_key(loop: str) -> None:
    scope = scope_of(get(b"/a%20b/%C3%A9?x=1&y=%20"), loop=loop)
    assert scope["type"] == "http"
    assert scope["asgi"] == {"version": "3.0", "spec_version": "2.5"}
    assert scope["http_version"] == "1.1"
    assert scope["method"] == "GET"
    assert scope["scheme"] == "http"
    assert scope["path"] == "/a b/é"
    assert scope["raw_path"] == b"/a%20b/%C3%A9"
    assert scope["query_string"] == b"x=1&y=%20"
    assert scope["root_path"] == ""
    assert scope["server"][0] == "127.0.0.1"
    assert isinstance(scope["server"][1], int)
    assert scope["client"][0] == "127.0.0.1"
    assert isinstance(scope["client"][1], int)
    assert set(scope["extensions"]) == {
        "http.response.trailers",
        "http.response.early_hint",
        "http.response.pathsend",
    }
    assert "state" not in scope


def test_headers_are_lower_case_pairs_in_order() -> None:
    scope = scope_of(get(b"/", b"X-Own: A", b"ACCEPT: */*", b"X-Own: B"))
    assert scope["headers"] == [
        (b"host", b"example.org"),
        (b"connection", b"close"),
        (b"x-own", b"A"),
        (b"accept", b"*/*"),
        (b"x-own", b"B"),
    ]


@pytest.mark.parametrize(
    ("target", "path", "query"),
    [
        (b"/", "/", b""),
        (b"/?", "/", b""),
        (b"/%zz%4", "/%zz%4", b""),
        (b"/%ff", "/�", b""),
        (b"http://example.org/x?y", "/x", b"y"),
        (b"http://example.org", "/", b""),
        (b"/a//b/../c", "/a//b/../c", b""),
    ],
)
def test_targets(target: bytes, path: str, query: bytes) -> None:
    scope = scope_of(get(target))
    assert (scope["path"], scope["query_string"]) == (path, query)


def test_root_path_stands_in_front() -> None:
    scope = scope_of(get(b"/a%20b"), root_path="/api")
    assert scope["root_path"] == "/api"
    assert scope["path"] == "/api/a b"
    assert scope["raw_path"] == b"/api/a%20b"


def test_http_10() -> None:
    assert scope_of(get(version=b"HTTP/1.0"))["http_version"] == "1.0"


def test_an_upgrade_is_not_obeyed() -> None:
    wire = get(b"/", b"Upgrade: h2c").replace(b"Connection: close", b"Connection: close, upgrade")
    assert scope_of(wire)["type"] == "http"


def test_state_is_copied_for_each_request() -> None:
    shared: list[int] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        scope["state"]["mine"] = scope["state"].get("mine", 0) + 1
        scope["state"]["shared"].append(scope["state"]["mine"])
        await respond(send)

    with serving(app, state={"shared": shared}) as served:
        served.get()
        served.get()
    assert shared == [1, 1]


def test_scopes_do_not_share_what_is_written_to_them() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        assert "mine" not in scope
        assert "mine" not in scope["extensions"]
        scope["mine"] = scope["extensions"]["mine"] = 1
        await respond(send)

    with serving(app) as served:
        assert served.get()[0] == 200
        assert served.get()[0] == 200


def test_trusted_proxies_name_client_and_scheme() -> None:
    fields = (b"X-Forwarded-For: 192.0.2.7", b"X-Forwarded-Proto: https")
    scope = scope_of(get(b"/", *fields))
    assert scope["client"] == ("192.0.2.7", 0)
    assert scope["scheme"] == "https"
    scope = scope_of(get(b"/", *fields), forwarded_allow_ips=("10.0.0.0/8",))
    assert scope["client"][0] == "127.0.0.1"
    assert scope["scheme"] == "http"


def test_unix_socket(tmp_path: Path) -> None:
    import asyncio

    from towline.config import Bind, ServerConfig

    path = str(tmp_path / "s")
    (fd,) = _native.open_listeners(f"unix:{path}", 16)
    seen.clear()

    async def main() -> bytes:
        loop = asyncio.get_running_loop()
        server = _native.AsgiServer(keep, loop, ServerConfig(app=keep), [Bind(fd=fd, address=path)])
        loop.add_reader(server.fileno(), server.turn)

        def ask() -> bytes:
            with socket.socket(socket.AF_UNIX) as conn:
                conn.connect(path)
                conn.sendall(get())
                return conn.recv(65536)

        reply = await loop.run_in_executor(None, ask)
        loop.remove_reader(server.fileno())
        server.close()
        return reply

    assert b"200 OK" in asyncio.run(main())
    assert seen[-1]["server"] == (path, None)
    assert seen[-1]["client"] is None


def test_tls(tmp_path: Path) -> None:
    trustme = pytest.importorskip("trustme")
    import ssl

    from cryptography import x509 as cryptography_x509

    authority = trustme.CA()
    certificate = authority.issue_cert("localhost", "127.0.0.1")
    chain, key, roots = tmp_path / "chain.pem", tmp_path / "key.pem", tmp_path / "ca.pem"
    chain.write_bytes(b"".join(blob.bytes() for blob in certificate.cert_chain_pems))
    certificate.private_key_pem.write_to_path(str(key))
    authority.cert_pem.write_to_path(str(roots))
    client = authority.issue_cert("client@example.org")
    context = ssl.create_default_context(cafile=str(roots))
    client.configure_cert(context)
    options = {
        "ssl_certfile": str(chain),
        "ssl_keyfile": str(key),
        "ssl_ca_certs": str(roots),
        "ssl_cert_reqs": "required",
    }
    seen.clear()
    with serving(keep, **options) as served:
        with context.wrap_socket(served.connect(), server_hostname="localhost") as conn:
            conn.sendall(get())
            assert conn.recv(1000).startswith(b"HTTP/1.1 200 OK")
    (scope,) = seen
    assert scope["scheme"] == "https"
    tls = scope["extensions"]["tls"]
    assert tls["tls_version"] == 0x0304
    assert tls["server_cert"] == chain.read_text()
    assert tls["client_cert_chain"][0].startswith("-----BEGIN CERTIFICATE-----\n")
    assert ssl.PEM_cert_to_DER_cert(tls["client_cert_chain"][0])
    assert isinstance(tls["cipher_suite"], int)
    shown = cryptography_x509.load_pem_x509_certificate(client.cert_chain_pems[0].bytes())
    assert tls["client_cert_name"] == shown.subject.rfc4514_string() != ""
    assert tls["client_cert_error"] is None


COMMON_HEADERS = (
    b"host",
    b"user-agent",
    b"accept",
    b"x-forwarded-for",
    b"x-forwarded-host",
    b"x-forwarded-proto",
)


def test_common_headers_are_reused_while_their_values_repeat() -> None:
    """Otherwise every request allocates them: 2 per cent of the instructions of a hello request for each header."""
    seen.clear()
    wire = b"GET / HTTP/1.1\r\n" + b"".join(name + b": example.org\r\n" for name in COMMON_HEADERS) + b"\r\n"
    with serving(keep) as served:
        served.raw(wire + wire.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
    first, second = (dict(zip(COMMON_HEADERS, scope["headers"], strict=False)) for scope in seen)
    for name in COMMON_HEADERS:
        assert first[name] == (name, b"example.org")
        assert first[name] is second[name], name
