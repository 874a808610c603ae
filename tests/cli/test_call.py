"""`towline get` and the other request commands as programs: output and exit status."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import shlex
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme
from towline import testing
from towline.bench.subjects.ports import free_port
from towline.cli.call import CommandLineError, parse
from towline.cli.call_options import manual
from towline.cli.call_output import Progress, duration_text, size_text

JSON = b'{"b":[1,2],"name":"\xc3\xa9"}'
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD")

PAGE = Path(__file__).resolve().parents[2] / "docs" / "command-line.md"


async def app(scope: Any, receive: Any, send: Any) -> None:
    assert scope["type"] in ("http", "lifespan")
    if scope["type"] == "lifespan":
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await send({"type": "lifespan.shutdown.complete"})
        return
    body, more = b"", True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    status, fields, response = respond(scope, body)
    await send({"type": "http.response.start", "status": status, "headers": fields})
    await send({"type": "http.response.body", "body": response})


def respond(scope: Any, body: bytes) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
    plain = [(b"content-type", b"text/plain"), (b"set-cookie", b"id=secret-value")]
    match scope["path"]:
        case "/json":
            return 200, [(b"content-type", b"application/json")], JSON
        case "/binary":
            return 200, [(b"content-type", b"application/octet-stream")], bytes(range(256)) * 400
        case "/missing":
            return 404, plain, b"no such page\n"
        case "/away":
            return 302, [(b"location", b"/json")], b""
        case "/round":
            return 302, [(b"location", b"/round")], b""
        case "/echo":
            seen = {
                "method": scope["method"],
                "query": scope["query_string"].decode(),
                "headers": {name.decode(): value.decode() for name, value in scope["headers"]},
                "body": body.decode("latin-1"),
            }
            return 200, plain, json.dumps(seen).encode()
    return 200, plain, b"Hello\n"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with testing.serve(app) as server:
        yield server.url.rstrip("/")


def towline(
    *arguments: str, stdin: bytes = b"", cwd: Path | None = None
) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "towline", *arguments]
    return subprocess.run(command, input=stdin, capture_output=True, timeout=30, cwd=cwd, check=False)


def echoed(*arguments: str, stdin: bytes = b"", cwd: Path | None = None) -> dict[str, Any]:
    completed = towline(*arguments, stdin=stdin, cwd=cwd)
    assert completed.returncode == 0, completed.stderr
    seen: dict[str, Any] = json.loads(completed.stdout)
    return seen


def in_a_terminal(*arguments: str) -> bytes:
    """Output of the command when standard output and error are a terminal of 80 columns."""
    controller, terminal = pty.openpty()
    command = [sys.executable, "-m", "towline", *arguments]
    process = subprocess.Popen(
        command, stdin=terminal, stdout=terminal, stderr=terminal, env=os.environ | {"COLUMNS": "80"}
    )
    os.close(terminal)
    seen = b""
    try:
        while piece := os.read(controller, 65536):
            seen += piece
    except OSError:  # the other side is closed
        pass
    finally:
        os.close(controller)
        process.wait(30)
    return seen


# --- without a server ---------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_each_page_of_help_fits_a_screen(method: str) -> None:
    book = manual(method)
    assert len(book.overview().splitlines()) <= 40
    assert all(len((book.group(group) or "").splitlines()) <= 40 for group in book.groups)
    assert all(line.isascii() for line in (book.group("all") or "").splitlines())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no URL given"),
        (["--tmieout", "1", "x"], "unknown argument '--tmieout'; did you mean --timeout?"),
        (["--timeout", "soon", "x"], "expected a number of seconds, not 'soon'"),
        (["--timeout", "0", "x"], "timeout: must be above 0"),
        (["-H", "nonsense", "x"], "expected NAME:VALUE, not 'nonsense'"),
        (["-d", "a", "--json", "{}", "x"], "--data and --json are exclusive"),
        (["--key", "k.pem", "x"], "--key: needs --cert"),
        (["--resolve", "a:b:c", "x"], "expected HOST:PORT:ADDRESS"),
    ],
)
def test_an_invalid_command_line(arguments: list[str], message: str) -> None:
    with pytest.raises(CommandLineError) as raised:
        parse(arguments, "POST")
    assert message in str(raised.value)


def test_usage_errors_are_status_2_and_one_line() -> None:
    completed = towline("get", "--nonsense")
    assert (completed.returncode, completed.stdout) == (2, b"")
    assert len(completed.stderr.splitlines()) == 1
    assert towline("get", "--help", "respnse").stderr == (
        b"towline get: no group 'respnse'; did you mean 'response'?; there are request, response, connection, tls"
        b" and all\n"
    )


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("example.org/a", "http://example.org/a"),
        (":8000/a", "http://localhost:8000/a"),
        ("https://example.org", "https://example.org"),
    ],
)
def test_a_short_url(text: str, meant: str) -> None:
    assert parse([text], "GET")[0] == meant


def test_progress_shows_share_rate_and_remaining_time() -> None:
    progress = Progress(10 << 20, io.StringIO())
    progress.done = 5 << 20
    assert progress.line(2.0, 80) == f"[{'#' * 14}{'.' * 15}]  50%  5.0 MiB of 10.0 MiB  2.5 MiB/s  0:02 left"
    assert Progress(None, io.StringIO()).line(0.0, 80) == "0 B  0 B/s"
    assert (size_text(1023), size_text(1 << 40), duration_text(3725)) == ("1023 B", "1024.0 GiB", "1:02:05")


# --- against a server ---------------------------------------------------------------------------


def test_get_prints_only_the_body(url: str) -> None:
    completed = towline("get", f"{url}/")
    assert (completed.returncode, completed.stdout, completed.stderr) == (0, b"Hello\n", b"")


def test_json_is_indented_in_a_terminal_only(url: str) -> None:
    assert towline("get", f"{url}/json").stdout == JSON
    seen = in_a_terminal("get", f"{url}/json")
    assert seen.replace(b"\r\n", b"\n") == '{\n  "b": [\n    1,\n    2\n  ],\n  "name": "é"\n}\n'.encode()
    assert JSON in in_a_terminal("get", "--raw", f"{url}/json")


def test_binary_is_not_written_to_a_terminal(url: str) -> None:
    assert b"use -o FILE" in in_a_terminal("get", f"{url}/binary")
    assert towline("get", f"{url}/binary").stdout == bytes(range(256)) * 400


@pytest.mark.parametrize("method", ["post", "put", "patch", "delete", "get"])
def test_methods_and_headers(url: str, method: str) -> None:
    seen = echoed(
        method, "-H", "X-One: 1", "-H", "Accept:text/html", "-p", "q=a b", "-p", "q=c", f"{url}/echo?z=1"
    )
    assert seen["method"] == method.upper()
    assert (seen["headers"]["x-one"], seen["headers"]["accept"]) == ("1", "text/html")
    assert seen["query"] in ("z=1&q=a+b&q=c", "z=1&q=a%20b&q=c")


def test_head_prints_the_head(url: str) -> None:
    completed = towline("head", f"{url}/json")
    assert completed.stdout.startswith(b"HTTP/1.1 200")
    assert b"content-type: application/json\r\n" in completed.stdout.lower()
    assert JSON not in completed.stdout


@pytest.mark.parametrize(("choice", "version"), [((), b"1.1"), (("--http1",), b"1.1"), (("--http2",), b"2")])
def test_http_version_without_tls(url: str, choice: tuple[str, ...], version: bytes) -> None:
    completed = towline("get", "-i", "-v", *choice, f"{url}/")
    assert completed.stdout.startswith(b"HTTP/%s 200" % version)
    assert b"> GET / HTTP/%s" % version in completed.stderr


def test_http_version_over_tls(tmp_path: Path) -> None:
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    key, chain, trust = (tmp_path / name for name in ("key.pem", "cert.pem", "ca.pem"))
    issued.private_key_pem.write_to_path(str(key))
    issued.cert_chain_pems[0].write_to_path(str(chain))
    authority.cert_pem.write_to_path(str(trust))
    with testing.serve(app, ssl_certfile=str(chain), ssl_keyfile=str(key)) as server:
        for choice, version in (((), b"2"), (("--http1",), b"1.1"), (("--http2",), b"2")):
            completed = towline("get", "-i", *choice, "--cacert", str(trust), f"{server.url}/")
            assert completed.stdout.startswith(b"HTTP/%s 200" % version), completed.stderr
        for choice in ((), ("--http1",)):
            completed = towline("get", "--timings", *choice, "--cacert", str(trust), f"{server.url}/")
            labels = [line.split(b"  ")[0].strip() for line in completed.stderr.splitlines()]
            assert b"TLS" in labels, completed.stderr


def test_bodies(url: str, tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_bytes(b"from a file")
    seen = echoed("post", "-d", "a=1", "-d", "b=2", f"{url}/echo")
    assert (seen["body"], seen["headers"]["content-type"]) == ("a=1&b=2", "application/x-www-form-urlencoded")
    seen = echoed("post", "--json", '{"a": 1}', f"{url}/echo")
    assert (seen["body"], seen["headers"]["content-type"]) == ('{"a": 1}', "application/json")
    seen = echoed("post", "-d", "@one.txt", "-H", "content-type: text/plain", f"{url}/echo", cwd=tmp_path)
    assert (seen["body"], seen["headers"]["content-type"]) == ("from a file", "text/plain")
    assert echoed("post", "-d", "@-", f"{url}/echo", stdin=b"piped")["body"] == "piped"
    seen = echoed("post", "-f", "a=1", "-f", "a=2", "-f", "b=x y", f"{url}/echo")
    assert (seen["body"], seen["headers"]["content-type"]) == (
        "a=1&a=2&b=x+y",
        "application/x-www-form-urlencoded",
    )
    seen = echoed("post", "-f", "a=1", "-f", "up=@one.txt", f"{url}/echo", cwd=tmp_path)
    assert seen["headers"]["content-type"].startswith("multipart/form-data; boundary=")
    assert 'name="up"; filename="one.txt"' in seen["body"]
    assert "from a file" in seen["body"]


def test_user_is_basic_authentication(url: str) -> None:
    assert echoed("get", "-u", "name:pass", f"{url}/echo")["headers"]["authorization"] == "Basic bmFtZTpwYXNz"


def test_include_and_verbose(url: str) -> None:
    completed = towline("get", "-i", f"{url}/")
    head, _, body = completed.stdout.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200")
    assert body == b"Hello\n"
    completed = towline("get", "-v", "-u", "name:pass", f"{url}/")
    assert completed.stdout == b"Hello\n"
    assert b"> GET / HTTP/1.1" in completed.stderr
    assert b"< HTTP/1.1 200" in completed.stderr
    assert b"bmFtZTpwYXNz" not in completed.stderr
    assert b"secret-value" not in completed.stderr


def test_output_to_a_file_is_complete_or_absent(url: str, tmp_path: Path) -> None:
    completed = towline("get", "-o", "kept", f"{url}/binary", cwd=tmp_path)
    assert (completed.returncode, completed.stdout, completed.stderr) == (0, b"", b"")
    assert (tmp_path / "kept").read_bytes() == bytes(range(256)) * 400
    with scripted(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\ncut short") as cut:
        completed = towline("get", "-o", "cut", cut, cwd=tmp_path)
    assert completed.returncode == 18
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
    assert towline("get", "-o", "no/such/folder", f"{url}/", cwd=tmp_path).returncode == 23


def test_timings_go_to_standard_error(url: str) -> None:
    completed = towline("get", "--timings", f"{url}/")
    assert completed.stdout == b"Hello\n"
    labels = [line.split(b"  ")[0].strip() for line in completed.stderr.splitlines()]
    assert b"connect" in labels
    assert b"first byte" in labels
    assert labels[-1] == b"total"


def test_redirects(url: str) -> None:
    assert towline("get", f"{url}/away").stdout == b""
    assert towline("get", "-L", f"{url}/away").stdout == JSON
    completed = towline("get", "-L", "--max-redirects", "3", f"{url}/round")
    assert completed.returncode == 47
    assert len(completed.stderr.splitlines()) == 1


def test_fail_is_22(url: str) -> None:
    completed = towline("get", f"{url}/missing")
    assert (completed.returncode, completed.stdout) == (0, b"no such page\n")
    completed = towline("get", "--fail", f"{url}/missing")
    assert (completed.returncode, completed.stdout) == (22, b"")
    assert b"404 Not Found" in completed.stderr


class scripted:
    """Server that sends one response on one connection, and closes it."""

    def __init__(self, response: bytes, *, keep: bool = False) -> None:
        self.response, self.keep = response, keep
        self.listener = socket.create_server(("127.0.0.1", 0))

    def __enter__(self) -> str:
        self.open_sockets: list[socket.socket] = []
        threading.Thread(target=self._serve, daemon=True).start()
        return f"http://127.0.0.1:{self.listener.getsockname()[1]}/"

    def _serve(self) -> None:
        try:
            connection, _ = self.listener.accept()
            connection.recv(65536)
            connection.sendall(self.response)
            self.open_sockets.append(connection)
            if not self.keep:
                connection.shutdown(socket.SHUT_RDWR)
                connection.close()
        except OSError:
            pass

    def __exit__(self, *_: object) -> None:
        self.listener.close()
        for connection in self.open_sockets:
            connection.close()


def one_line(completed: subprocess.CompletedProcess[bytes], status: int, *words: str) -> None:
    assert completed.returncode == status, completed.stderr
    text = completed.stderr.decode()
    assert len(text.splitlines()) == 1, text
    assert text.startswith("towline get: ")
    assert all(word in text for word in words), text


def test_a_failure_prints_one_line_and_exits_with_curls_status(url: str) -> None:
    one_line(towline("get", f"http://127.0.0.1:{free_port()}/"), 7, "127.0.0.1")
    one_line(towline("get", "http://name.invalid/"), 6, "name.invalid")
    one_line(towline("get", "gopher://127.0.0.1/"), 3)
    with scripted(b"") as empty:
        one_line(towline("get", empty), 52)
    with scripted(b"", keep=True) as silent:
        one_line(towline("get", "--timeout", "0.3", silent), 28, "--timeout allows more")
    with scripted(b"SSH-2.0-nonsense\r\n") as invalid_response:
        one_line(towline("get", invalid_response), 1)
    with scripted(b"HTTP/1.1 400 Bad Request\r\n\r\n") as plain:
        one_line(towline("get", plain.replace("http:", "https:")), 35)


def test_a_file_that_cannot_be_read_is_26(url: str, tmp_path: Path) -> None:
    completed = towline("post", "-d", "@absent", f"{url}/echo", cwd=tmp_path)
    assert (completed.returncode, completed.stderr) == (
        26,
        b"towline post: cannot read absent: No such file or directory\n",
    )


def test_stream_prints_each_event_as_it_arrives() -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
    with scripted(head + b"data: 1\n\n", keep=True) as events:
        command = [sys.executable, "-m", "towline", "get", "--stream", events]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert os.read(process.stdout.fileno(), 100) == b"data: 1\n\n"
            process.kill()


def test_a_closed_pipe_prints_no_traceback(url: str) -> None:
    command = f"{sys.executable} -m towline get {url}/binary | head -c 10 >/dev/null"
    completed = subprocess.run(command, shell=True, capture_output=True, timeout=30, check=False)
    assert b"Traceback" not in completed.stderr


@pytest.mark.parametrize("line", re.findall(r"^\$ towline (.*?) +#", PAGE.read_text(), re.MULTILINE))
def test_the_examples_of_the_page(url: str, tmp_path: Path, line: str) -> None:
    (tmp_path / "more.txt").write_bytes(b"more=1")
    (tmp_path / "photo.jpg").write_bytes(b"\xff\xd8\xff")
    there = re.sub(r"(?:https?://)?example\.org|(?<= ):8000(?=/)", url, line)
    assert url in there
    completed = towline(*shlex.split(there), cwd=tmp_path)
    assert completed.returncode == 0, completed.stderr
    if "-o" in line:
        assert sorted(path.name for path in tmp_path.iterdir()) == ["big.iso", "more.txt", "photo.jpg"]
    else:
        assert b"Hello" in completed.stdout
