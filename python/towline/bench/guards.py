"""The guards: reasons why figures are wrong and have no verdict, each with its number.

Stolen time and other programs only add noise: the interval contains it, and they are warnings (lints.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from .record import ExperimentRecord, Slice

DRIVER_SHARE = 0.8
"""Above this share the driver was the limit, unless the subject was as busy."""
LAG_SHARE = 0.1
"""Share of the latency: lag above it affects the figures."""
TAILS = frozenset({"p99_us", "p99_9_us"})
ACHIEVED_SHARE = 0.99


def refusal(experiment: ExperimentRecord, metric: str, *sides: Sequence[Slice]) -> str | None:
    """Why the slices of two subjects must not be compared; None if they may."""
    for slices in sides:
        reason = _unreliable(experiment, metric, slices)
        if reason:
            return f"{slices[0].subject}: {reason}"
    return None


def _unreliable(experiment: ExperimentRecord, metric: str, slices: Sequence[Slice]) -> str | None:
    failed = sum(one.failed for one in slices)
    if failed:
        why = next((one.first_failure for one in slices if one.first_failure), "see the errors by class")
        return f"{failed} requests failed ({why})"
    if warm_up := _failed_before(experiment, slices[0].subject):
        return warm_up
    if metric == "cpu_us":
        return None
    if _share(slices, "driver_busiest_share") > DRIVER_SHARE > _share(slices, "subject_busiest_share"):
        return f"the driver used {_share(slices, 'driver_busiest_share'):.0%} of its core: it was the limit"
    if experiment.question == "capacity" and _share(slices, "subject_busiest_share") < DRIVER_SHARE:
        # Programs on the driver's core limit it as much as its own work does.
        occupied = median(one.driver_busiest_share + one.driver_waited_share for one in slices)
        if occupied > DRIVER_SHARE:
            return f"the driver used its core, or waited for it, for {min(occupied, 1.0):.0%} of the time: it was the limit"
    if experiment.question == "latency":
        return _late(metric, slices)
    return None


def _failed_before(experiment: ExperimentRecord, name: str) -> str | None:
    """Failures in the warm-up: a subject that hangs, or closes connections, there is no better than one that does it later."""
    starts = [start for one in experiment.subjects if one.name == name for start in one.starts]
    failed = sum(start.warm_up_failed for start in starts)
    why = next((start.warm_up_failure for start in starts if start.warm_up_failure), None)
    return f"{failed} requests failed while it warmed up ({why})" if failed else None


def _late(metric: str, slices: Sequence[Slice]) -> str | None:
    """Lag in the tail of the schedule affects the tail of the latencies, usual lag affects all of them."""
    tail = metric in TAILS
    lags = [one.lag_p50_us if one.lag_p50_us is not None and not tail else one.lag_p99_us for one in slices]
    lag = median(lag or 0.0 for lag in lags)
    name = "p99" if tail else "p50"
    latency = median(one.response.p99_us if tail else one.response.p50_us for one in slices)
    if lag > LAG_SHARE * latency:
        return f"the schedule was kept to {lag:.0f} us, more than a tenth of the {name} of {latency:.0f} us"
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


def _share(slices: Sequence[Slice], name: str) -> float:
    return float(median(getattr(one, name) for one in slices))
