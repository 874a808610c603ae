"""The scenarios of language model endpoints: the times of the calls, and the behaviour of the mock endpoint."""

from __future__ import annotations

import random
from dataclasses import dataclass

SLOW_PIECES, SLOW_PAUSE_S = 2000, 0.002


@dataclass(frozen=True)
class LlmExperiment:
    """`batches` of calls, or calls that arrive independently."""

    name: str
    scenario: str
    title: str
    section: str
    batches: int = 1
    concurrency: int = 1
    gap_s: float = 0.0
    """Minimum time between the beginnings of two batches."""
    arrivals_per_s: float | None = None
    """Calls of a batch arrive at this rate instead of all at once."""
    burstiness: float = 1.0
    """Squared coefficient of variation of the gaps between arrivals; 1 is Poisson, more is bursty."""
    profile: str = "quick"
    """Profile of the mock endpoint."""
    max_tokens: int | None = None
    pause_s: float = 0.0
    """Pause of the reader after each piece."""
    local_only: bool = False
    """Not used with an endpoint that costs money."""

    @property
    def calls(self) -> int:
        return self.batches * self.concurrency

    def offsets(self, seed: int, scale: float) -> list[float]:
        """When each call of a batch is made: the same for every subject."""
        if self.arrivals_per_s is None:
            return [0.0] * self.concurrency
        chance, now, found = random.Random(f"{seed}/{self.name}"), 0.0, []
        shape = 1.0 / self.burstiness
        for _ in range(self.concurrency):
            found.append(now * scale)
            now += chance.gammavariate(shape, 1.0 / (shape * self.arrivals_per_s))
        return found

    def load(self) -> dict[str, float | int | str | None]:
        """The load for the record."""
        return {
            "calls": self.calls,
            "batches": self.batches,
            "concurrency": self.concurrency,
            "gap_s": self.gap_s,
            "arrivals_per_s": self.arrivals_per_s,
            "burstiness": self.burstiness,
            "profile": self.profile,
            "pause_s": self.pause_s,
        }


def sequential(name: str, profile: str, what: str) -> LlmExperiment:
    title = f"10 calls, 4 s apart{what}"
    return LlmExperiment(name, "llm_sequential", title, "Nous", batches=10, gap_s=4.0, profile=profile)


def parallel(name: str, profile: str, what: str) -> LlmExperiment:
    title = f"3 batches of 5 calls, 15 s apart{what}"
    return LlmExperiment(
        name, "llm_parallel", title, "Nous", batches=3, concurrency=5, gap_s=15.0, profile=profile
    )


LONG = " (about 1 s in 100 pieces)"
EXPERIMENTS = {
    experiment.name: experiment
    for experiment in (
        sequential("llm_sequential", "quick", ""),
        parallel("llm_parallel", "quick", ""),
        sequential("real_sequential_long", "long", LONG),
        parallel("real_parallel_long", "long", LONG),
        LlmExperiment(
            "chat_arrivals",
            "chat_arrivals",
            "40 calls that arrive in bursts, 8 a second" + LONG,
            "towline",
            concurrency=40,
            arrivals_per_s=8.0,
            burstiness=4.0,
            profile="long",
            local_only=True,
        ),
        LlmExperiment(
            "chat_slow_consumer",
            "chat_slow_consumer",
            "16 MiB of pieces, read slowly: memory of the client",
            "towline",
            profile="flood",
            max_tokens=SLOW_PIECES,
            pause_s=SLOW_PAUSE_S,
            local_only=True,
        ),
    )
}
LOCAL_NAMES = {"real_sequential_long", "real_parallel_long"}
"""Scenarios with the same requests to a real endpoint as those without a profile."""


def experiments_for(real: bool, chosen: list[str] | None = None) -> list[LlmExperiment]:
    """The scenarios for the endpoint, or the chosen ones. Raises KeyError for an unknown name."""
    if chosen is not None:
        return [EXPERIMENTS[name] for name in chosen]
    return [
        experiment
        for experiment in EXPERIMENTS.values()
        if not (real and (experiment.local_only or experiment.name in LOCAL_NAMES))
    ]
