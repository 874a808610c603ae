"""What the loop asks of a thing that it measures, server or client.

```text
Subject ──start(place)──► Running ──verify──► warm-up ──slice, slice, ...──► stop
```

Every method raises `Failed` when the subject cannot go on: it is then a line in the result, and the others go on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from ..record import Slice, SubjectRecord


class Failed(Exception):
    """A subject cannot be measured, or not any longer: one clear line, and the end of its output."""

    def __init__(self, reason: str, log: str | None = None) -> None:
        super().__init__(" ".join(reason.split()))
        self.log = log


@dataclass(frozen=True)
class StartConfig:
    """How one start differs from the next: one unlucky layout must not colour every restart."""

    cores: tuple[int, ...] | None
    """The subject's; None where the machine has too few for a division."""
    padding_bytes: int
    """Added to the environment; it moves the stack."""
    seed: int


@dataclass(frozen=True)
class SliceSpec:
    """One slice of load."""

    duration_s: float
    """With the part that is discarded."""
    discard_s: float = 0.0
    requests: int | None = None
    """So many instead of a time, and nothing is discarded."""
    rate_per_s: float | None = None
    """Open loop at this rate; None: as many as there are answers."""
    poisson: bool = False
    search: bool = False
    """Instead: the highest rate that keeps the goal. Servers only."""


@dataclass(frozen=True)
class Memory:
    """Resident memory of all processes of a subject."""

    now_bytes: int
    peak_bytes: int


class Running(Protocol):
    """A subject that was started and is ready."""

    def verify(self) -> None:
        """Every request of the scenario once, each answer checked to its last byte."""

    def slice(self, work: SliceSpec) -> Slice:
        """Load for a while, with the subject's and the driver's costs. Restart, round and position are the loop's."""

    def pause(self) -> None:
        """SIGSTOP to all its processes, for `--exclusive`."""

    def resume(self) -> None: ...

    def memory(self) -> Memory: ...

    def stop(self) -> str | None:
        """Ends all its processes, whatever state they are in; never raises. What went wrong meanwhile, if anything."""


class Subject(Protocol):
    """What can be started again and again in one experiment."""

    @property
    def name(self) -> str: ...

    def describe(self) -> SubjectRecord:
        """Kind, command, versions and options, without starts. May look at the disk, starts nothing that lasts."""

    def start(self, start_config: StartConfig) -> Running:
        """Fresh processes on a fresh port; returns when they are ready."""
