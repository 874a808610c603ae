"""Time that a request has spent before this server: `X-Request-Start` of trusted proxies (`--queue-time`)."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.every_version import described_by, every_version_and_kind, fetching
from tests.support.feature_server import every_kind, samples, serving
from tests.support.websocket_server import open_ws

SUM, COUNT = "towline_proxy_queue_seconds_sum", "towline_proxy_queue_seconds_count"


def started(ago: float) -> tuple[str, str]:
    return ("X-Request-Start", f"t={int((time.time() - ago) * 1e6)}")


@every_version_and_kind
def test_the_application_and_the_metrics_have_it(version: str, kind: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"queue_time": True, "metrics": True}
    with fetching(version, kind, described_by(kind), tmp_path, **options) as get:
        described = json.loads(get("GET", "/", headers=(started(3600), started(20))).body)
        counts = samples(get("GET", "/metrics").body.decode())
        without = json.loads(get("GET", "/").body)
    assert 20 <= described["queue_time"] < 120
    assert counts[COUNT] == 1
    assert 20 <= counts[SUM] < 120
    assert without["queue_time"] is None


@every_kind
@pytest.mark.parametrize("value", ["t=1", "junk", "t=99999999999999999", "", "t=1764200000.5"])
def test_what_cannot_be_is_ignored(kind: str, value: str, tmp_path: Path) -> None:
    with fetching("1.1", kind, described_by(kind), tmp_path, queue_time=True) as get:
        for field in (("X-Request-Start", value), started(-100)):
            assert json.loads(get("GET", "/", headers=(field,)).body)["queue_time"] is None


@every_kind
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"queue_time": True, "forwarded_allow_ips": ("10.0.0.1",)},
        {"queue_time": True, "proxy_headers": False},
    ],
)
def test_it_is_off_by_default_and_only_proxies_are_believed(kind: str, options: Any, tmp_path: Path) -> None:
    with fetching("1.1", kind, described_by(kind), tmp_path, metrics=True, **options) as get:
        assert json.loads(get("GET", "/", headers=(started(20),)).body)["queue_time"] is None
        assert samples(get("GET", "/metrics").body.decode())[COUNT] == 0


def test_a_websocket_has_it() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        seconds = scope["extensions"]["towline.queue_time"]["seconds"]
        await send({"type": "websocket.send", "text": str(seconds)})
        assert "websocket.http.response" in scope["extensions"]

    with serving("asgi", app, queue_time=True) as server:
        with open_ws(server, additional_headers=[started(20)]) as client:
            assert 20 <= float(client.recv()) < 120
