"""The guards: reasons why figures are unreliable and have no verdict, each with its number."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from statistics import fmean, median

from .record import ExperimentRecord, Slice

DRIVER_SHARE = 0.8
"""Above this share the driver was the limit, unless the subject was as busy."""
LAG_SHARE = 0.1
"""Share of the reported p50: lag above it affects the figures."""
ACHIEVED_SHARE = 0.99
PRESSURE_SHARE = 0.5
"""Share of the time in which some task waited for a core."""
OWN_CORE_SHARE = 0.95
"""A subject that used more of its cores lost nothing to others: its own threads waited for each other."""
STEAL_SHARE = 0.01
"""Share of the cores' time taken by the hypervisor. Less is an occasional clock tick."""


def refusal(experiment: ExperimentRecord, metric: str, *sides: Sequence[Slice]) -> str | None:
    """Why the slices of two subjects must not be compared; None if they may."""
    for slices in sides:
        reason = _unreliable(experiment, metric, slices) or _disturbed(experiment, slices)
        if reason:
            return f"{slices[0].subject}: {reason}"
    return None


def _unreliable(experiment: ExperimentRecord, metric: str, slices: Sequence[Slice]) -> str | None:
    failed = sum(one.failed for one in slices)
    if failed:
        why = next((one.first_failure for one in slices if one.first_failure), "see the errors by class")
        return f"{failed} requests failed ({why})"
    if metric == "cpu_us":
        return None
    if _share(slices, "driver_busiest_share") > DRIVER_SHARE > _share(slices, "subject_busiest_share"):
        return f"the driver used {_share(slices, 'driver_busiest_share'):.0%} of its core: it was the limit"
    if experiment.question == "latency":
        return _late(slices)
    return None


def _late(slices: Sequence[Slice]) -> str | None:
    lag = median(one.lag_p99_us or 0.0 for one in slices)
    p50 = median(one.response.p50_us for one in slices)
    if lag > LAG_SHARE * p50:
        return f"the schedule was kept to {lag:.0f} us at p99, more than a tenth of the p50 of {p50:.0f} us"
    achieved = _achieved(slices)
    if achieved < ACHIEVED_SHARE:
        return f"{achieved:.1%} of the requested rate was achieved"
    return None


def _achieved(slices: Sequence[Slice]) -> float:
    """The generator's own count, without late responses; older records have none."""
    due = [(one.target_per_s or 0.0) * one.measured_s for one in slices]
    if not sum(due):
        return 1.0
    achieved = [one.achieved_share for one in slices]
    kept = [
        one.answered if share is None else share * wanted
        for one, share, wanted in zip(slices, achieved, due, strict=True)
    ]
    return sum(kept) / sum(due)


def _disturbed(experiment: ExperimentRecord, slices: Sequence[Slice]) -> str | None:
    """Disturbance by other processes on the machine."""
    starts = [start for one in experiment.subjects if one.name == slices[0].subject for start in one.starts]
    if not starts:
        return None
    pressure = median(start.pressure_cpu_share for start in starts)
    if pressure > PRESSURE_SHARE and not (experiment.question == "capacity" and _has_its_cores(slices)):
        return (
            f"tasks waited for a core during {min(pressure, 1.0):.0%} of the time: something else was running"
        )
    steal = fmean(start.steal_share for start in starts)
    if steal > STEAL_SHARE:
        return f"the hypervisor took {steal:.1%} of the cores' time"
    return None


def _has_its_cores(slices: Sequence[Slice]) -> bool:
    used = _share(slices, "subject_busiest_share")
    return used > OWN_CORE_SHARE * ceil(used)


def _share(slices: Sequence[Slice], name: str) -> float:
    return float(median(getattr(one, name) for one in slices))
