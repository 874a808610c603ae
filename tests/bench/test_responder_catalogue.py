"""The native responder serves every scenario of Roadrunner and Hornbeam, in each of its protocols, and the messages."""

import base64
import gzip
import http.client
import socket

import pytest
from towline.bench.responder import InjectedFaults, Responder
from towline.bench.runner.agent import Agent
from towline.bench.scenarios import catalogue, session_config
from towline.bench.subjects.certificate import make_certificate

WAYS = [
    pytest.param(scenario, protocol, id=f"{scenario.name}-{protocol}")
    for scenario in catalogue().values()
    for protocol in scenario.protocols
    if scenario.section in ("Roadrunner", "Hornbeam")
    and scenario.message is None
    and not scenario.tls
    and not any(request.chunk_bytes for request in scenario.requests)
]


@pytest.fixture(scope="module")
def agent():
    with Agent() as agent:
        yield agent


@pytest.fixture(scope="module")
def responders():
    with Responder("--app", "app") as first, Responder("--app", "asgi:hello_world") as second:
        yield {"app": first, "hello_world": second}


@pytest.fixture(scope="module")
def http3_responders(tmp_path_factory):
    pem = make_certificate(tmp_path_factory.mktemp("certificate"))
    options = ("--http3", "--cert", str(pem.certificate), "--key", str(pem.key))
    with (
        Responder("--app", "app", *options) as first,
        Responder("--app", "asgi:hello_world", *options) as second,
    ):
        yield {"app": first, "hello_world": second}


@pytest.mark.parametrize(("scenario", "protocol"), WAYS)
def test_responses_to_the_byte(agent, responders, http3_responders, scenario, protocol):
    served = http3_responders if protocol == "h3" else responders
    config = session_config(scenario, served[scenario.app].base_url, protocol=protocol)
    agent.open(scenario.name, config)
    responses = agent.probe(scenario.name)
    assert len(responses) == len(scenario.requests)
    for request, found in zip(scenario.requests, responses, strict=True):
        expected = request.expect
        assert (found["failure"], found["status"]) == (None, expected.status)
        assert found["version"] == {"h1": "HTTP/1.1", "h2": "HTTP/2", "h3": "HTTP/3"}[protocol]
        fields = {name.lower(): value for name, value in found["fields"]}
        assert {name: fields.get(name.lower()) for name, _ in expected.fields} == dict(expected.fields)
        assert tuple(found["interim"]) == expected.interim
        if expected.closes is not None:
            assert found["closed"] == expected.closes
        body = base64.b64decode(found["body_base64"] or "")
        if expected.coding == "gzip":
            assert fields["content-encoding"] == "gzip"
            body = gzip.decompress(body)
        assert body == expected.body.whole()
    agent.close(scenario.name)


def test_a_chunked_body_is_echoed(responders):
    (request,) = catalogue()["chunked_request_body"].requests
    host, _, port = responders["app"].address.rpartition(":")
    with socket.create_connection((host, int(port)), 10) as client:
        client.sendall(request.wire())
        response = http.client.HTTPResponse(client, method=request.method)
        response.begin()
        assert (response.status, response.read()) == (200, request.expect.body.whole())


def test_a_known_pattern_is_injected_and_accounted_for(responders):
    with Responder() as responder:
        host, _, port = responder.address.rpartition(":")
        client = http.client.HTTPConnection(host, int(port), timeout=10)

        def get(target):
            client.request("GET", target)
            response = client.getresponse()
            return response.status, response.read()

        assert [get("/?error_share=0.25")[0] for _ in range(8)] == [200, 200, 200, 500] * 2
        assert get("/?fault=one-byte") == (200, b"alivf\r\n")
        assert get("/?fault=short") == (200, b"alive\r")
        assert get("/?fault=long") == (200, b"alive\r\n\n")
        assert [get("/?fault=one-byte&fault_share=0.5")[1][4:5] for _ in range(4)] == [b"e", b"f"] * 2
        assert responder.injected() == InjectedFaults(requests=15, slow=0, errors=2, faults=5, stalls=())
        client.request("GET", "/?fault=truncated")
        with pytest.raises(http.client.IncompleteRead):
            client.getresponse().read()
        client.close()
        client.request("GET", "/?fault=early-close")
        with pytest.raises((http.client.RemoteDisconnected, ConnectionResetError)):
            client.getresponse()
        client.close()
        client.request("GET", "/?fault=garbage")
        with pytest.raises((http.client.BadStatusLine, ConnectionResetError)):
            client.getresponse()


def test_a_message_is_echoed(agent, responders):
    scenario, base_url = catalogue()["websocket_msg_throughput"], responders["app"].base_url
    agent.open(scenario.name, session_config(scenario, base_url))
    (found,) = agent.probe(scenario.name)
    agent.close(scenario.name)
    assert (found["failure"], found["status"], found["message"]) == (None, 101, "text")
    assert base64.b64decode(found["body_base64"]) == scenario.message.whole()


def test_connections_beyond_the_limit_are_refused():
    with Responder("--max-connections", "1", "--requests-per-connection", "2") as responder:
        host, _, port = responder.address.rpartition(":")
        first, second = (http.client.HTTPConnection(host, int(port), timeout=10) for _ in range(2))
        for client, status, will_close in [(first, 200, False), (second, 503, True), (first, 200, True)]:
            client.request("GET", "/")
            response = client.getresponse()
            response.read()
            assert (response.status, response.will_close) == (status, will_close)
        first.close()
        second.close()
