"""Simulated subjects that take no time: the noise of a real machine, and a known difference.

The model: 1 % white noise, 1 % of AR(1) noise that all subjects share (the machine), 1 % per start of a
process, rare
steps, and 1 % less for the first subject of a round.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from towline.bench.record import Latency, Slice, SubjectRecord
from towline.bench.runner.protocol import Failed, Memory, SliceSpec, StartConfig

AR, STEP_CHANCE, STEP = 0.9, 0.002, 0.03


@dataclass
class SimulatedMachine:
    """State shared by the subjects. `noise` scales all of it."""

    seed: int
    white: float = 0.01
    drift: float = 0.01
    per_start: float = 0.01
    first_place: float = 0.01
    rng: random.Random = field(init=False)
    state: float = 0.0
    level: float = 0.0
    last: str = ""
    alive: set[int] = field(default_factory=set)
    started: int = 0

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)

    def moment(self) -> float:
        """The machine's state after one window."""
        self.state = AR * self.state + self.rng.gauss(0, self.drift * math.sqrt(1 - AR * AR))
        if self.rng.random() < STEP_CHANCE:
            self.level += self.rng.gauss(0, STEP)
        return self.state + self.level + self.rng.gauss(0, self.white)


@dataclass
class Simulated:
    """runner.protocol.Subject. `fault` is called with the next operation, and may raise."""

    name: str
    machine: SimulatedMachine
    per_s: float = 10_000.0
    fault: Callable[[str], None] = lambda operation: None
    missing: str | None = None

    def describe(self) -> SubjectRecord:
        return SubjectRecord(self.name, "server", ["simulated"], failure=self.missing)

    def start(self, start_config: StartConfig) -> SimulatedRunning:
        self.fault("start")
        return SimulatedRunning(self, self.machine.rng.gauss(0, self.machine.per_start))


class SimulatedRunning:
    """runner.protocol.Running."""

    def __init__(self, subject: Simulated, offset: float) -> None:
        self.subject, self.offset = subject, offset
        machine = subject.machine
        machine.started += 1
        self.number = machine.started
        machine.alive.add(self.number)

    def verify(self) -> None:
        self.subject.fault("verify")

    def slice(self, work: SliceSpec) -> Slice:
        self.subject.fault("slice")
        machine = self.subject.machine
        # A subject that follows itself finds warm caches; one after another subject does not.
        penalty = machine.first_place if machine.last != self.subject.name else 0.0
        machine.last = self.subject.name
        measured_s = work.duration_s - work.discard_s
        rate = self.subject.per_s * math.exp(machine.moment() + self.offset - penalty)
        responses = max(1, round(rate * measured_s))
        times = Latency(responses, 500.0, 100.0, 500.0, 700.0, 800.0, 900.0, 990.0, 1000.0)
        return Slice(
            "",
            0,
            0,
            0,
            0.0,
            measured_s,
            responses,
            response=times,
            subject_cpu_s=measured_s,
            subject_busiest_share=1.0,
            driver_cpu_s=measured_s / 3,
            driver_busiest_share=0.33,
        )

    def pause(self) -> None:
        self.subject.fault("pause")

    def resume(self) -> None:
        self.subject.fault("resume")

    def memory(self) -> Memory:
        return Memory(1 << 20, 2 << 20)

    def stop(self) -> str | None:
        self.subject.machine.alive.discard(self.number)
        return None


def failing(where: str, after: int = 0) -> Callable[[str], None]:
    """Returns a fault: `Failed` at the given operation, after `after` of them have passed."""
    seen = 0

    def fault(operation: str) -> None:
        nonlocal seen
        if operation == where:
            seen += 1
            if seen > after:
                raise Failed(f"made to fail at {where}", "its last words")

    return fault
