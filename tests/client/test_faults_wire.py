"""Against a malicious server: a typed error that names the rule, bounded memory, and a next request unharmed.

`python -m tests.client.peers` records the behaviour of other clients with the same server.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
import towline

from tests.support.client_backends import BACKENDS, MIB, rss_bytes
from tests.support.http1_scripts import SCRIPTS, HostileServer

REMOTE = towline.RemoteProtocolError

# script: the error, and a word of its rule where it has one
REFUSED: dict[str, tuple[type[towline.Error], str]] = {
    "endless_head": (REMOTE, "head|field"),
    "endless_line": (REMOTE, "field"),
    "endless_start": (REMOTE, "start line|status line"),
    "endless_1xx": (REMOTE, "interim"),
    "nonsense": (REMOTE, ""),
    "long_status": (REMOTE, "status"),
    "bare_cr": (REMOTE, ""),
    "nul": (REMOTE, ""),
    "space_before_colon": (REMOTE, ""),
    "both_lengths": (REMOTE, "transfer-encoding|content-length"),
    "two_lengths": (REMOTE, "content-length"),
    "signed_length": (REMOTE, "content-length"),
    "chunk_overflow": (REMOTE, "chunk"),
    "chunk_signed": (REMOTE, "chunk"),
    "chunk_longer": (REMOTE, "chunk"),
    "endless_extension": (REMOTE, "chunk"),
    "endless_trailers": (REMOTE, "trailer|head|field"),
    "silent_close": (towline.ServerDisconnected, ""),
    "half_head": (towline.ServerDisconnected, ""),
    "early_close": (towline.ServerDisconnected, ""),
    "chunked_close": (towline.ServerDisconnected, ""),
    "reset_body": (towline.TransportError, ""),
    "reset_head": (towline.TransportError, ""),
    "unsolicited_101": (REMOTE, ""),
    "six_codings": (towline.ResponseError, ""),
    "half_gzip": (towline.DecodingError, ""),
    "no_gzip": (towline.DecodingError, ""),
    "redirect_loop": (towline.TooManyRedirects, ""),
}
# These are valid on the wire: their connection may be reused.
REUSABLE = {"six_codings", "half_gzip", "no_gzip", "redirect_loop"}
# Without a retry, which would only send the same request again.
OPTIONS: dict[str, Any] = {
    "timeout": towline.Timeout(5, total=20),
    "trust_env": False,
    "follow_redirects": True,
}


@pytest.fixture
def server() -> Iterator[HostileServer]:
    with HostileServer() as running:
        yield running


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> Iterator[Any]:
    created = BACKENDS[request.param](**OPTIONS)
    yield created
    created.close()


def unharmed(backend: Any, server: HostileServer, after: str, *, fresh: bool = True) -> None:
    """The next request gets its own response, on another connection."""
    response = backend.get(server.url("good"))
    assert (response.status_code, response.content) == (200, b"good")
    if fresh:
        assert server.connection_of("good") != server.connection_of(after)


@pytest.mark.parametrize("name", REFUSED)
def test_each_violation_raises_its_error(backend: Any, server: HostileServer, name: str) -> None:
    kind, words = REFUSED[name]
    unharmed(backend, server, "good", fresh=False)
    before, started = rss_bytes(), time.monotonic()
    with pytest.raises(kind) as raised:
        backend.get(server.url(name))
    assert time.monotonic() - started < 10
    assert rss_bytes() - before < 8 * MIB
    if issubclass(kind, towline.ProtocolError) and kind is REMOTE:
        rule = raised.value.rule or ""
        assert rule
        assert not words or any(word in rule.lower() for word in words.split("|")), rule
    unharmed(backend, server, name, fresh=name not in REUSABLE)


def test_every_script_is_tested() -> None:
    tested_separately = {
        "good",
        "drip_head",
        "drip_body",
        "poison_idle",
        "poison_at_once",
        "body_of_204",
        "body_of_304",
        "bomb",
        "endless_sse",
        "endless_text",
    }
    assert REFUSED.keys() | tested_separately == SCRIPTS.keys()


@pytest.mark.parametrize("name", ["drip_head", "drip_body"])
def test_slow_bytes_pass_the_read_timeout_but_not_the_total(
    backend: Any, server: HostileServer, name: str
) -> None:
    started = time.monotonic()
    with pytest.raises(towline.TotalTimeout):
        backend.get(server.url(name), timeout=towline.Timeout(read=2.0, total=3.0))
    assert 2.9 < time.monotonic() - started < 10
    unharmed(backend, server, name)


@pytest.mark.parametrize("name", ["poison_idle", "poison_at_once"])
def test_unsolicited_bytes_are_never_a_response(backend: Any, server: HostileServer, name: str) -> None:
    response = backend.get(server.url(name))
    assert response.content == b"good"
    if name == "poison_idle":
        time.sleep(0.2)
    for _ in range(3):
        unharmed(backend, server, name)


@pytest.mark.parametrize(("name", "status"), [("body_of_204", 204), ("body_of_304", 304)])
def test_a_body_where_none_is_allowed(backend: Any, server: HostileServer, name: str, status: int) -> None:
    """RFC 9112 6.3: these end with their head, regardless of the fields; the bytes after it are not a response."""
    response = backend.get(server.url(name))
    assert (response.status_code, response.content) == (status, b"")
    for _ in range(3):
        unharmed(backend, server, name)


@pytest.mark.parametrize("face_name", BACKENDS)
def test_a_bomb_ends_at_its_limit(server: HostileServer, face_name: str) -> None:
    backend = BACKENDS[face_name](**OPTIONS, max_decompressed_size=4 * MIB)
    try:
        before = rss_bytes()
        with pytest.raises(towline.DecompressionLimit):
            backend.get(server.url("bomb"))
        assert rss_bytes() - before < 24 * MIB
        unharmed(backend, server, "bomb", fresh=False)
    finally:
        backend.close()


def test_a_streamed_bomb_is_never_buffered(backend: Any, server: HostileServer) -> None:
    pieces = backend.pieces(server.url("bomb"), "bytes")
    seen = len(next(pieces))
    before = rss_bytes()
    for piece in pieces:
        seen += len(piece)
        if seen > 64 * MIB:
            break
    pieces.close()
    assert seen > 64 * MIB
    assert rss_bytes() - before < 8 * MIB
    unharmed(backend, server, "bomb", fresh=False)


@pytest.mark.parametrize(("name", "kind"), [("endless_sse", "sse"), ("endless_text", "lines")])
def test_a_line_without_an_end_is_an_error(backend: Any, server: HostileServer, name: str, kind: str) -> None:
    before = rss_bytes()
    with pytest.raises(towline.DecodingError):
        for _ in backend.pieces(server.url(name), kind):
            pass
    assert rss_bytes() - before < 48 * MIB  # an event may have 10 MiB
    unharmed(backend, server, name)


@pytest.mark.parametrize("face_name", BACKENDS)
def test_a_body_longer_than_allowed(server: HostileServer, face_name: str) -> None:
    backend = BACKENDS[face_name](**OPTIONS, max_response_size=MIB)
    try:
        before = rss_bytes()
        with pytest.raises(towline.ResponseError):
            backend.get(server.url("endless_text"))
        assert rss_bytes() - before < 8 * MIB
        unharmed(backend, server, "endless_text")
    finally:
        backend.close()
