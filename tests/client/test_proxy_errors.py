"""Proxies that answer CONNECT in unusual ways, errors that name the proxy, and variables with a malformed URL.

Every client: `Client`, `AsyncClient`, and the drop-ins for httpx, httpx2 and requests.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

import httpx
import httpx2
import pytest
import requests
import towline
import towline.httpx
import towline.httpx2
import towline.requests

from tests.support.http1_peer import OK, Handler, Peer, respond_with, scripted, serving
from tests.support.tls import Trust

ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"
SECRET = "hunter2"
Get = Callable[..., str]


@pytest.fixture(scope="module")
def trust(tmp_path_factory: pytest.TempPathFactory) -> Trust:
    return Trust(tmp_path_factory.mktemp("tls"))


def client(url: str, verify: Any = True, timeout: float = 20, **settings: Any) -> str:
    with towline.Client(verify=verify, timeout=timeout, **settings) as made:
        return made.get(url).text


def async_client(url: str, verify: Any = True, timeout: float = 20, **settings: Any) -> str:
    async def main() -> str:
        async with towline.AsyncClient(verify=verify, timeout=timeout, **settings) as made:
            return (await made.get(url)).text

    return asyncio.run(main())


def like_httpx(module: ModuleType) -> Get:
    def get(url: str, verify: Any = True, timeout: float = 20, **settings: Any) -> str:
        with module.Client(verify=verify, timeout=timeout, **settings) as made:
            text: str = made.get(url).text
        return text

    return get


def like_requests(url: str, verify: Any = True, timeout: float = 20, proxy: str | None = None) -> str:
    with requests.Session() as session:
        for scheme in ("http://", "https://"):
            session.mount(scheme, towline.requests.Adapter())
        proxies = {"http": proxy, "https": proxy} if proxy else None
        return session.get(url, proxies=proxies, verify=verify, timeout=timeout).text


CLIENTS = {
    "Client": client,
    "AsyncClient": async_client,
    "httpx": like_httpx(towline.httpx),
    "httpx2": like_httpx(towline.httpx2),
    "requests": like_requests,
}
ERRORS = (towline.TransportError, httpx.TransportError, httpx2.TransportError, requests.RequestException)


@pytest.fixture(params=CLIENTS)
def get(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Get:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    return CLIENTS[request.param]


def tunnel(head: bytes, piece: int = 1 << 20) -> Handler:
    """Connects to the origin, sends `head` in pieces, then copies in both directions."""

    def handler(peer: Peer) -> None:
        host, port = peer.head().split(b" ")[1].decode().rsplit(":", 1)
        with socket.create_connection((host, int(port))) as origin:
            peer.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for at in range(0, len(head), piece):
                peer.send(head[at : at + piece])
            threading.Thread(target=copy, args=(origin, peer.sock), daemon=True).start()
            copy(peer.sock, origin)

    return handler


def copy(source: socket.socket, target: socket.socket) -> None:
    try:
        while data := source.recv(65536):
            target.sendall(data)
    except OSError:
        pass


HEADS = {
    "HTTP/1.0": b"HTTP/1.0 200 Connection established\r\n\r\n",
    "lines that end in LF": b"HTTP/1.0 200 OK\nproxy-agent: x\n\n",
    "no reason phrase": b"HTTP/1.1 200\r\n\r\n",
    "no content": b"HTTP/1.1 204 No Content\r\n\r\n",
    "a length without a body": b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n",
    "a body": b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello",
    "chunked": b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n",
    "an interim response": b"HTTP/1.1 100 Continue\r\n\r\n" + ESTABLISHED,
    "many fields": b"HTTP/1.1 200 OK\r\nconnection: close\r\n"
    + b"x-trace: %s\r\n" % (b"a" * 500) * 100
    + b"\r\n",
}


@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS)
def test_a_tunnel_is_established(get: Get, trust: Trust, head: bytes) -> None:
    with scripted(respond_with(OK), trust.server()) as origin, scripted(tunnel(head)) as proxy:
        assert get(origin.url, trust.path, proxy=proxy.url) == "hello"


def test_a_response_to_connect_may_arrive_in_pieces_and_through_tls(get: Get, trust: Trust) -> None:
    with (
        scripted(respond_with(OK), trust.server()) as origin,
        scripted(tunnel(HEADS["an interim response"], 1), trust.server()) as proxy,
    ):
        assert get(origin.url, trust.path, proxy=proxy.url) == "hello"


def closing(*data: bytes) -> Handler:
    def handler(peer: Peer) -> None:
        peer.head()
        for piece in data:
            peer.send(piece)

    return handler


def resetting(peer: Peer) -> None:
    peer.head()
    peer.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def keeping_open(*data: bytes) -> Handler:
    def handler(peer: Peer) -> None:
        closing(*data)(peer)
        peer.closed_by_client()

    return handler


def without_tls(*before: bytes) -> Handler:
    """Responds to the client's TLS handshake in plain text."""

    def handler(peer: Peer) -> None:
        if before:
            closing(*before)(peer)
        peer.sock.recv(65536)
        peer.send(b"HTTP/1.1 400 No\r\n\r\n")

    return handler


REFUSALS = {
    "credentials": (
        keeping_open(b"HTTP/1.1 407 Auth\r\nproxy-authenticate: NTLM\r\ncontent-length: 5\r\n\r\nhello"),
        "407), with NTLM; only Basic",
    ),
    "a body": (keeping_open(b"HTTP/1.1 403 No\r\ncontent-length: 99\r\n\r\nhello"), "403 No"),
    "a redirect": (keeping_open(b"HTTP/1.1 302 Found\r\nlocation: http://login/\r\n\r\n"), "302 Found"),
    "another protocol": (keeping_open(b"SSH-2.0-x\r\n"), "did not respond in HTTP/1.1"),
    "TLS": (keeping_open(b"\x15\x03\x01\x00\x02\x02\x46"), "is its URL https://"),
    "no response": (closing(), "closed the connection before its response"),
    "half a response": (closing(b"HTTP/1.1 200 O"), "closed the connection before its response"),
    "a reset": (resetting, "reset"),
    "an end after the response": (closing(ESTABLISHED), "TLS"),
    "no TLS in the tunnel": (without_tls(ESTABLISHED), "TLS"),
}


@pytest.mark.parametrize(("handler", "reason"), REFUSALS.values(), ids=REFUSALS)
def test_a_failed_tunnel_names_the_proxy_at_once(get: Get, handler: Handler, reason: str) -> None:
    with scripted(handler) as proxy, pytest.raises(ERRORS) as caught:
        get("https://origin.test/", proxy=f"http://user:{SECRET}@127.0.0.1:{proxy.port}")
    text = str(caught.value)
    assert f"the proxy http://127.0.0.1:{proxy.port}" in text
    assert reason in text
    assert SECRET not in text


FORWARDED = {
    "no response": closing(),
    "not HTTP": closing(b"\x00\x01\r\n\r\n"),
    "half a body": closing(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nabc"),
}


@pytest.mark.parametrize("handler", FORWARDED.values(), ids=FORWARDED)
def test_a_failed_call_through_a_forwarding_proxy_names_it(get: Get, handler: Handler) -> None:
    with scripted(handler) as proxy, pytest.raises(ERRORS, match=f"through the proxy {proxy.url}"):
        get("http://origin.test/", proxy=proxy.url)


@pytest.mark.parametrize(
    ("scheme", "data"),
    [("http", ()), ("http", (b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nabc",)), ("https", ())],
)
def test_a_timeout_names_the_proxy(get: Get, scheme: str, data: tuple[bytes, ...]) -> None:
    with scripted(keeping_open(*data)) as proxy, pytest.raises(ERRORS, match=f"the proxy {proxy.url}"):
        get(f"{scheme}://origin.test/", timeout=0.3, proxy=proxy.url)


@pytest.mark.parametrize("url", ["http://origin.test/", "https://origin.test/"])
@pytest.mark.parametrize("scheme", ["http", "https", "socks5h"])
def test_a_proxy_that_cannot_be_reached_is_named(get: Get, scheme: str, url: str) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        for host, reason in (
            (f"127.0.0.1:{unused.getsockname()[1]}", "refused"),
            ("proxy.invalid:3128", "cannot resolve"),
        ):
            with pytest.raises(ERRORS, match=f"the proxy {scheme}://{host}") as caught:
                get(url, proxy=f"{scheme}://user:{SECRET}@{host}")
            assert reason in str(caught.value)
            assert SECRET not in str(caught.value)


def test_tls_to_the_wrong_kind_of_proxy_and_to_the_wrong_name(get: Get, trust: Trust) -> None:
    with scripted(without_tls()) as plain:
        url = f"https://127.0.0.1:{plain.port}"
        with pytest.raises(ERRORS, match=f"the proxy {url}"):
            get("https://origin.test/", trust.path, proxy=url)
    with scripted(tunnel(ESTABLISHED), trust.server("other.test")) as proxy:
        with pytest.raises(ERRORS, match=f"the certificate of the proxy {proxy.url}"):
            get("https://origin.test/", trust.path, proxy=proxy.url)
    with (
        scripted(respond_with(OK), trust.server("other.test")) as origin,
        scripted(tunnel(ESTABLISHED)) as near,
    ):
        with pytest.raises(ERRORS, match=f"certificate of 127.0.0.1:.*through the proxy {near.url}"):
            get(origin.url, trust.path, proxy=near.url)


@pytest.mark.parametrize("reply", [b"HTTP/1.1 400 No\r\n\r\n", b"\x04\x5a", b"\x05\xff", b""])
def test_a_failed_socks_handshake_names_the_proxy(get: Get, reply: bytes) -> None:
    def serve(sock: socket.socket, number: int) -> None:
        sock.recv(100)
        sock.sendall(reply)

    with serving(serve) as proxy:
        url = proxy.url.replace("http", "socks5h")
        with pytest.raises(ERRORS, match=f"the proxy {url}"):
            get("http://origin.test/", proxy=url)


# Variables.

MALFORMED = {
    "another scheme": f"socks4://user:{SECRET}@proxy.test:1080",
    "no host": f"http://user:{SECRET}@",
    "a password that is not encoded": f"http://user:{SECRET}#x@proxy.test:3128",
    "half an address": "http://[::1",
    "a port": "http://proxy.test:port",
}


@pytest.mark.parametrize("name", ["HTTP_PROXY", "http_proxy", "ALL_PROXY"])
@pytest.mark.parametrize("value", MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_url_names_its_variable(
    get: Get, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises((ValueError, httpx.InvalidURL, httpx2.InvalidURL)) as caught:
        get("http://origin.test/")
    assert name in str(caught.value)
    assert SECRET not in str(caught.value)


def test_the_error_of_a_proxy_from_a_variable_names_both(get: Get, monkeypatch: pytest.MonkeyPatch) -> None:
    with scripted(closing()) as proxy:
        monkeypatch.setenv("http_proxy", f"http://user:{SECRET}@127.0.0.1:{proxy.port}")
        with pytest.raises(ERRORS) as caught:
            get("http://origin.test/")
    assert f"the proxy {proxy.url} (http_proxy)" in str(caught.value)
    assert SECRET not in str(caught.value)


def test_the_command_line_names_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", MALFORMED["another scheme"])
    command = [sys.executable, "-m", "towline", "get", "http://origin.test/"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert run.returncode != 0
    assert "HTTP_PROXY" in run.stderr
    assert SECRET not in run.stderr
    assert "Traceback" not in run.stderr


def test_no_proxy_names_its_entry() -> None:
    for entry in ("http://[::1", "http://h:port"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("NO_PROXY", f"localhost,{entry}")
            with pytest.raises(towline.ConfigError, match="NO_PROXY"):
                towline.Client()
            with pytest.raises(httpx.InvalidURL, match="NO_PROXY"):
                towline.httpx.Client()


@pytest.mark.parametrize("ours", [towline.httpx, towline.httpx2])
def test_no_proxy_may_have_brackets(ours: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """httpx refuses to start with such a variable, and with a network of IPv6, whose error names the entry."""
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("no_proxy", "[::1]")
    with ours.Client() as made:
        assert made._transport_for_url(ours._PACKAGE.module.URL("http://[::1]:8/")) is made._transport
        assert made._transport_for_url(ours._PACKAGE.module.URL("http://[::2]:8/")) is not made._transport
    monkeypatch.setenv("no_proxy", "fe80::/10")
    if ours is towline.httpx:
        with pytest.raises(httpx.InvalidURL, match=r"no_proxy.*fe80"):
            ours.Client()


@pytest.mark.parametrize("proxy", list(MALFORMED.values())[:3])
def test_the_argument_hides_secrets(get: Get, proxy: str) -> None:
    with pytest.raises((ValueError, httpx.InvalidURL, httpx2.InvalidURL), match="prox") as caught:
        get("http://origin.test/", proxy=proxy)
    assert SECRET not in str(caught.value)


def test_an_argument_without_a_scheme_hides_secrets() -> None:
    with pytest.raises(towline.ConfigError, match="proxy") as caught:
        towline.Client(proxy=f"user:{SECRET}@proxy.test:3128")
    assert SECRET not in str(caught.value)
