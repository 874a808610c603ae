"""Content, urlencoded forms and JSON: the fields, the size, and what is sent."""

from __future__ import annotations

import asyncio
import io
import os
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from towline.client.encode import (
    AsyncIterableBody,
    Body,
    FileBody,
    IterableBody,
    encode_content,
    encode_request,
    encode_response,
)
from towline.errors import StreamConsumed

CHUNKED = [("Transfer-Encoding", "chunked")]


def sent(body: Body) -> bytes:
    return b"".join(body)


def asent(body: Body) -> bytes:
    async def collect() -> bytes:
        return b"".join([piece async for piece in body])

    return asyncio.run(collect())


@pytest.mark.parametrize("content", [b"abc", "abc", bytearray(b"abc"), memoryview(b"abc")])
def test_content_in_memory(content: Any) -> None:
    fields, body = encode_content(content)
    assert fields == [("Content-Length", "3")]
    assert (body.size, body.replayable, body.wire) == (3, True, b"abc")
    assert sent(body) == asent(body) == b"abc"


def test_bytes_are_not_copied() -> None:
    data = bytes(1000)
    _, body = encode_content(data)
    assert body.wire is data
    assert next(iter(body)) is data


def test_text_is_utf8() -> None:
    assert encode_content("é")[1].wire == "é".encode()


def test_no_content() -> None:
    for arguments in ({}, {"content": b""}, {"content": ""}, {"data": {}}, {"files": {}}):
        fields, body = encode_request(**arguments)
        assert (fields, body.size, body.wire) == ([], 0, None)


def test_iterables_are_chunked() -> None:
    fields, body = encode_content([b"a", memoryview(b"b")])
    assert (fields, body.size, body.replayable) == (CHUNKED, None, True)
    assert sent(body) == sent(body) == asent(body) == b"ab"


def test_an_iterator_is_sent_once() -> None:
    fields, body = encode_content(iter([b"a"]))
    assert (fields, body.replayable, sent(body)) == (CHUNKED, False, b"a")
    with pytest.raises(StreamConsumed):
        sent(body)


class Pieces:
    def __aiter__(self) -> AsyncIterator[bytes]:
        return pieces()


async def pieces() -> AsyncIterator[bytes]:
    for piece in (b"a", b"b"):
        yield piece


def test_async_iterables() -> None:
    fields, body = encode_content(Pieces())
    assert (fields, body.replayable, asent(body), asent(body)) == (CHUNKED, True, b"ab", b"ab")
    _, body = encode_content(pieces())
    assert (body.replayable, asent(body)) == (False, b"ab")
    with pytest.raises(StreamConsumed):
        asent(body)
    with pytest.raises(TypeError, match="synchronous client"):
        iter(body)


def test_chunks_that_are_not_bytes() -> None:
    with pytest.raises(TypeError, match="must yield bytes, not str"):
        sent(IterableBody(["text"]))
    with pytest.raises(TypeError, match="must yield bytes, not int"):
        sent(IterableBody([1]))


@pytest.mark.parametrize("content", [{"a": 1}, 5, object()])
def test_invalid_content_is_refused(content: Any) -> None:
    with pytest.raises(TypeError, match="content: expected bytes"):
        encode_content(content)


def test_a_file_is_sent_from_its_position(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(range(200)) * 1000)
    with path.open("rb") as file:
        file.seek(1000)
        fields, body = encode_content(file)
        assert isinstance(body, FileBody)
        assert fields == [("Content-Length", "199000")]
        assert (body.start, body.size, body.replayable) == (1000, 199_000, True)
        assert sent(body) == sent(body) == asent(body) == path.read_bytes()[1000:]
        assert body.wire is file
        assert file.tell() == 1000


def test_a_file_that_grows_stays_within_its_length(tmp_path: Path) -> None:
    with (tmp_path / "file").open("w+b") as file:
        file.write(b"1234")
        file.seek(0)
        _, body = encode_content(file)
        (tmp_path / "file").open("ab").write(b"5678")
        assert sent(body) == b"1234"


def test_unflushed_writes_are_counted(tmp_path: Path) -> None:
    with (tmp_path / "file").open("w+b") as file:
        file.write(b"x" * 10)
        file.seek(0)
        file.read(1)
        assert encode_content(file)[0] == [("Content-Length", "9")]
    with tempfile.SpooledTemporaryFile() as spooled:
        spooled.write(b"12345")
        spooled.seek(2)
        fields, body = encode_content(spooled)  # type: ignore[arg-type]
        assert (fields, sent(body)) == ([("Content-Length", "3")], b"345")


def test_files_in_memory_and_pipes() -> None:
    file = io.BytesIO(b"12345")
    file.seek(1)
    fields, body = encode_content(file)
    assert (fields, sent(body), sent(body)) == ([("Content-Length", "4")], b"2345", b"2345")
    reading, writing = os.pipe()
    os.write(writing, b"piped")
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        fields, body = encode_content(pipe)
        assert (fields, body.replayable, sent(body)) == (CHUNKED, False, b"piped")


def test_text_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("text")
    with (tmp_path / "file").open() as file, pytest.raises(TypeError, match="binary mode"):
        encode_content(file)  # type: ignore[arg-type]


def test_async_files() -> None:
    class AsyncFile:
        rest = b"abc"

        async def aread(self, n: int) -> bytes:
            piece, self.rest = self.rest, b""
            return piece

        def __aiter__(self) -> AsyncIterator[bytes]:
            raise AssertionError("read, not split into lines")

    _, body = encode_content(AsyncFile())
    assert isinstance(body, AsyncIterableBody)
    assert asent(body) == b"abc"


FORMS: list[Any] = [
    {"a": "1", "b": ["2", 3, True, False, None, 1.5], "c d": "ä&=+ "},
    {"a": (), "b": ""},
    {"empty": []},
    {"b": b"\xff"},
]


@pytest.mark.parametrize("data", FORMS)
def test_urlencoded_as_httpx_does(data: Any) -> None:
    expected = httpx.Request("POST", "http://x", data=data)
    fields, body = encode_request(data=data)
    if data == {"b": b"\xff"}:  # httpx writes "b'\\xff'" there
        assert body.wire == b"b=%FF"
    else:
        assert (body.wire or b"") == expected.content
    assert fields[-1] == ("Content-Type", "application/x-www-form-urlencoded")


def test_urlencoded_from_pairs() -> None:
    assert encode_request(data=[("a", "1"), ("b", "2"), ("a", "3")])[1].wire == b"a=1&b=2&a=3"


def test_data_that_is_content() -> None:
    with pytest.warns(DeprecationWarning, match="content="):
        fields, body = encode_request(data=b"raw")  # type: ignore[arg-type]
    assert (fields, body.wire) == ([("Content-Length", "3")], b"raw")


VALUES: list[Any] = [None, 0, "é\u2028", [1, {"a": [True, None, 1.5]}], {"k": "v"}]


@pytest.mark.parametrize("value", VALUES)
def test_json_as_httpx_does(value: Any) -> None:
    fields, body = encode_request(json=value)
    expected = httpx.Request("POST", "http://x", json=value)
    assert (body.wire or b"") == expected.content
    assert [value for name, value in fields if name == "Content-Type"] == expected.headers.get_list(
        "content-type"
    )


def test_json_has_no_infinities() -> None:
    with pytest.raises(ValueError):
        encode_request(json=float("nan"))


@pytest.mark.parametrize("dumps", [lambda value: f"<{value}>", lambda value: f"<{value}>".encode()])
def test_json_by_a_custom_encoder(dumps: Any) -> None:
    assert encode_request(json=1, json_dumps=dumps)[1].wire == b"<1>"


def test_precedence() -> None:
    everything: dict[str, Any] = {"content": b"c", "data": {"d": "1"}, "json": 1}
    assert encode_request(**everything)[1].wire == b"c"
    del everything["content"]
    assert encode_request(**everything)[1].wire == b"d=1"


def test_responses() -> None:
    assert encode_response(text="é")[0][-1] == ("Content-Type", "text/plain; charset=utf-8")
    assert encode_response(html="<p>")[1].wire == b"<p>"
    assert encode_response(json=[1])[1].wire == b"[1]"
    assert encode_response(content=iter([b"a"]))[0] == CHUNKED
    assert encode_response()[1].size == 0


def test_a_body_passes_as_content() -> None:
    def generated() -> Iterator[bytes]:
        yield b"x"

    body = IterableBody(generated(), size=1)
    assert encode_content(body) == ([("Content-Length", "1")], body)  # type: ignore[arg-type]
