"""Requests over `--limit-concurrency`: refused by the server itself, and seen like all others."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from towline.testing import serve

from tests.support.feature_server import fetch


class Applications:
    """An application of both interfaces that holds every request until `leave` is set."""

    def __init__(self) -> None:
        self.entered, self.leave = threading.Event(), threading.Event()

    async def asgi(self, scope: Any, receive: Any, send: Any) -> None:
        import asyncio

        self.entered.set()
        await asyncio.to_thread(self.leave.wait, 10)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"ok"})

    def wsgi(self, environ: Any, start_response: Any) -> Any:
        self.entered.set()
        self.leave.wait(10)
        start_response("200 OK", [])
        return [b"ok"]


@pytest.mark.parametrize("interface", ["asgi", "wsgi"])
def test_a_refusal_is_logged_and_counted(interface: str, tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    apps = Applications()
    options: dict[str, Any] = {
        "interface": interface,
        "lifespan": "off",
        "limit_concurrency": 1,
        "threads": 2,
    }
    options |= {"access_log": str(log), "access_log_format": "%(h)s %(U)s %(s)s %(B)s", "metrics": True}
    with serve(getattr(apps, interface), **options) as server:
        held: list[Any] = []
        holder = threading.Thread(target=lambda: held.append(fetch(server, "/held")))
        holder.start()
        assert apps.entered.wait(10)
        refused = fetch(server, "/refused")
        assert (refused.status, refused.body) == (503, b"Service Unavailable")
        assert (refused.field("retry-after"), refused.field("server")) == ("1", "towline")
        head = fetch(server, "/head", method="HEAD")
        assert (head.status, head.body, head.field("content-length")) == (503, b"", "19")
        # The page is the server's own: it is there when it is needed most.
        assert fetch(server, "/metrics").status == 200
        apps.leave.set()
        holder.join(10)
        assert (held[0].status, held[0].body) == (200, b"ok")
    lines = log.read_text().splitlines()
    assert [line for line in lines if "/metrics" not in line] == [
        "127.0.0.1 /refused 503 19",
        "127.0.0.1 /head 503 0",
        "127.0.0.1 /held 200 2",
    ]
