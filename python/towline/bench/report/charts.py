"""Data of the charts that a script draws: latency curves, slices over time, history."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby
from statistics import fmean

from ..analysis import metric_value
from ..hdr import Histogram
from ..record import Slice
from .view import ExperimentView

Curve = dict[str, object]

STEPS = 120
SAMPLES_BEYOND = 10
"""A curve ends where fewer samples lie beyond: the rest is chance."""
MIN_POINTS = 6
"""With fewer slices of a subject no drift is visible."""
MAX_POINTS = 300
"""Maximum number of slices drawn per subject; neighbours are averaged beyond it."""


def latency(experiment: ExperimentView, colours: dict[str, int]) -> list[Curve]:
    """By subject: x is log10(1 / (1 - share)), y the response time in microseconds."""
    found = []
    for one in experiment.subjects:
        if one.histogram is None:
            continue
        x, y = percentile_curve(one.histogram)
        if len(x) > 1:
            found.append({"name": one.name, "colour": colours[one.name], "x": x, "y": y})
    return found


def percentile_curve(histogram: Histogram) -> tuple[list[float], list[float]]:
    """Points at equal distances on the axis of nines."""
    total = histogram.total
    if total <= SAMPLES_BEYOND:
        return [], []
    end = math.log10(total / SAMPLES_BEYOND)
    wanted = [end * step / STEPS for step in range(STEPS + 1)]
    x, y = [], []
    slots = histogram.curve()
    share, value = next(slots)
    for point in wanted:
        needed = 1 - 10**-point
        while share < needed - 1e-12:
            share, value = next(slots)
        x.append(round(point, 4))
        y.append(round(value / 1e3, 3))
    return x, y


def slices(experiment: ExperimentView, colours: dict[str, int]) -> list[Curve]:
    """By subject: seconds since the first slice, and the slice as a share of the subject's own mean."""
    every = sorted(experiment.experiment.slices, key=lambda one: one.began_unix_s)
    if not every:
        return []
    zero, metric = every[0].began_unix_s, experiment.experiment.main_metric
    found = []
    for subject in experiment.subjects:
        mine = [one for one in every if one.subject == subject.name]
        points = _points(mine, metric, zero)
        if len(points) < MIN_POINTS:
            continue
        mean = math.exp(fmean(math.log(value) for _, value in points))
        found.append(
            {
                "name": subject.name,
                "colour": colours[subject.name],
                "x": [round(when, 2) for when, _ in points],
                "y": [round(value / mean, 4) for _, value in points],
            }
        )
    return found


def starts(experiment: ExperimentView) -> list[float]:
    """When the slices of each restart began, in seconds since the first."""
    began: dict[int, float] = {}
    for one in experiment.experiment.slices:
        began[one.restart] = min(one.began_unix_s, began.get(one.restart, math.inf))
    zero = min(began.values(), default=0.0)
    return sorted(round(when - zero, 2) for when in began.values())


def _points(mine: Sequence[Slice], metric: str, zero: float) -> list[tuple[float, float]]:
    points = []
    for one in mine:
        value = metric_value(one, metric)
        if value is not None and value > 0:
            points.append((one.began_unix_s - zero, value))
    if len(points) <= MAX_POINTS:
        return points
    size = math.ceil(len(points) / MAX_POINTS)
    groups = groupby(enumerate(points), key=lambda each: each[0] // size)
    gathered = [[point for _, point in group] for _, group in groups]
    return [(fmean(when for when, _ in group), fmean(value for _, value in group)) for group in gathered]
