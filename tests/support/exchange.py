"""A request on a stream, as the clients of HTTP/2 and HTTP/3 see it."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass
class Exchange:
    """State of one stream: the parts of its response received so far."""

    status: int = 0
    fields: dict[str, str] = dataclasses.field(default_factory=dict)
    body: bytes = b""
    trailers: dict[str, str] = dataclasses.field(default_factory=dict)
    interim: list[tuple[int, dict[str, str]]] = dataclasses.field(default_factory=list)
    ended: bool = False
    reset: int | None = None
    stopped: int | None = None
    """Code of the server's STOP_SENDING, which HTTP/2 does not have."""

    @property
    def over(self) -> bool:
        return self.ended or self.reset is not None
