"""Command lines of other servers with `towline serve` in front: what each gives, warns about or refuses; some are started."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from towline.cli.option_parser import CommandLineError
from towline.cli.serve import configure
from towline.errors import ConfigError

from tests.support.process import MAX_WAIT, eventually

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

CASES = tomllib.loads((Path(__file__).parent / "command_lines.toml").read_text())["case"]
STARTED = [case for case in CASES if case.get("starts")]
ASGI = """
    async def app(scope, receive, send):
        if scope["type"] == "lifespan":
            while (await receive())["type"] != "lifespan.shutdown":
                await send({"type": "lifespan.startup.complete"})
            return await send({"type": "lifespan.shutdown.complete"})
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"hello"})

    application = app
"""
WSGI = """
    def app(environ, start_response):
        start_response("200 OK", [("content-type", "text/plain")])
        return [b"hello"]

    application = app
"""
FACTORY = """
    import wsgi

    def create_app(mode="dev", debug=True):
        assert (mode, debug) in [("dev", True), ("prod", False)]
        return wsgi.app
"""
FILES = {
    "wsgi.py": WSGI,
    "main.py": ASGI,
    "app/__init__.py": WSGI,
    "app/main.py": ASGI,
    "app.py": WSGI,
    "shop/__init__.py": "",
    "shop/wsgi.py": WSGI,
    "shop/asgi.py": ASGI,
    "config/__init__.py": "",
    "config/wsgi.py": WSGI,
    "src/app.py": ASGI,
    "notes.py": FACTORY,
    "factories.py": "import main, wsgi\ndef create_api():\n    return main.app\ndef create_site():\n    return wsgi.app\n",
    "deploy/gunicorn.conf.py": """
        import os
        import shop

        bind = os.environ.get("BIND", "0.0.0.0:8000")
        threads = 2
        preload_app = True
        accesslog = errorlog = "-"
        proc_name = "shop"
    """,
    "gunicorn_settings.py": "workers = 3\n",
    "hypercorn_settings.py": 'loglevel = "debug"\nbind = "0.0.0.0:8843"\nkeep_alive_timeout = 5\nerrorlog = "-"\n',
    "hypercorn.toml": """
        bind = ["0.0.0.0:8000"]
        workers = 2
        worker_class = "uvloop"
        accesslog = "-"
        errorlog = "-"
        keep_alive_timeout = 65
        include_server_header = false
        alpn_protocols = ["h2", "http/1.1"]
    """,
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with all applications and files that the lines name."""
    for name, source in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(textwrap.dedent(source))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("shop", "gunicorn_settings"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path


def variables(case: dict[str, Any]) -> dict[str, str]:
    given = {"PORT": "8080"} if "PORT" in case["line"] else {}
    return {**given, **case.get("env", {})}


def words(line: str, environment: dict[str, str]) -> list[str]:
    """The words of a line, as a shell gives them to a program."""
    path = {"PATH": os.environ["PATH"]}
    shell = subprocess.run(
        ["sh", "-c", f"printf '%s\\0' {line}"], env=path | environment, capture_output=True, check=True
    )
    return shell.stdout.decode().split("\0")[:-1]


def without_prefix(lines: list[str]) -> list[str]:
    return [line.removeprefix("towline serve: ") for line in lines]


def plain(value: Any) -> Any:
    """A field as TOML can write it: False for what is off, lists for tuples."""
    if isinstance(value, tuple) and value:
        return [plain(each) for each in value]
    return value.decode() if isinstance(value, bytes) else value or False


def assert_begins(lines: list[str], beginnings: list[str]) -> None:
    assert len(lines) == len(beginnings), lines
    for line, beginning in zip(lines, beginnings, strict=True):
        assert line.startswith(beginning)


def test_the_corpus_is_large_and_of_all_programs() -> None:
    lines = [case["line"] for case in CASES]
    assert len({*lines}) == len(lines) >= 150
    assert len(STARTED) >= 15
    for name in ("gunicorn", "uvicorn", "granian", "hypercorn", "daphne", "waitress", "flask", "fastapi"):
        assert sum(name in line for line in lines) >= 4, name
        assert any(name in case["line"] for case in STARTED), name


def test_the_page_has_the_number_of_lines() -> None:
    counts = [
        len(CASES),
        sum("refuses" not in case and "warns" not in case for case in CASES),
        sum("warns" in case for case in CASES),
        sum("refuses" in case for case in CASES),
        len(STARTED),
    ]
    page = (Path(__file__).parents[2] / "docs" / "migrate.md").read_text()
    assert f"| together | {' | '.join(map(str, counts))} |" in page


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["line"][:60])
def test_a_line(case: dict[str, Any], folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    environment = variables(case)
    arguments = words(case["line"], environment)
    if "refuses" in case:
        with pytest.raises((CommandLineError, ConfigError)) as caught:
            configure(arguments, environment)
        assert_begins(str(caught.value).splitlines(), case["refuses"])
        return
    config = configure(arguments, environment)
    assert_begins(without_prefix(capsys.readouterr().err.splitlines()), case.get("warns", []))
    found = {name: plain(getattr(config, name)) for name in case.get("gives", {})}
    assert found == case.get("gives", {})


@contextlib.contextmanager
def started(arguments: list[str], environment: dict[str, str], folder: Path) -> Iterator[tuple[Path, Any]]:
    """The file of the output and the process, which ends by SIGTERM."""
    output = folder / "output"
    with output.open("wb") as out:
        command = [sys.executable, "-m", "towline", "serve", *arguments]
        process = subprocess.Popen(
            command,
            cwd=folder,
            stdout=out,
            stderr=out,
            env={**os.environ, "TOWLINE_PORT": "0", **environment},
        )
    try:
        yield output, process
        process.send_signal(signal.SIGTERM)
        assert process.wait(MAX_WAIT) == 0, output.read_text()
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def address(output: Path) -> Any:
    """The first address on which the server says that it listens."""
    text = "".join(path.read_text() for path in (output, output.parent / "error.log") if path.exists())
    found = re.search(r"Towline \S+ .*?on (?:https?://\S+?:(\d+)|unix:(\S+?))(?=[\s,]|$)", text)
    return found and (("127.0.0.1", int(found[1])) if found[1] else found[2])


def body(where: Any) -> bytes:
    family = socket.AF_UNIX if isinstance(where, str) else socket.AF_INET
    with socket.socket(family) as sock:
        sock.settimeout(MAX_WAIT)
        sock.connect(where)
        sock.sendall(b"GET / HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n")
        received = b"".join(iter(lambda: sock.recv(65536), b""))
    assert received.startswith(b"HTTP/1.1 200"), received
    return received


@pytest.mark.parametrize("case", STARTED, ids=lambda case: case["line"][:60])
def test_a_line_starts_a_server(case: dict[str, Any], folder: Path) -> None:
    line = re.sub(r"(?<=[\d*]:)\d{2,5}(?=[\s'\"]|$)", "0", case["line"])
    line = re.sub(r"((?:--port|-p)[ =]\"?)\d+", r"\g<1>0", line)
    environment = {**variables(case), "PORT": "0", "BIND": "127.0.0.1:0"}
    with started(words(line, environment), environment, folder) as (output, process):
        eventually(lambda: address(output) or process.poll() is not None, "the server listens")
        assert process.poll() is None, output.read_text()
        assert b"hello" in body(address(output))
    lines = without_prefix(output.read_text().splitlines())
    for warning in case.get("warns", []):
        assert any(each.startswith(warning) for each in lines), lines
