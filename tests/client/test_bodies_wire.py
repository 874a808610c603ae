"""Bodies over real sockets, through both clients: what is sent arrives, what is streamed is pulled and decoded."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import io
import json
import threading
import zlib
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import towline
import trio

BODY = b"".join(b"%d " % number for number in range(50_000))


class Server(ThreadingHTTPServer):
    """GET returns the chunks of `responses[path]`; POST returns a description of the received body."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.responses: dict[str, tuple[str, Callable[[], Iterable[bytes]]]] = {}
        self.sent = 0
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    def add(self, path: str, pieces: Callable[[], Iterable[bytes]], coding: str = "identity") -> str:
        self.responses[path] = (coding, pieces)
        return f"http://127.0.0.1:{self.server_port}{path}"

    @property
    def upload(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/upload"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignores connections that a client closes early."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = 0
    server: Server

    def do_GET(self) -> None:
        coding, pieces = self.server.responses[self.path]
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.send_header("Content-Encoding", coding)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for piece in pieces():
            self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            self.server.sent += len(piece)
        self.wfile.write(b"0\r\n\r\n")

    def do_POST(self) -> None:
        body = self._body()
        received = {
            "size": len(body),
            "hash": hashlib.sha256(body).hexdigest(),
            "length": self.headers["content-length"],
            "coding": self.headers["transfer-encoding"],
            "type": self.headers["content-type"],
        }
        response = json.dumps(received).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(response)))
        self.end_headers()
        self.wfile.write(response)

    def _body(self) -> bytes:
        if self.headers["transfer-encoding"] != "chunked":
            return self.rfile.read(int(self.headers["content-length"] or 0))
        pieces = []
        while size := int(self.rfile.readline(), 16):
            pieces.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(pieces)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    created = Server()
    yield created
    created.shutdown()
    created.server_close()


@pytest.fixture(params=["sync", "asyncio", "trio"])
def backend(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def run(backend: str, main: Callable[[], Any]) -> Any:
    return trio.run(main) if backend == "trio" else asyncio.run(main())


def fetched(backend: str, url: str, **options: Any) -> Any:
    """The response of a plain GET."""
    if backend == "sync":
        with towline.Client(**options) as client:
            return client.get(url)

    async def main() -> Any:
        async with towline.AsyncClient(**options) as client:
            return await client.get(url)

    return run(backend, main)


def streamed(backend: str, url: str, kind: str, items: list[Any], **options: Any) -> None:
    """Appends the items of `iter_<kind>` to `items` until the list is `full`."""
    if backend == "sync":
        with towline.Client(**options) as client, client.stream("GET", url) as response:
            for item in getattr(response, f"iter_{kind}")():
                items.append(item)
                if getattr(items, "full", False):
                    return
        return

    async def main() -> None:
        async with towline.AsyncClient(**options) as client, client.stream("GET", url) as response:
            async for item in getattr(response, f"aiter_{kind}")():
                items.append(item)
                if getattr(items, "full", False):
                    return

    run(backend, main)


def posted(backend: str, url: str, **arguments: Any) -> Any:
    if backend == "sync":
        with towline.Client() as client:
            return client.post(url, **arguments).json()

    async def main() -> Any:
        async with towline.AsyncClient() as client:
            return (await client.post(url, **arguments)).json()

    return run(backend, main)


def cut(data: bytes, size: int) -> Callable[[], Iterable[bytes]]:
    return lambda: (data[start : start + size] for start in range(0, len(data), size))


CODED = [
    ("gzip", gzip.compress(BODY), BODY),
    ("deflate", zlib.compress(BODY), BODY),
    ("gzip, gzip", gzip.compress(gzip.compress(BODY)), BODY),
    ("br", bytes.fromhex("0b0280") + b"hello" + b"\x03", b"hello"),
    ("zstd", bytes.fromhex("28b52ffd2005290000") + b"hello", b"hello"),
]


@pytest.mark.parametrize(("coding", "wire", "body"), CODED)
def test_codings(backend: str, server: Server, coding: str, wire: bytes, body: bytes) -> None:
    url = server.add(f"/{coding.replace(', ', '-')}", cut(wire, 7000), coding)
    response = fetched(backend, url)
    assert (response.content, response.text) == (body, body.decode())
    pieces: list[bytes] = []
    streamed(backend, url, "bytes", pieces)
    assert b"".join(pieces) == body
    raw: list[bytes] = []
    streamed(backend, url, "raw", raw)
    assert b"".join(raw) == wire


def test_a_body_that_ends_inside_its_coding(backend: str, server: Server) -> None:
    url = server.add("/short", cut(gzip.compress(BODY)[:-4], 5000), "gzip")
    with pytest.raises(towline.DecodingError, match="ends inside its gzip"):
        fetched(backend, url)
    pieces: list[bytes] = []
    with pytest.raises(towline.DecodingError, match="ends inside its gzip"):
        streamed(backend, url, "bytes", pieces)
    assert b"".join(pieces) == BODY


def test_a_bound_on_what_is_decoded(backend: str, server: Server) -> None:
    url = server.add("/bomb", cut(gzip.compress(bytes(50 << 20)), 5000), "gzip")
    with pytest.raises(towline.DecompressionLimit, match="1000000 bytes"):
        fetched(backend, url, max_decompressed_size=1_000_000)
    pieces: list[bytes] = []
    with pytest.raises(towline.DecompressionLimit):
        streamed(backend, url, "bytes", pieces, max_decompressed_size=1_000_000)
    assert sum(map(len, pieces)) == 1_000_000


class BoundedList(list[Any]):
    """List that is `full` with `max_items` items."""

    def __init__(self, max_items: int) -> None:
        super().__init__()
        self._max_items = max_items

    @property
    def full(self) -> bool:
        return len(self) >= self._max_items


def test_closing_early_decodes_nothing_more(backend: str, server: Server) -> None:
    # After the first member follow bytes that would be an error if they were decoded.
    wire = gzip.compress(BODY[:100]) + b"\x1f\x8bnonsense"
    url = server.add("/early", lambda: [wire[:-10], wire[-10:]], "gzip")
    items = BoundedList(1)
    streamed(backend, url, "bytes", items)
    assert items == [BODY[:100]]


EVENTS = b"\xef\xbb\xbf: hello\r\nevent: add\rdata: 1\ndata: \xc3\xa9\r\n\r\nid: 7\ndata: {}\n\ndata: cut off"


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_events(backend: str, server: Server, size: int) -> None:
    events: list[towline.ServerSentEvent] = []
    streamed(backend, server.add(f"/events{size}", cut(EVENTS, size)), "sse", events)
    assert events == [towline.ServerSentEvent("add", "1\né"), towline.ServerSentEvent(data="{}", id="7")]


def test_an_event_is_delivered_when_it_is_sent(backend: str, server: Server) -> None:
    """The server continues only when the reader has received the event before."""
    had = threading.Semaphore(0)

    def pieces() -> Iterator[bytes]:
        for number in range(3):
            yield b"data: %d\n\n" % number
            if not had.acquire(timeout=10):
                yield b"data: the event before was held back\n\n"

    class Recording(list[Any]):
        def append(self, item: Any) -> None:
            super().append(item.data)
            had.release()

    events = Recording()
    streamed(backend, server.add("/tokens", pieces), "sse", events)
    assert events == ["0", "1", "2"]


def endless(piece: bytes) -> Callable[[], Iterable[bytes]]:
    return lambda: (piece for _ in range(10_000))


def test_an_event_without_end(backend: str, server: Server) -> None:
    events: list[Any] = []
    with pytest.raises(towline.DecodingError, match="longer than 10485760 bytes"):
        streamed(backend, server.add("/endless", endless(b"data: " + b"x" * 65_000 + b"\n")), "sse", events)
    assert events == []


def test_a_line_without_end(backend: str, server: Server) -> None:
    with pytest.raises(towline.DecodingError, match="a line is longer than 65536 bytes"):
        streamed(backend, server.add("/line", endless(b"x" * 65_000)), "lines", [])


def test_lines_and_ndjson(backend: str, server: Server) -> None:
    wire = b'{"a": 1}\r\n\r\n[2, "\xc3\xa9"]\r3\n4'
    url = server.add("/ndjson", cut(wire, 5), "identity")
    lines: list[str] = []
    streamed(backend, url, "lines", lines)
    assert lines == ['{"a": 1}', "", '[2, "é"]', "3", "4"]
    values: list[Any] = []
    streamed(backend, url, "ndjson", values)
    assert values == [{"a": 1}, [2, "é"], 3, 4]


def test_a_reader_that_stops_stops_the_server(backend: str, server: Server) -> None:
    server.sent = 0
    items = BoundedList(2)
    streamed(backend, server.add("/fast", endless(b"data: " + b"x" * 1000 + b"\n\n")), "sse", items)
    assert server.sent < 8 << 20  # capacity of two sockets and the window


class Pieces:
    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._pieces()

    async def _pieces(self) -> AsyncIterator[bytes]:
        for start in range(0, len(BODY), 9000):
            yield BODY[start : start + 9000]


def check(received: Any, body: bytes, length: bool) -> None:
    assert (received["size"], received["hash"]) == (len(body), hashlib.sha256(body).hexdigest())
    assert (received["length"], received["coding"]) == (
        (str(len(body)), None) if length else (None, "chunked")
    )


def test_uploads(backend: str, server: Server, tmp_path: Path) -> None:
    url = server.upload
    check(posted(backend, url, content=BODY), BODY, True)
    check(posted(backend, url, content=BODY.decode()), BODY, True)
    check(posted(backend, url, content=cut(BODY, 7000)()), BODY, False)
    check(posted(backend, url, content=list(cut(BODY, 7000)())), BODY, False)
    if backend != "sync":
        check(posted(backend, url, content=Pieces()), BODY, False)
    (tmp_path / "file").write_bytes(BODY)
    with (tmp_path / "file").open("rb") as file:
        check(posted(backend, url, content=file), BODY, True)
        file.seek(1000)
        check(posted(backend, url, content=file), BODY[1000:], True)
    check(posted(backend, url, content=io.BytesIO(BODY)), BODY, True)


def test_large_uploads(backend: str, server: Server, tmp_path: Path) -> None:
    body = BODY * 60  # 17 MB
    check(posted(backend, server.upload, content=body), body, True)
    (tmp_path / "file").write_bytes(body)
    with (tmp_path / "file").open("rb") as file:
        check(posted(backend, server.upload, content=file), body, True)


def test_forms(backend: str, server: Server) -> None:
    received = posted(backend, server.upload, data={"a": ["1", "2"], "b": "é"})
    check(received, b"a=1&a=2&b=%C3%A9", True)
    assert received["type"] == "application/x-www-form-urlencoded"
    received = posted(backend, server.upload, json={"a": [1, "é"]})
    check(received, '{"a":[1,"é"]}'.encode(), True)
    assert received["type"] == "application/json"


@pytest.mark.parametrize("size", [10, 1_000_000])
def test_multipart(backend: str, server: Server, size: int) -> None:
    headers = {"Content-Type": "multipart/form-data; boundary=edge"}
    content = bytes(size)
    expected = (
        b'--edge\r\nContent-Disposition: form-data; name="a"\r\n\r\n1\r\n--edge\r\n'
        b'Content-Disposition: form-data; name="f"; filename="n.bin"\r\n'
        b"Content-Type: application/octet-stream\r\n\r\n" + content + b"\r\n--edge--\r\n"
    )
    for file in (content, io.BytesIO(content)):
        received = posted(
            backend, server.upload, data={"a": "1"}, files={"f": ("n.bin", file)}, headers=headers
        )
        check(received, expected, True)
        assert received["type"] == "multipart/form-data; boundary=edge"
