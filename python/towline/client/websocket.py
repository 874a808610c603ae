"""WebSocket is not there yet: both clients say so."""

from __future__ import annotations

from typing import Any, NoReturn

from ..errors import UsageError


def refuse_websocket(self: Any, url: Any, **arguments: Any) -> NoReturn:
    """Comes with the WebSocket release."""
    raise UsageError(
        "websocket() comes with Towline's WebSocket release; until then use the websockets package"
    )
