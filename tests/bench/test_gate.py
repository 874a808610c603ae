"""The gate's exit statuses: each is reached, and only when it should be."""

import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import pytest
from towline.bench import record as records
from towline.bench.report import main_gate

from .synthetic import HELLO, experiment, record

TOWLINE = HELLO[0]


def measured(
    by: float, seed: int, *, restarts: int = 12, machine: dict | None = None, failure: str | None = None
):
    """A result in which towline is slower by the factor, with an unchanged build."""
    truths = (replace(TOWLINE, per_s=TOWLINE.per_s / by), replace(TOWLINE, name="old"))
    one = experiment("hello", truths, seed=seed, samples=10, rounds=6, restarts=restarts)
    if failure:
        one = replace(one, subjects=[replace(one.subjects[0], failure=failure), one.subjects[1]])
    more = {"machine": machine} if machine else {}
    return record(one, seed=seed, **more)


@pytest.fixture(scope="module")
def results_folder(tmp_path_factory):
    folder: Path = tmp_path_factory.mktemp("results")
    results = {
        "base": measured(1.0, 1),
        "same": measured(1.0, 2),
        "slow": measured(1.2, 3),
        "slow2": measured(1.2, 4),
        "fast": measured(0.7, 5),
        "border": measured(1.05, 6),
        "few": measured(1.2, 7, restarts=2),
        "elsewhere": measured(1.2, 8, machine={"cpu": "another", "cores": 64}),
        "broken": measured(1.0, 9, failure="died: signal 11"),
    }
    for name, one in results.items():
        records.save(one, folder / f"{name}.json")
    (folder / "junk.json").write_text("{}")
    return folder


@pytest.fixture(autouse=True)
def no_summary(monkeypatch):
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)


def gate(results_folder, *arguments: str) -> int:
    named = [str(results_folder / f"{one[1:]}.json") if one.startswith("@") else one for one in arguments]
    try:
        return main_gate(named)
    except SystemExit as exit_error:
        assert isinstance(exit_error.code, int)
        return exit_error.code


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["@same", "--baseline", "@base", "--threshold", "10%"], 0, "Passed"),
        (["@fast", "--baseline", "@base"], 0, "Passed"),
        (["@slow", "--baseline", "@base"], 4, "run again in a fresh job to confirm"),
        (["@slow", "--baseline", "@base", "--confirm", "@slow2"], 1, "Regression"),
        (["@slow", "--baseline", "@base", "--confirm", "@same", "--threshold", "10%"], 0, "not confirmed"),
        (["@slow", "--baseline", "@base", "--threshold", "30%"], 0, "Passed"),
        (["@border", "--baseline", "@base"], 3, "undecided"),
        (["@border", "--baseline", "@base", "--allow-undecided"], 0, "undecided"),
        (["@few", "--baseline", "@base"], 3, "at least 3 on each side"),
        (["@broken", "--baseline", "@base"], 3, "died: signal 11"),
        (["@elsewhere", "--baseline", "@base", "--subject", "towline"], 4, "another machine"),
        (["@same", "--pair", "old", "towline"], 0, "Passed"),
        (["@slow", "--pair", "old", "towline"], 4, "Suspected"),
        (["@slow", "--pair", "old", "towline", "--confirm", "@slow2"], 1, "Regression"),
        (["@slow", "--pair", "towline", "old"], 0, "Passed"),
        (["@broken", "--pair", "old", "towline"], 3, "died: signal 11"),
        (["@same", "--pair", "old", "nobody"], 3, "were not both measured"),
    ],
)
def test_statuses(results_folder, arguments, status, message, capsys):
    assert gate(results_folder, *arguments) == status
    assert message in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["@same"], "either --baseline FILE or --pair"),
        (["@same", "--baseline", "@base", "--pair", "a", "b"], "either --baseline FILE or --pair"),
        (["@same", "--baseline", "@same"], "different runs"),
        (["@slow", "--pair", "old", "towline", "--confirm", "@slow"], "confirms nothing about itself"),
        (["@junk", "--baseline", "@base"], "is not a result of towline bench"),
        (["@nothing", "--baseline", "@base"], "cannot read"),
        (["@same", "--baseline", "@base", "--threshold", "5"], "not between 0 and 100 %"),
        (["@same", "--baseline", "@base", "--threshold", "much"], "no share"),
    ],
)
def test_invalid_arguments_are_errors(results_folder, arguments, message, capsys):
    assert gate(results_folder, *arguments) == 2
    assert message in capsys.readouterr().err


def test_another_machine_is_refused_by_default(results_folder, capsys):
    same = replace(measured(1.0, 20), machine={"cpu": "another"})
    records.save(same, results_folder / "moved.json")
    assert gate(results_folder, "@moved", "--baseline", "@base", "--threshold", "10%") == 3
    assert "another machine" in capsys.readouterr().out
    assert gate(results_folder, "@moved", "--baseline", "@base", "--threshold", "10%", "--any-machine") == 0


def test_the_reports_of_ci(results_folder, tmp_path, monkeypatch):
    summary = tmp_path / "summary.md"
    summary.write_text("before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    report = tmp_path / "gate.xml"
    assert gate(results_folder, "@slow", "--pair", "old", "towline", "--junit", str(report)) == 4
    assert summary.read_text().startswith("before\n### Towline bench gate: Suspected")
    suite = ElementTree.parse(report).getroot()
    assert suite.get("failures") == "1"
    (case,) = suite.findall("testcase")
    assert case.get("classname") == "hello"
    assert case.find("failure") is not None


@pytest.mark.parametrize(
    ("more", "status", "element"),
    [([], 3, "failure"), (["--allow-undecided"], 0, "skipped")],
)
def test_the_test_report_fails_what_the_exit_status_fails(results_folder, tmp_path, more, status, element):
    report = tmp_path / "gate.xml"
    assert (
        gate(
            results_folder,
            "@border",
            "--baseline",
            "@base",
            "--subject",
            "towline",
            "--metric",
            "per_s",
            *more,
            "--junit",
            str(report),
        )
        == status
    )
    suite = ElementTree.parse(report).getroot()
    (case,) = suite.findall("testcase")
    assert case.find(element) is not None
    assert suite.get("failures") == ("1" if status else "0")


def test_a_name_cannot_break_the_reports(results_folder, tmp_path):
    suffix = "<&\"'|`\n\0]]>"
    one = measured(1.2, 30)
    renamed = replace(
        one.experiments[0],
        name=suffix,
        subjects=[replace(entry, name=entry.name + suffix) for entry in one.experiments[0].subjects],
        slices=[replace(entry, subject=entry.subject + suffix) for entry in one.experiments[0].slices],
    )
    records.save(replace(one, experiments=[renamed]), results_folder / "evil.json")
    report, summary = tmp_path / "gate.xml", tmp_path / "summary.md"
    files = ["--junit", str(report), "--summary", str(summary)]
    assert gate(results_folder, "@evil", "--pair", f"old{suffix}", f"towline{suffix}", *files) == 4
    (case,) = ElementTree.parse(report).getroot().findall("testcase")
    assert case.get("classname") == suffix.replace("\0", "\ufffd")
    (row,) = (line for line in summary.read_text().splitlines() if "suspected" in line)
    assert row.replace("\\|", "").count("|") == 7


def test_where_it_cannot_write(results_folder, tmp_path, capsys):
    assert (
        gate(results_folder, "@same", "--pair", "old", "towline", "--junit", str(tmp_path / "no" / "x.xml"))
        == 2
    )
    assert "cannot write" in capsys.readouterr().err
