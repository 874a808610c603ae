"""The soak of benches/soak.py for a few seconds: it loses no request, and its counting notices one that is lost."""

from __future__ import annotations

import time

from benches.soak import TRAFFIC, Served, run
from tests.support.process import Program


def test_mixed_traffic_over_reloads_and_kills_loses_no_request() -> None:
    for served in run(20.0, reload_s=6.0, kill_s=9.0):
        assert served.failures == [], served.name
        kinds = (
            len(TRAFFIC) - 2 - (not served.name.startswith("ASGI"))
        )  # without hostile ones; no WebSocket under WSGI
        assert len(served.completed) == kinds, served.completed
        assert served.hostile > 0
        assert (served.reloads, len(served.kills)) == ((3, 2) if served.is_disturbed else (0, 0))


def test_only_what_a_killed_worker_held_is_excused() -> None:
    with_kill = Served("ASGI", Program.__new__(Program), is_disturbed=True)
    with_kill.kills.append((time.monotonic(), 7))
    with_kill.failed("keep-alive", 7, ConnectionResetError())
    with_kill.failed("new connection", None, ConnectionResetError())
    assert with_kill.killed_with == {"keep-alive": 1, "new connection": 1}
    assert with_kill.failures == []
    with_kill.failed("keep-alive", 8, ConnectionResetError())
    with_kill.failed("keep-alive", 7, ValueError("HTTP/1.1 503"))
    assert len(with_kill.failures) == 2
