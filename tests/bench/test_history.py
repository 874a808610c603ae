"""The history file: appended to by several processes, migrated, pruned, drawn for similar machines only."""

import multiprocessing
import sqlite3
import time
from dataclasses import replace
from pathlib import Path

import pytest
from towline.bench import record as records
from towline.bench.analysis import analyse
from towline.bench.report import history as module
from towline.bench.report import main_history
from towline.bench.report.history import History, HistoryError, charts, default_path

from .synthetic import HELLO, MACHINE, STARTED_AT, control, experiment, record


def run(started=STARTED_AT, seed=1, *, per_s=60_000.0, machine=None):
    truths = (replace(HELLO[0], per_s=per_s), HELLO[1])
    one = experiment("hello", truths, seed=seed, samples=5, rounds=3, restarts=4)
    return analyse(
        replace(
            record(one, control(samples=5, rounds=3, restarts=2), seed=seed),
            began_unix_s=started,
            ended_unix_s=started + 60,
            machine=machine or MACHINE,
        )
    )


@pytest.fixture
def history(tmp_path):
    return History(tmp_path / "deep" / "history.sqlite3")


def test_append_list_show(history):
    number = history.append(run())
    assert history.append(run()) == number, "the same run is kept once"
    later = history.append(run(STARTED_AT + 100, 2))
    assert [one.id for one in history.runs()] == [later, number]
    assert history.runs()[0].experiments == 1, "controls are not kept"
    points = {(one.subject, one.metric): one for one in history.points(number)}
    rate = points["towline", "per_s"]
    assert rate.low is not None
    assert rate.high is not None
    assert rate.low < rate.value < rate.high
    assert rate.value == pytest.approx(60_000, rel=0.1)
    assert ("granian", "cpu_us") in points
    with pytest.raises(HistoryError, match="there is no run 99"):
        history.points(99)


def test_series_are_of_like_machines_and_loads(history):
    this = run(STARTED_AT + 200, 3, per_s=66_000)
    history.append(run())
    history.append(run(STARTED_AT + 100, 2, machine={**MACHINE, "cpu": "another"}))
    assert charts(history, this) == {}, "one point is no line"
    history.append(this)
    found = charts(history, this)
    assert set(found) == {"hello"}
    series = {one["name"]: one for one in found["hello"]["series"]}
    assert series["towline"]["x"] == [STARTED_AT, STARTED_AT + 200]
    assert series["towline"]["y"] == pytest.approx([60_000, 66_000], rel=0.1)
    other = replace(this.experiments[0].experiment, load={"connections": 1})
    assert charts(history, analyse(replace(this.record, experiments=[other]))) == {}


def test_memory_reserved_by_firmware_is_the_same_machine(history):
    history.append(run())
    again = run(
        STARTED_AT + 100, 2, machine={**MACHINE, "memory_bytes": (16 << 30) - 12345, "kernel": "Linux 6.9"}
    )
    history.append(again)
    assert len({one.machine_id for one in history.runs()}) == 1
    assert "hello" in charts(history, again)


def test_prune(history):
    for index in range(5):
        history.append(run(STARTED_AT + index, index))
    assert history.prune(keep=3) == 2
    assert history.prune(before_unix_s=STARTED_AT + 3) == 1
    assert [one.began_unix_s for one in history.runs()] == [STARTED_AT + 4, STARTED_AT + 3]
    with sqlite3.connect(history.path) as database:
        assert database.execute("SELECT COUNT(DISTINCT run) FROM estimates").fetchone() == (2,)


def append_many(path: Path, first: int, together) -> None:
    one = run()
    together.wait()
    for index in range(first, first + 15):
        History(path).append(replace(one, record=replace(one.record, seed=index)))


def test_two_processes_write_at_once(history):
    spawn = multiprocessing.get_context("fork")
    together = spawn.Barrier(2)
    writers = [spawn.Process(target=append_many, args=(history.path, first, together)) for first in (0, 1000)]
    for one in writers:
        one.start()
    for one in writers:
        one.join(60)
    assert [one.exitcode for one in writers] == [0, 0]
    assert len(history.runs()) == 30
    assert all(len(history.points(one.id)) > 0 for one in history.runs())


def test_migration_keeps_existing_runs(history, monkeypatch):
    history.append(run())
    monkeypatch.setattr(module, "MIGRATIONS", (*module.MIGRATIONS, "ALTER TABLE runs ADD COLUMN note TEXT"))
    history.append(run(STARTED_AT + 1, 2))
    with sqlite3.connect(history.path) as database:
        assert database.execute("PRAGMA user_version").fetchone() == (len(module.MIGRATIONS),)
        assert database.execute("SELECT note FROM runs").fetchall() == [(None,), (None,)]
    monkeypatch.undo()
    with pytest.raises(HistoryError, match="written by a later towline"):
        history.runs()


def test_a_failed_write_leaves_nothing(history, monkeypatch):
    history.append(run())
    monkeypatch.setattr(module, "_rows", lambda run, analysis: [(run,)])
    with pytest.raises(HistoryError):
        history.append(run(STARTED_AT + 1, 2))
    assert len(history.runs()) == 1


def test_a_file_of_another_kind(tmp_path):
    path = tmp_path / "history.sqlite3"
    path.write_text("not a database, but long enough to look like one" * 20)
    with pytest.raises(HistoryError, match="move the file away"):
        History(path).runs()


def test_the_folder(monkeypatch, tmp_path):
    monkeypatch.delenv("TOWLINE_BENCH_HISTORY", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert default_path() == tmp_path / "towline/bench-history.sqlite3"
    monkeypatch.setenv("XDG_DATA_HOME", "relative")
    assert default_path() == Path.home() / ".local/share/towline/bench-history.sqlite3"
    monkeypatch.setenv("TOWLINE_BENCH_HISTORY", "/somewhere/else.db")
    assert default_path() == Path("/somewhere/else.db")


def test_the_command(tmp_path, capsys):
    database = ["--database", str(tmp_path / "h.sqlite3")]
    assert main_history(database) == 0
    assert "no run yet" in capsys.readouterr().out
    records.save(run(time.time() - 3 * 86_400).record, tmp_path / "r.json")
    assert main_history([*database, "add", str(tmp_path / "r.json")]) == 0
    assert main_history([*database, "list"]) == 0
    assert "run 1:" in (out := capsys.readouterr().out)
    assert "1 min 00 s" in out
    assert main_history([*database, "show", "1"]) == 0
    assert "towline                   requests/s" in capsys.readouterr().out
    assert main_history([*database, "show", "7"]) == 2
    assert main_history([*database, "prune"]) == 2
    assert main_history([*database, "prune", "--older-than", "2"]) == 0
    assert "1 run removed" in capsys.readouterr().out
    assert main_history([*database, "add", str(tmp_path / "none.json")]) == 2
