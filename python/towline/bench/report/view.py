"""Data of an analysis that all formats show: merged latencies, memory, the comparisons by peer.

The percentiles of a subject are those of its merged histogram; percentiles are never averaged. If a record has no
histograms, only the percentiles of slices are known, and tables show none.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from statistics import median

from ..analysis import Analysis, Comparison, Estimate, ExperimentAnalysis, SubjectAnalysis
from ..hdr import Histogram, NotAHistogram, merge, merged
from ..record import ExperimentRecord, Slice, SubjectRecord
from ..verdict import Verdict


@dataclass(frozen=True)
class SubjectView:
    """One row of a table."""

    record: SubjectRecord
    figures: dict[str, Estimate]
    histogram: Histogram | None
    """Response times in nanoseconds, all slices together."""
    answered: int
    failed: int
    refused: int
    errors: dict[str, int]
    first_failure: str | None
    switches_per_request: float | None
    rss_peak_bytes: float | None
    rss_end_bytes: float | None

    @property
    def name(self) -> str:
        return self.record.name

    def percentile_us(self, share: float) -> float | None:
        """From the merged histogram."""
        return self.histogram.at(share) / 1e3 if self.histogram and self.histogram.total else None


@dataclass(frozen=True)
class ExperimentView:
    """The view of one experiment."""

    analysis: ExperimentAnalysis
    subjects: list[SubjectView]
    """Best first; subjects without a figure last."""
    notes: list[str]
    """Figures that could not be shown, and why."""

    @property
    def experiment(self) -> ExperimentRecord:
        return self.analysis.experiment

    @property
    def kind(self) -> str:
        """`server`, `client` or `pair`; empty without subjects."""
        subjects = self.experiment.subjects
        return subjects[0].kind if subjects else ""

    @property
    def baseline(self) -> str | None:
        """The subject that the others are compared with."""
        return self.analysis.comparisons[0].subject if self.analysis.comparisons else None

    @property
    def headline(self) -> tuple[str, ...]:
        """The metrics of the experiment's question that have comparisons."""
        wanted = ("per_s",) if self.experiment.question == "capacity" else ("p50_us", "p99_us")
        there = {one.metric for one in self.analysis.comparisons}
        return tuple(metric for metric in wanted if metric in there)

    @property
    def peers(self) -> list[str]:
        return [one.name for one in self.subjects if one.name != self.baseline]

    def comparisons(self, metric: str) -> list[Comparison]:
        """The comparisons with each peer, in the order of `subjects`."""
        assert self.baseline is not None or not self.analysis.comparisons
        found = (self.analysis.comparison(self.baseline or "", peer, metric) for peer in self.peers)
        return [one for one in found if one]

    def against(self, peer: str) -> Comparison | None:
        """The comparison for the experiment's question."""
        for metric in self.headline:
            if found := self.analysis.comparison(self.baseline or "", peer, metric):
                return found
        return None


def views(analysis: Analysis) -> list[ExperimentView]:
    """In the record's order; controls come last."""
    return [
        view(experiment)
        for experiment in sorted(analysis.experiments, key=lambda experiment: experiment.experiment.control)
    ]


def view(experiment: ExperimentAnalysis) -> ExperimentView:
    """Merges the histograms of each subject; unreadable ones are noted."""
    records = {one.name: one for one in experiment.experiment.subjects}
    notes: list[str] = []
    subjects = []
    for one in experiment.subjects:
        slices = [each for each in experiment.experiment.slices if each.subject == one.name]
        subjects.append(_subject(records[one.name], one, slices, notes))
    metric = experiment.experiment.main_metric

    def rank(one: SubjectView) -> tuple[bool, float]:
        figure = one.figures.get(metric)
        value = figure.value if figure else 0.0
        return (figure is None, -value if metric == "per_s" else value)

    return ExperimentView(experiment, sorted(subjects, key=rank), notes)


def tally(shown: list[ExperimentView], *, controls: bool = False) -> Counter[Verdict]:
    """Number of verdicts on the experiments' own questions; controls count only on request."""
    return Counter(
        found.verdict
        for one in shown
        if controls or not one.experiment.control
        for peer in one.peers
        if (found := one.against(peer))
    )


def _subject(
    record: SubjectRecord, one: SubjectAnalysis, slices: list[Slice], notes: list[str]
) -> SubjectView:
    histogram = None
    try:
        by_restart: dict[int, list[str]] = {}
        for each in slices:
            if each.histogram:
                by_restart.setdefault(each.restart, []).append(each.histogram)
        parts = (merged(tuple(texts)) for texts in by_restart.values())
        histogram = merge(part for part in parts if part)
    except NotAHistogram as error:
        notes.append(f"{one.name}: its latencies cannot be shown ({error})")
    answered = sum(each.answered for each in slices)
    errors: Counter[str] = Counter()
    for each in slices:
        errors.update(each.errors)
    peaks = [start.rss_peak_bytes for start in record.starts if start.rss_peak_bytes]
    ends = [start.rss_end_bytes for start in record.starts if start.rss_end_bytes]
    switches = sum(each.context_switches for each in slices)
    return SubjectView(
        record=record,
        figures=one.figures,
        histogram=histogram,
        answered=answered,
        failed=sum(each.failed for each in slices),
        refused=sum(each.refused for each in slices),
        errors=dict(errors),
        first_failure=next((each.first_failure for each in slices if each.first_failure), None),
        switches_per_request=switches / answered if answered and switches else None,
        rss_peak_bytes=median(peaks) if peaks else None,
        rss_end_bytes=median(ends) if ends else None,
    )
