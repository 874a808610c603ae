"""`verdicts.json`: figures, comparisons and verdicts as data, for programs; the record has the raw slices."""

from __future__ import annotations

import json
import math
from dataclasses import asdict

from ..analysis import Analysis, Comparison, Estimate
from ..verdict import Verdict
from .terminal import remarks
from .view import ExperimentView, SubjectView, tally, views

FORMAT = 1
PERCENTILES = {"p50_us": 0.5, "p90_us": 0.9, "p99_us": 0.99, "p99_9_us": 0.999}


def verdicts_json(analysis: Analysis) -> str:
    """JSON without NaN or Infinity: an unknown bound is null. Times are in microseconds."""
    record, shown = analysis.record, views(analysis)
    counted = tally(shown)
    document = {
        "format": FORMAT,
        "tool": record.tool,
        "began_unix_s": record.began_unix_s,
        "seed": record.seed,
        "interrupted": record.interrupted,
        "confidence": 1 - analysis.alpha,
        "margin": analysis.margin,
        "verdicts": {one.value: counted[one] for one in Verdict if counted[one]},
        "experiments": [_experiment(one) for one in shown],
        "skipped": dict(record.skipped),
    }
    return json.dumps(_finite(document), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _experiment(shown: ExperimentView) -> dict[str, object]:
    one = shown.experiment
    return {
        "name": one.name,
        "title": one.title,
        "scenario": one.scenario,
        "section": one.section,
        "question": one.question,
        "control": one.control,
        "load": dict(one.load),
        "subjects": [_subject(each) for each in shown.subjects],
        "comparisons": [_comparison(each, shown) for each in shown.analysis.comparisons],
        "remarks": remarks(shown),
    }


def _subject(one: SubjectView) -> dict[str, object]:
    return {
        "name": one.name,
        "failure": one.record.failure,
        "answered": one.answered,
        "failed": one.failed,
        "refused": one.refused,
        "errors": one.errors,
        "figures": {metric: _estimate(found) for metric, found in one.figures.items()},
        "percentiles": {name: one.percentile_us(share) for name, share in PERCENTILES.items()},
        "rss_peak_bytes": one.rss_peak_bytes,
    }


def _estimate(one: Estimate) -> dict[str, object]:
    return {"value": one.value, "low": one.low, "high": one.high, "at_least": one.at_least}


def _comparison(one: Comparison, shown: ExperimentView) -> dict[str, object]:
    """`ratio` is the figure of `subject` divided by that of `baseline`."""
    return {**asdict(one), "verdict": one.verdict.value, "headline": one.metric in shown.headline}


def _finite(value: object) -> object:
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
