"""`wsgi.input`: what has arrived, what is still to come, and what never will."""

from __future__ import annotations

import contextlib
import hashlib
import socket
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from towline.errors import ClientDisconnected

from tests.support.process import running
from tests.support.sockets import read_all
from tests.support.waiting import until
from tests.support.wsgi_server import MODES, plain, serving

TEXT = [("Content-Type", "text/plain")]
LINES = b"one\ntwo\r\n\nlast"


@pytest.fixture(params=MODES.values(), ids=MODES.keys())
def threads(request: pytest.FixtureRequest) -> int:
    number: int = request.param
    return number


def post(body: bytes, *fields: bytes) -> bytes:
    head = [b"POST / HTTP/1.1", b"Host: a", b"Connection: close", b"Content-Length: %d" % len(body), *fields]
    return b"\r\n".join(head) + b"\r\n\r\n" + body


def chunked(*chunks: bytes) -> bytes:
    head = b"POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
    return head + b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks)


def body_of(response: bytes) -> bytes:
    return response.partition(b"\r\n\r\n")[2]


def answering(use: Any) -> Any:
    """An application that answers repr() of what `use` makes of the input."""

    def app(environ: Any, start_response: Any) -> Any:
        used = repr(use(environ["wsgi.input"]))
        start_response("200 OK", TEXT)
        return [used.encode()]

    return app


def readinto(stream: Any) -> Any:
    buffer = bytearray(6)
    return stream.readinto(buffer), bytes(buffer), stream.readinto(memoryview(buffer)[:2]), bytes(buffer)


@pytest.mark.parametrize(
    ("use", "expected"),
    [
        (lambda s: (s.read(), s.read(), s.read(5)), (LINES, b"", b"")),
        (lambda s: (s.read(2), s.read(0), s.read(-1)), (LINES[:2], b"", LINES[2:])),
        (lambda s: (s.read(None), s.read(1)), (LINES, b"")),
        (lambda s: s.read(10_000), LINES),
        (lambda s: [s.readline() for _ in range(5)], [b"one\n", b"two\r\n", b"\n", b"last", b""]),
        (lambda s: [s.readline(2) for _ in range(3)], [b"on", b"e\n", b"tw"]),
        (lambda s: s.readlines(), [b"one\n", b"two\r\n", b"\n", b"last"]),
        (lambda s: s.readlines(0), [b"one\n", b"two\r\n", b"\n", b"last"]),
        (lambda s: (s.readlines(4), s.readlines(5)), ([b"one\n"], [b"two\r\n"])),
        (lambda s: list(s), [b"one\n", b"two\r\n", b"\n", b"last"]),
        (lambda s: iter(s) is s, True),
        (readinto, (6, LINES[:6], 2, LINES[6:8] + LINES[2:6])),
        (lambda s: s.close(), None),
    ],
)
def test_it_is_a_file(threads: int, use: Any, expected: Any) -> None:
    with serving(answering(use), threads=threads) as served:
        whole = served.raw(post(LINES))
        pieces = served.raw(chunked(*(LINES[at : at + 1] for at in range(len(LINES))), b""))
        assert (body_of(whole), body_of(pieces)) == (repr(expected).encode(),) * 2


def test_no_body(threads: int) -> None:
    def use(stream: Any) -> Any:
        return stream.read(), stream.readline(), stream.readlines(), list(stream), stream.read(5)

    with serving(answering(use), threads=threads) as served:
        response = served.raw(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        assert body_of(response) == b"(b'', b'', [], [], b'')"


@pytest.mark.parametrize("size", [65_535, 65_536, 65_537, 200_000, 3_000_000])
def test_bodies_around_and_over_the_window(threads: int, size: int) -> None:
    body = bytes(n % 251 for n in range(4096)) * (size // 4096 + 1)
    body = body[:size]

    def digest(stream: Any) -> Any:
        sha = hashlib.sha256()
        while block := stream.read(10_000):
            sha.update(block)
        return sha.hexdigest()

    with serving(answering(digest), threads=threads) as served:
        expected = repr(hashlib.sha256(body).hexdigest()).encode()
        assert body_of(served.raw(post(body))) == expected
        assert body_of(served.raw(chunked(body[:100], body[100:], b""))) == expected


def test_a_line_longer_than_the_window(threads: int) -> None:
    body = b"x" * 200_000 + b"\nrest"
    with serving(answering(lambda s: (len(s.readline()), s.read())), threads=threads) as served:
        assert body_of(served.raw(post(body))) == b"(200001, b'rest')"


def test_100_continue(threads: int) -> None:
    with serving(answering(lambda s: s.read()), threads=threads) as served, served.connect() as conn:
        head, _, _ = post(b"hello", b"Expect: 100-continue").partition(b"\r\n\r\n")
        conn.sendall(head + b"\r\n\r\n")
        assert conn.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        conn.sendall(b"hello")
        assert read_all(conn).endswith(b"b'hello'")


@pytest.mark.parametrize("sent", [0, 10, 100_000], ids=["nothing", "little", "much"])
@pytest.mark.parametrize("framing", ["length", "chunked"])
def test_a_truncated_body_is_never_a_normal_end(threads: int, sent: int, framing: str) -> None:
    ends: list[Any] = []

    def app(environ: Any, start_response: Any) -> Any:
        try:
            while environ["wsgi.input"].read(4096):
                pass
            ends.append("end")
        except OSError as error:
            ends.append(error)
            raise
        start_response("200 OK", TEXT)
        return [b"never"]

    with serving(app, threads=threads, wsgi_request_buffer=0) as served:
        if framing == "length":
            wire = post(b"x" * 200_000)[: -200_000 + sent]
        else:
            wire = chunked(b"x" * 200_000)
            wire = wire[: wire.index(b"x") + sent]
        response = served.raw(wire, half_close=True)
        assert b" 200 " not in response.partition(b"\r\n")[0]
        if sent > 65_536:
            until(lambda: len(ends) == 1, timeout=5)
            assert isinstance(ends[0], ClientDisconnected)
        # Below the window the application was never called.
        assert "end" not in ends
        assert not [error for _, _, error in served.log if not isinstance(error, ClientDisconnected)]


def test_a_malformed_chunk_is_not_an_end_either(threads: int) -> None:
    ends: list[Any] = []

    def app(environ: Any, start_response: Any) -> Any:
        try:
            ends.append(len(environ["wsgi.input"].read()))
        except OSError as error:
            ends.append(error)
            raise
        start_response("200 OK", TEXT)
        return [b"never"]

    with serving(app, threads=threads, wsgi_request_buffer=0) as served:
        response = served.raw(chunked(b"x" * 100_000) + b"zz\r\n")
        assert response.startswith(b"HTTP/1.1 400 ")
        until(lambda: len(ends) == 1, timeout=5)
        assert isinstance(ends[0], ClientDisconnected)


def test_a_slow_uploader_does_not_stop_others(threads: int) -> None:
    with serving(answering(lambda s: len(s.read())), threads=threads) as served:
        slow = [served.connect() for _ in range(8)]
        for conn in slow:
            conn.sendall(post(b"x" * 60_000)[:-50_000])
        started = time.monotonic()
        for _ in range(5):
            assert body_of(served.raw(post(b"quick"))) == b"5"
        assert time.monotonic() - started < 10
        for conn in slow:
            conn.sendall(b"x" * 50_000)
            assert body_of(read_all(conn)) == b"60000"
            conn.close()


def test_while_a_read_waits_the_others_are_flushed_and_accepted() -> None:
    """Inline mode: one application call at a time, but I/O goes on for every connection."""
    large = b"x" * 30_000_000
    reading = threading.Event()

    def app(environ: Any, start_response: Any) -> Any:
        if environ["REQUEST_METHOD"] == "POST":
            reading.set()
            environ["wsgi.input"].read()
        start_response("200 OK", TEXT)
        return [large if environ["PATH_INFO"] == "/large" else b"small"]

    with serving(app, wsgi_request_buffer=0) as served:
        reader = served.connect()
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        reader.sendall(b"GET /large HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        reader.recv(1)
        uploader = served.connect()
        uploader.sendall(post(b"x" * 200_000)[:-100_000])
        assert reading.wait(20)
        # The large response, which is far bigger than the kernel's buffers, arrives all the same.
        assert len(read_all(reader)) > 30_000_000 - 1
        # A request that comes meanwhile waits for the call under way.
        waiting = served.connect()
        waiting.sendall(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        waiting.settimeout(0.3)
        with pytest.raises(TimeoutError):
            waiting.recv(1)
        waiting.settimeout(20)
        uploader.sendall(b"x" * 100_000)
        assert read_all(uploader).endswith(b"small")
        assert read_all(waiting).endswith(b"small")


def test_a_body_nobody_reads(threads: int) -> None:
    with serving(plain(b"answer"), threads=threads) as served, served.connect() as conn:
        for size in (10, 60_000):
            conn.sendall(post(b"x" * size).replace(b"Connection: close\r\n", b""))
            response = b""
            while not response.endswith(b"answer"):
                response += conn.recv(4096)
        conn.sendall(post(b"last"))
        assert read_all(conn).endswith(b"answer")


def test_another_thread_of_the_application_may_read(threads: int) -> None:
    def use(stream: Any) -> Any:
        lengths: list[int] = []
        reader = threading.Thread(target=lambda: lengths.append(len(stream.read())))
        reader.start()
        reader.join(10)
        return lengths

    with serving(answering(use), threads=threads) as served:
        assert body_of(served.raw(post(b"x" * 500_000))) == b"[500000]"


def test_input_kept_beyond_its_request(threads: int) -> None:
    kept: list[Any] = []

    def app(environ: Any, start_response: Any) -> Any:
        kept.append(environ["wsgi.input"])
        start_response("200 OK", TEXT)
        return [b"ok"]

    with serving(app, threads=threads, wsgi_request_buffer=0) as served:
        with served.connect() as conn:
            conn.sendall(post(b"x" * 100_000))
            read_all(conn)
        with pytest.raises(OSError):
            kept[0].read()


STORING = """
    import hashlib
    PIECE = bytes(range(256)) * 256
    def app(environ, start_response):
        digest = hashlib.sha256(environ["wsgi.input"].read()).hexdigest()
        start_response("200 OK", [("X-Digest", digest)])
        return (PIECE for _ in range(100)) if environ["PATH_INFO"] == "/big" else [b"ok"]
"""


@pytest.mark.parametrize("options", [(), ("--threads", "2")], ids=["inline", "threads"])
@pytest.mark.parametrize("directory", ["absent", "full"])
def test_bodies_are_streamed_without_a_temporary_directory(
    options: tuple[str, ...], directory: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is none, or no space in it: uploads arrive all the same, and so do responses to slow readers."""
    (tmp_path / "storing.py").write_text(textwrap.dedent(STORING))
    prefix = ""
    if directory == "absent":
        monkeypatch.setenv("TMPDIR", "/nonexistent")
    else:
        # Writes over this size fail, after a first part.
        prefix = "import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
        prefix += "resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, resource.RLIM_INFINITY))\n"
    (tmp_path / "limited.py").write_text(f"{prefix}from storing import app\n")
    body = bytes(range(256)) * 8000
    with running("limited:app", *options, cwd=tmp_path) as program, contextlib.ExitStack() as stack:
        slow = stack.enter_context(socket.socket())
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16384)
        slow.settimeout(20)
        slow.connect(("127.0.0.1", program.port))
        slow.sendall(post(b"").replace(b"/ ", b"/big ", 1))
        assert slow.recv(1) == b"H"
        with socket.create_connection(("127.0.0.1", program.port), 20) as conn:
            sender = threading.Thread(target=conn.sendall, args=(post(body),))
            sender.start()
            assert body_of(b"H" + read_all(slow)).count(bytes(range(256))) >= 100 * 255
            response = read_all(conn)
            sender.join(20)
        assert hashlib.sha256(body).hexdigest().encode() in response
