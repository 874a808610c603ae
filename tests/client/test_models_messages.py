"""Request and Response: httpx's surface on both faces, and the pull API."""

from __future__ import annotations

import asyncio
import gzip
import pickle
import zlib

import httpx
import pytest
import towline
from towline import (
    DecodingError,
    DecompressionLimit,
    Headers,
    Request,
    Response,
    StatusError,
    StreamConsumed,
    UsageError,
)


def pieces(*parts):
    yield from parts


async def apieces(*parts):
    for part in parts:
        yield part


# --- requests ---


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"content": b"abc"},
        {"content": "grüße"},
        {"json": {"a": [1, None]}},
        {"data": {"a": "1", "b": ["2", "3"]}},
        {"content": [b"a", b"b"]},
        {"content": b"", "headers": {"Content-Length": "0"}},
        {"content": b"abc", "headers": {"Content-Type": "x/y", "Host": "other"}},
        {"content": [b"abc"], "headers": {"Content-Length": "3"}},
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_fields_are_those_of_httpx(method, arguments):
    ours = Request(method, "http://h:8/x", **arguments)
    expected = httpx.Request(method, "http://h:8/x", **arguments)
    assert sorted(ours.headers.multi_items()) == sorted(expected.headers.multi_items())
    assert ours.read() == expected.read()


def test_params_join_the_query_of_the_url():
    assert str(Request("GET", "http://h/?a=1", params={"b": "2"}).url) == "http://h/?a=1&b=2"
    assert str(Request("GET", "http://h/?a=1", params={"a": "2"}).url) == "http://h/?a=2"
    assert str(Request("GET", "http://h/?a=1", params={}).url) == "http://h/?a=1"


def test_request_bodies():
    request = Request("POST", "http://h", content=pieces(b"a", b"b"))
    assert not request.replayable
    with pytest.raises(UsageError, match="stream"):
        request.content
    assert request.read() == b"ab"
    assert request.content == b"ab"
    assert request.replayable
    request = Request("POST", "http://h", content=apieces(b"a", b"b"))
    with pytest.raises(UsageError, match="aread"):
        request.read()
    assert asyncio.run(request.aread()) == b"ab"
    assert Request("POST", "http://h", content=[b"a"]).replayable


def test_a_request_is_pickled_and_shown():
    request = Request("post", "http://u:hunter2@h/", json=1, headers={"X": "y"}, extensions={"a": 1})
    again = pickle.loads(pickle.dumps(request))
    assert (again.method, again.url, again.headers, again.content) == (
        "POST",
        request.url,
        request.headers,
        b"1",
    )
    assert "hunter2" not in repr(request)
    lost = pickle.loads(pickle.dumps(Request("POST", "http://h", content=pieces(b"a"))))
    with pytest.raises(StreamConsumed):
        lost.read()


@pytest.mark.parametrize("method", ["", "GET /", "G\r\nX: y", "GÉT"])
def test_a_method_is_a_token(method):
    with pytest.raises(UsageError):
        Request(method, "http://h")


# --- responses ---


def test_made_by_a_program():
    response = Response(404, json={"a": 1}, headers={"X": "y"}, request=Request("GET", "http://h/p"))
    assert response.status_code == 404
    assert response.reason_phrase == "Not Found"
    assert response.http_version == "HTTP/1.1"
    assert response.json() == {"a": 1}
    assert response.headers["content-type"] == "application/json"
    assert response.headers["content-length"] == str(len(response.content))
    assert response.is_client_error
    assert response.is_error
    assert not response.is_success
    assert response.is_closed
    assert response.url == "http://h/p"
    assert repr(response) == "<Response [404 Not Found]>"
    assert Response(200, html="<p>").headers["content-type"] == "text/html; charset=utf-8"
    assert Response(200, text="ü").text == "ü"
    assert Response(200).content == b""
    assert Response(200, extensions={"http_version": b"HTTP/1.0"}).http_version == "HTTP/1.0"
    with pytest.raises(UsageError):
        Response(200).request


@pytest.mark.parametrize(
    ("content_type", "content", "default", "text"),
    [
        ("text/plain; charset=iso-8859-1", b"\xfc", "utf-8", "ü"),
        ('text/plain; charset="utf-8"', "ü".encode(), "ascii", "ü"),
        ("text/plain", b"\xfc", "utf-8", "\ufffd"),
        ("text/plain", b"\xfc", "iso-8859-1", "ü"),
        ("text/plain; charset=nonsense", "ü".encode(), "utf-8", "ü"),
        ("text/plain; charset=hex", "ü".encode(), "utf-8", "ü"),
        ("text/plain", b"\xfc", lambda content: "iso-8859-1", "ü"),
    ],
)
def test_text(content_type, content, default, text):
    response = Response(
        200, content=content, headers={"Content-Type": content_type}, default_encoding=default
    )
    assert response.text == text
    assert "".join(response.iter_text()) == text
    assert "".join(response.iter_text(1)) == text


def test_the_encoding_can_be_set():
    response = Response(200, content=b"\xfc")
    response.encoding = "latin-1"
    assert response.text == "ü"
    with pytest.raises(UsageError):
        response.encoding = "nonsense"


def test_raise_for_status():
    request = Request("GET", "http://u:hunter2@h/")
    assert Response(204, request=request).raise_for_status().status_code == 204
    with pytest.raises(StatusError, match=r"^client error '404 Not Found' \(GET http://") as caught:
        Response(404, request=request).raise_for_status()
    assert caught.value.response.status_code == 404
    assert caught.value.request is request
    assert "hunter2" not in str(caught.value)
    with pytest.raises(StatusError, match="follow_redirects=True"):
        Response(302, headers={"Location": "/x"}, request=request).raise_for_status()


def test_links_and_cookies():
    response = Response(
        200,
        headers=[
            ("Link", '<http://h/2>; rel="next"; title="a", <http://h/9>; rel=last'),
            ("Set-Cookie", "a=1"),
            ("Set-Cookie", "b=2; Path=/x"),
        ],
        request=Request("GET", "http://h/"),
    )
    assert response.links["next"] == {"url": "http://h/2", "rel": "next", "title": "a"}
    assert response.links["last"]["url"] == "http://h/9"
    assert dict(response.cookies) == {"a": "1", "b": "2"}
    assert Response(200).links == {}


def test_pickled():
    response = Response(200, json=[1], request=Request("GET", "http://h/"), history=[Response(301)])
    again = pickle.loads(pickle.dumps(response))
    assert again.json() == [1]
    assert again.url == "http://h/"
    assert [one.status_code for one in again.history] == [301]
    unread = pickle.loads(pickle.dumps(Response(200, content=pieces(b"x"))))
    with pytest.raises(StreamConsumed):
        unread.read()


# --- reading ---


def test_pulling():
    response = Response(200, content=pieces(b"abcdef", b"", b"gh"))
    assert not response.is_closed
    assert response.read(4) == b"abcd"
    assert response.buffered == 2
    buffer = bytearray(8)
    assert response.readinto(buffer) == 2
    assert bytes(buffer[:2]) == b"ef"
    assert response.read(100) == b"gh"
    assert response.read(100) == b""
    assert response.read(100) == b""
    assert response.is_closed
    assert response.num_bytes_downloaded == 8
    with pytest.raises(StreamConsumed):
        response.read()
    with pytest.raises(UsageError):
        response.content
    with pytest.raises(UsageError):
        Response(200).read(0)


def test_pulling_asynchronously():
    async def main():
        response = Response(200, content=apieces(b"abcdef", b"gh"))
        with pytest.raises(UsageError, match="aread"):
            response.read(1)
        assert await response.aread(4) == b"abcd"
        buffer = bytearray(8)
        assert await response.areadinto(buffer) == 2
        assert [piece async for piece in response.aiter_bytes()] == [b"gh"]
        assert response.is_closed
        assert await Response(200, content=apieces(b"a", b"b")).aread() == b"ab"
        assert [line async for line in Response(200, content=apieces(b"a\r", b"\nb")).aiter_lines()] == [
            "a",
            "b",
        ]
        assert await Response(200, content=pieces(b"a", b"b")).aread() == b"ab"
        return [value async for value in Response(200, content=apieces(b'{"a":1}\n', b"2\n")).aiter_ndjson()]

    assert asyncio.run(main()) == [{"a": 1}, 2]


def test_kept_content_is_iterated_again_and_again():
    response = Response(200, content=b"abc\ndef")
    for _ in range(2):
        assert list(response.iter_bytes(3)) == [b"abc", b"\nde", b"f"]
        assert list(response.iter_lines()) == ["abc", "def"]
        assert list(response.iter_raw()) == [b"abc\ndef"]
    response = Response(200, content=b"abc\ndef")
    assert response.read(3) == b"abc"
    assert response.read(30) == b"\ndef"
    assert response.read() == b"abc\ndef"


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
def test_chunks_of_one_size(size):
    data = bytes(range(50))
    response = Response(200, content=pieces(data[:3], data[3:20], data[20:]))
    chunks = list(response.iter_bytes(size))
    assert b"".join(chunks) == data
    assert {len(chunk) for chunk in chunks[:-1]} <= {size}


def test_events():
    response = Response(200, content=pieces(b"event: a\nda", b"ta: 1\n\n", b"data: 2\n\n"))
    assert [(event.event, event.data) for event in response.iter_sse()] == [("a", "1"), ("message", "2")]


@pytest.mark.parametrize(("coding", "encode"), [("gzip", gzip.compress), ("deflate", zlib.compress)])
def test_codings_are_decoded(coding, encode):
    body = encode(b"hello " * 1000)
    headers = {"Content-Encoding": coding}
    assert Response(200, content=body, headers=headers).content == b"hello " * 1000
    assert (
        b"".join(Response(200, content=pieces(body[:5], body[5:]), headers=headers).iter_bytes())
        == b"hello " * 1000
    )
    assert b"".join(Response(200, content=pieces(body), headers=headers).iter_raw()) == body
    with pytest.raises(DecodingError):
        Response(200, content=body[:-3], headers=headers)


def test_decoding_is_pulled_and_bounded():
    bomb = gzip.compress(b"\0" * 10_000_000)
    response = Response(200, content=pieces(bomb), headers={"Content-Encoding": "gzip"})
    assert response.read(10) == b"\0" * 10
    response.close()
    response = Response(200, content=pieces(bomb), headers={"Content-Encoding": "gzip"})
    response._max_decoded = 1_000_000
    with pytest.raises(DecompressionLimit):
        response.read()
    assert response.is_closed


def test_raw_and_decoded_do_not_mix():
    headers = {"Content-Encoding": "gzip"}
    response = Response(200, content=pieces(gzip.compress(b"abc")), headers=headers)
    response.read(1)
    with pytest.raises(StreamConsumed):
        list(response.iter_raw())


def test_a_failing_body_closes():
    def broken():
        yield b"a"
        raise towline.ReadError("gone")

    response = Response(200, content=broken())
    assert response.read(5) == b"a"
    with pytest.raises(towline.ReadError):
        response.read(5)
    assert response.is_closed


def test_leaving_closes_the_body():
    closed = []

    def body():
        try:
            yield b"a"
            yield b"b"
        finally:
            closed.append(True)

    with Response(200, content=body()) as response:
        assert response.read(1) == b"a"
    assert closed == [True]
    with pytest.raises(StreamConsumed):
        Response(200, content=pieces(b"a")).__enter__().close() or response.read()


def test_headers_of_a_response_can_be_set():
    response = Response(200)
    response.headers = {"X": "y"}
    assert response.headers == Headers({"x": "y"})
