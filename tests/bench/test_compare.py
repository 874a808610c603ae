"""Comparison of two results: Welch's test, warnings, invalid comparisons."""

import random
from dataclasses import replace

import pytest
from towline.bench import record as records
from towline.bench.report import main_compare
from towline.bench.report.compare import CAUTION, compare, welch
from towline.bench.verdict import Verdict

from . import synthetic
from .synthetic import HELLO, Truth, experiment, record


def slower(truth: Truth, by: float) -> Truth:
    return replace(truth, per_s=truth.per_s / by, cpu_us=truth.cpu_us * by)


def small(name="hello", truths=HELLO[:2], seed=1, **more):
    return experiment(name, truths, seed=seed, samples=20, rounds=6, **more)


@pytest.fixture(scope="module")
def before():
    return record(small(restarts=12), small("json", seed=2, restarts=12))


def test_welch_as_scipy_has_it():
    first, second = [1.0, 1.1, 0.9, 1.05], [1.3, 1.5, 1.1, 1.2, 1.4]
    found = welch(first, second)
    # scipy.stats.ttest_ind(second, first, equal_var=False), and its confidence_interval()
    assert found.mean == pytest.approx(0.2875)
    assert found.p == pytest.approx(0.012057318057948099, rel=1e-9)
    assert (found.low, found.high) == pytest.approx((0.08788829254698183, 0.48711170745301835), rel=1e-9)
    assert found.df == pytest.approx(6.327024701978618)


def test_welch_has_its_nominal_error_rate():
    draw = random.Random(3)
    wrong = sum(
        welch([draw.gauss(0, 1) for _ in range(6)], [draw.gauss(0, 3) for _ in range(9)]).p < 0.05
        for _ in range(400)
    )
    assert 8 <= wrong <= 36


def test_one_restart_has_no_interval():
    found = welch([1.0], [1.0, 2.0])
    assert found.p == 1.0
    assert found.low == float("-inf")


def test_a_true_difference_is_found_and_its_size(before):
    after = record(
        small(truths=(slower(HELLO[0], 1.1), HELLO[1]), seed=11, restarts=12),
        small("json", seed=12, restarts=12),
    )
    found = compare(before, after, metrics=("per_s",))
    by_name = {(one.experiment, one.subject): one for one in found.changes}
    assert len(by_name) == 4
    changed = by_name["hello", "towline"]
    assert changed.verdict is Verdict.SLOWER
    assert changed.low < 1 / 1.1 < changed.high
    for other in by_name.keys() - {("hello", "towline")}:
        assert by_name[other].verdict in (Verdict.EQUIVALENT, Verdict.UNDECIDED)
    assert not found.warnings


def test_times_are_better_when_smaller(before):
    after = record(small(truths=(slower(HELLO[0], 1.2), HELLO[1]), seed=11, restarts=12))
    (change,) = (
        one for one in compare(before, after, metrics=("cpu_us",)).changes if one.subject == "towline"
    )
    assert change.verdict is Verdict.SLOWER
    assert change.ratio > 1.15


def test_differences_of_settings_are_warnings(before):
    other = replace(before, machine={**before.machine, "governor": "powersave", "kernel": "Linux 6.9.0"})
    one = other.experiments[0]
    renamed = replace(one.subjects[0], command=["another"], options={"workers": "2"})
    other = replace(
        other,
        experiments=[
            replace(one, load={**one.load, "connections": 64}, subjects=[renamed, *one.subjects[1:]])
        ],
    )
    found = compare(before, other)
    assert "machine: governor: performance, then powersave" in found.warnings
    assert "machine: kernel: Linux 6.1.0, then Linux 6.9.0" in found.warnings
    assert "hello: connections: 50, then 64" in found.warnings
    assert "hello: towline: started with another command line" in found.warnings
    assert "hello: towline: workers: None, then 2" in found.warnings
    assert found.missing == ["json: only in the first"]


def test_failures_and_few_restarts_give_no_verdict(before):
    few = record(small(seed=4, restarts=2), small("json", seed=5))
    failed = replace(
        few.experiments[1],
        subjects=[replace(few.experiments[1].subjects[0], failure="died"), few.experiments[1].subjects[1]],
    )
    found = compare(before, replace(few, experiments=[few.experiments[0], failed]), metrics=("per_s",))
    assert {one.verdict for one in found.changes if one.experiment == "hello"} == {Verdict.REFUSED}
    assert "at least 3" in (found.changes[0].reason or "")
    assert "json: towline: died" in found.missing


def test_the_command(before, tmp_path, capsys):
    paths = [tmp_path / "a.json", tmp_path / "b.json.gz"]
    after = replace(record(small(truths=(slower(HELLO[0], 1.1), HELLO[1]), seed=11, restarts=12)), seed=8)
    for path, one in zip(paths, (before, after), strict=True):
        records.save(one, path)
    assert main_compare([*map(str, paths)]) == 0
    out = capsys.readouterr().out
    assert CAUTION in out
    assert "not compared: json: only in the first" in out
    assert any(
        line.split()[:2] == ["towline", "requests/s"] and line.endswith("slower") for line in out.splitlines()
    )
    assert main_compare([*map(str, paths), "--markdown"]) == 0
    assert "| hello | towline | requests/s |" in capsys.readouterr().out
    assert main_compare([str(paths[0]), str(tmp_path / "none.json")]) == 2
    assert "cannot read" in capsys.readouterr().err


def test_subjects_of_different_names(before, tmp_path, capsys):
    renamed = [
        replace(one, subject="next" if one.subject == "towline" else one.subject)
        for one in before.experiments[0].slices
    ]
    subjects = [
        replace(one, name="next" if one.name == "towline" else one.name)
        for one in before.experiments[0].subjects
    ]
    after = replace(before, experiments=[replace(before.experiments[0], slices=renamed, subjects=subjects)])
    found = compare(before, after, metrics=("per_s",), subjects=[("towline", "next"), ("nobody", "towline")])
    (change,) = found.changes
    assert change.subject == "towline, next"
    assert change.ratio == 1.0
    assert "hello: nobody is not in the first and towline is not in the second" in found.missing
    paths = [tmp_path / "a.json", tmp_path / "b.json"]
    for path, one in zip(paths, (before, after), strict=True):
        records.save(one, path)
    assert main_compare([*map(str, paths), "--subject", "towline=next"]) == 0
    assert "towline, next  requests/s" in capsys.readouterr().out
    for wrong in ("=x", "x="):
        with pytest.raises(SystemExit) as ended:
            main_compare([*map(str, paths), "--subject", wrong])
        assert ended.value.code == 2
        assert "nor OLD=NEW" in capsys.readouterr().err


def test_nothing_compared_is_status_1(before, tmp_path, capsys):
    other = replace(
        before, experiments=[replace(one, name=f"{one.name} other") for one in before.experiments]
    )
    paths = [tmp_path / "a.json", tmp_path / "b.json"]
    for path, one in zip(paths, (before, other), strict=True):
        records.save(one, path)
    assert main_compare([*map(str, paths)]) == 1
    assert "nothing was compared: --subject OLD=NEW" in capsys.readouterr().out
    assert main_compare([str(paths[0])] * 2 + ["--subject", "nobody"]) == 1


def test_a_reason_is_shown_once(before, tmp_path, capsys):
    """The note applied to each metric, and named the subject twice."""
    one = before.experiments[0]
    slices = [replace(each, failed=3 if each.subject == "towline" else 0) for each in one.slices]
    failing = replace(before, experiments=[replace(one, slices=slices)])
    paths = [tmp_path / "a.json", tmp_path / "b.json"]
    for path, each in zip(paths, (before, failing), strict=True):
        records.save(each, path)
    assert main_compare([*map(str, paths)]) == 0
    out = capsys.readouterr().out
    assert out.count("requests failed") == 1
    assert "  ! towline: in the second: " in out


def test_synthetic_records_have_their_true_values():
    found = synthetic.experiment("x", HELLO[:1], samples=5)
    rate = sum(one.per_s for one in found.slices) / len(found.slices)
    assert rate == pytest.approx(HELLO[0].per_s, rel=0.05)
