"""Server-sent events by the rules of WHATWG HTML 9.2.6, from any cuts, within a bound."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from towline._native import ServerSentEvent, SseParser
from towline.client.decode import parse, sse_parser
from towline.errors import DecodingError

PARTS = [
    "data",
    "data:",
    "data: a",
    "data:é",
    "event: add",
    "id: 7",
    "id: \0",
    "retry: 30",
    "retry: x",
    ":c",
    "",
    "\ufeff",
]
FIELDS = st.lists(st.tuples(st.sampled_from(PARTS), st.sampled_from(["\r", "\n", "\r\n"])), max_size=30)


def reference(stream: str) -> list[tuple[str, str, str, int | None]]:
    """The standard's algorithm, written for clearness."""
    lines = stream.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n").split("\n")[:-1]
    events, data, kind, last_id, retry = [], "", "", "", None
    for line in lines:
        if line == "":
            if data:
                events.append((kind or "message", data[:-1], last_id, retry))
                retry = None
            data = kind = ""
            continue
        if line.startswith(":"):
            continue
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            data += value + "\n"
        elif name == "event":
            kind = value
        elif name == "id" and "\0" not in value:
            last_id = value
        elif name == "retry" and value.isascii() and value.isdigit():
            retry = int(value)
    return events


def events(pieces: list[bytes]) -> list[tuple[str, str, str, int | None]]:
    rest = iter([piece for piece in pieces if piece])
    found = parse(lambda n: next(rest, b""), sse_parser())
    return [(event.event, event.data, event.id, event.retry) for event in found]


@given(FIELDS, st.lists(st.integers(1, 9), min_size=1, max_size=4))
def test_any_stream_with_any_chunk_boundaries(fields: list[tuple[str, str]], sizes: list[int]) -> None:
    stream = "".join(field + end for field, end in fields)
    raw, pieces, turn = stream.encode(), [], 0
    while raw:
        size = sizes[turn % len(sizes)]
        pieces.append(raw[:size])
        raw, turn = raw[size:], turn + 1
    assert events(pieces) == events([stream.encode()]) == reference(stream)


def test_an_event_is_delivered_as_soon_as_its_blank_line_begins() -> None:
    parser = SseParser(1000)
    assert parser.feed(b"data: a\r\n\r") == [ServerSentEvent(data="a")]
    assert parser.feed(b"\n") == []
    assert parser.feed(b"data: b\r\n\r") == [ServerSentEvent(data="b")]


def test_an_event_that_the_end_cuts_off_is_dropped() -> None:
    assert events([b"data: a\n\ndata: b\n"]) == [("message", "a", "", None)]


def test_malformed_utf8_is_replaced() -> None:
    assert events([b"data: \xff\n\n"]) == [("message", "\ufffd", "", None)]


def test_an_event_without_end_is_an_error_and_never_cut() -> None:
    sent = 0

    def endless(n: int) -> bytes:
        nonlocal sent
        sent += 65_536
        return b"data: 1\n\n" if sent == 65_536 else b"data: " + b"x" * 65_529 + b"\n"

    found = parse(endless, sse_parser())
    assert next(found).data == "1"
    with pytest.raises(DecodingError, match="a server-sent event is longer than 10485760 bytes"):
        next(found)
    assert sent < 11 << 20


def test_a_large_event_within_the_bound_is_complete() -> None:
    data = "x" * 9_000_000
    assert events([f"data: {data}\n\n".encode()]) == [("message", data, "", None)]


def test_events_before_a_violation_in_the_same_chunk_are_returned() -> None:
    parser = SseParser(20)
    assert len(parser.feed(b"data:1\n\ndata:2\n\n" + b"x" * 21)) == 2
    for _ in range(2):
        with pytest.raises(DecodingError):
            parser.feed(b"")


def test_last_event_id() -> None:
    parser = SseParser(100)
    parser.feed(b"id: 1\ndata\n\nid: 2\n")
    assert parser.last_event_id == "1"
    parser.feed(b"\n")
    assert parser.last_event_id == "2"


def test_the_event_object() -> None:
    event = ServerSentEvent("add", '{"a": [1]}', "7", 30)
    assert event.json() == {"a": [1]}
    assert event == ServerSentEvent(event="add", data='{"a": [1]}', id="7", retry=30)
    assert event != ServerSentEvent("add")
    assert event != "add"
    assert len({event, ServerSentEvent("add", '{"a": [1]}', "7", 30)}) == 1
    assert repr(ServerSentEvent(data="x")) == "ServerSentEvent(event='message', data='x', id='', retry=None)"
    with pytest.raises(ValueError):
        ServerSentEvent(data="{").json()
    with pytest.raises(AttributeError):
        event.data = "other"  # type: ignore[misc]
