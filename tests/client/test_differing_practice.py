"""Where httpx, requests, browsers and the RFCs differ, or leave a choice: what docs/call.md says that Towline does."""

from __future__ import annotations

import asyncio
import ssl
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
from towline.client.decode import ndjson_parser

from tests.support.http1_peer import OK, Peer, respond_with, scripted
from tests.support.tls import Trust

# Sends requests one after the other on one client; returns the last text.
Send = Callable[..., str]


def client(*requests_: tuple[str, str], **settings: Any) -> str:
    with towline.Client(**settings) as made:
        return [made.request(*one).text for one in requests_][-1]


def async_client(*requests_: tuple[str, str], **settings: Any) -> str:
    async def main() -> str:
        async with towline.AsyncClient(**settings) as made:
            return [(await made.request(*one)).text for one in requests_][-1]

    return asyncio.run(main())


def like_httpx(module: ModuleType) -> Send:
    def send(*requests_: tuple[str, str], **settings: Any) -> str:
        with module.Client(**settings) as made:
            texts: list[str] = [made.request(*one).text for one in requests_]
        return texts[-1]

    return send


def like_requests(*requests_: tuple[str, str], verify: Any = True, follow_redirects: bool = True) -> str:
    with requests.Session() as session:
        for scheme in ("http://", "https://"):
            session.mount(scheme, towline.requests.Adapter())
        return [session.request(*one, verify=verify).text for one in requests_][-1]


CLIENTS = {
    "Client": client,
    "AsyncClient": async_client,
    "httpx": like_httpx(towline.httpx),
    "httpx2": like_httpx(towline.httpx2),
    "requests": like_requests,
}
ERRORS = (towline.TransportError, httpx.TransportError, httpx2.TransportError, requests.RequestException)


@pytest.fixture(params=CLIENTS)
def send(request: pytest.FixtureRequest) -> Send:
    return CLIENTS[request.param]


@pytest.mark.parametrize(
    ("announced", "connections"),
    [
        (b"timeout=0", 2),
        (b"max=100, Timeout=0", 2),
        (b"timeout=60, max=100", 1),
        (b"timeout=x", 1),
        (b"max=0", 1),
        (b"timeout=99999999999999999999", 1),
    ],
)
def test_the_time_that_a_server_keeps_a_connection_is_respected(
    send: Send, announced: bytes, connections: int
) -> None:
    """A request sent later would meet the close, and a POST cannot be sent again (RFC 9112 9.3.1)."""
    kept = OK.replace(b"\r\n", b"\r\nKeep-Alive: " + announced + b"\r\n", 1)
    with scripted(respond_with(kept)) as server:
        assert send(("POST", server.url), ("POST", server.url)) == "hello"
        assert server.connections == connections


def test_a_certificate_with_a_common_name_only_is_refused(send: Send, tmp_path: Any) -> None:
    """RFC 9110 4.3.4: a common name does not identify a server. OpenSSL, as httpx uses it, accepts it."""
    trust = Trust(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trust.ca.issue_cert(common_name="localhost").configure_cert(context)
    with scripted(respond_with(OK), context) as server:
        url = f"https://localhost:{server.port}/"
        with pytest.raises(ERRORS, match="a common name does not count"):
            send(("GET", url), verify=trust.path)
        if send is not like_requests:  # which has no context as an argument
            assert send(("GET", url), verify=trust.context()) == "hello"


@pytest.mark.parametrize("method", ["PUT", "DELETE", "POST"])
def test_302_becomes_a_get(send: Send, method: str) -> None:
    def redirect(peer: Peer) -> None:
        while head := peer.head():
            line = head.split(b" HTTP")[0]
            if line.endswith(b"/there"):
                peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(line), line))
            else:
                peer.send(b"HTTP/1.1 302 Found\r\nlocation: /there\r\ncontent-length: 0\r\n\r\n")

    with scripted(redirect) as server:
        assert send((method, f"{server.url}/here"), follow_redirects=True) == "GET /there"


def test_an_apostrophe_in_a_query_is_sent_as_it_is(send: Send) -> None:
    with scripted(respond_with(OK)) as server:
        send(("GET", f"{server.url}/a'b?$filter=name eq 'x'&q=%27"))
    assert server.heads[0].startswith(b"GET /a'b?$filter=name%20eq%20'x'&q=%27 HTTP/1.1")


def test_an_apostrophe_in_params_is_encoded() -> None:
    request = towline.Request("GET", "http://h/?a='", params={"b": "'"})
    assert request.url.raw_path == b"/?a='&b=%27"


def test_a_byte_order_mark_before_json_is_skipped() -> None:
    mark = b"\xef\xbb\xbf"
    for encoding, data in (
        ("utf-8", mark + b'{"a": 1}\n[2]\n'),
        ("utf-16", '{"a": 1}\n[2]\n'.encode("utf-16")),
    ):
        for step in (1, 3, 100):
            parser = ndjson_parser(encoding=encoding)
            values = [
                value for at in range(0, len(data), step) for value in parser.feed(data[at : at + step])
            ]
            assert values + parser.finish() == [{"a": 1}, [2]]
    assert towline.Response(200, content=mark + b'{"a": 1}').json() == {"a": 1}
    with pytest.raises(towline.DecodingError, match="line 2"):
        ndjson_parser().feed(b"\n" + mark + b"2\n")


@pytest.mark.parametrize("auth", [("u", None), (None, "p"), (b"u", 1)])
def test_credentials_of_another_type_get_our_own_message(auth: Any) -> None:
    for made in (
        lambda: towline.Client(auth=auth),
        lambda: towline.AsyncClient(auth=auth),
        lambda: towline.DigestAuth(*auth),
        lambda: towline.Proxy("http://h", auth=auth),
        lambda: towline.get("http://127.0.0.1:1/", auth=auth),
    ):
        with pytest.raises(towline.UsageError, match="auth"):
            made()
    with pytest.raises(towline.UsageError, match="a token is str"):
        towline.BearerAuth(None)  # type: ignore[arg-type]


@pytest.mark.parametrize("cookies", [{"a": 1}, {"a": None}, {"a": b"x"}, {1: "a"}, [("a", 1)]])
def test_cookies_of_another_type_get_our_own_message(cookies: Any) -> None:
    for made in (
        lambda: towline.Client(cookies=cookies),
        lambda: towline.AsyncClient(cookies=cookies),
        lambda: towline.get("http://127.0.0.1:1/", cookies=cookies),
    ):
        with pytest.raises(towline.UsageError, match=r"is str, not \w+; write str"):
            made()
