"""Users' scenario files: valid ones are read, and each mistake is one line with its place."""

from __future__ import annotations

import sys
from importlib import resources
from pathlib import Path

import pytest
from towline.bench.scenarios import Body, ScenarioError, SendMode, load, session_config
from towline.bench.scenarios.loader import CATALOGUE

HEAD = '[[scenario]]\nname = "mine"\n'
REQUEST = '[[scenario.request]]\ntarget = "/"\n'


def written(folder: Path, text: str) -> Path:
    path = folder / "mine.toml"
    path.write_text(text)
    return path


def test_the_smallest_file(tmp_path: Path) -> None:
    found = load(written(tmp_path, HEAD + REQUEST))
    assert list(found) == ["mine"]
    scenario = found["mine"]
    assert (scenario.section, scenario.title, scenario.kind, scenario.connections) == (
        "own",
        "mine",
        "server",
        50,
    )
    assert scenario.requests[0].wire() == b"GET / HTTP/1.1\r\n\r\n"


def test_a_file_with_every_key(tmp_path: Path) -> None:
    (tmp_path / "photo.bin").write_bytes(b"\x00\xff" * 8)
    text = """
        [section]
        title = "Our service"
        source = "a ticket"
        [[scenario]]
        name = "upload"
        connections = 8
        pipeline = 1
        mix = "at_random"
        refusals = [429, 503]
        limits = { concurrency = 4, needed = false }
        [[scenario.request]]
        method = "PUT"
        target = "/photos/{n:03}"
        first = 9
        last = 11
        weight = 3
        fields = ["Host: photos", "Content-Length: 16", "X-Empty:"]
        body = { file = "photo.bin" }
        send_mode = { pieces = 2, gap_ms = 5 }
        expect = { status = 201, any_body = true, fields = ["Location: /photos/9"] }
        [[scenario.request]]
        like = "upload"
        send_mode = { drop_after_bytes = 0 }
        [[scenario]]
        name = "binary"
        request = { target = "/raw", expect = { base64 = "AP8=", coding = "gzip" } }
    """
    found = load(written(tmp_path, text))
    upload, binary = found["upload"], found["binary"]
    assert (upload.source, upload.refusals, upload.limits.plain()) == (
        "a ticket",
        (429, 503),
        {"concurrency": 4},
    )
    assert [one.target for one in upload.requests] == ["/photos/009", "/photos/010", "/photos/011"] * 2
    first = upload.requests[0]
    assert first.fields == (("Host", "photos"), ("Content-Length", "16"), ("X-Empty", ""))
    assert first.body == Body(path=(tmp_path / "photo.bin").resolve())
    assert (first.wire_bytes, len(first.wire())) == (89, 89)
    assert first.wire().endswith(b"\x00\xff" * 8)
    assert first.send_mode == SendMode(pieces=2, gap_ms=5.0)
    assert upload.requests[3].send_mode == SendMode(drop_after_bytes=0)
    target = session_config(upload, "http://127.0.0.1:1", connections=2, seed=7)["targets"][0]
    assert target["url"] == "http://127.0.0.1:1/photos/009"
    assert target["body"] == {"file": str(first.body.path)}
    assert target["expect"]["body"] is None
    assert target["expect"]["length"] is None
    expect = session_config(binary, "http://127.0.0.1:1/")["targets"][0]["expect"]
    assert (expect["body"], expect["coding"], expect["length"]) == ({"base64": "AP8="}, "gzip", None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no [[scenario]] in it"),
        ("[[scenario]]\n", "scenario 1: `name` is missing"),
        ('[[scenario]]\nname = "A b"\n', "scenario 1: `name` is 'A b'; use small letters, digits, _ and -"),
        (HEAD, "scenario `mine`: a scenario of servers needs a [[scenario.request]]"),
        (HEAD + REQUEST + HEAD + REQUEST, "scenario `mine` is defined twice"),
        (
            HEAD + "conections = 5\n" + REQUEST,
            "scenario `mine`: `conections` is unknown; did you mean `connections`?",
        ),
        (HEAD + "connections = 0\n" + REQUEST, "scenario `mine`: `connections` is 0; it must be at least 1"),
        (
            HEAD + 'connections = "5"\n' + REQUEST,
            "scenario `mine`: `connections` must be a whole number, not '5'",
        ),
        (
            HEAD + "connections = true\n" + REQUEST,
            "scenario `mine`: `connections` must be a whole number, not True",
        ),
        (
            HEAD + 'mix = "shuffled"\n' + REQUEST,
            "scenario `mine`: `mix` is 'shuffled'; it must be one of in_turn, at_random, per_connection",
        ),
        (
            HEAD + "more_connections = [5, 0]\n" + REQUEST,
            "scenario `mine`: `more_connections` has a number below 1",
        ),
        (
            HEAD + REQUEST + 'expect = { fixture = "static none.css" }\n',
            "scenario `mine`, request 1, expect: `fixture`: there is no data 'static none.css'",
        ),
        (
            HEAD + REQUEST + 'expect = { trailers = ["grpc-status"] }\n',
            "scenario `mine`, request 1, expect: `trailers`: 'grpc-status' is not `Name: value`",
        ),
        (
            HEAD + 'kind = "client"\n' + REQUEST,
            "scenario `mine`: a scenario of clients needs `call` and a [[scenario.load]]",
        ),
        (
            HEAD + "streams = 2\n" + REQUEST,
            "scenario `mine`: `streams` is of h2 and h3, which `protocols` does not name",
        ),
        (
            HEAD + 'protocols = "h4"\n' + REQUEST,
            "scenario `mine`: `protocols` is 'h4'; it must be one of h1, h2, h3",
        ),
        (
            HEAD + 'message = { text = "a" }\n' + REQUEST,
            "scenario `mine`: `message` needs a WebSocket: over h1 and asgi, a GET without a body and with status 101",
        ),
        (
            HEAD + "admits = 50\n" + REQUEST,
            "scenario `mine`: `admits` must be below `connections`, or nothing is ever refused",
        ),
        (HEAD + "timeout_s = -1\n" + REQUEST, "scenario `mine`: `timeout_s` is -1; it must be 0 or more"),
        (HEAD + "timeout_s = nan\n" + REQUEST, "scenario `mine`: `timeout_s` is nan; it must be 0 or more"),
        (HEAD + "[[scenario.request]]\n", "scenario `mine`, request 1: `target` is missing"),
        (
            HEAD + '[[scenario.request]]\ntarget = "x"\n',
            "scenario `mine`, request 1: `target` is 'x'; write a path, percent-encoded",
        ),
        (
            HEAD + '[[scenario.request]]\ntarget = "/ä"\n',
            "scenario `mine`, request 1: `target` is '/ä'; write a path, percent-encoded",
        ),
        (
            HEAD + '[[scenario.request]]\ntarget = "/{n}"\n',
            "scenario `mine`, request 1: a series with {n} needs `first` and `last`, at most 1,000,000 members",
        ),
        (
            HEAD + '[[scenario.request]]\nlike = "other"\n',
            "scenario `mine`, request 1: `like` names 'other', which is not an earlier scenario with a request",
        ),
        (
            HEAD + REQUEST + 'method = "GET it"\n',
            "scenario `mine`, request 1: `method` is 'GET it'; it must be a token",
        ),
        (
            HEAD + REQUEST + 'fields = ["Host"]\n',
            "scenario `mine`, request 1: `fields`: 'Host' is not `Name: value`",
        ),
        (
            HEAD + REQUEST + 'fields = ["A b: c"]\n',
            "scenario `mine`, request 1: `fields`: 'A b: c' is not `Name: value`",
        ),
        (
            HEAD + REQUEST + 'fields = ["A: b\\r\\nC: d"]\n',
            "scenario `mine`, request 1: `fields`: A has a control character",
        ),
        (
            HEAD + REQUEST + 'body = { text = "hello" }\n',
            "scenario `mine`, request 1: a body needs the field `Content-Length: 5`",
        ),
        (
            HEAD + REQUEST + 'fields = ["Content-Length: 4"]\nbody = { text = "hello" }\n',
            "scenario `mine`, request 1: Content-Length is 4, the body has 5 bytes",
        ),
        (
            HEAD + REQUEST + 'fields = ["Transfer-Encoding: chunked"]\nbody = { text = "hello" }\n',
            "scenario `mine`, request 1: `Transfer-Encoding: chunked` needs `chunk_bytes`",
        ),
        (
            HEAD + REQUEST + 'chunk_bytes = 2\nbody = { text = "hello" }\n',
            "scenario `mine`, request 1: `chunk_bytes` needs a body and the field `Transfer-Encoding: chunked`, and no length",
        ),
        (
            HEAD + REQUEST + 'body = { text = "a", base64 = "" }\n',
            "scenario `mine`, request 1, body: a body is one of text, base64, repeat, series, file, fixture; here are text and base64",
        ),
        (
            HEAD + REQUEST + 'body = { repeat = "a" }\n',
            "scenario `mine`, request 1, body: `repeat` needs a `count`",
        ),
        (
            HEAD + REQUEST + 'body = { text = "a", count = 2 }\n',
            "scenario `mine`, request 1, body: `count` belongs to `repeat`",
        ),
        (
            HEAD + REQUEST + 'body = { repeat = "ab", count = 1_000_000_000 }\n',
            "scenario `mine`, request 1, body: the body is larger than 1,073,741,824 bytes",
        ),
        (
            HEAD + REQUEST + 'body = { file = "none.bin" }\n',
            "scenario `mine`, request 1, body: cannot read {folder}/none.bin: No such file or directory",
        ),
        (
            HEAD + REQUEST + "expect = { status = 600 }\n",
            "scenario `mine`, request 1, expect: `status` is 600; it must be below 600",
        ),
        (
            HEAD + REQUEST + 'expect = { any_body = true, text = "a" }\n',
            "scenario `mine`, request 1, expect: `any_body` and a body exclude each other",
        ),
        (
            HEAD + REQUEST + 'expect = { coding = "zip" }\n',
            "scenario `mine`, request 1, expect: `coding` is 'zip'; it must be one of gzip, deflate",
        ),
        (
            HEAD + REQUEST + "send_mode = { await_continue = true }\n",
            "scenario `mine`, request 1, send_mode: a body is missing",
        ),
        (
            HEAD + REQUEST + "send_mode = { pieces = 2, drop_after_bytes = 1 }\n",
            "scenario `mine`, request 1, send_mode: choose one of `pieces`, `await_continue` and `drop_after_bytes`",
        ),
        (
            HEAD + "pipeline = 2\n" + REQUEST + "send_mode = { pieces = 2 }\n",
            "scenario `mine`: `pipeline` does not go with a request that has a send mode",
        ),
    ],
)
def test_a_mistake_is_one_line(tmp_path: Path, text: str, message: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(ScenarioError) as raised:
        load(path)
    assert str(raised.value) == f"{path}: {message}".replace("{folder}", str(tmp_path))


def test_invalid_toml_and_unreadable_files_are_errors(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=r"mine\.toml: .*line 2"):
        load(written(tmp_path, "a = 1\nscenario = x\n"))
    with pytest.raises(ScenarioError, match=r"cannot read .*none\.toml: No such file"):
        load(tmp_path / "none.toml")
    (tmp_path / "latin.toml").write_bytes(b'name = "\xe9"')
    with pytest.raises(ScenarioError, match="it is not UTF-8"):
        load(tmp_path / "latin.toml")


def test_the_package_carries_its_files() -> None:
    """Installed or not: a wheel contains everything in python/towline."""
    scenarios = resources.files("towline.bench.scenarios")
    assert all((scenarios / f"{name}.toml").is_file() for name in CATALOGUE)
    apps = resources.files("towline.bench.apps")
    assert all(
        (apps / name).is_file() for name in ("asgi.py", "wsgi.py", "roadrunner_data.py", "static/hello.txt")
    )


def test_the_fixture_applications_do_not_import_towline() -> None:
    """Other servers' processes must not load our package: the files are read by path and import the standard
    library."""
    folder = resources.files("towline.bench.apps")
    for name in ("asgi.py", "wsgi.py", "roadrunner_data.py"):
        lines = (folder / name).read_text().splitlines()
        modules = {line.split()[1].split(".")[0] for line in lines if line.startswith(("import ", "from "))}
        assert modules <= set(sys.stdlib_module_names)


def test_rows_of_values_are_in_a_file_beside_the_scenarios(tmp_path: Path) -> None:
    (one,) = load(written(tmp_path, HEAD + 'data = "rows.csv"\n' + REQUEST)).values()
    assert session_config(one, "http://127.0.0.1:1")["data"] == str(tmp_path / "rows.csv")
    (other,) = load(written(tmp_path, HEAD + REQUEST)).values()
    assert "data" not in session_config(other, "http://127.0.0.1:1")
