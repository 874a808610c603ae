"""The job of a worker: one load, as data for the RPC."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

JobKind = Literal[
    "get",
    "upload",
    "post_json",
    "stream",
    "slow_pieces",
    "slow_events",
    "pool_assignment",
    "partial_write",
    "uncontended_acquire",
]
Backend = Literal["async", "sync"]
LoopName = Literal["asyncio", "uvloop"]
Protocol = Literal["h1", "h2", "h3"]

MICRO: frozenset[str] = frozenset({"pool_assignment", "uncontended_acquire"})
SLOW: frozenset[str] = frozenset({"slow_pieces", "slow_events"})


@dataclass(frozen=True)
class Job:
    """`concurrency` callers that make calls in sequence, for a time or a count."""

    kind: JobKind
    backend: Backend
    path: str = "/"
    answer_text: str = "Hello, World!"
    """The expected body, `answer_repeat` times."""
    answer_repeat: int = 1
    body_bytes: int = 0
    """Size of an upload, or of the text inside the posted JSON."""
    concurrency: int = 1
    """Tasks or threads."""
    batch: int = 1
    """Concurrent requests of one iteration."""
    count: int | None = None
    """Iterations of a slice; None: as many as fit into its time."""
    pool: int = 100
    """Connections that the client may keep, the same for all."""
    loop: LoopName = "asyncio"
    protocol: Protocol = "h1"
    """`h2`: without TLS, by prior knowledge; the responder then supports nothing else. `h3`: at once, with any
    certificate."""
    parameters: dict[str, int] = field(default_factory=dict)
    """For micro loads: connections, requests, origins; for partial_write: send_buffer_bytes."""

    @property
    def expected(self) -> bytes:
        return (self.answer_text * self.answer_repeat).encode()

    def plain(self) -> dict[str, Any]:
        return asdict(self)


def job_from(plain: dict[str, Any]) -> Job:
    return Job(**plain)
