"""The hostile requests over real sockets, in front of an ASGI and a WSGI application, whole and in segments."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import h11
import pytest
from towline.testing import Running, serve

from tests.wire.hostile import Case, Recorder, Request, Response, cases, send_case

CONNECTIONS_AT_ONCE = 24
PATIENT_SECONDS = 5.0

# Where h11 cannot be asked.
NO_ORACLE = {
    "cn-10-keepalive": "h11 keeps no HTTP/1.0 connection",
    "cn-noread-pipelined": "the application does not read the body that h11 sees",
}


@pytest.fixture(scope="module", params=["asgi", "wsgi"])
def served(request):
    recorder = Recorder()
    with serve(getattr(recorder, request.param), interface=request.param) as server:
        yield recorder, server


def whole(case: Case) -> list[bytes]:
    return [case.wire]


def segments(case: Case) -> list[bytes]:
    """At most eight pieces, cut at places that depend on the case only."""
    dice = random.Random(case.id)
    places = sorted(dice.sample(range(1, len(case.wire)), min(7, len(case.wire) - 1)))
    bounds = [0, *places, len(case.wire)]
    return [case.wire[start:end] for start, end in itertools.pairwise(bounds)]


def judge(case: Case, response: Response) -> str | None:
    calls = len(response.requests)
    over = response.closed
    refused = over and (not response.data or b"HTTP/1.1 4" in response.data or b"HTTP/1.1 5" in response.data)
    if calls > case.max:
        return f"wrongly accepted: {calls} requests reached the application"
    if case.expect == "R" and not refused:
        return f"wrongly accepted: closed {over}, answered {response.data[:60]!r}"
    if case.expect == "A" and calls == 0:
        return f"wrongly refused: {response.data[:60]!r}"
    if case.must_close and not over:
        return "wrongly kept open"
    return None


def send_cases(
    served: tuple[Recorder, Running], requested: list[Case], cut: Callable[[Case], list[bytes]]
) -> Iterator[tuple[Case, Response, Callable[[], Response]]]:
    """Each case, what came of it, and what does it again with more time: on a busy machine an answer can be late."""
    recorder, server = served
    address = (server.host, server.port)
    with ThreadPoolExecutor(CONNECTIONS_AT_ONCE) as pool:
        responses = list(pool.map(lambda case: send_case(address, recorder, case, cut(case)), requested))
    for case, response in zip(requested, responses, strict=True):
        yield case, response, partial(send_case, address, recorder, case, cut(case), PATIENT_SECONDS)


@pytest.mark.parametrize("cut", [whole, segments])
def test_every_case_is_judged_as_it_must(served, cut):
    problems = {}
    for case, response, again in send_cases(served, cases(), cut):
        if judge(case, response) and (problem := judge(case, again())):
            problems[case.id] = problem
    assert not problems


def test_requests_reach_the_application_as_h11_parses_them(served):
    differ = {}
    for case, response, _ in send_cases(
        served, [case for case in cases() if case.id not in NO_ORACLE], whole
    ):
        ours, theirs = response.requests, h11_requests(case.wire)
        if [comparable(request) for request in ours] != [comparable(r) for r in theirs[: len(ours)]]:
            differ[case.id] = (ours, theirs)
    assert not differ


def comparable(request: Request) -> tuple[str, str, bytes]:
    """The target without scheme and authority, which WSGI and ASGI do not hand on."""
    target = request.target
    if "://" in target:
        target = "/" + target.split("://", 1)[1].partition("/")[2]
    return request.method, "" if target == "*" else target, request.body


def h11_requests(wire: bytes) -> list[Request]:
    """The requests that h11 completes from the same bytes."""
    conn = h11.Connection(h11.SERVER, max_incomplete_event_size=1 << 21)
    conn.receive_data(wire.removeprefix(b"\r\n"))  # h11 knows no empty line there (RFC 9112 2.2)
    found: list[Request] = []
    head: h11.Request | None = None
    body = b""
    while True:
        try:
            event = conn.next_event()
        except h11.RemoteProtocolError:
            return found
        if event is h11.NEED_DATA or event is h11.PAUSED:
            return found
        if isinstance(event, h11.Request):
            head, body = event, b""
        elif isinstance(event, h11.Data):
            body += bytes(event.data)
        elif isinstance(event, h11.EndOfMessage) and head is not None:
            found.append(Request(head.method.decode(), head.target.decode("latin-1"), body))
            conn.send(h11.Response(status_code=200, headers=[("Content-Length", "0")]))
            conn.send(h11.EndOfMessage())
            if conn.our_state is not h11.DONE or conn.their_state is not h11.DONE:
                return found
            conn.start_next_cycle()
        else:
            return found
