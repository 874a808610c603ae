"""Numbers and verdicts as text, the same in all formats."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime, timezone

from ..analysis import Comparison, Estimate
from ..scenarios import VERSIONS
from ..verdict import HIGHER_IS_BETTER, Verdict

METRICS = {
    "per_s": "requests/s",
    "p50_us": "p50",
    "p90_us": "p90",
    "p95_us": "p95",
    "p99_us": "p99",
    "p99_9_us": "p99.9",
    "cpu_us": "CPU per request",
}


LOAD_WORDS = {
    "concurrency": "{} at once",
    "batch": "batches of {}",
    "batches": "{} batches",
    "calls": "{} calls",
    "gap_s": "{:g} s apart",
    "page": "pages of {} requests on new connections",
    "pool": "a pool of {}",
    "requests": "{:,} requests",
    "requests_per_connection": "{} requests a connection",
}
"""Names of the parts of a load."""


TOO_WIDE = 1000.0
"""Ends of an interval further apart than this factor say nothing: two restarts on a busy machine."""


def metric_name(metric: str) -> str:
    """The readable name: `per_s` is requests/s; unknown names are kept."""
    return METRICS.get(metric, metric.replace("_", " "))


def verdict_word(verdict: Verdict, metric: str = "per_s") -> str:
    """Less CPU is not "faster"."""
    if metric == "cpu_us":
        return {Verdict.FASTER: "less CPU", Verdict.SLOWER: "more CPU"}.get(verdict, verdict.value)
    return verdict.value


def ratio(value: float) -> str:
    """1.456 is `1.46x`, 11.56 is `11.6x`, 0.0634 is `0.063x`: never scientific notation."""
    if not math.isfinite(value):
        return "any"
    places = 0 if value >= 100 else 1 if value >= 10 else 2 if value >= 0.2 else 3
    return f"{value:.{places}f}x"


def interval(low: float, high: float) -> str:
    """`[1.44, 1.47]`; three decimals near 1, where they matter, otherwise as many as a ratio has."""
    if not (math.isfinite(low) and math.isfinite(high)):
        return "[one restart: no interval]"
    if low * TOO_WIDE < high:
        return "[too wide: more restarts]"
    if low > 0.9 and high < 1.1:
        return f"[{low:.3f}, {high:.3f}]"
    return f"[{ratio(low)[:-1]}, {ratio(high)[:-1]}]"


def sentence(comparison: Comparison) -> str:
    """One comparison as an English sentence."""
    ours, theirs = comparison.subject, comparison.baseline
    what = metric_name(comparison.metric)
    if comparison.verdict is Verdict.REFUSED:
        return f"{ours} compared with {theirs}: no verdict on {what}. {comparison.reason}"
    figure = f"{what} {ratio(comparison.ratio)} {interval(comparison.low, comparison.high)}"
    if comparison.verdict is Verdict.EQUIVALENT:
        return f"{ours} and {theirs} are equivalent: {figure}"
    if comparison.verdict is Verdict.UNDECIDED:
        return f"{ours} compared with {theirs}: undecided, {figure}; {more_restarts(comparison)}"
    if comparison.verdict is Verdict.UNSTABLE:
        return f"{ours} compared with {theirs}: unstable, {figure}; two tests of the same slices disagree"
    if comparison.metric == "cpu_us":
        return f"{ours} uses {verdict_word(comparison.verdict, 'cpu_us')} than {theirs}: {figure}"
    return f"{ours} is {comparison.verdict.value} than {theirs}: {figure}"


def more_restarts(comparison: Comparison) -> str:
    """The number of restarts that would decide."""
    if comparison.restarts_needed is None:
        return f"more than {comparison.restarts} restarts are needed"
    return f"about {comparison.restarts_needed} restarts would decide ({comparison.restarts} done)"


def confidence(alpha: float) -> str:
    """The confidence of an interval at this level: `95 %`, `98.4 %`."""
    return f"{(1 - alpha) * 100:.3g} %"


def better_end(metric: str) -> str:
    """The side of 1 that is better for the subject named first."""
    return "above 1 is better" if metric in HIGHER_IS_BETTER else "below 1 is better"


def number(value: float) -> str:
    """Three or more digits: 0.123, 12.3, 123, 61,234."""
    if not math.isfinite(value):
        return "-"
    if value == 0:
        return "0"
    size = abs(value)
    places = 0 if size >= 100 else 1 if size >= 10 else 2 if size >= 1 else 3
    return f"{value:,.{places}f}"


def rate(estimate: Estimate | None) -> str:
    """`61,234` or `at least 61,234`."""
    if estimate is None:
        return "-"
    return f"{'at least ' if estimate.at_least else ''}{number(_sensible(estimate))}"


def _sensible(estimate: Estimate) -> float:
    """The value without digits that its interval leaves open: 121,420 ±19 % is 121,000."""
    half = (estimate.high - estimate.low) / 2
    if not math.isfinite(half) or half <= 0:
        return estimate.value
    # However wide the interval is, two digits are left.
    return round(estimate.value, 1 - math.floor(math.log10(min(half, abs(estimate.value) or half))))


def spread(estimate: Estimate | None) -> str:
    """Half the interval as a share of the figure: `±1.2 %`, `±37 %`; `±>100 %` for an interval that says nothing."""
    if estimate is None or not math.isfinite(estimate.high):
        return ""
    percent = (estimate.high - estimate.low) / 2 / estimate.value * 100
    if percent > 100:
        return "±>100 %"
    return f"±{percent:.{0 if percent >= 10 else 1}f} %"


def microseconds(value: float | None) -> str:
    """In a suitable unit: `621 us`, `1.52 ms`, `2.10 s`."""
    if not value:
        return "-"
    for limit, divisor, unit in ((1e3, 1, "us"), (1e6, 1e3, "ms")):
        if value < limit:
            return f"{number(value / divisor)} {unit}"
    return f"{number(value / 1e6)} s"


def size(value: float | None) -> str:
    """`31.4 MB` (of 2**20 bytes, as the system's tools count)."""
    if not value:
        return "-"
    for divisor, unit in ((1 << 30, "GB"), (1 << 20, "MB"), (1 << 10, "kB")):
        if value >= divisor:
            return f"{number(value / divisor)} {unit}"
    return f"{value:.0f} B"


def figure(metric: str, value: float) -> str:
    """A figure of any metric with its unit, which the end of the metric's name gives."""
    if metric.endswith("_us"):
        return microseconds(value)
    if metric.endswith("_ms"):
        return microseconds(value * 1e3)
    if metric.endswith("_bytes"):
        return size(value)
    if metric.endswith("per_s"):
        return f"{number(value)}/s"
    return microseconds(value * 1e6) if metric.endswith("_s") else number(value)


def duration(seconds: float) -> str:
    """`42 s`, `3 min 20 s`, `1 h 05 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def moment(unix_s: float) -> str:
    """UTC, to the minute."""
    return datetime.fromtimestamp(unix_s, timezone.utc).strftime("%Y-%m-%d %H:%M UTC")


def load(values: Mapping[str, object]) -> str:
    """The load of an experiment in short: `50 connections, 8,000 requests/s`."""
    words = []
    for key, value in values.items():
        if value is None or value is False or value == "":
            continue
        if key == "rate_per_s" and isinstance(value, (int, float)):
            words.append(f"{number(value)} requests/s")
        elif key in ("connections", "threads", "tasks"):
            words.append(f"{value} {key if value != 1 else key[:-1]}")
        elif key == "pipeline":
            words += [f"{value} in a pipeline"] if value != 1 else []
        elif key == "streams":
            words += [f"{value} streams on each"] if value != 1 else []
        elif key == "protocol":
            words.append(VERSIONS.get(str(value), str(value)))
        elif key in LOAD_WORDS:
            words.append(LOAD_WORDS[key].format(value))
        elif key == "slice_s" and isinstance(value, (int, float)):
            words.append(f"slices of {value * 1e3:g} ms")
        elif value is True:
            words.append(key.replace("_", " "))
        else:
            words.append(f"{key} {value}")
    return ", ".join(words)
