"""Requests that the access log leaves out, over every protocol and both interfaces; all of them are counted."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from towline.cli.option_parser import CommandLineError
from towline.cli.serve import configure
from towline.config import ServerConfig
from towline.errors import ConfigError

from tests.support.feature_server import every_kind, exchange, fetch, serving
from tests.support.http2_client import Client
from tests.support.http3.client import Client as Http3Client
from tests.support.http3.connected import Certificates
from tests.support.websocket_server import BOTH_VERSIONS, echo, open_ws
from tests.support.wsgi_websockets import flask_sock

RULES = ("/healthz", "/static/*", "404", "2xx:/page-*", "/metrics")
PATHS = {
    "/": 200,
    "/healthz": 200,
    "/healthz?verbose=1": 200,
    "/healthz/more": 200,
    "/static/a/b.css": 200,
    "/missing": 404,
    "/page-1": 200,
    "/page-broken": 500,
}
KEPT = ["/ 200", "/healthz/more 200", "/page-broken 500"]
SLOW_S, LONG_S = 0.05, 0.06

Fetch = Callable[[str], tuple[int, bytes]]


def status_of(path: str) -> int:
    return {"/missing": 404, "/page-broken": 500}.get(path, 200)


async def asgi(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "websocket":
        await echo(scope, receive, send)
        return
    if scope["path"] == "/slow":
        await asyncio.sleep(LONG_S)
    await send({"type": "http.response.start", "status": status_of(scope["path"]), "headers": []})
    await send({"type": "http.response.body", "body": b"ok"})


def wsgi(environ: Any, start_response: Any) -> Any:
    if environ["PATH_INFO"] == "/slow":
        time.sleep(LONG_S)
    start_response(f"{status_of(environ['PATH_INFO'])} X", [])
    return [b"ok"]


@contextmanager
def fetching(kind: str, protocol: str, folder: Path, **options: Any) -> Iterator[Fetch]:
    """A function that requests a path over a protocol."""
    certificates = Certificates(folder)
    if protocol == "h3":
        options |= {"ssl_certfile": str(certificates.chain), "http3": True}
    with serving(kind, asgi if kind == "asgi" else wsgi, **options) as server:
        address = (server.host, server.port)
        if protocol == "h1":

            def get(path: str) -> tuple[int, bytes]:
                response = fetch(server, path)
                return response.status, response.body

            yield get
            return
        client = Client(address) if protocol == "h2" else Http3Client(address, ca=str(certificates.ca))
        with client:

            def get_stream(path: str) -> tuple[int, bytes]:
                response = client.fetch(path=path)
                return response.status, response.body

            yield get_stream


every_protocol = pytest.mark.parametrize("protocol", ["h1", "h2", "h3"])


@every_kind
@every_protocol
def test_excluded_requests_have_no_line_and_are_counted(kind: str, protocol: str, tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    options = {"access_log_exclude": RULES, "access_log_format": "%(U)s %(s)s", "metrics": True}
    with fetching(kind, protocol, tmp_path, access_log=str(log), **options) as get:
        for path, status in PATHS.items():
            assert get(path)[0] == status
        page = get("/metrics")[1].decode()
    assert log.read_text().splitlines() == KEPT
    counts = re.findall(r"^towline_requests_total\{.*\} (\d+)$", page, re.MULTILINE)
    assert sum(map(int, counts)) == len(PATHS)


@every_kind
@every_protocol
def test_a_slow_request_has_a_line_although_it_is_excluded(kind: str, protocol: str, tmp_path: Path) -> None:
    options = {"access_log_exclude": ("/*",), "access_log_sample": 0.0, "access_log_format": "%(U)s"}
    for slow, lines in ((SLOW_S, "/slow\n"), (600.0, "")):
        log = tmp_path / f"{slow}.log"
        with fetching(kind, protocol, tmp_path, access_log=str(log), access_log_slow=slow, **options) as get:
            get("/slow")
        assert log.read_text() == lines


@every_kind
@every_protocol
def test_a_share_of_the_successes_and_every_error(kind: str, protocol: str, tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    options = {"access_log_sample": 0.25, "log_format": "json"}
    count = 300
    with fetching(kind, protocol, tmp_path, access_log=str(log), **options) as get:
        for _ in range(count):
            get("/")
        for path in ("/missing", "/page-broken"):
            get(path)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    successes = [line for line in lines if line["path"] == "/"]
    # Six standard deviations.
    assert 30 <= len(successes) <= 120
    assert {line["sample_rate"] for line in successes} == {0.25}
    errors = [(line["path"], line["sample_rate"]) for line in lines if line["path"] != "/"]
    assert errors == [("/missing", 1), ("/page-broken", 1)]


@every_kind
def test_without_sampling_a_line_has_no_rate(kind: str, tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    with serving(kind, access_log=str(log), log_format="json", access_log_slow=1.0) as server:
        fetch(server, "/")
    assert "sample_rate" not in json.loads(log.read_text())


@BOTH_VERSIONS
def test_websockets_are_excluded_and_never_slow(version: str, tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    options = {"access_log_exclude": ("/quiet",), "access_log_slow": 0.001, "access_log_format": "%(U)s"}
    with serving("asgi", asgi, access_log=str(log), **options) as server:
        for path in ("/quiet", "/loud"):
            with open_ws(server, path, version) as ws:
                ws.send("a")
                time.sleep(0.002)
                assert ws.recv() == "a"
    assert log.read_text() == "/loud\n"


def test_websockets_of_wsgi_are_excluded(tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    options = {"access_log_exclude": ("101:*",), "access_log_slow": 0.0001, "access_log_format": "%(U)s"}
    with serving("wsgi-threads", flask_sock(), access_log=str(log), **options) as server:
        with open_ws(server, "/echo") as ws:
            ws.send("a")
            assert ws.recv() == "a"
        assert fetch(server, "/pid").status == 200
    assert log.read_text() == "/pid\n"


@every_kind
def test_lines_for_a_logger_are_filtered(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "my.access")
    options = {"access_log_exclude": RULES, "access_log_format": "%(U)s %(s)s"}
    with serving(kind, asgi if kind == "asgi" else wsgi, access_log_logger="my.access", **options) as server:
        for path in PATHS:
            fetch(server, path)
    assert [record.getMessage() for record in caplog.records if record.name == "my.access"] == KEPT


@every_kind
def test_refused_requests_are_filtered_by_their_status(kind: str, tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    options = {"access_log_exclude": ("431",), "access_log_format": "%(s)s", "limit_request_field_size": 100}
    with serving(kind, access_log=str(log), **options) as server:
        address = (server.host, server.port)
        assert fetch(server, "/", "X-Long: " + "x" * 200).status == 431
        assert exchange(address, b"GET  / HTTP/1.1\r\n\r\n").status == 400
    assert log.read_text() == "400\n"


@pytest.mark.parametrize("rule", ["healthz", "", "20:/a", "200:", "200:a", "600", "2x"])
def test_what_is_no_rule_is_named(rule: str) -> None:
    with pytest.raises(
        ConfigError, match=r"access_log_exclude: expected a path .*, not " + re.escape(repr(rule))
    ):
        ServerConfig("a:b", access_log_exclude=("/a", rule))


def test_a_variable_has_several_rules() -> None:
    config = configure(["a:b"], {"TOWLINE_ACCESS_LOG_EXCLUDE": "/healthz 2xx:/static/*"})
    assert config.access_log_exclude == ("/healthz", "2xx:/static/*")
    with pytest.raises(CommandLineError, match="expected a number from 0 to 1, not 'x'"):
        configure(["a:b", "--access-log-sample", "x"], {})


@pytest.mark.parametrize(
    "options", [{"access_log_sample": 1.5}, {"access_log_sample": -1.0}, {"access_log_slow": 0.0}]
)
def test_numbers_out_of_range_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="must be"):
        ServerConfig("a:b", **options)
