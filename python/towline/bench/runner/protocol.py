"""The interface of a subject, server or client, for the loop.

```text
Subject ──start(config)──► Running ──verify──► warm-up ──slice, slice, ...──► stop
```

Every method raises `Failed` when the subject cannot continue: the result then has the reason, and the others continue.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from ..record import Slice, SubjectRecord


class Failed(Exception):
    """A subject cannot be measured, or not any longer: the reason in one line, and the end of its output."""

    def __init__(self, reason: str, log: str | None = None) -> None:
        super().__init__(" ".join(reason.split()))
        self.log = log


@dataclass(frozen=True)
class StartConfig:
    """Parameters that vary between starts, so that one unlucky layout does not affect every restart."""

    cores: tuple[int, ...] | None
    """The subject's cores; None if the machine has too few to divide them."""
    padding_bytes: int
    """Bytes added to the environment, which move the stack."""
    seed: int


@dataclass(frozen=True)
class SliceSpec:
    """The load of one slice."""

    duration_s: float
    """Includes the discarded part."""
    discard_s: float = 0.0
    requests: int | None = None
    """A number of requests in place of a duration; nothing is discarded."""
    rate_per_s: float | None = None
    """Open loop at this rate; None: a closed loop."""
    poisson: bool = False
    search: bool = False
    """Search the highest rate that keeps the goal. Servers only."""


@dataclass(frozen=True)
class Memory:
    """Resident memory of all processes of a subject."""

    now_bytes: int
    peak_bytes: int


class Running(Protocol):
    """A subject that was started and is ready."""

    def verify(self) -> None:
        """Sends every request of the scenario once and verifies each response."""

    def slice(self, work: SliceSpec) -> Slice:
        """Runs load, with the costs of subject and driver. The loop sets restart, round and position."""

    def pause(self) -> None:
        """SIGSTOP to all its processes, for `--exclusive`."""

    def resume(self) -> None: ...

    def memory(self) -> Memory: ...

    def stop(self) -> str | None:
        """Ends all its processes in any state; never raises. Returns what went wrong meanwhile, if anything."""


class Subject(Protocol):
    """A subject that can be started repeatedly in one experiment."""

    @property
    def name(self) -> str: ...

    def describe(self) -> SubjectRecord:
        """Kind, command, versions and options, without starts. Starts nothing that lasts."""

    def start(self, start_config: StartConfig) -> Running:
        """Starts new processes on a new port; returns when they are ready."""
