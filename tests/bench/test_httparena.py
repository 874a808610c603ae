"""The profiles of HttpArena: requests and loads as the arena has them, and the checks that only they use.

The bytes were taken from the arena's requests/*.raw, and from what wrk and gcannon write; the table from scripts/lib/profiles.sh and
scripts/lib/tools.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest
from towline.bench.apps import httparena_data as data
from towline.bench.checker import WrongResponse, check
from towline.bench.runner.agent import Agent
from towline.bench.runner.plan import NothingToDo, Options
from towline.bench.runner.protocol import SliceSpec
from towline.bench.runner.server_experiments import chosen_scenarios
from towline.bench.scenarios import Scenario, catalogue, session_config
from towline.bench.subjects.certificate import make_certificate
from towline.bench.subjects.model import servers
from towline.bench.subjects.process import Process
from towline.bench.subjects.render import Settings

SHORT = SliceSpec(duration_s=0.2)
BASELINE = [
    b"GET /baseline11?a=13&b=42 HTTP/1.1\r\nHost: localhost:8080\r\n\r\n",
    b"POST /baseline11?a=13&b=42 HTTP/1.1\r\nHost: localhost:8080\r\nContent-Length: 2\r\n\r\n20",
    b"POST /baseline11?a=13&b=42 HTTP/1.1\r\nHost: localhost:8080\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n20\r\n0\r\n\r\n",
]
WIRE = {
    "baseline": BASELINE,
    "limited-conn": BASELINE,
    "pipelined": [b"GET /pipeline HTTP/1.1\r\nHost: localhost:8080\r\n\r\n"],
    "json": [
        b"GET /json/%d?m=%d HTTP/1.1\r\nHost: localhost:8080\r\n\r\n" % pair
        for pair in [(1, 3), (5, 7), (10, 2), (15, 5), (25, 4), (40, 8), (50, 6)]
    ],
    "json-comp": [
        b"GET /json/%d?m=%d HTTP/1.1\r\nHost: localhost:8080\r\nAccept-Encoding: gzip, br\r\n\r\n" % pair
        for pair in [(25, 4), (40, 8), (50, 6)]
    ],
}
# (connections, concurrency on each, requests of a connection, over TLS)
LOADS = {
    "baseline": ((512, 4096), 1, None, False),
    "pipelined": ((512, 4096), 16, None, False),
    "limited-conn": ((512, 4096), 1, 10, False),
    "json": ((4096,), 1, 25, False),
    "json-comp": ((512, 4096, 16384), 1, 25, False),
    "json-tls": ((4096,), 1, None, True),
    "upload": ((32, 256), 1, 5, False),
    "static": ((1024, 4096, 6800), 1, None, False),
    "baseline-h2": ((256, 1024), 100, None, True),
    "static-h2": ((256, 1024), 32, None, True),
    "baseline-h2c": ((256, 1024, 4096), 100, None, False),
    "json-h2c": ((1024, 4096), 32, None, False),
    "baseline-h3": ((64,), 64, None, False),
    "static-h3": ((64,), 64, None, False),
    "unary-grpc": ((256, 1024), 100, None, False),
    "unary-grpc-tls": ((256, 1024), 100, None, True),
    "stream-grpc": ((64,), 4, None, False),
    "stream-grpc-tls": ((64,), 4, None, True),
    "echo-ws": ((512, 4096, 16384), 1, None, False),
}


def profile(name: str) -> Scenario:
    return catalogue()[f"arena-{name}"]


def names(*patterns: str) -> list[str]:
    return [one.name for one in chosen_scenarios(Options(scenario=patterns))]


def test_the_suite_is_measured_on_request() -> None:
    assert names("httparena") == [f"arena-{name}" for name in LOADS]
    assert names("httparena", "hello") == ["hello", *names("httparena")]
    assert not set(names()) & set(names("httparena"))
    with pytest.raises(NothingToDo):
        names("roadrunner")  # a section that every run has is `section:roadrunner`


@pytest.mark.parametrize("name", WIRE)
def test_requests_are_the_arena_s_to_the_byte(name: str) -> None:
    assert [request.wire() for request in profile(name).requests] == WIRE[name]


def test_uploads_have_the_arena_s_heads() -> None:
    sizes = (512_000, 2_097_152, 10_485_760, 20_971_520)
    assert [request.head() for request in profile("upload").requests] == [
        b"POST /upload HTTP/1.1\r\nHost: localhost:8080\r\nContent-Length: %d\r\n\r\n" % size
        for size in sizes
    ]


@pytest.mark.parametrize("name", LOADS)
def test_loads_are_the_arena_s(name: str) -> None:
    one, protocol = profile(name), profile(name).protocols[0]
    found = (
        (one.connections, *one.more_connections),
        one.concurrency(protocol),
        one.requests_per_connection,
        one.tls,
    )
    assert found == LOADS[name]
    by_gcannon = len(one.requests) > 1 and name in ("baseline", "limited-conn", "json", "json-comp", "upload")
    assert one.mix == ("per_connection" if by_gcannon else "in_turn")
    assert one.says_close == (one.requests_per_connection is None)


def test_the_data_has_the_arena_s_shape() -> None:
    assert [len(data.fixture(f"json {count} 1")) for count in (1, 50)] == pytest.approx([203, 8397], rel=0.1)
    last = json.loads(data.fixture("json 50 6"))["items"][-1]
    assert last["total"] == last["price"] * last["quantity"] * 6
    assert [len(data.static(name)) for name in data.SIZES] == list(data.SIZES.values())
    assert sum(data.SIZES.values()) == pytest.approx(1_250_000, rel=0.05)
    assert b"".join(data.sums(127, 2)) == b"\0\0\0\0\2\x08\x7f\0\0\0\0\3\x08\x80\x01"


@pytest.fixture(scope="module")
def towline(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    pem = make_certificate(tmp_path_factory.mktemp("certificate"))
    settings = Settings(interface="asgi", app="httparena:app", protocol="h3", tls=(pem.certificate, pem.key))
    with Process(servers()["towline"], settings) as process:
        process.wait_ready()
        yield process.base_url


@pytest.mark.parametrize("name", ["baseline-h3", "static-h3"])
def test_the_profiles_of_http3_get_correct_responses(towline: str, name: str) -> None:
    one = replace(profile(name), connections=2)
    with Agent() as agent:
        agent.open(name, session_config(one, towline, protocol="h3"))
        check(agent, name, one, towline, "h3")
        report = agent.slice(name, SHORT)
        agent.close(name)
    assert (report["answered"] > 0, report["first_failure"]) == (True, None)


def test_a_wrong_status_of_grpc_is_a_wrong_response(towline: str) -> None:
    """The checker and the load, which sees it in the trailers."""
    one = replace(profile("unary-grpc-tls"), connections=2, streams=3)
    request = one.requests[0]
    wrong = replace(request, expect=replace(request.expect, trailers=(("grpc-status", "2"),)))
    one = replace(one, requests=(wrong,))
    with Agent() as agent:
        agent.open("x", session_config(one, towline, protocol="h2"))
        with pytest.raises(WrongResponse, match=r"the trailer grpc-status must be '2'; .*'0'"):
            check(agent, "x", one, towline, "h2")
        report = agent.slice("x", SHORT)
        agent.close("x")
    assert (report["answered"], report["first_failure"]) == (0, "the trailers are not the expected ones")
