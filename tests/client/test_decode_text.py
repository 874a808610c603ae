"""Text, lines and NDJSON of streamed content."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from towline.client.decode import (
    Parser,
    TextParser,
    aparse,
    charset_of,
    line_parser,
    ndjson_parser,
    parse,
)
from towline.errors import DecodingError


def reader(pieces: list[bytes]) -> Callable[[int], bytes]:
    rest = iter([piece for piece in pieces if piece])
    return lambda n: next(rest, b"")


def items(pieces: list[bytes], parser: Parser[object]) -> list[object]:
    return list(parse(reader(pieces), parser))


@st.composite
def cut(draw: st.DrawFn, streams: st.SearchStrategy[bytes]) -> list[bytes]:
    stream = draw(streams)
    cuts = sorted(draw(st.lists(st.integers(0, len(stream)), max_size=5)))
    return [stream[start:end] for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1", "utf-16", "shift_jis", "gb18030", "cp1252"])
def test_text_in_single_bytes(encoding: str) -> None:
    text = "straße" if encoding in {"latin-1", "cp1252"} else "テスト 日本"
    pieces = [bytes([byte]) for byte in text.encode(encoding)]
    assert "".join(parse(reader(pieces), TextParser(encoding))) == text


def test_malformed_text_is_replaced() -> None:
    assert items([b"a\xff", b"\xe2\x82"], TextParser()) == ["a\ufffd", "\ufffd"]


@pytest.mark.parametrize(
    ("content_type", "charset"),
    [
        ("text/html; charset=ISO-8859-1", "iso8859-1"),
        ('text/html; a=b;charset="utf-8"', "utf-8"),
        ("text/html; charset='utf-8'", "utf-8"),
        ("text/html;CHARSET = utf8", "utf-8"),
        ("text/html", None),
        ("text/html; charset=", None),
        ("text/html; charset=nonsense", None),
        ("text/html; charset=base64", None),
        ("text/html; charset=\0", None),
        (None, None),
    ],
)
def test_charset(content_type: str | None, charset: str | None) -> None:
    assert charset_of(content_type) == charset


def split(text: str) -> list[str]:
    lines = re.split("\r\n|\r|\n", text)
    return lines if lines[-1] else lines[:-1]


@given(cut(st.text("ab\r\né", max_size=30).map(str.encode)))
def test_lines_with_any_chunk_boundaries(pieces: list[bytes]) -> None:
    assert items(pieces, line_parser()) == split(b"".join(pieces).decode())


@given(cut(st.text("ab\r\né", max_size=30).map(lambda text: text.encode("utf-16"))))
def test_lines_of_another_charset(pieces: list[bytes]) -> None:
    assert items(pieces, line_parser("utf-16")) == split(b"".join(pieces).decode("utf-16"))


def test_only_the_three_line_ends() -> None:
    assert items(["a\x0bb\x0c\x1c\u2028\u0085c\n".encode()], line_parser()) == ["a\x0bb\x0c\x1c\u2028\u0085c"]


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
def test_a_line_without_end(encoding: str) -> None:
    seen, read = [], 0

    def endless(n: int) -> bytes:
        nonlocal read
        read += 1000
        return b"one\n" if read == 1000 else b"x" * 1000

    lines = parse(endless, line_parser(encoding))
    with pytest.raises(DecodingError, match="a line is longer than 65536 bytes"):
        seen.extend(iter(lines.__next__, None))
    assert seen == ["one"]
    assert read < 70_000


def test_lines_before_a_violation_in_the_same_chunk_are_returned() -> None:
    lines: Iterator[str] = parse(reader([b"one\ntwo\n123456789\n"]), line_parser(max_bytes=5))
    assert [next(lines), next(lines)] == ["one", "two"]
    with pytest.raises(DecodingError):
        next(lines)


def test_nothing_is_read_before_iteration() -> None:
    sizes = []

    def read(n: int) -> bytes:
        sizes.append(n)
        return b"a\nb\nc"

    lines = parse(read, line_parser())
    assert sizes == []
    assert [next(lines), next(lines)] == ["a", "b"]
    assert len(sizes) == 1


@given(st.lists(st.one_of(st.integers(), st.text(), st.dictionaries(st.text(), st.floats(allow_nan=False)))))
def test_ndjson(values: list[object]) -> None:
    stream = "\r\n".join(json.dumps(value, ensure_ascii=False) for value in values).encode()
    pieces = [stream[start : start + 7] for start in range(0, len(stream), 7)]
    assert items([*pieces, b"\n \n"], ndjson_parser()) == values


def test_invalid_ndjson() -> None:
    values = parse(reader([b'{"a": 1}\n\nnonsense\n{}\n']), ndjson_parser())
    assert next(values) == {"a": 1}
    with pytest.raises(DecodingError, match="line 3 is not JSON"):
        next(values)
    with pytest.raises(DecodingError, match="line 1 is not JSON"):
        items([b"{"], ndjson_parser())


def test_ndjson_with_a_custom_parser() -> None:
    assert items([b"1.5\n"], ndjson_parser(lambda line: line + "!")) == ["1.5!"]


def test_asynchronously() -> None:
    async def collect() -> list[str]:
        read = reader([b"a\r", b"\nb\r\n", b"c"])

        async def aread(n: int) -> bytes:
            await asyncio.sleep(0)
            return read(n)

        return [line async for line in aparse(aread, line_parser())]

    assert asyncio.run(collect()) == ["a", "b", "c"]
