"""Table of the scenarios that each subject answered correctly, verified to the last byte.
`python -m benches.coverage RESULT...` reads results of `towline bench` (`towline-bench/*/result.json.gz`), and writes
benches/results/coverage.json.gz and coverage.md. If two results hold the same experiment, the later file counts.
`--add` before the results keeps the existing entries of all other experiments.
"""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from towline.bench import record as records
from towline.bench.record import ExperimentRecord, Record, Slice, SubjectRecord
from towline.bench.subjects import servers

from benches import report

VERIFIED, SKIPPED, FAILED = "verified", "skipped", "failed"
KINDS = {"server": "Servers", "client": "Clients", "pair": "Webhooks", "llm": "Chats with the mock endpoint"}


@dataclass(frozen=True)
class Outcome:
    """Outcome of one subject in one experiment."""

    kind: str
    section: str
    scenario: str
    """Includes the protocol, unless it is HTTP/1.1."""
    experiment: str
    """Includes what distinguishes it: the interface, the load, TLS."""
    subject: str
    outcome: str
    why: str = ""
    responses: int = 0
    """Responses verified during the measurement; each request was also sent once and checked before it."""


def outcomes_of(record: Record) -> Iterator[Outcome]:
    """Outcomes of a record without its A/A controls."""
    for experiment in record.experiments:
        if experiment.control:
            continue
        name = experiment.name + (
            " over TLS" if experiment.load.get("tls") and "tls" not in experiment.name else ""
        )
        name += f" ({experiment.load['net']})" if "net" in experiment.load else ""
        for one in experiment.subjects:
            own = [each for each in experiment.slices if each.subject == one.name]
            if record.interrupted and not own and one.failure is None:
                continue  # not measured before the interrupt
            outcome, reason = _judged(one, own)
            yield Outcome(
                _kind(experiment, one),
                experiment.section,
                _row(experiment),
                name,
                one.name,
                outcome,
                reason,
                sum(each.answered for each in own),
            )
        if any(one.kind == "server" for one in experiment.subjects):
            for subject, reason in _skipped(experiment):
                yield Outcome("server", experiment.section, _row(experiment), name, subject, SKIPPED, reason)


def _judged(subject: SubjectRecord, slices: Sequence[Slice]) -> tuple[str, str]:
    failed = sum(one.failed for one in slices)
    if subject.failure is not None:
        return FAILED, subject.failure.removeprefix(f"{subject.name}: ")
    if failed:
        reason = next((one.first_failure for one in slices if one.first_failure), "see the errors by class")
        return FAILED, f"{failed} requests failed: {reason}"
    if not any(one.answered for one in slices):
        return FAILED, "no response was counted"
    return VERIFIED, ""


def _kind(experiment: ExperimentRecord, subject: SubjectRecord) -> str:
    return "llm" if experiment.scenario.startswith("llm") or "mock" in experiment.load else subject.kind


def _row(experiment: ExperimentRecord) -> str:
    """The scenario; each protocol has a row of its own."""
    return experiment.scenario + (" over HTTP/2" if experiment.load.get("protocol") == "h2" else "")


def _skipped(experiment: ExperimentRecord) -> Iterator[tuple[str, str]]:
    """Servers that do not support the scenario, from the experiment's notes."""
    for note in experiment.notes:
        for name in servers():
            if note.startswith(f"{name} "):
                yield name, note.removeprefix(f"{name} ")


def markdown(outcomes: Sequence[Outcome], missing: dict[str, str], versions: dict[str, str]) -> str:
    """One table for each kind of subject, followed by the reasons."""
    counts = {name: sum(one.outcome == name for one in outcomes) for name in (VERIFIED, SKIPPED, FAILED)}
    lines = [
        "# Scenarios by subject",
        "",
        "Written by `python -m benches.coverage`; `coverage.json.gz` has every experiment. `yes`: each request was sent once on a",
        "new connection, then under load, and every response was compared in status, headers and body. A number counts the verified",
        "experiments of the scenario (interfaces, TLS, loads), of those the subject took part in. `-`: not applicable.",
        "",
        f"{counts[VERIFIED]} experiments verified, {counts[SKIPPED]} skipped, {counts[FAILED]} failed.",
    ]
    for kind, title in KINDS.items():
        own = [one for one in outcomes if one.kind == kind]
        if own:
            lines += ["", f"## {title}", "", *_table(own), *_reasons(own)]
    if missing:
        lines += [
            "",
            "## Not installed",
            "",
            *(f"- {name}: {reason}" for name, reason in sorted(missing.items())),
        ]
    lines += ["", ", ".join(f"{name} {version}" for name, version in sorted(versions.items())), ""]
    return "\n".join(lines)


def _table(outcomes: Sequence[Outcome]) -> Iterator[str]:
    subjects = list(dict.fromkeys(one.subject for one in outcomes))
    yield "| scenario | " + " | ".join(subjects) + " |"
    yield "| --- |" + " --- |" * len(subjects)
    for scenario in dict.fromkeys(one.scenario for one in outcomes):
        row = [
            _entry([one for one in outcomes if (one.scenario, one.subject) == (scenario, subject)])
            for subject in subjects
        ]
        yield f"| {scenario} | " + " | ".join(row) + " |"


def _entry(experiments: Sequence[Outcome]) -> str:
    verified = sum(one.outcome == VERIFIED for one in experiments)
    if not experiments:
        return "-"
    if verified == len(experiments):
        return "yes"
    if verified:
        return f"{verified} of {len(experiments)}"
    return FAILED if any(one.outcome == FAILED for one in experiments) else SKIPPED


def _reasons(outcomes: Iterable[Outcome]) -> Iterator[str]:
    found: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for one in outcomes:
        if one.outcome != VERIFIED:
            found[one.subject, one.outcome, one.why].append(one.experiment)
    if found:
        yield ""
    for (subject, outcome, reason), experiments in sorted(found.items()):
        yield f"- {subject}, {outcome}: {', '.join(dict.fromkeys(experiments))}: {reason.replace('|', '/')}"


def _place(one: Outcome) -> tuple[str, str, str]:
    return one.kind, one.experiment, one.subject


def main() -> int:
    is_added = sys.argv[1:2] == ["--add"]
    names = sys.argv[2 if is_added else 1 :]
    if not names:
        sys.exit("usage: python -m benches.coverage [--add] RESULT...")
    before = report.load("coverage") if is_added else {}
    existing = (Outcome(**one) for one in before.get("outcomes", ()))
    found = {_place(one): one for one in existing}
    missing: dict[str, str] = before.get("missing", {})
    versions: dict[str, str] = before.get("versions", {})
    for name in names:
        try:
            record = records.load(Path(name))
        except (OSError, records.NotARecord) as error:
            sys.exit(f"coverage: {error}")
        missing |= record.skipped
        for one in (one for experiment in record.experiments for one in experiment.subjects):
            versions |= one.versions
        for outcome in outcomes_of(record):
            found[_place(outcome)] = outcome
    outcomes = list(found.values())
    present = {one.subject for one in outcomes}
    missing = {name: reason for name, reason in missing.items() if name not in present}
    plain = {
        "written": time.strftime("%Y-%m-%d", time.gmtime()),
        "versions": versions,
        "missing": missing,
        "outcomes": [asdict(one) for one in outcomes],
    }
    report.save("coverage", plain, replace=True)
    (report.RESULTS / "coverage.md").write_text(markdown(outcomes, missing, versions))
    print(f"{len(outcomes)} experiments: benches/results/coverage.md")
    return 0


if __name__ == "__main__":
    sys.exit(main())
