"""WSGI server in a thread. See `running_server` for the requests to it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

from towline import _native
from towline.config import ServerConfig

from tests.support.running_server import RunningServer, listening

MODES = {"inline": 1, "threads": 3}


@contextlib.contextmanager
def serving(app: Any, **options: Any) -> Iterator[RunningServer]:
    """Serves `app` on a free port. Fails if `run` does not return after `stop`."""
    log: list[tuple[int, str, BaseException | None]] = []
    with listening() as (port, bind):
        server = _native.WsgiServer(
            app,
            ServerConfig(app=app, **options),
            [bind],
            log=lambda level, text, error: log.append((level, text, error)),
        )
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        yield RunningServer(server, port, log)
    finally:
        server.stop()
        thread.join(5)
        assert not thread.is_alive(), "run() did not return after stop()"


def plain(body: bytes = b"ok") -> Callable[..., list[bytes]]:
    def app(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        start_response("200 OK", [("Content-Type", "text/plain")])
        return [body]

    return app
