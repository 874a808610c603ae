"""The WSGI application of the bench: `app` serves the scenarios of Roadrunner, `hello_world` those of Hornbeam.

It is the same for every server, and needs the standard library and its folder only. Data that does not depend on the request is made
once per process, including the compressed response: the bench measures servers, not zlib.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

if TYPE_CHECKING:
    from .roadrunner_data import DOCUMENT, EVENTS, RECORDS, STATIC, items_of
else:  # servers run it with its folder on the path
    from roadrunner_data import DOCUMENT, EVENTS, RECORDS, STATIC, items_of

Environ = dict[str, Any]
StartResponse = Callable[[str, list[tuple[str, str]]], object]
Response = tuple[str, list[tuple[str, str]], Iterable[bytes]]
Handler = Callable[[Environ], Response]

TEXT, OCTETS, JSON = "text/plain", "application/octet-stream", "application/json"
MAX_PIECE_BYTES = 65536


def response(body: bytes, kind: str, *more: tuple[str, str], status: str = "200 OK") -> Response:
    return status, [("Content-Type", kind), ("Content-Length", str(len(body))), *more], [body]


HELLO = response(b"alive\r\n", TEXT)
READY = {
    "/": HELLO,
    "/json": response(DOCUMENT, JSON),
    "/large": response(b"x" * 65536, OCTETS),
    "/download": response(b"x" * (10 << 20), OCTETS),
    "/gzip": response(RECORDS, JSON, ("Content-Encoding", "gzip"), ("Vary", "Accept-Encoding")),
    "/redirect": response(b"", TEXT, ("Location", "/target"), status="302 Found"),
    "/static/hello.txt": response(STATIC, TEXT),
    **{f"/api/v1/items/{n:04}": HELLO for n in range(1, 101)},
}
NOT_FOUND = response(b"not found", TEXT, status="404 Not Found")
ETAG = ("ETag", '"v1"')
PREFLIGHT = [
    ("Access-Control-Allow-Origin", "https://example.com"),
    ("Access-Control-Allow-Methods", "GET, POST, OPTIONS"),
    ("Access-Control-Allow-Headers", "Content-Type, Authorization"),
]
WORLD = {"/": response(b"Hello, World!", TEXT), "/large": response(b"X" * 65536, TEXT)}


class ClientGone(Exception):
    """The client disconnected during its request."""


def app(environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
    path = environ["PATH_INFO"]
    made = READY.get(path)
    if made is None:
        handler = HANDLERS.get(path, items if path.startswith("/httparena_json/") else not_found)
        try:
            made = handler(environ)
        except ClientGone:
            made = response(b"", TEXT, status="400 Bad Request")
    return send(made, environ, start_response)


def hello_world(environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
    return send(WORLD.get(environ["PATH_INFO"], NOT_FOUND), environ, start_response)


def send(made: Response, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
    status, fields, body = made
    # A copy: a server may add to the list (PEP 3333, `start_response`).
    start_response(status, list(fields))
    return [] if environ["REQUEST_METHOD"] == "HEAD" else body


def pieces(environ: Environ) -> Iterator[bytes]:
    """Yields the pieces of the request's body; without a length (chunked), it ends with the input."""
    reader = environ["wsgi.input"]
    left = int(environ.get("CONTENT_LENGTH") or -1)
    while left != 0:
        try:
            data = reader.read(min(left, MAX_PIECE_BYTES) if left > 0 else MAX_PIECE_BYTES)
        except OSError:  # raised by servers for a body that ends early, if they report it
            raise ClientGone from None
        if not data:
            if left > 0:
                raise ClientGone
            return
        left -= len(data) if left > 0 else 0
        yield data


def echo(environ: Environ) -> Response:
    return response(b"".join(pieces(environ)), OCTETS)


def drain(environ: Environ) -> Response:
    for _ in pieces(environ):
        pass
    return response(b"ok", TEXT)


def upload(environ: Environ) -> Response:
    return response(b"%d" % sum(len(data) for data in pieces(environ)), TEXT)


def form(environ: Environ) -> Response:
    return response(b"%d" % len(parse_qsl(b"".join(pieces(environ)).decode())), TEXT)


def cookies(environ: Environ) -> Response:
    found = {}
    for pair in environ.get("HTTP_COOKIE", "").split(";"):
        key, _, content = pair.partition("=")
        found[key.strip()] = content.strip()
    return response(b"%d" % len(found), TEXT)


def query(environ: Environ) -> Response:
    return response(b"%d" % len(parse_qsl(environ["QUERY_STRING"])), TEXT)


def baseline(environ: Environ) -> Response:
    numbers = dict(parse_qsl(environ["QUERY_STRING"]))
    return response(b"%d" % (int(numbers["a"]) + int(numbers["b"])), TEXT)


def users(environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
    """The routes of web-frameworks."""
    _, user, number = environ["PATH_INFO"].rpartition("/user/")
    status, fields, body = response(number.encode("latin-1") if user else b"", TEXT)
    start_response(status, fields)
    return body


def items(environ: Environ) -> Response:
    count = int(environ["PATH_INFO"].rpartition("/")[2])
    factor = int(dict(parse_qsl(environ["QUERY_STRING"])).get("m", "1"))
    return response(items_of(count, factor), JSON)


def etag(environ: Environ) -> Response:
    if environ.get("HTTP_IF_NONE_MATCH") == '"v1"':
        return "304 Not Modified", [ETAG], []
    return response(b"first version", TEXT, ETAG)


def preflight(environ: Environ) -> Response:
    return ("204 No Content", PREFLIGHT, []) if environ["REQUEST_METHOD"] == "OPTIONS" else HELLO


def streamed(kind: str, parts: list[bytes]) -> Handler:
    """One item for each part; none contains the length."""
    return lambda environ: ("200 OK", [("Content-Type", kind)], iter(parts))


def not_found(environ: Environ) -> Response:
    return NOT_FOUND


HANDLERS: dict[str, Handler] = {
    "/echo": echo,
    "/drain": drain,
    "/upload": upload,
    "/form": form,
    "/cookies": cookies,
    "/qs": query,
    "/baseline11": baseline,
    "/etag": etag,
    "/api": preflight,
    "/streaming": streamed(OCTETS, [b"x" * 4096] * 4),
    "/small": streamed(OCTETS, [b"x" * 64] * 100),
    "/sse": streamed("text/event-stream", EVENTS),
}
