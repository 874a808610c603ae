"""Network conditions: the text, the emulator, and its measured behaviour."""

import socket
import time
from types import SimpleNamespace
from typing import Any

import pytest
from towline.bench._helper_process import HelperFailed
from towline.bench.netem import BadConditions, Conditions, Netem, measure, parse
from towline.bench.responder import Responder
from towline.bench.runner.protocol import Failed, StartConfig
from towline.bench.runner.servers import RunningServer
from towline.bench.scenarios import catalogue


def test_the_text():
    assert parse("rtt=20ms,jitter=2ms,rate=100mbit,loss=0.1%") == Conditions(0.02, 0.002, 12.5e6, 0.001)
    assert parse("reorder=1%,duplicates=2%") == Conditions(reorder=0.01, duplicates=0.02)
    assert parse(" rtt = 1.5 s ") == Conditions(1.5)
    assert parse("rate=8kbit") == Conditions(rate_bytes_per_s=1000.0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no conditions"),
        ("rtt", "'rtt': use rtt=..."),
        (
            "delay=3ms",
            "'delay=3ms': use rtt=..., jitter=..., rate=..., loss=..., reorder=..., duplicates=..., queue=..., packets",
        ),
        ("rtt=20", "'20' is not a time"),
        ("rtt=-1ms", "'-1ms' is not a time"),
        ("rtt=3h", "write 500us, 20ms or 1.5s"),
        ("rtt=100s", "not a time up to 60s"),
        ("rtt=1ms,rtt=2ms", "rtt is given twice"),
        ("rtt=1ms,jitter=2ms", "jitter cannot be more than rtt"),
        ("rate=10", "'10' is not a rate"),
        ("rate=1kbit", "not a rate of 8kbit or more"),
        ("loss=0.1", "write 0.1%"),
        ("loss=60%", "not a share up to 50%"),
    ],
)
def test_invalid_conditions_are_errors(text, message):
    with pytest.raises(BadConditions) as raised:
        parse(text)
    assert message in str(raised.value)


def test_measured_conditions_match():
    # Never too early. Late if the machine is busy, by less than a longer delay or a slower link would add.
    for scale in (1, 1, 4, 16):
        found = measure(parse(f"rtt={20 * scale}ms,jitter={4 * scale}ms,rate={20 / scale}mbit"))
        assert found.rtt_least_s > 0.0159 * scale
        share = found.rate_bytes_per_s * scale / 2.5e6
        assert share < 1.1
        if found.rtt_s < 0.035 * scale and share > 0.7:
            return
    raise AssertionError(found)


def test_http_through_the_emulator():
    with Responder() as responder, Netem(responder.address, parse("rtt=30ms")) as netem:
        started = time.monotonic()
        with socket.create_connection(("127.0.0.1", netem.port), 10) as client:
            client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            response = b"".join(iter(lambda: client.recv(4096), b""))
        assert response.endswith(b"alive\r\n")
        # One round trip for the handshake, one for the exchange.
        assert time.monotonic() - started > 0.06


def test_invalid_options_are_errors():
    with pytest.raises(HelperFailed, match="as in 100mbit"):
        Netem("127.0.0.1:1", Conditions(rate_bytes_per_s=1.0))


def test_the_network_outlives_the_connections_and_the_server() -> None:
    """Their ends pass through it: a server waits for its clients."""
    calls: list[str] = []

    def stopped(name: str) -> SimpleNamespace:
        calls.append(name)
        return SimpleNamespace(notes=lambda _: [])

    process: Any = SimpleNamespace(
        base_url="http://127.0.0.1:1", port=1, stop=lambda: stopped("server"), log_tail=str
    )
    emulator: Any = SimpleNamespace(address="127.0.0.1:2", stop=lambda: calls.append("network"))
    agent = SimpleNamespace(
        open=lambda *_: None, close=lambda _: calls.append("connections"), probe=lambda _: []
    )
    binding: Any = SimpleNamespace(scenario=catalogue()["hello"], agent=agent, connections=1, protocol="h1")
    running = RunningServer("a", process, binding, StartConfig(None, 0, 1), emulator)
    with pytest.raises(Failed):
        running.verify()  # opens the session; nothing responds
    assert running.stop() is None
    assert calls == ["connections", "server", "network"]
