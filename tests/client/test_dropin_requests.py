"""requests on Towline, over real sockets: responses, errors and retries of the mounted adapter."""

from __future__ import annotations

import gzip
import io
import pickle
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.http1_peer import OK, Peer, respond_with, scripted

requests = pytest.importorskip("requests")
urllib3 = pytest.importorskip("urllib3")

import towline.requests  # noqa: E402
from towline.requests import Adapter  # noqa: E402


@pytest.fixture
def session() -> Iterator[Any]:
    with session_with(Adapter()) as created:
        yield created


def session_with(adapter: Any) -> Any:
    created = requests.Session()
    created.trust_env = False
    created.mount("http://", adapter)
    created.mount("https://", adapter)
    return created


def chunked(*parts: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"".join(
        b"%x\r\n%b\r\n" % (len(part), part) for part in (*parts, b"")
    )


def test_the_adapter_is_a_subclass_of_requests_adapter() -> None:
    assert issubclass(Adapter, requests.adapters.BaseAdapter)
    assert towline.requests.__all__ == ["Adapter"]


def test_request_and_response_round_trip(session: Any) -> None:
    fields = (
        b"X-One: 1\r\nx-two: 2\r\nX-Two: 3\r\nContent-Type: text/plain; charset=latin-1\r\nContent-Length: 1"
    )
    with scripted(respond_with(b"HTTP/1.1 200 Quite Fine\r\n" + fields + b"\r\n\r\n\xe9")) as server:
        response = session.get(server.url + "/a b?q=1", headers={"X-Mine": "ä", "x-other": "o"})
    lines = server.heads[0].split(b"\r\n")
    assert lines[0] == b"GET /a%20b?q=1 HTTP/1.1"
    assert lines[1] == b"Host: 127.0.0.1:%d" % server.port
    assert b"X-Mine: \xe4" in lines
    assert b"x-other: o" in lines
    assert (response.status_code, response.reason, response.text) == (200, "Quite Fine", "é")
    assert response.headers["x-two"] == "2, 3"
    assert list(response.headers)[:2] == ["X-One", "x-two"]
    assert response.url == server.url + "/a%20b?q=1"
    assert response.elapsed.total_seconds() > 0


def test_raw_has_urllib3s_surface(session: Any) -> None:
    coded = gzip.compress(b"0123456789")
    fields = b"Content-Encoding: gzip\r\nContent-Length: %d" % len(coded)
    with scripted(respond_with(b"HTTP/1.1 200 OK\r\n" + fields + b"\r\n\r\n" + coded)) as server:
        with session.get(server.url, stream=True) as response:
            raw = response.raw
            assert isinstance(raw, urllib3.HTTPResponse)
            assert (raw.status, raw.reason, raw.version, raw.version_string) == (200, "OK", 11, "HTTP/1.1")
            assert raw.headers["content-encoding"] == "gzip"
            assert raw.getheader("Content-Length") == str(len(coded))
            assert raw.connection.sock.getpeername() == ("127.0.0.1", server.port)
            assert raw.readable()
            with pytest.raises(io.UnsupportedOperation):
                raw.fileno()
            assert not raw.closed
            assert raw.read(3) == coded[:3]
            assert raw.tell() == 3
            assert raw.read() == coded[3:]
            assert raw.read() == b""
            assert raw.closed
            raw.release_conn()
        with session.get(server.url, stream=True) as response:
            assert b"".join(response.raw.stream(4, decode_content=True)) == b"0123456789"
        with session.get(server.url, stream=True) as response:
            response.raw.decode_content = True
            assert io.TextIOWrapper(response.raw).read() == "0123456789"
    assert server.connections == 1


def test_iter_content_is_decoded_and_in_the_requested_sizes(session: Any) -> None:
    coded = gzip.compress(b"0123456789")
    fields = b"Content-Encoding: gzip\r\nContent-Length: %d" % len(coded)
    with scripted(respond_with(b"HTTP/1.1 200 OK\r\n" + fields + b"\r\n\r\n" + coded)) as server:
        parts = list(session.get(server.url, stream=True).iter_content(4))
    assert parts == [b"0123", b"4567", b"89"]
    with scripted(respond_with(chunked(b"one\ntw", b"o\nthree"))) as server:
        assert list(session.get(server.url, stream=True).iter_lines()) == [b"one", b"two", b"three"]
        assert session.get(server.url).content == b"one\ntwo\nthree"


@pytest.mark.parametrize("size", [None, 1024], ids=["as it comes", "in 1024"])
def test_a_chunked_body_is_delivered_as_it_arrives(session: Any, size: int | None) -> None:
    go = threading.Event()

    def handler(peer: Peer) -> None:
        peer.head()
        peer.send(chunked(b"first")[: -len(b"0\r\n\r\n")])
        assert go.wait(5)
        peer.send(b"6\r\nsecond\r\n0\r\n\r\n")

    with scripted(handler) as server, session.get(server.url, stream=True) as response:
        parts = response.iter_content(size)
        assert next(parts) == b"first"
        go.set()
        assert list(parts) == [b"second"]


def test_bodies_of_every_kind_arrive(session: Any, tmp_path: Any) -> None:
    seen: list[bytes] = []

    def handler(peer: Peer) -> None:
        while head := peer.head():
            fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
            if b"transfer-encoding" in fields:
                seen.append(b"|".join(peer.chunks()))
            else:
                seen.append(peer.body(int(fields.get(b"content-length", b"0"))))
            peer.send(OK)

    path = tmp_path / "f"
    path.write_bytes(b"in a file")
    with scripted(handler) as server:
        session.post(server.url, data=b"bytes")
        session.post(server.url, data="text é")
        session.post(server.url, json={"a": 1})
        session.post(server.url, data={"a": "b"})
        session.post(server.url, data=iter([b"one", b"two"]))
        with path.open("rb") as file:
            session.post(server.url, data=file)
        with path.open("rb") as file:
            file.seek(3)
            session.post(server.url, data=file)
        session.post(server.url, data=io.BytesIO(b"in memory"))
        session.post(server.url, files={"f": ("name", b"in a form")})
        session.post(server.url)
    assert b"in a form" in seen.pop(8)
    assert seen == [
        b"bytes",
        "text é".encode(),
        b'{"a": 1}',
        b"a=b",
        b"one|two",
        b"in a file",
        b"a file",
        b"in memory",
        b"",
    ]


def test_cookies_and_redirects_are_handled_by_requests(session: Any) -> None:
    def handler(peer: Peer) -> None:
        while head := peer.head():
            if b"GET /end" in head:
                peer.send(OK)
            else:
                peer.send(
                    b"HTTP/1.1 302 Found\r\nLocation: /end\r\nSet-Cookie: a=1\r\nContent-Length: 0\r\n\r\n"
                )

    with scripted(handler) as server:
        response = session.get(server.url)
        assert (response.text, len(response.history), session.cookies["a"]) == ("hello", 1, "1")
        assert session.get(server.url, allow_redirects=False).status_code == 302
    assert b"Cookie: a=1" in server.heads[1]


def silent(peer: Peer) -> None:
    peer.head()
    peer.closed_by_client()


def close_at_once(peer: Peer) -> None:
    peer.head()


def invalid_response(peer: Peer) -> None:
    peer.head()
    peer.send(b"What is this?\r\n\r\n")
    peer.closed_by_client()


@pytest.mark.parametrize(
    ("handler", "expected"),
    [(silent, "ReadTimeout"), (close_at_once, "ConnectionError"), (invalid_response, "ConnectionError")],
    ids=["silence", "no response", "no HTTP"],
)
def test_failures_of_send(session: Any, handler: Any, expected: str) -> None:
    with scripted(handler) as server, pytest.raises(requests.RequestException) as caught:
        session.get(server.url, timeout=0.3 if expected == "ReadTimeout" else 10)
    assert type(caught.value).__name__ == expected
    assert caught.value.request.url == server.url + "/"


def test_failures_to_connect(session: Any) -> None:
    with pytest.raises(requests.ConnectionError, match="Max retries exceeded") as caught:
        session.get("http://127.0.0.1:1/")
    assert isinstance(caught.value.args[0].reason, urllib3.exceptions.NewConnectionError)
    with pytest.raises(requests.ConnectionError) as caught:
        session.get("http://no-such-name.invalid/")
    assert isinstance(caught.value.args[0].reason, urllib3.exceptions.NameResolutionError)
    with pytest.raises(requests.exceptions.ProxyError):
        session.get("http://a.test/", proxies={"http": "http://127.0.0.1:1"})
    with pytest.raises(requests.exceptions.InvalidProxyURL):
        session.get("http://a.test/", proxies={"http": "http:///nothing"})
    with pytest.raises(ValueError, match="Invalid timeout"):
        session.get("http://127.0.0.1:1/", timeout=(1, 2, 3))
    with pytest.raises(ValueError, match="less than or equal to 0"):
        session.get("http://127.0.0.1:1/", timeout=0)
    with pytest.raises(OSError, match="invalid path: /nowhere"):
        session.get("https://127.0.0.1:1/", verify="/nowhere")


def test_failures_while_the_body_is_read(session: Any) -> None:
    def cut(peer: Peer) -> None:
        peer.head()
        peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf")

    def drip(peer: Peer) -> None:
        cut(peer)
        peer.closed_by_client()

    with scripted(cut) as server:
        with pytest.raises(requests.exceptions.ChunkedEncodingError):
            session.get(server.url)
    with scripted(drip) as server:
        with pytest.raises(requests.ConnectionError, match="Read timed out"):
            # The head must arrive before.
            session.get(server.url, timeout=2)


def test_retries_by_status_and_by_connection() -> None:
    responses = iter(
        [b"HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n"] * 2
        + [OK]
        + [b"HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n"] * 9
    )

    def handler(peer: Peer) -> None:
        while head := peer.head():
            if head.startswith(b"POST"):
                peer.body(4)
            peer.send(next(responses))

    policy = urllib3.Retry(total=3, status_forcelist=[503], backoff_factor=0, allowed_methods=None)
    with scripted(handler) as server, session_with(Adapter(max_retries=policy)) as session:
        response = session.post(server.url, data=io.BytesIO(b"body"))
        assert (response.text, len(response.raw.retries.history), len(server.heads)) == ("hello", 2, 3)
        with pytest.raises(requests.exceptions.RetryError):
            session.get(server.url)
        assert len(server.heads) == 7
    with session_with(Adapter(max_retries=2)) as session, pytest.raises(requests.ConnectionError):
        session.get("http://127.0.0.1:1/")


def test_retry_after_is_waited_for() -> None:
    responses = iter([b"HTTP/1.1 429 Later\r\nRetry-After: 0\r\nContent-Length: 0\r\n\r\n", OK])

    def handler(peer: Peer) -> None:
        while peer.head():
            peer.send(next(responses))

    with scripted(handler) as server, session_with(Adapter(max_retries=urllib3.Retry(1))) as session:
        assert session.get(server.url).text == "hello"


def test_an_iterator_is_not_sent_twice() -> None:
    policy = urllib3.Retry(total=3, status_forcelist=[503], allowed_methods=None, backoff_factor=0)

    def handler(peer: Peer) -> None:
        while peer.head():
            peer.chunks()
            peer.send(b"HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n")

    with scripted(handler) as server, session_with(Adapter(max_retries=policy)) as session:
        assert session.post(server.url, data=iter([b"once"])).status_code == 503
    assert len(server.heads) == 1


def test_through_a_proxy_with_the_headers_of_a_subclass() -> None:
    class CustomAdapter(Adapter):
        def proxy_headers(self, proxy: str) -> dict[str, str]:
            return {**super().proxy_headers(proxy), "X-Proxy": "1"}

        def add_headers(self, request: Any, **arguments: Any) -> None:
            request.headers["X-Added"] = "2"

    with scripted(respond_with(OK)) as proxy, session_with(CustomAdapter()) as session:
        proxies = {"http": f"http://user:pass@127.0.0.1:{proxy.port}"}
        assert session.get("http://a.test/path", proxies=proxies).text == "hello"
    head = proxy.heads[0].lower()
    assert head.startswith(b"get http://a.test/path http/1.1\r\n")
    assert head.count(b"proxy-authorization: basic dxnlcjpwyxnz") == 1
    assert b"x-proxy: 1" in head
    assert b"x-added: 2" in head


def test_pool_block_bounds_the_connections_to_a_host() -> None:
    open_now, max_open, lock = 0, 0, threading.Lock()
    both = threading.Barrier(2)

    def handler(peer: Peer) -> None:
        nonlocal open_now, max_open
        while peer.head():
            with lock:
                open_now += 1
                max_open = max(max_open, open_now)
            # Requests run in pairs: there are two connections, and a request waits for each.
            both.wait(20)
            with lock:
                open_now -= 1
            peer.send(OK)

    adapter = Adapter(pool_maxsize=2, pool_block=True)
    with scripted(handler) as server, session_with(adapter) as session:
        threads = [threading.Thread(target=session.get, args=(server.url,)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
        assert (max_open, server.connections, len(server.heads)) == (2, 2, 8)


def test_many_threads_share_one_session(session: Any) -> None:
    texts: list[str] = []

    def run(url: str) -> None:
        for _ in range(10):
            texts.append(session.get(url).text)

    with scripted(respond_with(OK)) as server:
        threads = [threading.Thread(target=run, args=(server.url,)) for _ in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
    assert texts == ["hello"] * 200


def test_a_session_can_be_closed_and_used_again_and_pickled(session: Any) -> None:
    with scripted(respond_with(OK)) as server:
        assert session.get(server.url).text == "hello"
        session.close()
        assert session.get(server.url).text == "hello"
        assert pickle.loads(pickle.dumps(session)).get(server.url).text == "hello"


def test_a_stream_outlives_its_session_and_idle_connections_do_not() -> None:
    finished: list[bool] = []

    def handler(peer: Peer) -> None:
        while head := peer.head():
            peer.send(chunked(b"one\n", b"two\n") if b"/stream" in head else OK)
        finished.append(True)

    with scripted(handler) as server:
        with session_with(Adapter()) as session:
            session.get(server.url)
            response = session.get(server.url + "/stream", stream=True)
            session.get(server.url)
            lines = response.iter_lines(1)
            assert next(lines) == b"one"
        assert list(lines) == [b"two"]
        del response, lines
        for _ in range(100):
            if len(finished) == server.connections:
                break
            threading.Event().wait(0.02)
        assert len(finished) == server.connections == 2


def test_closing_a_stream_early_frees_its_connection() -> None:
    def handler(peer: Peer) -> None:
        while head := peer.head():
            if b"/endless" not in head:
                peer.send(OK)
                continue
            peer.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            while True:
                peer.send(b"400\r\n" + bytes(1024) + b"\r\n")

    with scripted(handler) as server, session_with(Adapter(pool_maxsize=1, pool_block=True)) as session:
        with session.get(server.url + "/endless", stream=True) as response:
            next(response.iter_content(100))
        assert session.get(server.url, timeout=5).text == "hello"


def test_socket_options_and_source_address_come_through_init_poolmanager() -> None:
    class CustomAdapter(Adapter):
        def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
            options = [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)]
            super().init_poolmanager(*args, socket_options=options, source_address=("127.0.0.1", 0), **kwargs)

    with scripted(respond_with(OK)) as server, session_with(CustomAdapter()) as session:
        assert session.get(server.url).text == "hello"
    with pytest.raises(TypeError, match="unheard_of"):
        Adapter().init_poolmanager(1, 1, unheard_of=True)
