"""The catalogue is complete, and its requests are those of the documents, byte for byte.

The tables are written by hand from the documents: nothing here is computed from the catalogue.
"""

from __future__ import annotations

import gzip
import json
from urllib.parse import parse_qsl

import pytest
from towline.bench.scenarios import Scenario, catalogue, sections

# name -> bytes of the request over HTTP/1.1, None where the documents give no number; "~" and why it differs
SERVERS: dict[str, int | None] = {
    "hello": 27,
    "json": 57,
    "echo": 393,  # ~394
    "headers_heavy": 378,
    "large_response": 32,
    "head_method": 33,
    "cookies_heavy": 192,
    "multi_request_body": 4190,
    "varied_paths_router": 44,
    "post_4kb_form": 4326,
    "large_post_streaming": 1_048_576 + 98,
    "pipelined_h1": 27,  # 108 for the four
    "websocket_msg_throughput": None,  # 1032 a frame, below
    "gzip_response": 54,
    "multi_stream_h2": None,
    "streaming_response": None,
    "small_chunked_response": None,
    "tls_handshake_throughput": None,
    "large_post_h2": None,
    "slow_client": None,
    "connection_storm": 46,
    "accept_storm_burst": 46,
    "mixed_workload": None,
    "router_404_storm": 50,
    "backpressure_sustained": 27,
    "server_sent_events": 30,
    "expect_100_continue": None,
    "large_keepalive_session": 27,
    "url_with_qs": 108,
    "path_with_unicode": 146,
    "etag_304": 52,
    "partial_body_drop": None,
    "cors_preflight": 161,
    "chunked_request_body": 100 + 1057,  # ~1057 is the coded body; the head has 100
    "redirect_response": 35,
    "compressed_request_body": None,
    "httparena_baseline": 49,
    "httparena_json": 74,
    "httparena_upload": None,
    "httparena_limited_conn": 49,
    "httparena_static": 43,
}
APPLICATIONS = {
    "simple": (10_000, 100),
    "high_concurrency": (5_000, 500),
    "hornbeam_large_response": (1_000, 50),  # `large_response` there
    "sustained": (20_000, 200),
    "async_sleep": (None, 100),
    "concurrent_tasks": (None, 100),
}
CLIENTS = {
    *("get_async", "get_sync", "post_async", "post_sync", "stream_sync"),
    *("pool_assignment", "partial_write", "uncontended_acquire"),
}
SERVICES = {"small_post", "parallel_50", "large_body", "llm_sequential", "llm_parallel", "streaming_pull"}
MATRIX_H1 = {
    *(
        "hello",
        "json",
        "echo",
        "headers_heavy",
        "large_response",
        "multi_request_body",
        "varied_paths_router",
    ),
    *("post_4kb_form", "large_post_streaming", "pipelined_h1", "websocket_msg_throughput", "gzip_response"),
}
MATRIX_H2 = {
    *(
        "hello",
        "json",
        "echo",
        "headers_heavy",
        "multi_request_body",
        "multi_stream_h2",
        "streaming_response",
    ),
}


def of(comparison: str) -> dict[str, Scenario]:
    return {one.name: one for one in catalogue().values() if one.section == comparison}


def response_body(name: str) -> bytes:
    body = catalogue()[name].requests[0].expect.body
    assert body is not None
    return body.whole()


def test_the_catalogue_has_exactly_these_scenarios() -> None:
    assert [section.name for section in sections()] == [
        "Roadrunner",
        "Hornbeam",
        "httpcorexyz",
        "Nous",
        "HTTPotion",
        "Towline",
        "HttpArena",
        "web-frameworks",
    ]
    assert of("Roadrunner").keys() == SERVERS.keys()
    assert of("Hornbeam").keys() == APPLICATIONS.keys()
    assert of("httpcorexyz").keys() == CLIENTS
    assert of("Nous").keys() == SERVICES
    assert of("HTTPotion").keys() == {"webhooks"}
    assert sum(len(section.scenarios) for section in sections()) == len(catalogue())


@pytest.mark.parametrize("name", [name for name, size in SERVERS.items() if size is not None])
def test_a_request_has_the_bytes_of_its_document(name: str) -> None:
    requests = catalogue()[name].requests
    assert {request.wire_bytes for request in requests} == {SERVERS[name]}
    assert {len(request.wire()) for request in requests} == {SERVERS[name]}


@pytest.mark.parametrize(
    ("name", "wire"),
    [
        ("hello", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
        ("json", b"GET /json HTTP/1.1\r\nHost: x\r\nAccept: application/json\r\n\r\n"),
        ("router_404_storm", b"GET /nope HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"),
        ("etag_304", b'GET /etag HTTP/1.1\r\nHost: x\r\nIf-None-Match: "v1"\r\n\r\n'),
        (
            "echo",
            b"POST /echo HTTP/1.1\r\nHost: x\r\nUser-Agent: towline-bench/1.0\r\nAccept: */*\r\n"
            b"Content-Type: application/octet-stream\r\nContent-Length: 256\r\n\r\n" + b"x" * 256,
        ),
        (
            "chunked_request_body",
            b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Type: application/octet-stream\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n" + (b"100\r\n" + b"x" * 256 + b"\r\n") * 4 + b"0\r\n\r\n",
        ),
    ],
)
def test_requests_to_the_byte(name: str, wire: bytes) -> None:
    assert catalogue()[name].requests[0].wire() == wire


def test_the_responses_of_the_catalogue() -> None:
    lengths = {
        "hello": 7,
        "json": 115,
        "echo": 256,
        "large_response": 65536,
        "multi_request_body": 4096,
        "gzip_response": 16021,
        "streaming_response": 4 * 4096,
        "small_chunked_response": 100 * 64,
        "server_sent_events": 2199,
        "chunked_request_body": 1024,
        "httparena_static": 61,
        "head_method": 0,
    }
    assert {name: len(response_body(name)) for name in lengths} == lengths
    texts = {
        "hello": b"alive\r\n",
        "cookies_heavy": b"8",
        "post_4kb_form": b"128",
        "large_post_streaming": b"ok",
        "url_with_qs": b"6",
        "path_with_unicode": b"5",
        "httparena_baseline": b"579",
        "httparena_upload": b"20971520",
        "large_response": b"x" * 65536,
        "simple": b"Hello, World!",
        "hornbeam_large_response": b"X" * 65536,
    }
    assert {name: response_body(name) for name in texts} == texts
    statuses = {name: one.requests[0].expect.status for name, one in of("Roadrunner").items()}
    assert {name: status for name, status in statuses.items() if status != 200} == {
        "websocket_msg_throughput": 101,
        "router_404_storm": 404,
        "etag_304": 304,
        "cors_preflight": 204,
        "redirect_response": 302,
    }


def test_the_bodies_of_the_catalogue() -> None:
    form = catalogue()["post_4kb_form"].requests[0].body
    assert form is not None
    pairs = parse_qsl(form.whole().decode(), strict_parsing=True)
    assert form.length == 4223
    assert pairs == [(f"k{n:03}", "abcdefghijklmnopqrstuvwxyz0") for n in range(1, 129)]
    coded = catalogue()["compressed_request_body"].requests[0].body
    assert coded is not None
    assert (coded.length, len(gzip.decompress(coded.whole()))) == (32, 1050)
    records = json.loads(response_body("gzip_response"))
    assert len(records) == 180
    assert {len(json.dumps(record, separators=(",", ":"))) for record in records} == {88}
    items = json.loads(response_body("httparena_json"))
    assert (len(items["items"]), items["count"]) == (50, 50)
    assert 8_300 < len(response_body("httparena_json")) < 8_700
    events = response_body("server_sent_events").decode().split("\n\n")
    assert events[:100] == [f"event: tick\ndata: {n}" for n in range(1, 101)]
    assert events[100:] == [": end", ""]
    (cookies,) = [
        value for name, value in catalogue()["cookies_heavy"].requests[0].fields if name == "Cookie"
    ]
    assert (len(cookies), cookies.count(";")) == (148, 7)
    headers = catalogue()["headers_heavy"].requests[0].fields[1:]
    assert [(name, len(value)) for name, value in headers] == [(f"x-bench-{n}", n) for n in range(1, 17)]


def test_the_loads_of_the_catalogue() -> None:
    scenarios = catalogue()
    assert {one.connections for one in of("Roadrunner").values()} == {50, 200, 8}
    assert scenarios["pipelined_h1"].pipeline == 4
    assert (scenarios["multi_stream_h2"].pipeline, scenarios["multi_stream_h2"].streams) == (1, 16)
    assert [r.target for r in scenarios["varied_paths_router"].requests] == [
        f"/api/v1/items/{n:04}" for n in range(1, 101)
    ]
    fresh = {name for name, one in of("Roadrunner").items() if one.requests_per_connection == 1}
    assert fresh == {"connection_storm", "accept_storm_burst", "router_404_storm", "tls_handshake_throughput"}
    assert [name for name, one in scenarios.items() if one.barrier] == ["accept_storm_burst"]
    assert [name for name, one in of("Roadrunner").items() if one.tls] == ["tls_handshake_throughput"]
    mixed = scenarios["mixed_workload"]
    assert (mixed.mix, [r.target for r in mixed.requests]) == ("at_random", ["/", "/json", "/large"])
    assert scenarios["slow_client"].requests[0].send_mode.plain() == {"pieces": 5, "gap_ms": 1.0}
    assert scenarios["expect_100_continue"].requests[0].send_mode.plain() == "await_continue"
    assert scenarios["expect_100_continue"].requests[0].expect.interim == (100,)
    assert scenarios["partial_body_drop"].requests[0].send_mode.plain() == {"drop_after_bytes": 128}
    assert scenarios["httparena_limited_conn"].requests_per_connection == 10
    assert scenarios["large_keepalive_session"].limits.requests_per_connection == 1000
    full = scenarios["backpressure_sustained"]
    assert (full.connections, full.admits, full.refusals) == (200, 50, (503,))
    assert {name: (one.count, one.connections) for name, one in of("Hornbeam").items()} == APPLICATIONS


def test_the_protocols_of_the_catalogue() -> None:
    message = catalogue()["websocket_msg_throughput"].message
    assert message is not None
    assert message.length + 8 == 1032  # two bytes, two of length, four of the mask
    h2 = {name for name, one in of("Roadrunner").items() if "h2" in one.protocols}
    assert h2 == {
        *("hello", "json", "echo", "headers_heavy", "large_response", "head_method", "cookies_heavy"),
        *("multi_request_body", "multi_stream_h2", "streaming_response", "small_chunked_response"),
        *("tls_handshake_throughput", "large_post_h2"),
    }
    every = [one for one in catalogue().values() if one.section != "HttpArena"]
    assert all(("h2" in one.protocols) == ("h3" in one.protocols) for one in every if one.kind == "server")


def test_published_figures_are_context_with_their_machine() -> None:
    by_protocol = {
        protocol: {
            name: dict(figures.figures)
            for name, one in of("Roadrunner").items()
            for figures in one.published
            if figures.protocol == protocol
        }
        for protocol in ("h1", "h2")
    }
    assert by_protocol["h1"].keys() == MATRIX_H1
    assert by_protocol["h2"].keys() == MATRIX_H2
    assert {name for name, one in of("Roadrunner").items() if "matrix" in one.tags} == MATRIX_H1 | MATRIX_H2
    assert by_protocol["h1"]["pipelined_h1"] == {"roadrunner": 572_000, "cowboy": 362_000, "elli": 4_800}
    assert by_protocol["h2"]["multi_stream_h2"] == {"roadrunner": 350_000, "cowboy": 339_000}
    figures = catalogue()["simple"].published[0]
    assert (dict(figures.figures)["hornbeam"], figures.machine) == (66_000, "M4 Pro")


def test_loads_of_clients_and_webhooks() -> None:
    scenarios = catalogue()
    for name in ("get_async", "get_sync"):
        (load,) = scenarios[name].loads
        assert (load.count, load.concurrency, load.pool, load.floor_s) == (5_000, 20, 100, 2.5)
    for name in ("post_async", "post_sync"):
        assert [(load.body_bytes >> 20, load.count) for load in scenarios[name].loads] == [
            (1, 5),
            (4, 5),
            (16, 5),
            (64, 5),
        ]
    streams = scenarios["stream_sync"].loads
    assert [(load.concurrency, load.count) for load in streams] == [
        (n, 50 * n) for n in (1, 10, 50, 100, 200)
    ]
    assert [(load.pool, load.count, load.origins) for load in scenarios["pool_assignment"].loads] == [
        (10, 10, 20),
        (100, 50, 20),
        (100, 100, 20),
        (500, 200, 20),
        (1000, 500, 20),
    ]
    assert [(load.count, load.concurrency) for load in scenarios["webhooks"].loads] == [
        (800, 40),
        (800, 80),
        (800, 150),
        (2000, 400),
        (3000, 600),
        (4000, 1000),
        (4000, 1500),
        (4000, 2500),
        (4000, 3500),
        (4000, 4000),
    ]
    assert [one for one, scenario in scenarios.items() if scenario.quick] == [
        "hello",
        "get_async",
        "get_sync",
    ]
    small = scenarios["small_post"].requests[0].body
    assert small is not None
    assert json.loads(small.whole()) == {"hello": "a" * 900}


def test_the_requests_of_web_frameworks() -> None:
    """As oha writes them: a map of headers in this order, names in small letters."""
    fields = (
        b"accept: */*\r\naccept-encoding: gzip, compress, deflate, br\r\nuser-agent: oha/1.12.1\r\n"
        b"connection: close\r\nhost: 172.17.0.2:3000\r\n\r\n"
    )
    found = [
        (one.requests[0].wire(), one.connections, one.more_connections)
        for one in of("web-frameworks").values()
    ]
    assert found == [
        (b"%s HTTP/1.1\r\n%s" % (line, fields), 64, (256, 512))
        for line in (b"GET /", b"GET /user/0", b"POST /user")
    ]
