"""The design of a measurement: restarts, rounds of slices in random order, lengths. Pure: chance is an argument.

```text
experiment ─┬─ restart 1: all subjects start in random order, fresh port, another size of the environment
            │     round 1: a slice of each in random order; round 2: another order; ...
            ├─ restart 2 ...
            └─ until the stopping rule ends it
```
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ..statistics.stopping import Rule
from .protocol import SliceSpec, StartConfig

SLICE_S = 0.03
"""The state of a shared machine (stolen time, the neighbour's use of the cache, the clock rate) changes within tenths of
a second: pairs of 30 ms share more of it than longer ones. Shorter ones would consist of the change of subjects itself."""
EXCLUSIVE_SLICE_S = 0.1
"""Stopping and resuming subjects takes tens of milliseconds."""
COMMON_S = 0.06
"""Subjects whose slices may be this short all have the same length: the cost of changing to a subject, cold caches
first of all, is then in all of them alike."""
MEDIANS_A_SLICE = 20
"""Minimum number of median latencies in a slice: the cut ends must have no visible effect."""
DISCARD_SHARE = 0.1
MIN_PAGES = 2
"""Pages of a subject in each restart, however long they take."""
MAX_PADDING_BYTES = 4096
MIN_WARM_UP_WINDOW_S = 0.005
"""A shorter window is mostly the change of subjects."""
SAMPLES_A_WINDOW = 1000
"""Samples of an open-loop window, so that 100 lie beyond p90. Higher percentiles come from a restart's histograms."""
MAX_LATENCY_WINDOW_S, MIN_LATENCY_WINDOW_S = 2.0, 0.2


@dataclass(frozen=True)
class WarmUp:
    """Slices before the first that counts, until they are steady."""

    windows: int = 12
    """Number of consecutive windows that must be steady."""
    window_s: float = 0.1
    cap_s: float = 6.0
    """After this time the subject is measured although it is not steady, with a warning."""

    @property
    def first_window_s(self) -> float:
        """Short enough that all windows, and the time between them, fit into half of a short warm-up."""
        return max(min(self.window_s, self.cap_s / 2 / self.windows), MIN_WARM_UP_WINDOW_S)


@dataclass(frozen=True)
class Cores:
    """Cores of subjects and driver; None if the machine has one core only."""

    subject: tuple[int, ...] | None
    driver: tuple[int, ...] | None

    @classmethod
    def divided(cls, available: Sequence[int] | None = None) -> Cores:
        """The first core for the subjects, the last for the driver."""
        usable = sorted(os.sched_getaffinity(0) if available is None else available)
        return cls((usable[0],), (usable[-1],)) if len(usable) > 1 else cls(None, None)


@dataclass(frozen=True)
class Design:
    """How every experiment of a run is measured."""

    rule: Rule = field(default_factory=lambda: Rule("fixed", 8, 8))
    seconds: float = 2.5
    """Load on each subject in each restart."""
    warm_up: WarmUp = field(default_factory=WarmUp)
    exclusive: bool = False
    """All others are stopped (SIGSTOP) while one is measured."""
    seed: int = 1
    cores: Cores = field(default_factory=Cores.divided)
    baseline: str = "towline"

    def chance(self, experiment: str, restart: int) -> random.Random:
        """Randomness of one restart of one experiment: independent of the other experiments of the run."""
        return random.Random(f"{self.seed}/{experiment}/{restart}")

    @property
    def shortest_slice_s(self) -> float:
        return EXCLUSIVE_SLICE_S if self.exclusive else SLICE_S

    def start_config(self, chance: random.Random) -> StartConfig:
        return StartConfig(self.cores.subject, chance.randrange(MAX_PADDING_BYTES), chance.randrange(1 << 31))


@dataclass(frozen=True)
class Lengths:
    """The slices of one subject in each restart of an experiment. A slow subject has fewer and longer ones."""

    slice_s: float
    rounds: int

    @property
    def whole(self) -> bool:
        """One window per restart: responses take too long to alternate."""
        return self.rounds == 1

    def is_in_round(self, number: int, rounds: int) -> bool:
        """Whether the subject has a slice in this of `rounds` rounds: its own are spread evenly over them."""
        return int((number + 1) * self.rounds / rounds + 0.5) > int(number * self.rounds / rounds + 0.5)

    def description(self, requests: int | None = None) -> str:
        """Description for the reader of a result."""
        each = f"{requests} requests" if requests is not None else f"{self.slice_s * 1000:.0f} ms"
        return (
            f"{self.rounds} slices of {each} a restart"
            if self.rounds > 1
            else f"one window of {each} a restart"
        )

    def work(
        self, rate_per_s: float | None = None, *, poisson: bool = False, requests: int | None = None
    ) -> SliceSpec:
        return SliceSpec(self.slice_s, self.slice_s * DISCARD_SHARE, requests, rate_per_s, poisson)


def lengths(
    seconds: float, median_s: float, rate_per_s: float | None = None, shortest_s: float = SLICE_S
) -> Lengths:
    """Lengths for `seconds` of load per restart on a subject whose responses take `median_s`."""
    shortest = max(shortest_s, MEDIANS_A_SLICE * median_s)
    if rate_per_s is not None:
        wanted = min(max(SAMPLES_A_WINDOW / rate_per_s, MIN_LATENCY_WINDOW_S), MAX_LATENCY_WINDOW_S)
        shortest = max(shortest, wanted / (1 - DISCARD_SHARE))
    rounds = int(seconds / shortest + 1e-9)
    if rounds < 2:
        # A single window; long enough for the slowest subject, even beyond the requested duration.
        return Lengths(max(seconds, shortest), 1)
    return Lengths(seconds / rounds, rounds)


def common_lengths(
    seconds: float,
    medians_s: Mapping[str, float],
    rate_per_s: float | None = None,
    shortest_s: float = SLICE_S,
) -> dict[str, Lengths]:
    """Lengths for subjects by their medians: the same for all those that are fast enough."""
    alone = {name: lengths(seconds, median_s, rate_per_s, shortest_s) for name, median_s in medians_s.items()}
    fast = [medians_s[name] for name, one in alone.items() if one.slice_s <= COMMON_S]
    if not fast:
        return alone
    common = lengths(seconds, max(fast), rate_per_s, shortest_s)
    return {name: common if one.slice_s <= COMMON_S else one for name, one in alone.items()}


def page_lengths(seconds: float, medians_s: Mapping[str, float]) -> dict[str, Lengths]:
    """Slices that are a page each: the same number for all subjects, which have `seconds` on average."""
    together_s = max(sum(medians_s.values()), 1e-9)
    pages = max(MIN_PAGES, round(seconds * len(medians_s) / together_s))
    return {name: Lengths(median_s, pages) for name, median_s in medians_s.items()}


def page_descriptions(found: Mapping[str, Lengths]) -> list[str]:
    """One line for all subjects."""
    return [f"{max(one.rounds for one in found.values())} pages of each a restart"]


def descriptions(found: Mapping[str, Lengths], requests: int | None = None) -> list[str]:
    """One line for the subjects with the same slices, the most frequent ones first."""
    names: dict[str, list[str]] = {}
    for name, one in found.items():
        names.setdefault(one.description(requests), []).append(name)
    first, *others = sorted(names, key=lambda line: -len(names[line]))
    return [first, *(f"{', '.join(names[line])}: {line}" for line in others)]


def shuffled(chance: random.Random, names: Sequence[str]) -> list[str]:
    """A random permutation."""
    return chance.sample(list(names), len(names))


def orders(chance: random.Random, names: Sequence[str], rounds: int) -> Iterator[tuple[int, list[str]]]:
    """A random permutation for each round."""
    for number in range(rounds):
        yield number, shuffled(chance, names)
