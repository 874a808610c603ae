"""HTTP/2 under WSGI: calls of one connection in one thread and in several."""

from __future__ import annotations

import gzip
import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.feature_server import serving
from tests.support.http2_client import Client, connected_client
from tests.support.waiting import until

MODES = pytest.mark.parametrize("kind", ["wsgi", "wsgi-threads"])


@MODES
def test_the_environ(kind: str) -> None:
    seen: list[dict[str, Any]] = []

    def app(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        seen.append(dict(environ))
        start_response("200 OK", [])
        return [b""]

    with connected_client(kind, app) as client:
        client.fetch("PATCH", "/a%20b?c=d", headers=[("x-a", "1")])
    environ = seen[0]
    assert environ["SERVER_PROTOCOL"] == "HTTP/2.0"
    assert (environ["REQUEST_METHOD"], environ["PATH_INFO"], environ["QUERY_STRING"]) == (
        "PATCH",
        "/a b",
        "c=d",
    )
    assert (environ["HTTP_HOST"], environ["HTTP_X_A"]) == ("test", "1")
    assert environ["wsgi.multithread"] == (kind == "wsgi-threads")


def test_threads_serve_streams_of_one_connection_at_once() -> None:
    together = threading.Barrier(4, timeout=20)

    def app(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        together.wait()
        start_response("200 OK", [])
        return [threading.current_thread().name.encode()]

    with connected_client("wsgi-threads", app, threads=4) as client:
        streams = [client.begin("GET", "/") for _ in range(4)]
        assert len({response.body for response in client.finish(*streams)}) == 4


@MODES
def test_requests_behind_a_busy_call_wait_in_order(kind: str) -> None:
    order: list[str] = []

    def app(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        environ["wsgi.input"].read()
        order.append(environ["PATH_INFO"])
        start_response("200 OK", [])
        return [b"ok"]

    with connected_client(kind, app, wsgi_request_buffer=0) as client:
        # Longer than what is awaited before the call, so that it waits inside.
        first = client.begin("POST", "/first", end=False)
        client.write(first, b"x" * 100_000)
        others = [client.begin("GET", f"/{number}") for number in range(20)]
        if kind == "wsgi-threads":
            client.finish(*others)
        client.write(first, b"x", end=True)
        client.finish(first, *others)
    expected = [f"/{number}" for number in range(20)]
    assert [path for path in order if path != "/first"] == expected
    assert order[0 if kind == "wsgi" else -1] == "/first"


@MODES
def test_a_reset_ends_reading_and_writing(kind: str) -> None:
    ended: list[str] = []

    def app(environ: dict[str, Any], start_response: Any) -> Iterator[bytes]:
        try:
            if environ["PATH_INFO"] == "/reads":
                ended.append("called")
                environ["wsgi.input"].read()
            start_response("200 OK", [])
            while environ["PATH_INFO"] != "/fine":
                yield b"x" * 10_000
            yield b"fine"
        except OSError as error:
            ended.append(f"{environ['PATH_INFO']} {type(error).__name__}")
        except GeneratorExit:
            ended.append(f"{environ['PATH_INFO']} closed")
            raise

    with connected_client(kind, app, wsgi_request_buffer=0) as client:
        client.reads = set()
        reads = client.begin("POST", "/reads", end=False)
        client.write(reads, b"x" * 100_000)
        until(lambda: "called" in ended)
        client.reset(reads)
        until(lambda: "/reads ClientDisconnected" in ended)
        writes = client.begin("GET", "/writes")
        client.until_body(writes, 65535)
        client.reset(writes)
        until(lambda: "/writes closed" in ended)
        client.reads = None
        assert client.fetch(path="/fine").body == b"fine"


@MODES
def test_a_request_taken_back_before_its_turn_is_not_served(kind: str) -> None:
    served: list[str] = []
    go = threading.Event()

    def app(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        environ["wsgi.input"].read()
        served.append(environ["PATH_INFO"])
        start_response("200 OK", [])
        return [b"ok"]

    with connected_client(kind, app) as client:
        # The body never comes as far as to be served.
        blocked = client.begin("POST", "/taken-back", end=False)
        client.write(blocked, b"some")
        client.reset(blocked)
        assert client.fetch(path="/after").body == b"ok"
    go.set()
    assert served == ["/after"]


@MODES
def test_write_early_hints_and_a_generator(kind: str) -> None:
    def app(environ: dict[str, Any], start_response: Any) -> Iterator[bytes]:
        environ["wsgi.early_hints"]([("Link", "</a.css>; rel=preload")])
        write = start_response("200 OK", [])
        write(b"one ")
        yield b"two "
        yield b"three"

    with connected_client(kind, app) as client:
        response = client.fetch()
    assert response.interim == [(103, {"link": "</a.css>; rel=preload"})]
    assert response.body == b"one two three"


@MODES
def test_a_block_is_sent_before_the_next_is_requested(kind: str) -> None:
    go = threading.Event()

    def app(environ: dict[str, Any], start_response: Any) -> Iterator[bytes]:
        start_response("200 OK", [])
        yield b"first"
        assert go.wait(20)
        yield b"second"

    with connected_client(kind, app) as client:
        stream = client.begin("GET", "/")
        client.until(lambda: client.exchanges[stream].body == b"first")
        go.set()
        assert client.finish(stream)[0].body == b"firstsecond"


@MODES
def test_a_client_that_vanishes_frees_the_threads(kind: str) -> None:
    def app(environ: dict[str, Any], start_response: Any) -> Iterator[bytes]:
        start_response("200 OK", [])
        if environ["PATH_INFO"] == "/endless":
            while True:
                yield b"x" * 10_000
        yield b"fine"

    with serving(kind, app) as server:
        for _ in range(3):
            with Client((server.host, server.port)) as client:
                client.reads = set()
                streams = [client.begin("GET", "/endless") for _ in range(4)]
                client.until_body(streams[0], 65535)
                client.disconnect()
        with Client((server.host, server.port)) as client:
            assert client.fetch().body == b"fine"


def test_many_streams_over_a_few_threads() -> None:
    def app(environ: dict[str, Any], start_response: Any) -> Any:
        body = environ["wsgi.input"].read()
        start_response("200 OK", [])
        return iter([body[:1000], body[1000:]])

    with serving("wsgi-threads", app, threads=3) as server:
        clients = [Client((server.host, server.port)) for _ in range(4)]
        for _ in range(5):
            uploads = []
            for client in clients:
                for number in range(50):
                    stream = client.begin("POST", "/", end=False)
                    client.write(stream, b"%d" % number * 900, end=True)
                    uploads.append((client, stream, b"%d" % number * 900))
            for client, stream, body in uploads:
                assert client.finish(stream)[0].body == body
        for client in clients:
            client.close()


@MODES
@pytest.mark.parametrize("compress", [(), ("gzip",)], ids=["plain", "gzip"])
def test_streams_that_are_not_read_delay_no_other(kind: str, compress: tuple[str, ...]) -> None:
    piece = os.urandom(65536)

    def app(environ: dict[str, Any], start_response: Any) -> Any:
        start_response("200 OK", [("Content-Type", "text/plain")])
        return (piece for _ in range(50)) if environ["PATH_INFO"] == "/big" else [b"fine"]

    with connected_client(kind, app, compress=compress) as client:
        client.reads = set()
        big = [client.begin("GET", "/big", [("accept-encoding", "gzip")]) for _ in range(5)]
        client.until(lambda: len(client.exchanges[big[0]].body) > 60_000)
        for _ in range(10):
            fine = client.begin("GET", "/fine")
            client.reads.add(fine)
            assert client.finish(fine)[0].body == b"fine"
        for stream in big:
            client.read(stream)
        for exchange in client.finish(*big):
            body = gzip.decompress(exchange.body) if compress else exchange.body
            assert body == piece * 50


def test_parallel_uploads_share_a_window() -> None:
    """More bytes together than the window of the connection, and one thread."""
    size, count = 200_000, 12

    def app(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        length = len(environ["wsgi.input"].read())
        start_response("200 OK", [])
        return [str(length).encode()]

    with connected_client("wsgi", app, http2_initial_connection_window_size=256 * 1024) as client:
        streams = [client.begin("POST", f"/{number}", end=False) for number in range(count)]
        for part in range(0, size, 10_000):
            for stream in streams:
                client.write(stream, b"x" * 10_000, end=part + 10_000 == size)
        assert [exchange.body for exchange in client.finish(*streams)] == [b"200000"] * count
