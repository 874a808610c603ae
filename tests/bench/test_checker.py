"""The checker's messages: one line for each possible difference."""

from __future__ import annotations

import base64
import gzip
import hashlib
from typing import Any

import pytest
from towline.bench.checker import WrongResponse, check, problem_of
from towline.bench.scenarios import Scenario, catalogue


class Canned:
    """An agent with given responses."""

    def __init__(self, *results: dict[str, Any]) -> None:
        self.results = list(results)

    def probe(self, session: str) -> list[dict[str, Any]]:
        return self.results


def found(name: str, **changed: Any) -> dict[str, Any]:
    """A right response to the first request of a scenario, in the agent's format, with changes."""
    expected = catalogue()[name].requests[0].expect
    assert expected.body is not None
    body = changed.pop("body", expected.body.whole())
    fields = [*expected.fields, *([("content-encoding", expected.coding)] if expected.coding else [])]
    wire = gzip.compress(body) if expected.coding else body
    return {
        "target": 0,
        "status": expected.status,
        "fields": [list(pair) for pair in fields],
        "body_bytes": len(wire),
        "sha256": hashlib.sha256(wire).hexdigest(),
        "body_base64": base64.b64encode(wire).decode(),
        "interim": list(expected.interim),
        "trailers": [],
        "version": "HTTP/1.1",
        "alpn": None,
        "tls": None,
        "closed": bool(expected.closes),
        "failure": None,
        **changed,
    }


def problem(name: str, *, secure: bool = False, **changed: Any) -> str | None:
    return problem_of(found(name, **changed), catalogue()[name].requests[0], secure=secure)


CODED = base64.b64encode(gzip.compress(b"[]")).decode()


@pytest.mark.parametrize(
    ("name", "changed", "message"),
    [
        (
            "hello",
            {"failure": "reset: closed in the middle"},
            "no complete response: reset: closed in the middle",
        ),
        ("hello", {"status": 500, "body": b"sorry"}, "status 500 instead of 200: b'sorry'"),
        ("hello", {"body": b"alive\r\r"}, "the body differs at byte 6 of 7: b'\\r' instead of b'\\n'"),
        ("hello", {"body": b"alive"}, "5 bytes of body instead of 7: b'alive'"),
        ("hello", {"fields": []}, "the field Content-Type is missing; it must be 'text/plain'"),
        (
            "hello",
            {"fields": [["content-type", "text/html"]]},
            "Content-Type is 'text/html' instead of 'text/plain'",
        ),
        (
            "hello",
            {"fields": [["content-type", "text/plain"]] * 2},
            "Content-Type is 'text/plain', 'text/plain' instead of 'text/plain'",
        ),
        (
            "hello",
            {"fields": [["content-type", "text/plain"], ["content-encoding", "br"]]},
            "coded as 'br', which was not requested",
        ),
        ("hello", {"version": "HTTP/1.0"}, "answered with HTTP/1.0 instead of HTTP/1.1"),
        ("hello", {"alpn": "h2", "tls": "TLSv1.3"}, "ALPN chose h2 instead of http/1.1"),
        ("hello", {"tls": "TLSv1.3"}, "over TLSv1.3, which was not requested"),
        ("hello", {"closed": True}, "the connection was closed after it, unannounced"),
        ("connection_storm", {"closed": False}, "the connection was kept open"),
        ("expect_100_continue", {"interim": []}, "interim responses: none instead of 100"),
        ("hello", {"interim": [103]}, "interim responses: 103 instead of none"),
        ("head_method", {"body": b"x"}, "1 bytes of body instead of 0: b'x'"),
        ("gzip_response", {"body": b"[]"}, "2 bytes of body instead of 16,021: b'[]'"),
        (
            "gzip_response",
            {"body_base64": CODED[:8]},
            "the gzip body ends early, has something after its end, or is too long",
        ),
        (
            "gzip_response",
            {"body_base64": "AAAA"},
            "the body is no gzip: Error -3 while decompressing data: incorrect header check",
        ),
        (
            "gzip_response",
            {"body": b"x" * 20_000},
            "the gzip body ends early, has something after its end, or is too long",
        ),
        ("large_response", {"body_base64": None, "body_bytes": 9}, "9 bytes of body instead of 65,536"),
        (
            "large_response",
            {"body_base64": None, "sha256": "00"},
            "the 65,536 bytes of body are others than they must be (SHA-256)",
        ),
    ],
)
def test_each_difference_is_one_line(name: str, changed: dict[str, Any], message: str) -> None:
    assert problem(name) is None
    assert problem(name, **changed) == message


def test_a_long_body_is_compared_by_its_hash() -> None:
    assert problem("large_response", body_base64=None) is None


def test_a_server_that_announces_a_close_may_close() -> None:
    fields = [["content-type", "text/plain"], ["Connection", "Close"]]
    assert problem("hello", closed=True, fields=fields) is None


def test_over_tls_or_not() -> None:
    assert problem("hello", secure=True) == "not over TLS"
    assert problem("hello", secure=True, tls="TLSv1.3", alpn="http/1.1") is None
    assert problem("hello", secure=True, tls="TLSv1.3") is None


OVER_H2 = {"version": "HTTP/2"}


@pytest.mark.parametrize(
    ("secure", "changed", "message"),
    [
        (False, OVER_H2, None),
        (True, {**OVER_H2, "tls": "TLSv1.3", "alpn": "h2"}, None),
        (True, {**OVER_H2, "tls": "TLSv1.3"}, "ALPN chose nothing instead of h2"),
        (True, {"tls": "TLSv1.3", "alpn": "h2"}, "answered with HTTP/1.1 instead of HTTP/2"),
        (False, {**OVER_H2, "alpn": "h2", "tls": "TLSv1.3"}, "over TLSv1.3, which was not requested"),
        (False, {**OVER_H2, "closed": True}, "the connection was closed after it, unannounced"),
        (
            False,
            {**OVER_H2, "body": b"alivf\r\n"},
            "the body differs at byte 4 of 7: b'f\\r\\n' instead of b'e\\r\\n'",
        ),
    ],
)
def test_over_http2(secure: bool, changed: dict[str, Any], message: str | None) -> None:
    result = found("hello", **changed)
    assert problem_of(result, of("hello").requests[0], secure=secure, protocol="h2") == message


def test_http2_has_no_connection_close() -> None:
    result, request = found("connection_storm", closed=False), of("connection_storm").requests[0]
    assert problem_of({**result, **OVER_H2}, request, secure=False, protocol="h2") is None
    assert request.fields_over("h2") == (("Host", "x"),)


def test_a_message() -> None:
    scenario = of("websocket_msg_throughput")
    message = scenario.message
    assert message is not None
    right = found(scenario.name, body=message.whole(), message="text")
    check(Canned(right), "s", scenario, "http://host")
    for changed, reason in (
        ({"message": "binary"}, "a binary message instead of text"),
        ({"status": 403, "body_base64": ""}, "status 403 instead of 101"),
        ({"closed": True}, "the connection was closed after it"),
        (found(scenario.name, body=message.whole()[:-1] + b"y"), "the body differs at byte 1,023 of 1,024"),
        ({"body_base64": ""}, "0 bytes of body instead of 1,024"),
    ):
        with pytest.raises(WrongResponse, match=f"^GET /ws: {reason}"):
            check(Canned({**right, **changed}), "s", scenario, "http://host")


def of(name: str) -> Scenario:
    return catalogue()[name]


def test_the_request_is_named() -> None:
    right, wrong = found("url_with_qs"), found("url_with_qs", status=503, body=b"")
    check(Canned(right), "s", of("url_with_qs"), "http://127.0.0.1:1")
    with pytest.raises(WrongResponse, match=r"^GET /qs\?filter=active.*: status 503 instead of 200$"):
        check(Canned(wrong), "s", of("url_with_qs"), "http://127.0.0.1:1")
    with pytest.raises(WrongResponse, match=r"^1 responses to 3 requests$"):
        check(Canned(right), "s", of("mixed_workload"), "http://127.0.0.1:1")


def test_a_server_that_closes_cannot_take_concurrent_requests() -> None:
    pipelined = catalogue()["pipelined_h1"]
    targets = len(pipelined.requests)
    check(Canned(*[found("pipelined_h1")] * targets), "any", pipelined, "http://host")
    closing = found(
        "pipelined_h1", closed=True, fields=[["content-type", "text/plain"], ["connection", "close"]]
    )
    with pytest.raises(WrongResponse, match="closes the connection after a response"):
        check(Canned(*[closing] * targets), "any", pipelined, "http://host")
    streams, last = of("multi_stream_h2"), found("multi_stream_h2", **OVER_H2, closed=True)
    last["fields"].append(["connection", "close"])
    with pytest.raises(WrongResponse, match="closes the connection after a response"):
        check(Canned(last), "any", streams, "http://host", "h2")
