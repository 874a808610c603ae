"""examples/gateway as users run it, with an upstream that is silent, dies or floods, and clients that are slow or leave."""

from __future__ import annotations

import contextlib
import http.client
import importlib.util
import json
import random
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import parser

from tests.support.process import MAX_WAIT, Program, eventually, running
from tests.support.process_resources import resident_bytes

from .upstream import Exchange, Upstream, serving

EXAMPLES = Path(__file__).parents[2] / "examples"
GATEWAY = EXAMPLES / "gateway"
PATH = "/v1/chat/completions"
BODY = json.dumps({"model": "test", "messages": [{"role": "user", "content": "hello"}]}).encode()
USAGE = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}
MIB = 1 << 20
FLOOD = 64 * MIB


@pytest.fixture
def upstream() -> Iterator[Upstream]:
    with serving() as one:
        yield one


@contextlib.contextmanager
def gateway_to(url: str, *options: str, **settings: object) -> Iterator[Program]:
    with contextlib.ExitStack() as stack:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in {"upstream": url, **settings}.items():
                patch.setenv(f"GATEWAY_{name.upper()}", str(value))
            program = stack.enter_context(running("app:app", *options, cwd=GATEWAY))
        yield program


@contextlib.contextmanager
def asking(port: int, body: bytes = BODY, path: str = PATH) -> Iterator[http.client.HTTPConnection]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=MAX_WAIT)
    try:
        connection.request(
            "POST", path, body, {"authorization": "Bearer key", "connection": "x-hop", "x-hop": "1"}
        )
        yield connection
    finally:
        connection.close()


def ask(port: int, body: bytes = BODY, path: str = PATH) -> tuple[int, http.client.HTTPMessage, bytes]:
    with asking(port, body, path) as connection:
        response = connection.getresponse()
        return response.status, response.headers, response.read()


def metrics(port: int) -> dict[str, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=MAX_WAIT) as page:
        text = page.read().decode()
    found = {}
    for family in parser.text_string_to_metric_families(text):
        for sample in family.samples:
            labels = ",".join(value for _, value in sorted(sample.labels.items()))
            found[f"{sample.name}[{labels}]"] = sample.value
    return found


def text_event(text: str) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {"content": text}}]}


def test_events_are_passed_on_one_by_one_and_counted(upstream: Upstream) -> None:
    gate = threading.Event()

    def handler(exchange: Exchange) -> None:
        exchange.begin_events()
        exchange.event({"choices": [{"delta": {"role": "assistant", "content": ""}}]})
        exchange.event(text_event("Good"))
        assert gate.wait(MAX_WAIT)
        exchange.event(text_event(' morning "completion_tokens": 99,'))
        exchange.event({"choices": [], "usage": USAGE})
        exchange.end_events()

    upstream.handler = handler
    with gateway_to(upstream.url) as program:
        with asking(program.port) as connection:
            response = connection.getresponse()
            assert response.headers["content-type"] == "text/event-stream"
            while b"Good" not in response.readline():
                pass
            gate.set()  # the first token has passed before the upstream sent the second
            rest = response.read()
            assert rest.endswith(b"data: [DONE]\n\n")
            assert b"morning" in rest
        eventually(lambda: metrics(program.port).get("gateway_requests_total[test,200]") == 1, "the metrics")
        found = metrics(program.port)
        assert found["gateway_tokens_total[prompt,test]"] == 11
        assert found["gateway_tokens_total[completion,test]"] == 7
        assert found["gateway_first_token_seconds_count[test]"] == 1
        assert found["gateway_first_token_seconds_bucket[+Inf,test]"] == 1
        assert 0 < found["gateway_first_token_seconds_sum[test]"] < MAX_WAIT
    (request,) = upstream.requests
    assert request.body == BODY
    assert "authorization: bearer key" in request.head
    assert "accept-encoding: identity" in request.head
    assert "x-hop" not in request.head


def test_a_slow_client_slows_the_upstream_and_costs_no_memory(upstream: Upstream) -> None:
    sent, piece = [0], text_event("x" * 32768)
    closed = threading.Event()

    def flood(exchange: Exchange) -> None:
        exchange.begin_events()
        try:
            while sent[0] < FLOOD:
                exchange.event(piece)
                sent[0] += 32768
        except OSError:
            closed.set()

    upstream.handler = flood
    with gateway_to(upstream.url) as program:
        (worker,) = program.children()
        before = resident_bytes(worker)
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 10)
            client.settimeout(MAX_WAIT)
            client.connect(("127.0.0.1", program.port))
            client.sendall(
                b"POST %s HTTP/1.1\r\nhost: test\r\ncontent-length: %d\r\n\r\n%s"
                % (PATH.encode(), len(BODY), BODY)
            )
            assert client.recv(12) == b"HTTP/1.1 200"
            eventually(lambda: stands_still(sent), "the upstream waits")
            assert sent[0] < FLOOD / 4
            assert resident_bytes(worker) - before < 16 * MIB
        # The client leaves: the upstream, whose send waits, learns it.
        assert closed.wait(MAX_WAIT)
        eventually(lambda: metrics(program.port).get("gateway_requests_total[test,499]") == 1, "the metrics")
        assert metrics(program.port)["gateway_tokens_total[completion,test]"] > 1


def silent(exchange: Exchange) -> None:
    exchange.wait_for_close()


def stands_still(counter: list[int]) -> bool:
    before = counter[0]
    time.sleep(0.3)
    return 0 < before == counter[0]


def test_a_client_that_leaves_before_the_first_token_cancels_the_request(upstream: Upstream) -> None:
    cancelled = threading.Event()

    def noticing(exchange: Exchange) -> None:
        if exchange.wait_for_close():
            cancelled.set()

    upstream.handler = noticing
    with gateway_to(upstream.url) as program:
        with asking(program.port):
            eventually(lambda: upstream.requests, "the request at the upstream")
        assert cancelled.wait(MAX_WAIT)
        eventually(lambda: metrics(program.port).get("gateway_requests_total[test,499]") == 1, "the metrics")
        # Nothing is left of it: the next request is served.
        upstream.handler = lambda exchange: exchange.respond("200 OK", b"{}")
        assert ask(program.port)[0] == 200
    assert len(upstream.requests) == 2


@pytest.mark.parametrize(
    ("body", "path", "status"),
    [
        (b"not JSON", PATH, 400),
        (b"[1]", PATH, 400),
        (b'{"messages": []}', PATH, 400),
        (b'{"model": 7}', PATH, 400),
        (b'{"model": "%s"}' % (b"x" * 2000), PATH, 413),
        (BODY, "/v1/files", 404),
        (BODY, "/v1/chat/../files", 404),
    ],
)
def test_wrong_requests_do_not_reach_the_upstream(
    refusing: tuple[Program, Upstream], body: bytes, path: str, status: int
) -> None:
    program, upstream = refusing
    found, _, text = ask(program.port, body, path)
    assert found == status
    assert json.loads(text)["error"]["type"] == "invalid_request_error"
    assert upstream.requests == []


@pytest.fixture(scope="module")
def refusing() -> Iterator[tuple[Program, Upstream]]:
    with serving() as one, gateway_to(one.url, max_body_bytes=1000) as program:
        yield program, one


def test_failures_before_the_response_have_their_status(upstream: Upstream) -> None:
    def dies(exchange: Exchange) -> None:
        exchange.sock.shutdown(socket.SHUT_RDWR)

    with gateway_to(upstream.url, silence_timeout=0.5) as program:
        upstream.handler = dies
        status, _, text = ask(program.port)
        assert (status, json.loads(text)["error"]["code"]) == (502, 502)
        upstream.handler = silent
        before = len(upstream.requests)
        assert ask(program.port)[0] == 504
        assert len(upstream.requests) == before + 1, "a request that timed out was repeated"
        upstream.close()
        assert ask(program.port)[0] == 502
        for reason in ("ServerDisconnected", "ReadTimeout", "ConnectError"):
            name = f"gateway_upstream_failures_total[{reason}]"
            eventually(lambda: metrics(program.port).get(name) == 1, name)  # noqa: B023


def test_an_upstream_that_dies_in_its_response_gives_no_complete_one(upstream: Upstream) -> None:
    def dies(exchange: Exchange) -> None:
        exchange.begin_events()
        exchange.event(text_event("half a sen"))
        exchange.sock.shutdown(socket.SHUT_RDWR)

    upstream.handler = dies
    with gateway_to(upstream.url) as program:
        with asking(program.port) as connection:
            response = connection.getresponse()
            with pytest.raises(http.client.IncompleteRead) as caught:
                response.read()
        assert b'"gateway_error"' in caught.value.partial
        eventually(lambda: "gateway_upstream_failures_total" in str(metrics(program.port)), "the metrics")


def test_responses_of_the_upstream_are_passed_on(upstream: Upstream) -> None:
    mistake = b'{"error": {"message": "no such model"}}'
    with gateway_to(upstream.url) as program:
        upstream.handler = lambda exchange: exchange.respond("404 Not Found", mistake, "x-request-id: 7")
        status, headers, text = ask(program.port)
        assert (status, headers["x-request-id"], text) == (404, "7", mistake)
        # Declined for longer than the gateway waits: the client is told.
        upstream.handler = lambda exchange: exchange.respond(
            "429 Too Many Requests", b"{}", "retry-after: 60"
        )
        status, headers, _ = ask(program.port)
        assert (status, headers["retry-after"]) == (429, "60")
    assert len(upstream.requests) == 2


def test_a_declined_request_is_sent_again(upstream: Upstream) -> None:
    def second_time(exchange: Exchange) -> None:
        if len(upstream.requests) == 1:
            exchange.respond("503 Service Unavailable", b"{}")
        else:
            exchange.respond("200 OK", json.dumps({"usage": USAGE}).encode())

    upstream.handler = second_time
    with gateway_to(upstream.url) as program:
        assert ask(program.port)[0] == 200
    assert [request.body for request in upstream.requests] == [BODY, BODY]


def test_too_many_requests_are_refused_at_once(upstream: Upstream) -> None:
    release = threading.Event()

    def wait(exchange: Exchange) -> None:
        assert release.wait(MAX_WAIT)
        exchange.respond("200 OK", b"{}")

    upstream.handler = wait
    with gateway_to(upstream.url, width=1, queue_timeout=MAX_WAIT) as program:
        with asking(program.port) as first:
            eventually(lambda: upstream.requests, "the first request at the upstream")
            with contextlib.ExitStack() as others:
                waiting = [others.enter_context(asking(program.port)) for _ in range(2)]
                # One of the two waits for its turn, the other finds the queue full.
                statuses = threading.Thread(target=lambda: [w.getresponse() for w in waiting])
                statuses.start()
                eventually(lambda: "[test,503]" in str(metrics(program.port)), "the refusal")
                release.set()
                statuses.join(MAX_WAIT)
            assert first.getresponse().status == 200
        eventually(lambda: metrics(program.port).get("gateway_requests_total[test,200]") == 2, "both served")
    assert len(upstream.requests) == 2


def test_metrics_are_those_of_all_workers(upstream: Upstream) -> None:
    upstream.handler = lambda exchange: exchange.respond("200 OK", json.dumps({"usage": USAGE}).encode())
    asked = 0
    with gateway_to(upstream.url, "--workers", "2", "--timeout-worker-healthcheck", "120") as program:
        for _ in program.each_worker(2):
            for _ in range(5):
                assert ask(program.port)[0] == 200
            asked += 5
            tokens = asked * USAGE["prompt_tokens"]
            eventually(
                lambda tokens=tokens: (
                    metrics(program.port).get("gateway_tokens_total[prompt,test]") == tokens
                ),
                "the sum of both workers",
            )
    assert asked == 10


@pytest.mark.parametrize(
    ("variable", "value"),
    [("GATEWAY_UPSTREAM", "localhost:9000"), ("GATEWAY_WIDTH", "many"), ("GATEWAY_STATE", "/dev/null/no")],
)
def test_wrong_settings_fail_the_start(monkeypatch: pytest.MonkeyPatch, variable: str, value: str) -> None:
    monkeypatch.setenv(variable, value)
    command = [sys.executable, "-m", "towline", "serve", "app:app", "--port", "0"]
    done = subprocess.run(command, cwd=GATEWAY, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 3
    assert value in done.stderr


def test_the_openai_sdk_works_through_the_gateway() -> None:
    pytest.importorskip("openai")
    with (
        running("mock_endpoint:app", cwd=EXAMPLES / "llm") as mock,
        gateway_to(f"http://127.0.0.1:{mock.port}") as program,
    ):
        command = [sys.executable, str(EXAMPLES / "llm/openai_chat.py"), f"http://127.0.0.1:{program.port}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
        assert done.returncode == 0, done.stderr
        assert "|You| said:| Good| morning,| how| are| you?|" in done.stdout
        assert metrics(program.port)["gateway_requests_total[any,200]"] > 20


def load_metering() -> Any:
    spec = importlib.util.spec_from_file_location("metering", GATEWAY / "metering.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


ANTHROPIC = [
    {"type": "message_start", "message": {"content": [], "usage": {"input_tokens": 25, "output_tokens": 1}}},
    {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "Hel"}},
    {"type": "content_block_delta", "delta": {"type": "text_delta", "text": '"output_tokens": 5 lo'}},
    {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 15}},
]
OPENAI = [{"choices": [{"delta": {"role": "assistant", "content": ""}}]}, *map(text_event, ("a", "b", "c"))]


@pytest.mark.parametrize(
    ("events", "totals"),
    [
        (ANTHROPIC, {"prompt": 25, "completion": 15}),
        (OPENAI, {"completion": 3}),
        ([*OPENAI, {"choices": [], "usage": USAGE}], {"prompt": 11, "completion": 7}),
    ],
)
@pytest.mark.parametrize("step", [1, 2, 7, 33, 100_000])
def test_tokens_are_counted_wherever_the_pieces_are_cut(
    events: list[Any], totals: dict[str, int], step: int
) -> None:
    data = b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events)
    counter = load_metering().TokenCounter()
    for at in range(0, len(data), step):
        counter.feed(data[at : at + step])
    assert counter.totals() == totals


def test_the_first_token_is_the_first_text() -> None:
    counter = load_metering().TokenCounter()
    counter.feed(b'data: {"choices": [{"delta": {"role": "assistant", "content": ""}}]}\n\n')
    assert counter.first_token_seconds is None
    counter.feed(b'data: {"choices": [{"delta": {"content": "')
    assert counter.first_token_seconds is None
    counter.feed(b'G"}}]}\n\n')
    first = counter.first_token_seconds
    assert first is not None
    counter.feed(b'data: {"choices": [{"delta": {"content": "o"}}]}\n\n')
    assert counter.first_token_seconds == first


def test_names_of_models_are_bounded() -> None:
    module = load_metering()
    meter = module.Meter(None)
    names = {meter._label(f"model {random.random()}\n") for _ in range(200)}
    assert len(names) == module.MAX_MODELS + 1
    assert all("\n" not in name and " " not in name for name in names)
