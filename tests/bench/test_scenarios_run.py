"""Every scenario on real servers, and on a faulty one: right responses pass, wrong ones are detected.

Both by the checker, which sends each request once, and by the load, which verifies every response.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from towline.bench.checker import WrongResponse, check
from towline.bench.runner.agent import Agent
from towline.bench.runner.protocol import SliceSpec
from towline.bench.runner.server_experiments import SUITES_ON_REQUEST
from towline.bench.scenarios import Body, Protocol, Scenario, catalogue, session_config
from towline.bench.subjects.certificate import make_certificate
from towline.bench.subjects.model import servers
from towline.bench.subjects.process import Process
from towline.bench.subjects.render import Settings

from . import faulty_websocket
from .faulty import FAULTS, Fault, Faulty, faulty

VARIANTS = [
    (name, protocol)
    for name, one in catalogue().items()
    if one.kind == "server"
    for protocol in one.protocols
    if protocol != "h3"
]
"""The faulty server has no HTTP/3: test_responder_catalogue.py has its right responses, tests/http3 the servers."""
FAULTY = [
    (name, protocol) for name, protocol in VARIANTS if catalogue()[name].section not in SUITES_ON_REQUEST
]
"""The suites of others have no check that the other scenarios lack, except for trailers: test_httparena.py has them."""
SUBJECTS: dict[Protocol, tuple[tuple[str, str], ...]] = {
    "h1": (("towline", "asgi"), ("towline", "wsgi"), ("uvicorn-h11", "asgi")),
    "h2": (("towline", "asgi"), ("towline", "wsgi")),
}
MESSAGES = "websocket_msg_throughput"
CONNECTIONS = 4
SHORT, LONG = SliceSpec(duration_s=0.04), SliceSpec(duration_s=0.5)
MAX_S = 16.0


@pytest.fixture(scope="module")
def agent() -> Iterator[Agent]:
    with Agent() as one:
        yield one


@pytest.fixture(scope="module")
def pem(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    files = make_certificate(tmp_path_factory.mktemp("certificate"))
    return files.certificate, files.key


class Running:
    """Servers of the bench, started on first use."""

    def __init__(self, pem: tuple[Path, Path]) -> None:
        self.stack = ExitStack()
        self.pem = pem
        self.url = cache(self.start)

    def start(self, subject: str, interface: str, app: str, tls: bool) -> str:
        """All protocols are on one port."""
        settings = Settings(interface=interface, app=app, tls=self.pem if tls else None)
        process = self.stack.enter_context(Process(servers()[subject], settings))
        process.wait_ready()
        return process.base_url


@pytest.fixture(scope="module")
def running(pem: tuple[Path, Path]) -> Iterator[Running]:
    one = Running(pem)
    with one.stack:
        yield one


@pytest.fixture(scope="module")
def wrong(pem: tuple[Path, Path]) -> Iterator[dict[str, Faulty]]:
    with faulty(pem) as h1, faulty(pem, "h2") as h2:
        yield {"h1": h1, "h2": h2}


def small(name: str) -> Scenario:
    """The scenario with few connections, and three of many routes: the same requests in smaller number."""
    one = catalogue()[name]
    return replace(one, connections=min(one.connections, CONNECTIONS), requests=one.requests[:3])


def load(agent: Agent, scenario: Scenario) -> dict[str, Any]:
    """Slices until something has been counted, each twice as long as the one before.

    Requests in flight at a slice's end are dropped: on a busy machine no large body fits into the shortest.
    """
    work = LONG if scenario.name in ("httparena_upload", "arena-upload") else SHORT
    while work.duration_s <= MAX_S:
        report = agent.slice(scenario.name, work)
        responses, failed = report["answered"], sum(report["errors"].values())
        if responses or failed:
            return {"answered": responses, "failed": failed, "why": report["first_failure"]}
        work = replace(work, duration_s=2 * work.duration_s)
    raise AssertionError(f"no answer and no failure in {work.duration_s / 2:.2f} s")


def cases() -> list[Any]:
    return [
        pytest.param(subject, interface, name, protocol, id=f"{subject}-{interface}-{name}-{protocol}")
        for name, protocol in VARIANTS
        for subject, interface in SUBJECTS[protocol]
        if interface in catalogue()[name].interfaces
    ]


@pytest.mark.parametrize(("subject", "interface", "name", "protocol"), cases())
def test_every_scenario_gets_correct_responses(
    agent: Agent, running: Running, subject: str, interface: str, name: str, protocol: Protocol
) -> None:
    scenario = small(name)
    base_url = running.url(subject, interface, scenario.fixture(interface), scenario.tls)
    agent.open(name, session_config(scenario, base_url, protocol=protocol))
    check(agent, name, scenario, base_url, protocol)
    found = load(agent, scenario)
    agent.close(name)
    assert (found["failed"], found["why"]) == (0, None)
    assert found["answered"] > 0


@pytest.mark.parametrize(("name", "protocol"), FAULTY)
def test_a_right_response_passes(
    agent: Agent, wrong: dict[str, Faulty], name: str, protocol: Protocol
) -> None:
    """The control of the tests below: without a fault their server passes."""
    scenario = small(name)
    base_url = wrong[protocol].play(scenario, None)
    agent.open(name, session_config(scenario, base_url, protocol=protocol))
    check(agent, name, scenario, base_url, protocol)
    found = load(agent, scenario)
    agent.close(name)
    assert (found["failed"], found["why"]) == (0, None)
    assert found["answered"] > 0


@pytest.mark.parametrize(
    ("name", "protocol", "fault"),
    [(*variant, fault) for variant in FAULTY if variant[0] != MESSAGES for fault in FAULTS[variant[1]]],
)
def test_a_wrong_response_is_detected(
    agent: Agent, wrong: dict[str, Faulty], name: str, protocol: Protocol, fault: Fault
) -> None:
    scenario = small(name)
    base_url = wrong[protocol].play(scenario, fault)
    agent.open(name, session_config(scenario, base_url, protocol=protocol))
    with pytest.raises(WrongResponse) as caught:
        check(agent, name, scenario, base_url, protocol)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(scenario.requests[0].method)
    found = load(agent, scenario)
    agent.close(name)
    assert found["failed"] > 0
    expected = scenario.requests[0].expect
    # Bytes after a response without a body are detected after it has been counted.
    if fault != "length" or expected.body != Body() or expected.status == 302:
        assert found["answered"] == 0


@pytest.mark.parametrize("fault", faulty_websocket.FAULTS)
def test_a_wrong_message_is_caught(
    agent: Agent, wrong: dict[str, Faulty], fault: faulty_websocket.Fault
) -> None:
    scenario = small(MESSAGES)
    base_url = wrong["h1"].play_messages(fault)
    agent.open(MESSAGES, session_config(scenario, base_url))
    with pytest.raises(WrongResponse) as caught:
        check(agent, MESSAGES, scenario, base_url)
    assert str(caught.value).startswith("GET /ws: ")
    found = load(agent, scenario)
    agent.close(MESSAGES)
    assert found["failed"] > 0
    # An extra message is detected after the previous one has been counted.
    assert fault == "twice" or found["answered"] == 0


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_a_server_of_another_protocol_has_no_figure(
    agent: Agent, wrong: dict[str, Faulty], tls: bool
) -> None:
    scenario = replace(small("hello"), tls=tls)
    base_url = wrong["h1"].play(scenario, None)
    agent.open("hello", session_config(scenario, base_url, protocol="h2"))
    with pytest.raises(WrongResponse, match=r"^GET /: no complete response: "):
        check(agent, "hello", scenario, base_url, "h2")
    agent.close("hello")
