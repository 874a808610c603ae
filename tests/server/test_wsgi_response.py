"""From what an application returns to bytes on the wire (PEP 3333)."""

from __future__ import annotations

import gzip
import io
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.waiting import until
from tests.support.wsgi_server import MODES, plain, serving

GET = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
HEAD = GET.replace(b"GET", b"HEAD")
TEXT = [("Content-Type", "text/plain")]


@pytest.fixture(params=MODES.values(), ids=MODES.keys())
def threads(request: pytest.FixtureRequest) -> int:
    number: int = request.param
    return number


def split(response: bytes) -> tuple[bytes, list[bytes], bytes]:
    head, _, body = response.partition(b"\r\n\r\n")
    line, *fields = head.split(b"\r\n")
    return line, [field.lower() for field in fields], body


class Closing:
    """An iterable that counts its close()."""

    def __init__(self, pieces: Any) -> None:
        self.pieces = iter(pieces)
        self.closed = 0

    def __iter__(self) -> Closing:
        return self

    def __next__(self) -> bytes:
        piece: bytes = next(self.pieces)
        return piece

    def close(self) -> None:
        self.closed += 1


@pytest.mark.parametrize(
    ("result", "body"),
    [
        ([b"one"], b"one"),
        ([b"one", b"", b"two"], b"onetwo"),
        ((b"one", b"two"), b"onetwo"),
        ([], b""),
        ([b"x" * 300_000], b"x" * 300_000),
        ([b"x" * 5000, b"y", b"z" * 70_000], b"x" * 5000 + b"y" + b"z" * 70_000),
    ],
    ids=["one", "several", "tuple", "none", "large", "mixed"],
)
def test_lists_have_a_length(threads: int, result: Any, body: bytes) -> None:
    def app(environ: Any, start_response: Any) -> Any:
        start_response("201 Made Up", TEXT)
        return result

    with serving(app, threads=threads) as served:
        line, fields, received = split(served.raw(GET))
        assert line == b"HTTP/1.1 201 Made Up"
        assert b"content-length: %d" % len(body) in fields
        assert b"content-type: text/plain" in fields
        assert b"server: towline" in fields
        assert any(field.startswith(b"date: ") for field in fields)
        assert received == body


def test_generators_are_chunked_and_closed(threads: int) -> None:
    made: list[Closing] = []

    def app(environ: Any, start_response: Any) -> Any:
        start_response("200 OK", TEXT)
        made.append(Closing([b"", b"one", b"", b"two"]))
        return made[-1]

    with serving(app, threads=threads) as served:
        line, fields, body = split(served.raw(GET))
        assert line == b"HTTP/1.1 200 OK"
        assert b"transfer-encoding: chunked" in fields
        assert body == b"3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n"
        until(lambda: made[0].closed == 1, timeout=5)
        assert served.raw(GET.replace(b"1.1", b"1.0")).endswith(b"\r\n\r\nonetwo")


def test_a_generator_may_start_late_and_announce_its_length(threads: int) -> None:
    def app(environ: Any, start_response: Any) -> Iterator[bytes]:
        yield b""
        start_response("200 OK", [*TEXT, ("Content-Length", "6")])
        yield b"one"
        yield b"two"

    with serving(app, threads=threads) as served:
        _, fields, body = split(served.raw(GET))
        assert b"content-length: 6" in fields
        assert body == b"onetwo"


def test_a_response_that_does_not_stream_gets_a_length(threads: int) -> None:
    """Django's `HttpResponse` has no length of its own without `CommonMiddleware`."""

    class Whole(Closing):
        streaming = False

    made: list[Whole] = []

    def app(environ: Any, start_response: Any) -> Any:
        start_response("200 OK", TEXT)
        made.append(Whole([b"one", b"", b"two"]))
        return made[-1]

    with serving(app, threads=threads) as served:
        _, fields, body = split(served.raw(GET))
        assert b"content-length: 6" in fields
        assert body == b"onetwo"
        until(lambda: made[0].closed == 1, timeout=5)


def test_an_iterable_of_one_gets_a_length(threads: int) -> None:
    class One:
        def __len__(self) -> int:
            return 1

        def __iter__(self) -> Iterator[bytes]:
            return iter([b"alone"])

    def app(environ: Any, start_response: Any) -> Any:
        start_response("200 OK", TEXT)
        return One()

    with serving(app, threads=threads) as served:
        _, fields, body = split(served.raw(GET))
        assert b"content-length: 5" in fields
        assert body == b"alone"


def test_write_sends_before_it_returns(threads: int) -> None:
    def app(environ: Any, start_response: Any) -> Any:
        write = start_response("200 OK", TEXT)
        write(b"one")
        write(b"")
        write(b"two")
        return [b"three"]

    with serving(app, threads=threads) as served:
        _, _, body = split(served.raw(GET))
        assert body == b"3\r\none\r\n3\r\ntwo\r\n5\r\nthree\r\n0\r\n\r\n"


@pytest.mark.parametrize("result", [[b"12345"], [], iter([b"12345"])], ids=["list", "empty", "iterator"])
def test_head_has_the_length_and_no_body(threads: int, result: Any) -> None:
    def app(environ: Any, start_response: Any) -> Any:
        start_response("200 OK", [*TEXT, ("Content-Length", "5")])
        return result

    with serving(app, threads=threads) as served:
        line, fields, body = split(served.raw(HEAD))
        assert line == b"HTTP/1.1 200 OK"
        assert b"content-length: 5" in fields
        assert body == b""


@pytest.mark.parametrize("status", ["204 No Content", "304 Not Modified"])
def test_statuses_without_body(threads: int, status: str) -> None:
    def app(environ: Any, start_response: Any) -> Any:
        start_response(status, [("ETag", '"x"')])
        return [b""]

    with serving(app, threads=threads) as served:
        two = GET.replace(b"Connection: close\r\n", b"") + GET
        response = served.raw(two)
        assert response.count(b"HTTP/1.1 " + status.encode()) == 2
        assert b"transfer-encoding" not in response.lower()


def bad(status: Any, headers: Any) -> Any:
    def app(environ: Any, start_response: Any) -> Any:
        start_response(status, headers)
        return [b"never"]

    return app


@pytest.mark.parametrize(
    ("status", "headers"),
    [
        ("OK", TEXT),
        ("20 OK", TEXT),
        ("200OK", TEXT),
        ("100 Continue", TEXT),
        ("200 O\nK", TEXT),
        ("200 \u0119", TEXT),
        (b"200 OK", TEXT),
        ("200 OK", tuple(TEXT)),
        ("200 OK", [["a", "b"]]),
        ("200 OK", [("a", "b", "c")]),
        ("200 OK", [("a", 1)]),
        ("200 OK", [("a", b"b")]),
        ("200 OK", [("a b", "c")]),
        ("200 OK", [("", "c")]),
        ("200 OK", [("a", "b\r\nc: d")]),
        ("200 OK", [("a", "b\0")]),
        ("200 OK", [("a", "\u20ac")]),
        ("200 OK", [("Content-Length", "+5")]),
        ("200 OK", [("Content-Length", "")]),
        ("200 OK", [("Content-Length", "5"), ("Content-Length", "6")]),
    ],
)
def test_wrong_heads_are_refused(status: Any, headers: Any) -> None:
    with serving(bad(status, headers)) as served:
        line, _, body = split(served.raw(GET))
        assert line == b"HTTP/1.1 500 Internal Server Error"
        assert body == b"Internal Server Error"
        assert len(served.log) == 1
        assert isinstance(served.log[0][2], (ValueError, TypeError))


def test_hop_by_hop_headers_are_dropped(threads: int) -> None:
    """As in Gunicorn: of them only `Connection: close` counts."""

    def app(environ: Any, start_response: Any) -> Any:
        option = environ["PATH_INFO"][1:]
        headers = [
            ("Transfer-Encoding", "chunked"),
            ("Keep-Alive", "timeout=5"),
            ("Upgrade", "x"),
            ("TE", "a"),
        ]
        start_response("200 OK", [*TEXT, *headers, ("Connection", option)])
        return [b"ok"]

    with serving(app, threads=threads) as served, served.connect() as conn:
        for option in ("keep-alive", "Upgrade, CLOSE"):
            conn.sendall(b"GET /%s HTTP/1.1\r\nHost: a\r\n\r\n" % option.replace(" ", "%20").encode())
            response = conn.recv(4096)
            line, fields, body = split(response)
            assert (line, body) == (b"HTTP/1.1 200 OK", b"ok")
            names = [field.partition(b":")[0] for field in fields]
            closes = [b"connection"] if "CLOSE" in option else []
            assert [name for name in names if name in HOP_BY_HOP] == closes
        assert conn.recv(1) == b""
        assert not served.log


HOP_BY_HOP = {b"connection", b"keep-alive", b"transfer-encoding", b"upgrade", b"te"}


@pytest.mark.parametrize("result", [b"bytes", ["text"], [bytearray(b"x")], None, Closing])
def test_wrong_bodies_are_refused(threads: int, result: Any) -> None:
    def app(environ: Any, start_response: Any) -> Any:
        start_response("200 OK", TEXT)
        return Closing(["text"]) if result is Closing else result

    with serving(app, threads=threads) as served:
        assert served.raw(GET).startswith(b"HTTP/1.1 500 ")
        assert isinstance(served.log[0][2], TypeError)


def test_no_start_response(threads: int) -> None:
    with serving(lambda environ, start_response: [b"x"], threads=threads) as served:
        assert served.raw(GET).startswith(b"HTTP/1.1 500 ")
        assert "start_response" in str(served.log[0][2])


def test_an_exception_before_the_head_is_a_500(threads: int) -> None:
    def app(environ: Any, start_response: Any) -> Any:
        if environ["PATH_INFO"] == "/fine":
            start_response("200 OK", TEXT)
            return [b"fine"]
        raise LookupError("broken")

    with serving(app, threads=threads) as served:
        wire = b"GET /no HTTP/1.1\r\nHost: a\r\n\r\n" + GET.replace(b"/ ", b"/fine ", 1)
        response = served.raw(wire)
        assert response.startswith(b"HTTP/1.1 500 Internal Server Error\r\n")
        assert response.endswith(b"fine"), "the connection goes on"
        level, text, error = served.log[0]
        assert (level, str(error)) == (40, "broken")
        assert "GET /no" in text
        assert error is not None
        assert error.__traceback__ is not None


def test_an_exception_after_the_head_cuts_the_response(threads: int) -> None:
    made: list[Closing] = []

    def pieces() -> Iterator[bytes]:
        yield b"one"
        raise LookupError("broken")

    def app(environ: Any, start_response: Any) -> Any:
        start_response("200 OK", TEXT)
        made.append(Closing(pieces()))
        return made[-1]

    with serving(app, threads=threads) as served:
        response = served.raw(GET)
        assert response.endswith(b"3\r\none\r\n")
        assert b"0\r\n\r\n" not in response
        until(lambda: made[0].closed == 1, timeout=5)
        assert isinstance(served.log[0][2], LookupError)


class Once:
    """An iterable without a length, which can be iterated again."""

    def __init__(self, pieces: list[bytes]) -> None:
        self.pieces = pieces

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.pieces)


def test_too_short_and_too_long(threads: int) -> None:
    def app(environ: Any, start_response: Any) -> Any:
        write = start_response("200 OK", [*TEXT, ("Content-Length", "5")])
        if environ["PATH_INFO"].startswith("/write"):
            write(BODIES[environ["PATH_INFO"]][0])
            return []
        return BODIES.get(environ["PATH_INFO"], [b"12345"])

    with serving(app, threads=threads) as served:
        for number, path in enumerate(BODIES, 1):
            # Without `Connection: close` in the request: the server closes if the client lacks a part.
            is_short = "short" in path
            wire = f"GET {path} HTTP/1.1\r\nHost: a\r\n\r\n"
            if not is_short:
                wire += "GET /exact HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
            response = served.raw(wire.encode())
            line, _, body = split(response)
            if not is_short:
                body, _, other = body.partition(b"HTTP/1.1 200 OK\r\n")
                assert other.endswith(b"12345")
            assert (line, body) == (b"HTTP/1.1 200 OK", b"123" if is_short else b"12345")
            until(lambda number=number: len(served.log) == number, timeout=5)
            assert served.log[-1][0] == 40
            assert f"GET {path}" in served.log[-1][1]


BODIES: dict[str, Any] = {
    "/short/list": [b"123"],
    "/short/tuple": (b"1", b"23"),
    "/short/iterator": Once([b"12", b"3"]),
    "/long/list": [b"12345678"],
    "/long/pieces": [b"123", b"45", b"678"],
    "/long/iterator": Once([b"12345", b"678"]),
    "/write/short": [b"123"],
    "/write/long": [b"12345678"],
}


def test_exc_info_replaces_the_head_until_it_is_sent(threads: int) -> None:
    def app(environ: Any, start_response: Any) -> Any:
        start_response("200 OK", TEXT)
        try:
            raise LookupError("broken")
        except LookupError:
            start_response("503 Sorry", TEXT, sys.exc_info())
        return [b"sorry"]

    with serving(app, threads=threads) as served:
        line, _, body = split(served.raw(GET))
        assert (line, body) == (b"HTTP/1.1 503 Sorry", b"sorry")
        assert served.log == []


def test_exc_info_after_the_head_raises(threads: int) -> None:
    def app(environ: Any, start_response: Any) -> Any:
        start_response("200 OK", TEXT)(b"one")
        try:
            raise LookupError("broken")
        except LookupError:
            start_response("503 Sorry", TEXT, sys.exc_info())
        return [b"never"]

    with serving(app, threads=threads) as served:
        response = served.raw(GET)
        assert response.endswith(b"3\r\none\r\n")
        assert isinstance(served.log[0][2], LookupError)


def test_a_second_head_needs_exc_info() -> None:
    def app(environ: Any, start_response: Any) -> Any:
        start_response("200 OK", TEXT)
        start_response("200 OK", TEXT)
        return [b"never"]

    with serving(app) as served:
        assert served.raw(GET).startswith(b"HTTP/1.1 500 ")


def test_start_response_is_made_once_while_nobody_keeps_it() -> None:
    """A new one for every request took a third of the server's own instructions."""

    def app(environ: Any, start_response: Any) -> Any:
        start_response("200 OK", [])
        return [b"%d" % id(start_response)]

    with serving(app) as served:
        assert len({served.request().content for _ in range(5)}) == 1  # type: ignore[attr-defined]


def test_a_kept_start_response_is_over(threads: int) -> None:
    kept: list[Any] = []
    complaints: list[str] = []

    def app(environ: Any, start_response: Any) -> Any:
        for old_start, old_hints in kept:
            for call in (lambda: old_start("200 OK", TEXT), lambda: old_hints(TEXT)):  # noqa: B023
                try:
                    call()
                except RuntimeError as error:
                    complaints.append(str(error))
        kept.append((start_response, environ["wsgi.early_hints"]))
        start_response("200 OK", TEXT)
        return [b"mine"]

    with serving(app, threads=threads) as served:
        for _ in range(3):
            assert served.raw(GET).endswith(b"mine")
    assert len(complaints) == 6


def test_early_hints(threads: int) -> None:
    def app(environ: Any, start_response: Any) -> Any:
        environ["wsgi.early_hints"]([("Link", "</style.css>; rel=preload")])
        start_response("200 OK", TEXT)
        return [b"page"]

    with serving(app, threads=threads) as served:
        interim, _, final = served.raw(GET).partition(b"\r\n\r\n")
        assert interim.lower() == b"http/1.1 103 early hints\r\nlink: </style.css>; rel=preload"
        assert final.startswith(b"HTTP/1.1 200 OK\r\n")


def test_close_is_called_when_the_client_has_left(threads: int) -> None:
    made: list[Closing] = []

    def endless() -> Iterator[bytes]:
        while True:
            yield b"x" * 65536

    def app(environ: Any, start_response: Any) -> Any:
        start_response("200 OK", TEXT)
        made.append(Closing(endless()))
        return made[-1]

    with serving(app, threads=threads) as served:
        with served.connect() as conn:
            conn.sendall(GET)
            conn.recv(1000)
        until(lambda: bool(made) and made[0].closed == 1, timeout=5)
        assert served.log == []


def test_an_exception_in_close_is_logged(threads: int) -> None:
    class Bad(Closing):
        def close(self) -> None:
            raise LookupError("in close")

    def app(environ: Any, start_response: Any) -> Any:
        start_response("200 OK", TEXT)
        return Bad([b"fine"])

    with serving(app, threads=threads) as served:
        assert b"fine" in served.raw(GET)
        until(lambda: len(served.log) == 1, timeout=5)
        assert "close()" in served.log[0][1]


@pytest.fixture
def large_file(tmp_path: Path) -> Path:
    path = tmp_path / "large"
    path.write_bytes(bytes(range(256)) * 20_000)
    return path


@pytest.mark.parametrize("kind", ["real", "raw", "memory", "offset", "gzip"])
def test_file_wrapper(threads: int, large_file: Path, kind: str) -> None:
    content = large_file.read_bytes()
    opened: list[Any] = []

    def open_it() -> Any:
        if kind == "memory":
            return io.BytesIO(content)
        if kind == "gzip":
            packed = large_file.with_suffix(".gz")
            packed.write_bytes(gzip.compress(content, 1))
            return gzip.open(packed)
        file = large_file.open("rb", buffering=0 if kind == "raw" else -1)
        if kind == "offset":
            file.seek(1000)
        return file

    def app(environ: Any, start_response: Any) -> Any:
        start_response("200 OK", TEXT)
        opened.append(open_it())
        return environ["wsgi.file_wrapper"](opened[-1], 32768)

    with serving(app, threads=threads) as served:
        response = served.request()
        assert response.content == (content[1000:] if kind == "offset" else content)  # type: ignore[attr-defined]
        until(lambda: bool(opened[0].closed), timeout=5)
        if kind in ("real", "raw", "offset"):
            assert response.headers["content-length"] == str(len(response.content))  # type: ignore[attr-defined]
        head = served.request("HEAD")
        assert head.content == b""  # type: ignore[attr-defined]


def test_file_wrapper_with_a_length(threads: int, large_file: Path) -> None:
    lengths = {"/part": "1000", "/long": str(large_file.stat().st_size + 1)}

    def app(environ: Any, start_response: Any) -> Any:
        start_response("200 OK", [*TEXT, ("Content-Length", lengths[environ["PATH_INFO"]])])
        return environ["wsgi.file_wrapper"](large_file.open("rb"))

    with serving(app, threads=threads) as served:
        assert served.request(path="/part").content == large_file.read_bytes()[:1000]  # type: ignore[attr-defined]
        assert served.request(path="/long").status == 500


def test_pipelined_requests(threads: int) -> None:
    def app(environ: Any, start_response: Any) -> Any:
        start_response("200 OK", TEXT)
        return [environ["PATH_INFO"].encode()]

    with serving(app, threads=threads) as served:
        wire = b"".join(b"GET /%d HTTP/1.1\r\nHost: a\r\n\r\n" % n for n in range(200))
        response = served.raw(wire + GET)
        bodies = [part.split(b"HTTP/1.1")[0] for part in response.split(b"\r\n\r\n")[1:]]
        assert bodies == [b"/%d" % n for n in range(200)] + [b"/"]


def test_added_headers() -> None:
    options: dict[str, Any] = {"server_header": False, "date_header": False, "headers": ((b"x-by", b"me"),)}
    with serving(plain(), **options) as served:
        _, fields, _ = split(served.raw(GET))
        assert b"x-by: me" in fields
        assert not [field for field in fields if field.startswith((b"server:", b"date:"))]


def test_own_server_header_stays() -> None:
    def app(environ: Any, start_response: Any) -> Any:
        start_response("200 OK", [("Server", "mine"), ("Date", "never")])
        return [b""]

    with serving(app) as served:
        _, fields, _ = split(served.raw(GET))
        assert [f for f in fields if f.startswith((b"server:", b"date:"))] == [
            b"server: mine",
            b"date: never",
        ]
