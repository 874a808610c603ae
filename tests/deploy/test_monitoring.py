"""The dashboard and the alert rules, against the metrics page of a server and against a Prometheus that scrapes it."""

from __future__ import annotations

import contextlib
import json
import re
import ssl
import subprocess
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme
import yaml
from prometheus_client import parser

from tests.support.process import MAX_WAIT, Program, eventually, running
from tests.support.programs import executable, free_port, listening

DEPLOY = Path(__file__).parents[2] / "deploy"
ALERTS = DEPLOY / "prometheus/alerts.yml"
RULES = [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]
DASHBOARD = json.loads((DEPLOY / "grafana/towline.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
SCRAPE_LABELS = {"job", "instance", "le"}
"""Labels that Prometheus adds, and the one of a histogram's buckets."""
PROVOKED = {"TowlineErrors", "TowlineWorkerDeaths", "TowlineLoopBlocked"}
"""Alerts whose condition the test brings about."""
SCRAPE = "200ms"
CONFIGURATION = """
global: {{scrape_interval: {scrape}, scrape_timeout: {scrape}, evaluation_interval: {scrape}}}
rule_files: ["{rules}"]
scrape_configs:
  - job_name: app
    static_configs: [{{targets: ["{target}"]}}]
"""


def dashboard_queries() -> list[tuple[str, str]]:
    """(title of the panel, expression) of every query, with all values of the variables and a range of 20 s."""
    variables = [("$__rate_interval", "20s"), ("$job", ".*"), ("$instance", ".*")]
    found = []
    for panel in PANELS:
        for target in panel["targets"]:
            expression: str = target["expr"]
            for name, value in variables:
                expression = expression.replace(name, value)
            assert "$" not in expression, expression
            found.append((panel["title"], expression))
    return found


def alert_queries() -> list[tuple[str, str]]:
    """(name of the alert, expression without its comparison): has data also when nothing is wrong."""
    found = []
    for rule in RULES:
        expression, compared, _ = re.split(r" ([<>]=?) ", rule["expr"], maxsplit=1)
        assert compared
        found.append((rule["alert"], expression))
    return found


class Monitored:
    """A server with traffic of every kind that the panels show, and a Prometheus that scrapes it."""

    def __init__(self, program: Program, prometheus: str, authority: trustme.CA) -> None:
        self.program, self.prometheus = program, prometheus
        [application, *_] = re.findall(r"https://\S+:\d+", program.log)
        self.application: str = application
        self._context = ssl.create_default_context()
        authority.configure_trust(self._context)

    def get(self, path: str, timeout: float = MAX_WAIT) -> bytes | None:
        """The response's body; `None` for an error or no response."""
        with (
            contextlib.suppress(OSError),
            urllib.request.urlopen(
                self.application + path, timeout=timeout, context=self._context
            ) as response,
        ):
            body: bytes = response.read()
            return body
        return None

    def api(self, path: str, **parameters: str) -> Any:
        query = urllib.parse.urlencode(parameters)
        try:
            with urllib.request.urlopen(f"{self.prometheus}/api/v1/{path}?{query}", timeout=MAX_WAIT) as page:
                return json.load(page)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{parameters}: {error.read().decode()}") from None

    def series(self, expression: str) -> list[Any]:
        """The series of an expression, without those whose value is not a number."""
        found = self.api("query", query=expression)["result"]
        return [series for series in found if series["value"][1] != "NaN"]


def metrics_url(program: Program) -> str:
    [url] = set(re.findall(r"http://\S+/metrics", program.log))
    return url


@contextlib.contextmanager
def server(folder: Path, authority: trustme.CA) -> Iterator[Program]:
    issued = authority.issue_cert("127.0.0.1")
    issued.private_key_pem.write_to_path(str(folder / "key.pem"))
    issued.cert_chain_pems[0].write_to_path(str(folder / "cert.pem"))
    options = ["--workers", "2", "--metrics", "--metrics-address", "127.0.0.1:0"]
    tls = ["--ssl-keyfile", str(folder / "key.pem"), "--ssl-certfile", str(folder / "cert.pem")]
    with running("apps:asgi", *options, *tls) as program:
        yield program


@pytest.fixture(scope="module")
def monitored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Monitored]:
    program_path = executable("prometheus")
    folder, authority, port = tmp_path_factory.mktemp("monitored"), trustme.CA(), free_port()
    with server(folder, authority) as program:
        target = metrics_url(program).removeprefix("http://").removesuffix("/metrics")
        config = folder / "prometheus.yml"
        config.write_text(CONFIGURATION.format(scrape=SCRAPE, rules=ALERTS, target=target))
        command = [program_path, f"--config.file={config}", f"--storage.tsdb.path={folder}/data"]
        with listening([*command, f"--web.listen-address=127.0.0.1:{port}"], port, folder):
            one = Monitored(program, f"http://127.0.0.1:{port}", authority)
            eventually(lambda: one.series("towline_workers_alive == 2"), "the first scrape")
            with _traffic(one):
                yield one


@contextlib.contextmanager
def _traffic(monitored: Monitored) -> Iterator[None]:
    """Requests, of which some end with 500, until the end of the block."""
    stopped = threading.Event()

    def run() -> None:
        while not stopped.wait(0.02):
            monitored.get("/pid")
            monitored.get("/end/sys.exit")

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join(MAX_WAIT)


def test_every_metric_and_label_is_on_the_page(tmp_path: Path) -> None:
    with server(tmp_path, trustme.CA()) as program, urllib.request.urlopen(metrics_url(program)) as page:
        families = list(parser.text_string_to_metric_families(page.read().decode()))
    samples = [sample for family in families for sample in family.samples]
    # A family without samples, such as a histogram of nothing, has no labels of its own.
    names = {sample.name for sample in samples} | {family.name for family in families}
    labels = {label for sample in samples for label in sample.labels} | SCRAPE_LABELS
    labels |= {"method", "version", "status"}  # of towline_requests_total, which has no sample yet
    queries = [*dashboard_queries(), *((rule["alert"], rule["expr"]) for rule in RULES)]
    assert queries
    for title, expression in queries:
        used = set(re.findall(r"\btowline_\w+", expression))
        assert used, f"{title}: no metric"
        assert {re.sub(r"_total$", "", name) for name in used} <= {
            re.sub(r"_total$", "", n) for n in names
        }, title
        grouped = re.findall(r"\bby \(([^)]*)\)", expression)
        matched = re.findall(r"(\w+)=~?\"", expression)
        assert {label.strip() for group in grouped for label in group.split(",")} | set(matched) <= labels, (
            title
        )


def test_every_query_of_the_dashboard_returns_data(monitored: Monitored) -> None:
    for title, expression in dashboard_queries():
        eventually(lambda: monitored.series(expression), f"data of {title}: {expression}")  # noqa: B023


def test_every_alert_rule_is_evaluated_and_has_data(monitored: Monitored) -> None:
    def states() -> dict[str, str]:
        groups = monitored.api("rules")["groups"]
        return {rule["name"]: rule["health"] for group in groups for rule in group["rules"]}

    expected = {rule["alert"]: "ok" for rule in RULES}
    eventually(lambda: states() == expected, "the evaluation of the rules")
    for name, expression in alert_queries():
        eventually(lambda: monitored.series(expression), f"data of {name}: {expression}")  # noqa: B023


def test_errors_a_death_and_a_blocked_loop_raise_their_alerts_and_no_other(monitored: Monitored) -> None:
    def raised() -> set[str]:
        return {alert["labels"]["alertname"] for alert in monitored.api("alerts")["alerts"]}

    eventually(lambda: raised() == {"TowlineErrors"}, "the alert of errors alone")
    before = set(monitored.program.children())
    monitored.get("/end/os._exit")
    # While a worker is missing, its alert is pending as well.
    eventually(lambda: len(set(monitored.program.children()) - before) == 1, "the replacement")
    eventually(lambda: raised() == {"TowlineErrors", "TowlineWorkerDeaths"}, "the alert of a death")
    monitored.get("/block", timeout=0.1)
    eventually(lambda: raised() == PROVOKED, "the alert of a blocked loop")


def test_panels_have_titles_units_and_places_of_their_own() -> None:
    assert len({panel["title"] for panel in PANELS}) == len(PANELS) > 10
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken, panel["title"]
        taken |= cells
    for panel in PANELS:
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert panel["datasource"]["uid"] == "${datasource}"
        for target in panel["targets"]:
            assert 'job=~"$job"' in target["expr"]
            assert 'instance=~"$instance"' in target["expr"]


def test_promtool_accepts_the_rules() -> None:
    command = [executable("promtool"), "check", "rules", str(ALERTS)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr


def test_alerts_have_an_expression_a_severity_and_a_summary() -> None:
    assert RULES
    for rule in RULES:
        assert rule["expr"]
        assert rule["labels"]["severity"] in ("page", "ticket")
        assert rule["annotations"]["summary"]
