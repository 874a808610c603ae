"""`towline state` as a program, on every kind of store: output and exit status."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from towline import state as towline_state
from towline.cli.state import CommandLineError, main, parse
from towline.cli.state_options import ACTIONS, MANUAL

from tests.support.process import eventually
from tests.support.state_stores import STORES, store_url


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    with store_url(request.param, tmp_path) as url:
        yield url


def towline(*arguments: str, stdin: bytes = b"", status: int = 0) -> bytes:
    command = [sys.executable, "-m", "towline", "state", *arguments]
    done = subprocess.run(command, input=stdin, capture_output=True, timeout=60)
    assert done.returncode == status, done.stderr
    if status == 0:
        assert done.stderr == b""
        return done.stdout
    assert done.stdout == b""
    assert len(done.stderr.splitlines()) == 1
    return done.stderr


def here(capfdbinary: pytest.CaptureFixture[bytes], *arguments: str, status: int = 0) -> bytes:
    """As `towline`, in this process: faster."""
    assert main(arguments) == status, capfdbinary.readouterr()
    sys.stdout.flush()
    out, err = capfdbinary.readouterr()
    return out if status == 0 else err


def test_values(store: str, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    def run(command: str, *words: str, status: int = 0) -> bytes:
        return here(capfdbinary, command, store, *words, status=status)

    assert run("set", "greeting", "hello") == b""
    assert run("get", "greeting") == b'"hello"\n'
    assert run("get", "greeting", "--raw") == b"hello\n"
    run("set", "user:1", '{"name": "\u00e9"}', "--ttl", "1h")
    assert run("get", "user:1") == '{"name": "\u00e9"}\n'.encode()
    assert run("get", "greeting", "user:1", "-r") == 'greeting\thello\nuser:1\t{"name": "\u00e9"}\n'.encode()
    assert run("get", "missing", status=1) == b"towline state: no key missing\n"
    assert run("set", "greeting", "x", "--if-absent", status=1).endswith(b"greeting already\n")
    run("set", "new", "null", "--if-absent")
    assert run("scan", "user:") == "{}\t{}\n".format("user:1", '{"name": "\u00e9"}').encode()
    assert sorted(run("scan", "--keys").split()) == [b"greeting", b"new", b"user:1"]
    assert len(run("scan", "--keys", "--limit", "2").split()) == 2
    assert run("delete", "greeting", "new") == b""
    assert run("delete", "greeting", "user:1", status=1) == b"towline state: 1 of 2 keys existed\n"
    with towline_state.open(store) as state:
        assert list(state.keys()) == []


def test_counters(store: str, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert here(capfdbinary, "incr", store, "n") == b"1\n"
    assert here(capfdbinary, "incr", store, "n", "41") == b"42\n"
    assert here(capfdbinary, "incr", store, "n", "-2") == b"40\n"
    assert b"DELTA is a whole number" in here(capfdbinary, "incr", store, "n", "x", status=2)
    here(capfdbinary, "set", store, "text", "abc")
    assert here(capfdbinary, "incr", store, "text", status=3).startswith(b"towline state: ")
    here(capfdbinary, "incr", store, "short", "--ttl", "60")
    with towline_state.open(store) as state:
        left = state.ttl("short")
        assert left is not None
        assert left <= 60


def test_namespaces_and_codecs(store: str, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    here(capfdbinary, "set", store, "k", "1", "--namespace", "a:b")
    with towline_state.open(store) as state:
        assert state.namespace("a").namespace("b").get("k") == 1
    assert here(capfdbinary, "get", store, "k", "-n", "a:b") == b"1\n"
    here(capfdbinary, "set", store, "m", "[1]", "--codec", "msgpack")
    assert here(capfdbinary, "get", store, "m", "--codec", "msgpack") == b"[1]\n"


def test_bytes_pass_unchanged(store: str) -> None:
    data = bytes(range(256)) * 10
    towline("set", store, "raw", "-", "--codec", "bytes", stdin=data)
    assert towline("get", store, "raw", "--codec", "bytes") == data


def test_messages(store: str) -> None:
    command = [sys.executable, "-m", "towline", "state", "subscribe", store, "chat", "--pattern", "room.*"]
    subscriber = subprocess.Popen([*command, "--count", "3"], stdout=subprocess.PIPE)
    assert subscriber.stdout is not None
    os.set_blocking(subscriber.stdout.fileno(), False)
    received = b""

    def has_output() -> bool:
        nonlocal received
        assert subscriber.stdout is not None
        received += subscriber.stdout.read() or b""
        if not received:
            towline("publish", store, "room.0", '"ready"')
        return b"ready" in received

    eventually(has_output, "the first message", 60)
    while subscriber.poll() is None:
        towline("publish", store, "chat", '{"n": 1}')
        towline("publish", store, "other", "unheard")
        received += subscriber.stdout.read() or b""
    received += subscriber.stdout.read() or b""
    assert subscriber.returncode == 0
    lines = received.splitlines()
    assert len(lines) == 3
    assert set(lines) <= {b'room.0\t"ready"', b'chat\t{"n": 1}'}
    towline("subscribe", store, "quiet", "--timeout", "0.1", status=1)


def test_ctrl_c_ends_a_subscriber(store: str) -> None:
    command = [sys.executable, "-m", "towline", "state", "subscribe", store, "chat"]
    subscriber = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert subscriber.stdout is not None
    os.set_blocking(subscriber.stdout.fileno(), False)

    def has_output() -> bool:
        assert subscriber.stdout is not None
        towline("publish", store, "chat", "1")
        return bool(subscriber.stdout.read())

    eventually(has_output, "a message", 60)
    subscriber.send_signal(signal.SIGINT)
    assert subscriber.wait(60) == 130
    assert subscriber.stderr is not None
    assert subscriber.stderr.read() == b""


def test_info(store: str, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    here(capfdbinary, "set", store, "k", "1")
    lines = dict(line.split(None, 1) for line in here(capfdbinary, "info", store).decode().splitlines())
    assert lines["keys"] == "1"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["gett", "x"], "no command 'gett'; did you mean get?"),
        (["get"], "STORE is missing: a directory or a URL"),
        (["get", "x"], "usage: towline state get STORE KEY ..."),
        (["set", "x", "k"], "usage: towline state set STORE KEY VALUE"),
        (["info", "x", "y"], "usage: towline state info STORE"),
        (["set", "x", "k", "v", "--tll", "5"], "unknown argument '--tll'; did you mean --ttl?"),
        (["set", "x", "k", "v", "--ttl", "0"], "ttl: must be above 0"),
        (["set", "x", "k", "v", "--ttl", "soon"], "expected a number of seconds, not 'soon'"),
        (["scan", "x", "--limit", "0"], "limit: must be a number of at least 1"),
        (["get", "x", "k", "--codec", "xml"], "expected one of json, bytes, msgpack"),
    ],
)
def test_an_invalid_command_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(CommandLineError) as caught:
        parse(arguments)
    assert message in str(caught.value)
    assert main(arguments) == 2
    assert message in capsys.readouterr().err


def test_trouble_with_the_store_is_3(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("redis")
    assert main(["get", "unix:///nonexistent/socket", "k"]) == 3
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert main(["get", "ftp://host", "k"]) == 2
    assert main(["subscribe", "unix:///nonexistent/socket"]) == 2


def test_each_page_of_help_fits_a_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert len(MANUAL.overview().splitlines()) <= 44
    for name in ACTIONS:
        assert f"\n  {name} STORE" in MANUAL.overview()
    for group in MANUAL.groups:
        page = MANUAL.group(group) or ""
        assert len(page.splitlines()) <= 24
        assert all(len(line) <= 80 for line in page.splitlines())


def test_help_of_an_unknown_group(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help", "value"]) == 2
    assert "did you mean 'values'?" in capsys.readouterr().err
    assert main(["get", "--help"]) == 0
    assert capsys.readouterr().out.startswith("usage: towline state")
