"""The webhooks suite: accepted webhooks are stored and forwarded, and an application that loses or cannot forward
fails."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from towline.bench.analysis import analyse
from towline.bench.record import FORWARDED_AFTER
from towline.bench.runner.agent import Agent
from towline.bench.runner.plan import NothingToDo, Options
from towline.bench.runner.protocol import Failed, SliceSpec, StartConfig
from towline.bench.scenarios import catalogue, session_config
from towline.bench.subjects import installed, servers
from towline.bench.verdict import Verdict
from towline.bench.webhooks import PAIRS, WebhookSubject, pairs, webhook_experiments
from towline.bench.webhooks.run import chosen_pairs, chosen_rows
from towline.bench.webhooks.subject import APPLICATION
from towline.cli.bench import main as bench_command

from tests.examples import postgres
from tests.support.databases import rows

from .synthetic import Truth, experiment, record

PLACE = StartConfig(cores=None, padding_bytes=100, seed=1)
CONFIG = partial(session_config, catalogue()["webhooks"], connections=10)


@pytest.fixture(scope="module")
def agent() -> Iterator[Agent]:
    with Agent() as one:
        yield one


@pytest.mark.parametrize("name", [f"{server}+{client}" for server, client in PAIRS])
def test_every_installed_pair_stores_and_forwards_all_accepted_webhooks(name: str, agent: Agent) -> None:
    (pair,) = pairs(servers(), [name])
    subject = WebhookSubject(pair, agent, CONFIG)
    described = subject.describe()
    if described.failure:
        pytest.skip(described.failure)
    assert described.kind == "pair"
    assert "webhooks:app" in described.command
    running = subject.start(PLACE)
    try:
        running.verify()
        for _ in range(2):
            one = running.slice(SliceSpec(0.0, requests=60))
            assert (one.answered, one.failed, one.first_failure) == (60, 0, None)
            assert one.extra["stored"] == one.extra["forwarded"] == 60
            assert one.extra["lost"] == 0
            assert one.finished_s == one.extra["forwarded_after_s"] >= one.measured_s * 0.99
            assert one.subject_cpu_s > 0
    finally:
        failure = running.stop()
    assert failure is None


@pytest.fixture(scope="module")
def postgres_url() -> Iterator[str]:
    with postgres.server() as url:
        yield url


@pytest.mark.parametrize("name", ["towline", "uvicorn-httptools+httpx"])
def test_webhooks_are_stored_in_postgresql(name: str, agent: Agent, postgres_url: str) -> None:
    (pair,) = pairs(servers(), [name])
    subject = WebhookSubject(pair, agent, CONFIG, database=postgres_url)
    described = subject.describe()
    if described.failure:
        pytest.skip(described.failure)
    assert described.options["database"] == "PostgreSQL"
    running = subject.start(PLACE)
    try:
        running.verify()
        one = running.slice(SliceSpec(0.0, requests=200))
        assert (one.answered, one.failed, one.first_failure) == (200, 0, None)
        assert one.extra["stored"] == one.extra["forwarded"] == 200
    finally:
        failure = running.stop()
    assert failure is None
    left = rows(postgres_url, "SELECT nspname FROM pg_namespace WHERE nspname LIKE 'webhooks%'")
    assert left == [], "the schema is removed"


@pytest.mark.parametrize(
    ("database", "why"),
    [
        ("mysql://localhost/x", "neither sqlite nor postgresql://"),
        ("postgresql://me:secret@localhost/x", "a password is not part of the URL"),
        ("postgresql://127.0.0.1:1/x", "cannot connect"),
    ],
)
def test_an_invalid_database(
    database: str, why: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    arguments = ["webhooks", "-s", "800x40", "-S", "towline", "--database", database, "-o", str(tmp_path)]
    assert bench_command(arguments) == 2
    error = capsys.readouterr().err
    assert why in error
    assert "secret" not in error


def test_a_failed_forward_is_a_failure(agent: Agent) -> None:
    (pair,) = pairs(servers(), ["towline"])
    unreachable = replace(APPLICATION, env={"WEBHOOKS_DESTINATION": "http://127.0.0.1:1/"})
    running = WebhookSubject(pair, agent, CONFIG, settings=unreachable).start(PLACE)
    try:
        with pytest.raises(Failed, match=r"a webhook was accepted, but: .*ConnectError"):
            running.verify()
        one = running.slice(SliceSpec(0.0, requests=20))
        assert one.answered == 20
        assert one.errors["forward"] == one.failed >= 20
        assert "not forwarded: " in (one.first_failure or "")
    finally:
        running.stop()


LOSING = """
import webhooks
class Losing(webhooks.Store):
    async def accept(self, number, hook, headers, body):
        if number % 10:
            await super().accept(number, hook, headers, body)
webhooks.Store = Losing
app = webhooks.app
"""


def test_lost_webhooks_are_counted(agent: Agent, tmp_path: Path) -> None:
    """An application that responds 202 to every tenth webhook without storing it."""
    (tmp_path / "losing.py").write_text(textwrap.dedent(LOSING))
    (pair,) = pairs(servers(), ["towline"])
    apps = APPLICATION.app_folder
    losing = replace(APPLICATION, app="losing:app", app_folder=tmp_path, env={"PYTHONPATH": str(apps)})
    running = WebhookSubject(pair, agent, CONFIG, settings=losing).start(PLACE)
    try:
        running.verify()
        one = running.slice(SliceSpec(0.0, requests=50))
    finally:
        running.stop()
    assert one.errors["lost"] == one.failed == 5
    assert one.first_failure == "5 accepted webhooks are not in the database"
    assert one.extra["stored"] == 45


def test_a_missing_library_is_one_line(agent: Agent) -> None:
    (pair,) = pairs(servers(), ["towline"])
    wrong = replace(APPLICATION, env={"WEBHOOKS_CLIENT": "no_such_library"})
    with pytest.raises(Failed, match="No module named 'no_such_library'") as caught:
        WebhookSubject(pair, agent, CONFIG, settings=wrong).start(PLACE)
    assert "\n" not in str(caught.value)


def test_pairs_by_name(agent: Agent) -> None:
    assert pairs(servers())[0].name == "towline"
    (mixed,) = pairs(servers(), ["towline+httpx"])
    assert mixed.name == "towline+httpx"
    assert "httpx" in mixed.server.packages
    for wrong in ("uvicorn-httptools", "nginx+httpx", "towline+curl", "nobody+httpx"):
        with pytest.raises(ValueError, match=r"is no pair: write SERVER\+CLIENT"):
            pairs(servers(), [wrong])
    missing = replace(mixed.server, packages=("no-such-distribution",))
    assert "no-such-distribution is not installed in python" in (installed(missing) or "")


def test_the_rows_of_the_catalogue_are_experiments(agent: Agent) -> None:
    experiments = webhook_experiments(servers(), agent, names=["towline"])
    assert [experiment.requests for experiment in experiments] == [800] * 3 + [2000, 3000] + [4000] * 5
    assert experiments[-1].load == {"requests": 4000, "connections": 4000}
    assert len({experiment.name for experiment in experiments}) == 10
    assert [experiment.name for experiment in webhook_experiments(servers(), agent, quick=True)] == [
        "webhooks 800x40",
        "webhooks 800x80",
    ]
    with pytest.raises(ValueError, match="no row of webhooks"):
        webhook_experiments(servers(), agent, loads=["1x1"])


def test_forwarding_after_the_response_counts_in_the_rate() -> None:
    """A pair that accepts more per second and forwards later is the slower one."""
    whole = experiment("webhooks 800x40", (Truth("towline", 2_500), Truth("late", 3_500)), restarts=5)
    slices = [
        replace(one, extra={FORWARDED_AFTER: one.measured_s * (10 if one.subject == "late" else 1)})
        for one in whole.slices
    ]
    analysed = analyse(record(replace(whole, slices=slices))).experiments[0]
    found = analysed.comparison("towline", "late")
    assert found is not None
    assert found.verdict is Verdict.FASTER
    assert found.ratio == pytest.approx(25 / 3.5, rel=0.1)
    (late,) = (one for one in analysed.subjects if one.name == "late")
    assert late.figures["per_s"].value == pytest.approx(350, rel=0.1)
    (line,) = (one for one in analysed.lints if one.startswith("requests/s: "))
    assert "accepted alone: towline 2," in line
    assert ", late 3," in line


def test_rows_and_pairs_as_the_command_line_chooses_them() -> None:
    assert chosen_rows(Options()) == [load.name for load in catalogue()["webhooks"].loads]
    assert chosen_rows(Options(scenario=("webhooks", "tag:quick"))) == chosen_rows(Options(), quick=True)
    assert chosen_rows(Options(scenario=("800x*",), connections=(80,))) == ["800x80"]
    with pytest.raises(NothingToDo, match="'41'"):
        chosen_rows(Options(connections=(41,)))
    assert chosen_pairs([])[0] == "towline"
    assert chosen_pairs(["granian+aiohttp", "towline+httpx"]) == ["granian+aiohttp", "towline+httpx"]
    assert chosen_pairs(["uvicorn*httpx"]) == ["uvicorn-httptools+httpx"]
    with pytest.raises(NothingToDo, match="no pair 'towlin'; did you mean towline"):
        chosen_pairs(["towlin"])
