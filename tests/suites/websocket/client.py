"""Drives a WebSocket client through Autobahn's cases: `python client.py LIBRARY URL`, started by `run.py client`.

The function of each library opens an address and echoes messages until the connection is closed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


def with_websockets(url: str, echo: bool) -> str | bytes | None:
    """Returns the first message where it does not echo."""
    from websockets.exceptions import ConnectionClosed, InvalidHandshake
    from websockets.sync.client import connect

    try:
        with connect(url, max_size=None, ping_interval=None, close_timeout=2) as socket:
            for message in socket:
                if not echo:
                    return message
                socket.send(message)
    except (ConnectionClosed, InvalidHandshake, EOFError, OSError):
        pass
    return None


def with_towline(url: str, echo: bool) -> str | bytes | None:
    import towline

    try:
        with towline.Client() as client, client.websocket(url, **TOWLINE) as socket:
            for message in socket:
                if not echo:
                    return message
                socket.send(message)
    except towline.Error:
        pass
    return None


def with_towline_async(url: str, echo: bool) -> str | bytes | None:
    import asyncio

    import towline

    async def exchange() -> str | bytes | None:
        async with towline.AsyncClient() as client, client.websocket(url, **TOWLINE) as socket:
            async for message in socket:
                if not echo:
                    return message
                await socket.send(message)
        return None

    try:
        return asyncio.run(exchange())
    except towline.Error:
        return None


# The largest messages of the suite have 16 MiB; pings of the client would be frames that no case expects.
TOWLINE: dict[str, Any] = {"max_message_bytes": None, "ping_interval": None, "close_timeout": 2}
LIBRARIES: dict[str, Callable[[str, bool], str | bytes | None]] = {
    "towline": with_towline,
    "towline-async": with_towline_async,
    "websockets": with_websockets,
}


def main() -> None:
    run_case, url = LIBRARIES[sys.argv[1]], sys.argv[2]
    count = run_case(f"{url}/getCaseCount", False)
    for number in range(1, int(count or 0) + 1):
        run_case(f"{url}/runCase?case={number}&agent={sys.argv[1]}", True)


if __name__ == "__main__":
    main()
