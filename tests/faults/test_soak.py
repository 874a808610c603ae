"""The soak of benches/soak.py for a few seconds: it loses no request, and its counting notices one that is lost."""

from __future__ import annotations

import time

from benches.soak import TRAFFIC, ServerUnderTest, run
from tests.support.nightly import IS_NIGHT
from tests.support.process import Program


def test_mixed_traffic_over_reloads_and_kills_loses_no_request() -> None:
    scale = 3.0 if IS_NIGHT else 0.4
    for server in run(20.0 * scale, reload_s=6.0 * scale, kill_s=9.0 * scale):
        assert server.failures == [], server.name
        kinds = (
            len(TRAFFIC) - 2 - (not server.name.startswith("ASGI"))
        )  # without hostile ones; no WebSocket under WSGI
        assert len(server.completed) == kinds, server.completed
        assert server.hostile > 0
        assert (server.reloads, len(server.kills)) == ((3, 2) if server.is_disturbed else (0, 0))


def test_only_what_a_killed_worker_held_is_excused() -> None:
    with_kill = ServerUnderTest("ASGI", Program.__new__(Program), is_disturbed=True)
    with_kill.kills.append((time.monotonic(), 7))
    with_kill.failed("keep-alive", 7, ConnectionResetError())
    with_kill.failed("new connection", None, ConnectionResetError())
    assert with_kill.killed_with == {"keep-alive": 1, "new connection": 1}
    assert with_kill.failures == []
    with_kill.failed("keep-alive", 8, ConnectionResetError())
    with_kill.failed("keep-alive", 7, ValueError("HTTP/1.1 503"))
    assert len(with_kill.failures) == 2
