"""What a worker is asked to do: one load, as data that crosses the pipe."""

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
Protocol = Literal["h1", "h2"]

MICRO: frozenset[str] = frozenset({"pool_assignment", "uncontended_acquire"})
SLOW: frozenset[str] = frozenset({"slow_pieces", "slow_events"})


@dataclass(frozen=True)
class Job:
    """Lanes that ask one after the other, `concurrency` of them, for a time or a count."""

    kind: JobKind
    backend: Backend
    path: str = "/"
    answer_text: str = "Hello, World!"
    """What every answer must be, to its last byte, `answer_repeat` times."""
    answer_repeat: int = 1
    body_bytes: int = 0
    """Of an upload, or of the text inside the JSON that is posted."""
    concurrency: int = 1
    """Tasks or threads."""
    batch: int = 1
    """Requests awaited together; one batch is one iteration."""
    count: int | None = None
    """Iterations of a slice; None: as many as fit into its time."""
    pool: int = 100
    """Connections that the client may keep, the same for all."""
    loop: LoopName = "asyncio"
    protocol: Protocol = "h1"
    """`h2`: without TLS and without asking (prior knowledge); the responder then speaks nothing else."""
    parameters: dict[str, int] = field(default_factory=dict)
    """Of the micro loads: connections, requests, origins; of partial_write: send_buffer_bytes."""

    @property
    def expected(self) -> bytes:
        return (self.answer_text * self.answer_repeat).encode()

    def plain(self) -> dict[str, Any]:
        return asdict(self)


def job_from(plain: dict[str, Any]) -> Job:
    return Job(**plain)
