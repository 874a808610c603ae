"""Scenarios from curl's command lines and vegeta's targets."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest
from towline.bench.runner.agent import Agent
from towline.bench.runner.plan import Options
from towline.bench.runner.server_experiments import chosen_scenarios
from towline.bench.runner.servers import Binding, ServerSubject
from towline.bench.scenarios import ScenarioError, catalogue, session_config
from towline.bench.scenarios.imports import from_curl, from_vegeta
from towline.bench.subjects.model import servers

AGENT = b"User-Agent: towline-bench/1.0\r\nAccept: */*\r\n"


def wire(*commands: str) -> list[bytes]:
    return [request.wire() for request in from_curl(commands).scenario.requests]


@pytest.mark.parametrize(
    ("command", "sent"),
    [
        ("curl http://a:8000", b"GET / HTTP/1.1\r\nHost: a:8000\r\n" + AGENT + b"\r\n"),
        ("curl a/b?c=d", b"GET /b?c=d HTTP/1.1\r\nHost: a\r\n" + AGENT + b"\r\n"),
        (
            "curl -sSL --http1.1 -o out 'http://a/x%20y'",
            b"GET /x%20y HTTP/1.1\r\nHost: a\r\n" + AGENT + b"\r\n",
        ),
        ("curl -I http://a/", b"HEAD / HTTP/1.1\r\nHost: a\r\n" + AGENT + b"\r\n"),
        (
            "curl -X DELETE -H 'X-One: 1' -H 'Accept:' -H 'Empty;' -A me http://a/",
            b"DELETE / HTTP/1.1\r\nHost: a\r\nUser-Agent: me\r\nX-One: 1\r\nEmpty: \r\n\r\n",
        ),
        (
            "curl -d a=1 --data-urlencode 'b=x y&z' -d 'c=3' http://a/",
            b"POST / HTTP/1.1\r\nHost: a\r\n" + AGENT + b"Content-Type: application/x-www-form-urlencoded\r\n"
            b"Content-Length: 17\r\n\r\na=1&b=x+y%26z&c=3",
        ),
        (
            "curl -G -d a=1 -d b=2 http://a/?z=0",
            b"GET /?z=0&a=1&b=2 HTTP/1.1\r\nHost: a\r\n" + AGENT + b"\r\n",
        ),
        (
            """curl -XPUT --json '{"a": 1}' http://a/""",
            b"PUT / HTTP/1.1\r\nHost: a\r\nUser-Agent: towline-bench/1.0\r\nAccept: application/json\r\n"
            b'Content-Type: application/json\r\nContent-Length: 8\r\n\r\n{"a": 1}',
        ),
        (
            "curl -u me:secret -b 'a=b' -e http://from/ --compressed http://a/",
            b"GET / HTTP/1.1\r\nHost: a\r\nAuthorization: Basic bWU6c2VjcmV0\r\n"
            + AGENT
            + b"Referer: http://from/\r\nCookie: a=b\r\nAccept-Encoding: gzip\r\n\r\n",
        ),
        (
            "curl 'http://a/' \\\n  -H 'Host: b' \\\n  --data-raw $'it\\'s\\n\\u00e9' -H 'content-type: text/plain'",
            b"POST / HTTP/1.1\r\nUser-Agent: towline-bench/1.0\r\nAccept: */*\r\nHost: b\r\n"
            b"content-type: text/plain\r\nContent-Length: 7\r\n\r\nit's\n\xc3\xa9",
        ),
    ],
)
def test_a_command_line_is_sent_as_curl_would(command: str, sent: bytes) -> None:
    assert wire(command) == [sent]


def test_bodies_from_files(tmp_path: Path) -> None:
    file = tmp_path / "data"
    file.write_bytes(b"a\nb\n")
    assert wire(f"curl -d @{file} http://a/")[0].endswith(b"Content-Length: 2\r\n\r\nab")
    assert wire(f"curl --data-binary @{file} http://a/")[0].endswith(b"Content-Length: 4\r\n\r\na\nb\n")
    put = wire(f"curl -T {file} http://a/")[0]
    assert put == b"PUT /data HTTP/1.1\r\nHost: a\r\n" + AGENT + b"Content-Length: 4\r\n\r\na\nb\n"


def test_several_commands_are_used_in_turn_and_the_origin_is_separate() -> None:
    found = from_curl(["curl -L https://a:1/x https://a:1/y", "curl https://a:1/z"], name="mine")
    scenario = found.scenario
    assert (scenario.name, found.origin) == ("mine", "https://a:1")
    assert [request.target for request in scenario.requests] == ["/x", "/y", "/z"]
    assert scenario.notes == ("Redirects are not followed: each is a response.",)
    config = session_config(scenario, "http://127.0.0.1:9")
    assert [one["url"] for one in config["targets"]] == [f"http://127.0.0.1:9/{path}" for path in "xyz"]
    expect = config["targets"][0]["expect"]
    assert (expect["status"], expect["body"], expect["length"]) == (None, None, None)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("curl", "curl: curl: it contains no URL"),
        (
            "curl -x b:1 http://a/",
            "curl: curl -x b:1 http://a/: -x is not imported; write a scenario file instead",
        ),
        ("curl http://a/ -H", "curl: curl http://a/ -H: -H needs a value"),
        ("curl 'http://a/", "curl: curl 'http://a/: No closing quotation"),
        (
            "curl ftp://a/",
            "curl: curl ftp://a/: 'ftp://a/' is no URL of http or https",
        ),
        (
            "curl -d @none http://a/",
            "curl: curl -d @none http://a/: cannot read none: No such file or directory",
        ),
        ("curl -H 'X y' http://a/", "curl: curl -H 'X y' http://a/: 'X y' is no header"),
        (
            "curl -H 'X y: z' http://a/",
            "curl: curl -H 'X y: z' http://a/: 'X y' is no header field that can be sent",
        ),
        (
            "curl http://a/ http://b/",
            "curl: curl http://a/ http://b/: one server is measured at a time, not http://a and http://b",
        ),
    ],
)
def test_unsupported_commands_are_errors(command: str, message: str) -> None:
    with pytest.raises(ScenarioError) as raised:
        from_curl([command])
    assert str(raised.value) == message


def test_targets_of_vegeta(tmp_path: Path) -> None:
    (tmp_path / "body.json").write_bytes(b'{"a":1}')
    path = tmp_path / "targets.txt"
    path.write_text(
        "# a comment\nGET http://a:80/one\nX-Account: 8675309\n\n"
        "POST http://a:80/two?x=1\nContent-Type: application/json\n@body.json\nDELETE http://a:80/three\n"
    )
    found = from_vegeta(path)
    assert found.origin == "http://a:80"
    assert [request.wire() for request in found.scenario.requests] == [
        b"GET /one HTTP/1.1\r\nHost: a:80\r\nX-Account: 8675309\r\n\r\n",
        b"POST /two?x=1 HTTP/1.1\r\nHost: a:80\r\nContent-Type: application/json\r\nContent-Length: 7\r\n\r\n"
        b'{"a":1}',
        b"DELETE /three HTTP/1.1\r\nHost: a:80\r\n\r\n",
    ]


def test_targets_of_vegeta_as_json(tmp_path: Path) -> None:
    path = tmp_path / "targets.json"
    one = {"method": "POST", "url": "http://a/x", "header": {"X": ["1", "2"]}}
    path.write_text(
        json.dumps({**one, "body": base64.b64encode(b"hi").decode()}) + "\n" + json.dumps(one) + "\n"
    )
    assert [request.wire() for request in from_vegeta(path).scenario.requests] == [
        b"POST /x HTTP/1.1\r\nHost: a\r\nX: 1\r\nX: 2\r\nContent-Length: 2\r\n\r\nhi",
        b"POST /x HTTP/1.1\r\nHost: a\r\nX: 1\r\nX: 2\r\n\r\n",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "vegeta: targets: it contains no request"),
        ("get a\n", "{path}:1: 'get a' is not `METHOD URL`"),
        ("GET http://a/\nnonsense\n", "{path}:2: 'nonsense' is no header field"),
        ("GET http://a/\n@none\n", "{path}:2: cannot read {folder}/none: No such file or directory"),
        ('{"url": 1}\n', "{path}:1: no target of vegeta ('method')"),
    ],
)
def test_invalid_vegeta_files_are_errors(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "targets"
    path.write_text(text)
    with pytest.raises(ScenarioError) as raised:
        from_vegeta(path)
    assert str(raised.value) == message.format(path=path, folder=tmp_path)


def test_imported_scenarios_run_with_the_application_of_the_scenario() -> None:
    options = Options(curl=("curl http://a/x", "curl http://a/y"))
    assert [[one.target for one in scenario.requests] for scenario in chosen_scenarios(options)] == [
        ["/x", "/y"]
    ]
    with Agent() as agent:
        for name, app in (("hello", "asgi:app"), ("simple", "asgi:hello_world")):
            subject = ServerSubject(servers()["towline"], Binding(catalogue()[name], agent, interface="asgi"))
            assert app in subject.describe().command
