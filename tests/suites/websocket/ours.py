"""Autobahn's cases against Towline: its server, and both clients: `python tests/suites/websocket/ours.py` (`make autobahn`)."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from towline.testing import serve

HERE = Path(__file__).parent
# The largest messages of the suite have 16 MiB; pings of the server would be frames that no case expects.
OPTIONS: dict[str, Any] = {"ws_max_size": 16 << 20, "ws_ping_interval": None}


async def echo(
    scope: dict[str, Any],
    receive: Callable[[], Awaitable[dict[str, Any]]],
    send: Callable[[dict[str, Any]], Awaitable[None]],
) -> None:
    if scope["type"] != "websocket":
        return
    await receive()
    await send({"type": "websocket.accept"})
    while (message := await receive())["type"] == "websocket.receive":
        kept = {name: message[name] for name in ("bytes", "text") if message.get(name) is not None}
        await send({"type": "websocket.send", **kept})


def run(*arguments: str) -> bool:
    return subprocess.run([sys.executable, str(HERE / "run.py"), *arguments], check=False).returncode == 0


def main() -> int:
    with serve(echo, interface="asgi", lifespan="off", **OPTIONS) as server:
        print("server", flush=True)
        good = run("server", server.url.replace("http:", "ws:") + "/")
    for library in ("towline", "towline-async"):
        print(f"client {library}", flush=True)
        good &= run("client", "--", sys.executable, str(HERE / "client.py"), library)
    return int(not good)


if __name__ == "__main__":
    sys.exit(main())
