"""Retries by status: Retry-After in both forms, backoff with jitter, a budget, and only where it is safe."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from towline import ConfigError, MockTransport, Request, Response, Retry, Timeout, TotalTimeout
from towline.client import backends
from towline.client.status_retry import Budget, retry_after_s, retry_delay

from tests.support.client_callers import BACKENDS, Caller, Recorder

NOW = 1_700_000_000.0


@pytest.fixture(params=BACKENDS)
def backend(request):
    return request.param


@pytest.fixture
def slept(monkeypatch):
    """Seconds that the flow would wait; no time passes."""
    waits: list[float] = []
    monkeypatch.setattr(backends.time, "sleep", waits.append)

    async def sleep(seconds):
        waits.append(seconds)

    monkeypatch.setattr(backends, "sleep", sleep)
    return waits


def failing(times, status=503, **headers):
    count = iter(range(times))
    return lambda request: Response(status if next(count, None) is not None else 200, headers=headers)


def request(method="GET", **arguments):
    return Request(method, "http://h/", **arguments)


def wait(retry, response, attempt=0, random=1.0, of=None):
    return retry_delay(retry, of or request(), response, attempt, NOW, random)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("120", 120.0),
        ("0", 0.0),
        ("Tue, 14 Nov 2023 22:14:20 GMT", 60.0),
        ("Tue, 14 Nov 2023 22:00:00 GMT", 0.0),
        ("-5", None),
        ("1.5", None),
        ("soon", None),
        ("", None),
        ("9" * 400, 999999999999.0),
    ],
)
def test_retry_after(value, seconds):
    assert retry_after_s(Response(503, headers={"Retry-After": value}), NOW) == seconds


@given(st.text(st.characters(codec="latin-1", exclude_characters="\r\n\0"), max_size=40))
def test_any_retry_after_is_seconds_or_nothing(value):
    seconds = retry_after_s(Response(503, headers=[(b"Retry-After", value.encode("latin-1"))]), NOW)
    assert seconds is None or seconds >= 0


def test_backoff():
    retry = Retry(status=(503,), backoff=0.5, jitter=False, times=10, max_delay=3)
    assert [wait(retry, Response(503), attempt) for attempt in range(4)] == [0.5, 1.0, 2.0, 3]
    jittered = Retry(status=(503,), backoff=0.5, times=10)
    assert wait(jittered, Response(503), 1, random=0.25) == 0.25
    assert wait(retry, Response(503), 10) is None
    assert wait(retry, Response(500)) is None
    later = Response(503, headers={"Retry-After": "2"})
    assert wait(retry, later) == 2.0
    assert 2.0 <= wait(jittered, later, random=0.5) <= 3.0
    assert wait(Retry(status=(503,), respect_retry_after=False, jitter=False), later) == 0.5
    assert wait(retry, Response(503, headers={"Retry-After": "4"})) is None


def test_only_requests_that_may_be_resent_are():
    retry = Retry(status=(503,))
    for method in ("GET", "HEAD", "PUT", "DELETE", "OPTIONS"):
        assert wait(retry, Response(503), of=request(method)) is not None
    for method in ("POST", "PATCH", "BREW"):
        assert wait(retry, Response(503), of=request(method)) is None
    assert (
        wait(Retry(status=(503,), methods=("post",)), Response(503), of=request("POST", content=b"x"))
        is not None
    )
    assert wait(retry, Response(503), of=request("PUT", content=iter([b"x"]))) is None


def test_on_both_backends(backend, slept):
    recorder = Recorder(root=failing(2))
    client = Caller(backend, transport=MockTransport(recorder), retries=Retry(status=(503,), jitter=False))
    assert client.get("http://h/").status_code == 200
    assert slept == [0.5, 1.0]
    assert len(recorder.requests) == 3
    assert client.get("http://h/", retries=0).status_code == 200
    recorder.responses["root"] = failing(9)
    assert client.get("http://h/").status_code == 503
    assert len(recorder.requests) == 3 + 1 + 4
    recorder.responses["root"] = failing(9)
    assert client.get("http://h/", retries=None).status_code == 503
    assert len(recorder.requests) == 3 + 1 + 4 + 1


def test_none_by_default(backend, slept):
    recorder = Recorder(root=failing(9))
    assert Caller(backend, transport=MockTransport(recorder)).get("http://h/").status_code == 503
    assert len(recorder.requests) == 1


def test_a_budget(backend, slept):
    recorder = Recorder(root=failing(10**9))
    retries = Retry(status=(503,), budget=0.1, times=3)
    client = Caller(backend, transport=MockTransport(recorder), retries=retries)
    for _ in range(100):
        client.get("http://h/")
    # ten in reserve, and one for each ten calls
    assert 100 + 10 <= len(recorder.requests) <= 100 + 20


def test_a_budget_is_bounded():
    budget = Budget(1e9)
    budget.deposit()
    assert sum(budget.withdraw() for _ in range(5000)) == 1000


def test_the_total_time_holds_for_waiting(backend, slept):
    recorder = Recorder(root=failing(9, **{"Retry-After": "30"}))
    client = Caller(
        backend, transport=MockTransport(recorder), retries=Retry(status=(503,)), timeout=Timeout(total=5)
    )
    assert client.get("http://h/").status_code == 503
    assert slept == []
    client = Caller(backend, transport=MockTransport(recorder), timeout=Timeout(total=0))
    with pytest.raises(TotalTimeout):
        client.get("http://h/")


@pytest.mark.parametrize(
    "arguments",
    [
        {"status": (99,)},
        {"status": ("503",)},
        {"stale": "maybe"},
        {"backoff": -1},
        {"times": -1},
        {"connect": 1.5},
    ],
)
def test_an_invalid_setting_is_named(arguments):
    with pytest.raises(ConfigError, match=f"retries.{next(iter(arguments))}"):
        Retry(**arguments)
