"""Tables and files of a small record with known numbers: text, Markdown, CSV."""

import csv
import io
import json
import re
import sys
from dataclasses import replace
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from towline.bench import record as records
from towline.bench.analysis import Estimate, analyse
from towline.bench.record import ExperimentRecord, Latency, Record, Slice, Start, SubjectRecord
from towline.bench.report import formatting, main_report, render_all, show
from towline.bench.report.csv import slices_csv, subjects_csv
from towline.bench.report.markdown import escape, markdown
from towline.bench.report.terminal import lines, row, text
from towline.bench.report.verdicts_json import verdicts_json
from towline.bench.report.view import views
from towline.bench.verdict import Verdict

from .synthetic import MACHINE, encode

STARTED_AT = 1_790_000_000.0


def one_slice(subject: str, restart: int, round_: int, responses: int, **more: object) -> Slice:
    return Slice(
        subject,
        restart,
        round_,
        0 if subject == "towline" else 1,
        STARTED_AT + restart + round_ / 10,
        0.1,
        responses,
        response=Latency(responses, 2e6 / responses, 100.0, 400.0, 600.0, 700.0, 900.0, 1200.0, 2000.0),
        subject_cpu_s=0.05,
        subject_busiest_share=0.95,
        driver_busiest_share=0.3,
        histogram=encode([400_000] * 98 + [900_000] * 2),
        **more,
    )  # type: ignore[arg-type]


def small(ratio: float = 2.0, wobble: int = 10, **more: object) -> ExperimentRecord:
    """towline has 4,000 responses per slice, uvicorn fewer by this factor, with noise."""
    slices = []
    for restart in range(6):
        for round_ in range(2):
            slices.append(one_slice("towline", restart, round_, 4000 + wobble * (restart % 3)))
            slices.append(one_slice("uvicorn", restart, round_, round(4000 / ratio) - wobble * (restart % 2)))
    start = Start(0, 0.2, 0.5, True, 30 << 20, 41 << 20, 40 << 20)
    subjects = [
        SubjectRecord(
            "towline", "server", ["towline", "serve", "app:app"], {"towline": "0.1.0"}, {}, [start]
        ),
        SubjectRecord("uvicorn", "server", ["uvicorn", "app:app"], {"uvicorn": "0.54.0"}, {}, [start]),
        SubjectRecord("gone", "server", ["gone"], failure="never became ready", log="oops"),
    ]
    load = {"connections": 20, "slice_s": 0.1}
    values = {
        "name": "hello",
        "scenario": "own",
        "title": "seven bytes",
        "section": "Roadrunner",
        "question": "capacity",
    }
    return ExperimentRecord(**{**values, "load": load, "subjects": subjects, "slices": slices, **more})  # type: ignore[arg-type]


def full_record(*experiments: ExperimentRecord, **more: object) -> Record:
    values = {
        "tool": "towline 0.1.0",
        "began_unix_s": STARTED_AT,
        "ended_unix_s": STARTED_AT + 200,
        "machine": MACHINE,
        "versions": {},
        "command": ["towline", "bench"],
        "seed": 7,
        "settings": {},
        "experiments": list(experiments or (small(),)),
        "skipped": {"nginx": "not installed"},
    }
    return Record(**{**values, **more})  # type: ignore[arg-type]


TEXT = """\
hello (Roadrunner, capacity): 20 connections, slices of 100 ms
  subject  requests/s             p50     p99  CPU/request   memory  towline is  requests/s ratio  interval
  towline      40,100  ±0.2 %  400 us  900 us      12.5 us  41.0 MB
  uvicorn      19,950  ±0.3 %  400 us  900 us      25.1 us  41.0 MB  faster                 2.01x  [2.00, 2.02]
  gone              -               -       -            -        -                                failed: never became ready

verdicts: 1 faster
skipped: nginx (not installed)
2026-09-21 14:13 UTC, 3 min 20 s, seed 7; intervals of ratios are 95 % for all of an experiment together
"""

MARKDOWN = """\
### Towline bench

🟢 1 faster

| towline compared with | uvicorn | gone |
|---|---|---|
| hello | 🟢 2.01x |  |

<details><summary><b>hello</b>: 🟢 1 faster</summary>

20 connections, slices of 100 ms

| towline compared with | verdict | ratio | interval |
|---|---|--:|---|
| uvicorn | 🟢 faster | 2.01x | \\[2.00, 2.02\\] |

| subject | requests/s | | p50 | p99 | CPU/request | memory |
|---|--:|--:|--:|--:|--:|--:|
| towline | 40,100 | ±0.2 % | 400 us | 900 us | 12.5 us | 41.0 MB |
| uvicorn | 19,950 | ±0.3 % | 400 us | 900 us | 25.1 us | 41.0 MB |
| gone | failed: never became ready | | | | | |


</details>

Skipped: nginx (not installed)

<sub>2026-09-21 14:13 UTC, 3 min 20 s, seed 7, towline 0.1.0, Example CPU @ 3.00GHz, Linux 6.1.0. Intervals are 95 %, over restarts.</sub>
"""


def test_text():
    assert text(analyse(full_record())) == TEXT


def test_markdown():
    assert markdown(analyse(full_record())) == MARKDOWN


def test_markdown_fits_into_a_comment():
    experiments = tuple(replace(small(), name=f"hello {number}") for number in range(150))
    found = markdown(analyse(full_record(experiments=[*experiments])))
    assert len(found) < 65_536
    assert all(f"| hello {number} | 🟢 2.01x |" in found for number in range(150))
    left_out = re.search(r"The figures of (\d+) more experiments", found)
    assert left_out
    assert int(left_out[1]) == 150 - found.count("<details>")


def test_csv():
    rows = list(csv.DictReader(io.StringIO(subjects_csv(analyse(full_record())))))
    assert [row["subject"] for row in rows] == ["towline", "uvicorn", "gone"]
    second = rows[1]
    assert second["compared_with"] == "towline"
    assert second["verdict"] == "faster"
    assert float(second["ratio"]) == pytest.approx(2.01003, rel=1e-4)
    assert float(second["per_s"]) == pytest.approx(19949.9, rel=1e-4)
    assert float(second["p99_us"]) == pytest.approx(900, rel=1e-3)
    assert second["rss_peak_bytes"] == str(41 << 20)
    assert rows[2]["failure"] == "never became ready"
    assert rows[2]["per_s"] == ""
    slices = list(csv.DictReader(io.StringIO(slices_csv(full_record()))))
    assert len(slices) == 24
    assert {float(row["per_s"]) for row in slices if row["subject"] == "towline"} == {40_000, 40_100, 40_200}
    assert [float(row["began_unix_s"]) for row in slices] == sorted(
        float(row["began_unix_s"]) for row in slices
    )


def test_csv_has_no_formulas():
    named = small(name="=HYPERLINK(1)")
    rows = list(csv.DictReader(io.StringIO(subjects_csv(analyse(full_record(named))))))
    assert rows[0]["experiment"] == "'=HYPERLINK(1)"
    one = replace(named, slices=[replace(each, lag_p99_us=-1.5) for each in named.slices])
    assert next(csv.DictReader(io.StringIO(slices_csv(full_record(one)))))["lag_p99_us"] == "-1.5"


@pytest.mark.parametrize(
    ("experiment", "verdict", "expected"),
    [
        (small(1.0, 4), Verdict.EQUIVALENT, "equivalent"),
        (small(1.1), Verdict.FASTER, "faster"),
        (small(0.9), Verdict.SLOWER, "slower"),
        (small(0.9, 400), Verdict.UNDECIDED, "restarts would decide (6 done)"),
        (
            replace(small(), slices=[replace(one, failed=2) for one in small().slices]),
            Verdict.REFUSED,
            "24 requests failed",
        ),
    ],
)
def test_each_verdict_is_shown_in_every_format(experiment, verdict, expected):
    analysis = analyse(full_record(experiment))
    found = analysis.experiments[0].comparison("towline", "uvicorn")
    assert found is not None
    assert found.verdict is verdict
    for generated in (text(analysis), markdown(analysis).replace("\\", "")):
        assert expected in generated
    assert verdict.value in subjects_csv(analysis)
    assert verdict.value in formatting.sentence(found) or verdict is Verdict.REFUSED


def test_less_cpu_is_not_faster():
    found = analyse(full_record()).experiments[0].comparison("towline", "uvicorn", "cpu_us")
    assert found is not None
    assert "towline uses less CPU than uvicorn" in formatting.sentence(found)


def test_with_rich(capsys):
    rich = pytest.importorskip("rich.console")
    assert rich
    out = io.StringIO()
    show(analyse(full_record(small(), small(0.9, name="json"))), out, plain=False)
    output = out.getvalue()
    for part in (
        "hello (Roadrunner, capacity)",
        "towline",
        "slower",
        "2.01x",
        "1 faster, 1 slower",
    ):
        assert part in output
    show(analyse(full_record()), out := io.StringIO())
    assert out.getvalue() == TEXT, "no terminal: plain"


def test_without_rich(monkeypatch):
    import builtins

    real_import = builtins.__import__

    def without(name, *rest, **more):
        if name.startswith("rich"):
            raise ImportError(name)
        return real_import(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    show(analyse(full_record()), out := io.StringIO(), plain=False)
    assert out.getvalue() == TEXT


@given(st.text(max_size=40))
def test_markdown_of_any_name_stays_in_its_cell(name):
    escaped = escape(name)
    assert "\n" not in escaped
    assert not re.search(r"(?<!\\)(?:\\\\)*[|<`*_\[]", escaped)
    assert not re.search(r"@\w", escaped)


def test_a_hostile_name_in_markdown():
    evil = "a|b<img src=x>`*_[x](http://y)\n# heading @team"
    one = small()
    renamed = replace(
        one,
        name=evil,
        subjects=[*one.subjects[:2], replace(one.subjects[2], name=evil, failure=evil)],
        notes=[evil],
    )
    generated = markdown(analyse(full_record(renamed)))
    assert "<img" not in generated
    assert not re.search(r"(?<!\\)\]\(", generated)
    assert not [line for line in generated.splitlines() if line.startswith("# ")]
    row = next(line for line in generated.splitlines() if "failed: " in line)
    assert len(re.findall(r"(?<!\\)\|", row)) == 8


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0.0634, "0.063x"),
        (0.5, "0.50x"),
        (1.456, "1.46x"),
        (11.56, "11.6x"),
        (123.4, "123x"),
        (float("inf"), "any"),
    ],
)
def test_ratios(value, expected):
    assert formatting.ratio(value) == expected


@pytest.mark.parametrize(
    ("low", "high", "shown", "figure"),
    [
        (0.95, 1.05, "±5.0 %", "1.000"),
        (0.1, 2.9, "±>100 %", "1.0"),
        (1e-9, 5e7, "±>100 %", "1.0"),
    ],
)
def test_an_interval_without_information_is_no_figure(
    low: float, high: float, shown: str, figure: str
) -> None:
    estimate = Estimate(1.0, low, high, "requests/s")
    assert formatting.spread(estimate) == shown
    assert float(formatting.rate(estimate)) == float(figure)
    assert formatting.interval(1e-9, 5e7) == "[too wide: more restarts]"
    assert formatting.interval(0.5, 20) == "[0.50, 20.0]"


@pytest.mark.parametrize(
    ("metric", "value", "expected"),
    [
        ("p50_us", 0.5, "0.500 us"),
        ("p50_us", 999, "999 us"),
        ("p50_us", 1520, "1.52 ms"),
        ("p50_us", 2.1e6, "2.10 s"),
        ("first_token_ms", 400, "400 ms"),
        ("total_s", 2.5, "2.50 s"),
        ("rss_bytes", 1 << 20, "1.00 MB"),
        ("tokens_per_s", 61_234, "61,234/s"),
        ("lost", 3, "3.00"),
        ("body_bytes", 7, "7 B"),
    ],
)
def test_figures_have_their_units(metric, value, expected):
    assert formatting.figure(metric, value) == expected


def test_the_command(tmp_path, capsys):
    path = tmp_path / "result.json.gz"
    records.save(full_record(), path)
    for named in (path, tmp_path):  # the file, or its folder
        assert main_report([str(named)]) == 0
        assert capsys.readouterr().out == TEXT
    assert main_report([str(tmp_path), "--markdown", "--no-history"]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'report.md'}\n"
    assert (
        main_report([str(path), "--html", "--markdown", "--csv", "-o", str(tmp_path / "out"), "--no-history"])
        == 0
    )
    written = [line.rpartition("/")[2] for line in capsys.readouterr().out.splitlines()]
    assert written == ["report.html", "report.md", "subjects.csv", "slices.csv"]
    assert (tmp_path / "out/report.md").read_text(encoding="utf-8") == MARKDOWN
    assert {one.name for one in (tmp_path / "out").iterdir()} == set(written)
    records.save(full_record(small(1.1)), path)
    assert main_report([str(path), "--baseline", "uvicorn", "--margin", "20%"]) == 0
    assert "uvicorn is" in (out := capsys.readouterr().out)
    assert "verdicts: 1 equivalent" in out


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"{}", "is not a result of towline bench"),
        (b'{"format": 99}', "has layout 99; this version reads"),
        (b'{"format": 2}', "is damaged"),
        (b"\x1f\x8bnonsense", "is not a result of towline bench"),
    ],
)
def test_invalid_results_are_errors(tmp_path, capsys, content, expected):
    path = tmp_path / "x.json"
    path.write_bytes(content)
    assert main_report([str(path)]) == 2
    assert expected in capsys.readouterr().err


def test_where_it_cannot_write(tmp_path, capsys):
    path = tmp_path / "result.json"
    records.save(full_record(), path)
    (tmp_path / "file").write_text("")
    assert main_report([str(path), "--csv", "-o", str(tmp_path / "file")]) == 2
    assert "cannot write" in capsys.readouterr().err


NAMES = (
    "towline",
    "towline.httpx2-sync",
    "a-server-with-a-name-that-is-longer-than-anyone-would-like-it-to-be",
)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("width", [60, 80, 100, 132])
def test_a_narrow_terminal_cuts_neither_figures_nor_names(name, width):
    one = small()
    renamed = replace(
        one,
        subjects=[replace(each, name=name if each.name == "uvicorn" else each.name) for each in one.subjects],
        slices=[
            replace(each, subject=name if each.subject == "uvicorn" else each.subject) for each in one.slices
        ],
    )
    (shown,) = views(analyse(full_record(renamed), baseline="towline" if name != "towline" else name))
    printed = ["".join(text for text, _ in line) for line in lines(shown, width)]
    assert max(map(len, printed)) <= max(width, len(name))
    whole = " ".join(" ".join(printed).split())
    for subject in shown.subjects:
        assert subject.name in whole
        for field in row(shown, subject)[1:]:
            assert field.strip() in ("", "-") or field.strip() in whole


def test_a_terminal_of_80_columns(monkeypatch):
    pytest.importorskip("rich")
    monkeypatch.setenv("COLUMNS", "80")
    out = io.StringIO()
    show(analyse(full_record(small(), small(0.9, name="json"))), out, plain=False)
    assert "\u2026" not in out.getvalue(), "nothing is cut"
    assert out.getvalue().count("uvicorn") == 2


def test_figures_of_calls_are_in_every_format():
    """As of `towline bench llm`: times of calls, first token, time per token, goodput."""
    extra = {
        "total_p50_ms": 738.1,
        "total_p95_ms": 1294.0,
        "total_mean_ms": 643.0,
        "total_min_ms": 152.4,
        "total_max_ms": 1300.0,
        "ttft_p50_ms": 297.2,
        "tpot_p50_ms": 22.02,
        "goodput_share": 0.9,
    }
    one = small(question="latency")
    slices = [replace(each, extra={**extra, "total_min_ms": 152.4 + each.restart}) for each in one.slices]
    analysis = analyse(full_record(replace(one, slices=slices)))
    (shown,) = views(analysis)
    narrow = "\n".join("".join(part for part, _ in line) for line in lines(shown, 80))
    assert max(map(len, narrow.splitlines())) <= 80
    for output in (text(analysis), narrow, markdown(analysis)):
        figures = " ".join(output.replace("|", " ").split())
        assert "n errors refused p50 p95 mean min max" in figures
        assert "738 ms 1.29 s 643 ms 152 ms 1.30 s" in figures
        assert "TTFT p50 TPOT p50 goodput CPU/request" in figures
        assert "297 ms 22.0 ms 90 %" in figures
        assert "never became ready" in figures
    first = next(csv.DictReader(io.StringIO(subjects_csv(analysis))))
    assert (first["total_p95_ms"], first["total_min_ms"], first["goodput_share"]) == ("1294", "152.4", "0.9")


def test_verdicts_as_data():
    few = small(name="short")
    short = replace(few, slices=[one for one in few.slices if one.restart == 0])
    document = json.loads(verdicts_json(analyse(full_record(small(), short))))
    first, last = document["experiments"]
    assert document["verdicts"]["faster"] == 1
    (headline,) = [one for one in first["comparisons"] if one["headline"]]
    assert (headline["subject"], headline["baseline"], headline["verdict"]) == (
        "towline",
        "uvicorn",
        "faster",
    )
    assert headline["low"] < headline["ratio"] < headline["high"]
    assert {one["name"] for one in first["subjects"]} == {"towline", "uvicorn", "gone"}
    assert first["subjects"][0]["figures"]["per_s"]["value"] > 0
    # An unknown bound is null: JSON has no Infinity.
    assert last["comparisons"][0]["high"] is None


def test_charts_as_files(tmp_path, capsys):
    path = tmp_path / "result.json"
    records.save(full_record(small(), small(name="a/b <c>"), small(name="a b c")), path)
    assert main_report([str(path), "--svg", "-o", str(tmp_path / "out")]) == 0
    written = [line.rpartition("/")[2] for line in capsys.readouterr().out.splitlines()]
    assert written == ["hello.svg", "a_b_c.svg", "a_b_c_2.svg"]
    for name in written:
        drawing = ElementTree.parse(tmp_path / "out" / name).getroot()
        texts = [one.text for one in drawing.iter("{http://www.w3.org/2000/svg}text")]
        assert {"towline", "uvicorn"} <= set(texts)
        assert len(list(drawing.iter("{http://www.w3.org/2000/svg}path"))) == 2, "an interval for each"


def test_charts_as_pictures(tmp_path, capsys, monkeypatch):
    pytest.importorskip("resvg_py")
    path = tmp_path / "result.json"
    records.save(full_record(), path)
    assert main_report([str(path), "--png", "-o", str(tmp_path)]) == 0
    picture = (tmp_path / "hello.png").read_bytes()
    assert picture.startswith(b"\x89PNG\r\n\x1a\n")
    assert int.from_bytes(picture[16:20], "big") == 1600, "the width in pixels"
    monkeypatch.setitem(sys.modules, "resvg_py", None)
    capsys.readouterr()
    assert main_report([str(path), "--png", "-o", str(tmp_path)]) == 2
    assert "pip install 'towline[bench]'" in capsys.readouterr().err


def test_render_all(tmp_path):
    records.save(full_record(), tmp_path / "r.json")
    written = render_all(tmp_path / "r.json", tmp_path / "deep" / "er", formats=("csv",))
    assert [path.name for path in written] == ["subjects.csv", "slices.csv"]


def test_the_baseline_is_that_of_the_record() -> None:
    measured = full_record(settings={"baseline": "uvicorn"})
    assert {one.subject for one in analyse(measured).experiments[0].comparisons} == {"uvicorn"}
    assert {one.subject for one in analyse(measured, "towline").experiments[0].comparisons} == {"towline"}
