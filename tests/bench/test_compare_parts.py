"""The parts of `towline bench URL URL`: help, arguments, names, addresses, times, verdicts in words."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from towline._options import groups_of
from towline.bench.analysis import Comparison
from towline.bench.compare_servers.options import CompareOptions, estimated_s, seconds_within
from towline.bench.compare_servers.requests import requests_of, title_for
from towline.bench.compare_servers.run import sentence
from towline.bench.compare_servers.subjects import is_url, named
from towline.bench.subjects.attached import Address, listeners
from towline.bench.subjects.ports import free_port
from towline.bench.verdict import Verdict
from towline.cli.bench import main as bench_command
from towline.errors import ConfigError


def test_the_title_has_the_paths_of_the_urls() -> None:
    scenario = requests_of(CompareOptions(path="/p", method="PUT")).scenario
    for own_targets, title in (
        ({"a": None, "b": None}, "PUT /p"),
        ({"a": "/x?y=1", "b": "/x?y=1"}, "PUT /x?y=1"),
        ({"a": "/x", "b": None}, "PUT /x (a), /p (b)"),
        ({"h:1/x": "/x", "h:1/y": "/y", "z": "/y"}, "PUT /x, /y, /y (z)"),
        ({"a": "/"}, "PUT /"),
    ):
        assert title_for(scenario, own_targets) == title


def test_help_is_complete_and_grouped(capsys: pytest.CaptureFixture[str]) -> None:
    def page(*words: str) -> str:
        assert bench_command(words) == 0
        return capsys.readouterr().out

    whole = page("--help", "all")
    for name in CompareOptions.__dataclass_fields__.keys() - {"urls"}:
        assert f"  --{name.replace('_', '-')}" in whole
    common = page("--help", "common")
    assert "more options (towline bench --help GROUP, or all):" in common
    assert page(":8000", ":9000", "--help") == page("common", "--help") == common
    assert page("load", "--help") == page("--help", "load")
    assert page("load", "--help").startswith("load: ")
    overview = page("--help")
    assert page() == overview
    assert "towline bench --git main..HEAD" in overview
    assert all(f"\n  {name}" in overview for name in ("quick", "servers", "report", "compare"))
    assert all(f"{group}, " in " ".join(overview.split()) for group in ("common", *groups_of(CompareOptions)))
    for one in (overview, common, *(page("--help", group) for group in groups_of(CompareOptions))):
        assert len(one.splitlines()) <= 44
        assert max(map(len, one.splitlines())) <= 80


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("http://a/", True),
        ("old=http://a/", True),
        (":8000", True),
        ("localhost:8000/x", True),
        ("[::1]:8000", True),
        ("new=[::1]:8000/", True),
        ("servers", False),
        ("shop:app", False),
        ("result.json.gz", False),
    ],
)
def test_urls_and_commands(text: str, expected: bool) -> None:
    assert is_url(text) is expected


def test_names_before_an_equals_sign() -> None:
    assert named("old=./old --port {port}") == ("old", "./old --port {port}")
    assert named("./run --set a=b") == (None, "./run --set a=b")
    assert named("http://a/?b=c") == (None, "http://a/?b=c")


def test_addresses() -> None:
    one = Address.of("http://[::1]:8000/a b?c=d")
    assert (one.host, one.port, one.authority, one.target) == ("::1", 8000, "[::1]:8000", "/a%20b?c=d")
    assert Address.of("https://example.org").origin == "https://example.org"
    assert Address.of("https://example.org").port == 443
    for wrong in ("ftp://a/", "http://", "http://a:99999/", "http://u:p@a/"):
        with pytest.raises(ConfigError):
            Address.of(wrong)


def test_the_load_fits_into_the_time() -> None:
    two = CompareOptions(app=("shop:app",), server=("towline", "uvicorn"))
    seconds = two.design(2, "towline").seconds
    assert 2 < seconds < 2.5
    assert seconds_within(120, 8 * 10) == 0.4
    assert CompareOptions(time=30.0).design(2, "a").seconds < seconds
    assert CompareOptions(duration=0.1).design(9, "a").seconds == 0.1


def test_a_short_time_has_fewer_restarts() -> None:
    for given, restarts in ((120.0, 8), (50.0, 6), (20.0, 4), (1.0, 4)):
        assert CompareOptions(time=given).design(2, "a").rule.most == restarts
        within = estimated_s(CompareOptions(time=given).design(2, "a"), 4)
        assert within <= max(given, 32.0) + 1
    assert CompareOptions(time=20.0, runs=8).design(2, "a").rule.most == 8


def test_verdicts_in_words() -> None:
    def words(verdict: Verdict, ratio: float, metric: str = "per_s", **more: Any) -> str:
        one = Comparison("a", "b", metric, ratio, ratio - 0.05, ratio + 0.05, 0.01, verdict, **more)
        return sentence(one, 0.02)

    assert words(Verdict.FASTER, 1.25) == "a is faster than b: 1.25 times the requests/s (1.2 to 1.3)"
    assert words(Verdict.SLOWER, 0.8) == "b is faster than a: 1.25 times the requests/s (1.18 to 1.33)"
    assert (
        words(Verdict.FASTER, 0.5, "p50_us")
        == "a is faster than b: 0.5 times the median latency (0.45 to 0.55)"
    )
    assert words(Verdict.EQUIVALENT, 1.0).startswith("a and b are equivalent, within 2%: ")
    assert words(Verdict.REFUSED, 1.0, reason="b: it failed") == "no verdict on a and b: b: it failed"
    undecided = words(Verdict.UNDECIDED, 1.0, restarts_needed=30)
    assert undecided.endswith(
        "is undecided: 1 times the requests/s (0.95 to 1.05); about 30 restarts would decide (--runs)"
    )


def test_processes_of_a_port() -> None:
    port = free_port()
    command = f"import socket, time; s = socket.create_server(('127.0.0.1', {port})); print(flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", command], stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        server.stdout.readline()
        assert listeners(Address.of(f"http://localhost:{port}/")) == [server.pid]
        assert listeners(Address.of(f"http://192.0.2.1:{port}/")) == []
        server.kill()
    assert listeners(Address.of(f"http://localhost:{port}/")) == []
