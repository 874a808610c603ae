"""The installed program: its messages and its exit statuses."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from towline.cli import COMMANDS

APPS = {
    "good.py": """
        async def app(scope, receive, send):
            raise NotImplementedError
    """,
    "broken.py": """
        def fail():
            raise RuntimeError("boom")
        fail()
    """,
    "dependent.py": "import a_package_that_is_not_there\n",
    "refusing.py": """
        async def app(scope, receive, send):
            await receive()
            await send({"type": "lifespan.startup.failed", "message": "no database"})
    """,
    "notcallable.py": "app = 3\n",
    "factory.py": """
        def make():
            raise ValueError("no settings")
    """,
}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    for name, source in APPS.items():
        (tmp_path / name).write_text(textwrap.dedent(source))
    return tmp_path


def towline(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "towline", *arguments]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=30)


def test_version_and_help(directory: Path) -> None:
    assert towline(directory, "--version").stdout.startswith("towline 0.")
    assert "serve" in towline(directory, "--help").stdout
    overview = towline(directory, "serve", "--help")
    assert (overview.returncode, "--bind" in overview.stdout) == (0, True)
    assert "--ssl-certfile" in towline(directory, "serve", "--help", "tls").stdout
    unknown = towline(directory, "serve", "--help", "wrokers")
    assert (unknown.returncode, "did you mean 'workers'" in unknown.stderr) == (2, True)


@pytest.mark.parametrize(
    ("topic", "pages"),
    [
        ("tls", ["serve --help tls", "get --help tls"]),
        ("HTTP/3", ["serve --help protocols", "serve --help http3", "get --help connection"]),
        ("websocket", ["serve --help protocols"]),
        ("compression", ["serve --help application", "serve --help files", "serve --help protocols"]),
        ("keep-alive", ["serve --help timeouts"]),
        ("messages", ["state --help messages"]),
    ],
)
def test_help_for_a_topic(directory: Path, topic: str, pages: list[str]) -> None:
    """A group, an option, or else a word of a group and its options leads to the groups."""
    shown = towline(directory, "help", topic)
    assert (shown.returncode, shown.stderr) == (0, "")
    headings = [
        line.removeprefix("towline ") for line in shown.stdout.splitlines() if line.startswith("towline ")
    ]
    assert headings == pages
    for heading in headings:
        assert towline(directory, *heading.split()).stdout in shown.stdout


def test_help_for_an_unknown_topic_names_the_nearest(directory: Path) -> None:
    for topic, message in (
        ("tlss", "towline: no command or topic 'tlss'; did you mean 'tls'"),
        ("metrcs", "no command or topic 'metrcs'; did you mean 'metrics'"),
        ("xyzzy", "no command or topic 'xyzzy'; there is serve, get"),
    ):
        unknown = towline(directory, "help", topic)
        assert (unknown.returncode, unknown.stdout) == (2, "")
        assert message in unknown.stderr


def test_the_version_of_every_command(directory: Path) -> None:
    version = towline(directory, "--version").stdout
    for arguments in (
        ["version"],
        ["-V"],
        ["serve", "--version"],
        ["get", "--version"],
        ["bench", "--version"],
    ):
        completed = towline(directory, *arguments)
        assert (completed.returncode, completed.stdout) == (0, version), arguments
    assert towline(directory, "version", "-v").stdout.splitlines()[1].startswith("CPython 3.")


@pytest.mark.parametrize("command", [*COMMANDS, "serve tls", "bench quick", "bench gate", "bench report"])
def test_the_help_of_every_command_has_one_style(directory: Path, command: str) -> None:
    result = towline(directory, "help", *command.split())
    assert (result.returncode, result.stderr) == (0, "")
    assert max(len(line) for line in result.stdout.splitlines()) <= 80
    if command == "load":  # native, with a different style
        return
    if command not in ("serve tls", "version"):
        assert result.stdout.startswith("usage: towline ")
    if command in COMMANDS and command != "version":
        assert "\nexamples:\n  towline " in result.stdout or 'eval "$(towline' in result.stdout
        assert towline(directory, *command.split(), "--help").stdout == result.stdout or command == "help"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["srve"], "did you mean 'serve'?"),
        (["serve"], "no application given: towline serve module:app"),
        (["serve", "--prot", "1", "good:app"], "unknown argument '--prot'; did you mean --port?"),
        (["serve", "--port", "x", "good:app"], "expected a whole number, not 'x'"),
        (["serve", "--lifespan", "no", "good:app"], "expected one of auto, on, off"),
        (
            ["serve", "--http", "3", "good:app"],
            "--http 3: each version has a switch: --http1, --http2, --http3 (--no-http1, ...)",
        ),
        (
            ["serve", "--no-http1", "--no-http2", "good:app"],
            "http1, http2 and http3: one of them must be on",
        ),
        (
            ["get", "--http", "3", "example.org"],
            "--http: each version has a flag: --http1, --http2 or --http3",
        ),
        (
            ["get", "--http1", "--http3", "example.org"],
            "--http1 and --http3 are exclusive: each allows one version only",
        ),
        (["serve", "good:app", "--threads", "0"], "threads: must be a number of at least 1, not 0"),
        (["serve", "good:app", "--workers", "two"], "expected a whole number or auto, not 'two'"),
        (["serve", "good:app", "--port", "99999"], "port: must be between 0 and 65535, not 99999"),
        (
            ["serve", "good:app", "-p", "app.pid"],
            "(-p is --port here; the file for the process id is --pid-file)",
        ),
        (["serve", "src/good.py"], "'src/good.py': there is no file src/good.py"),
        (["serve", "/srv/good.py:app"], "'/srv/good.py:app': there is no file /srv/good.py"),
        (["serve", "good-bad:app"], "'good-bad:app' is not of the form module:attribute\n"),
        (["serve", "good.py:"], "'good.py:' is not of the form module:attribute; did you mean good:app?"),
        (["serve", "gunicorn"], "no application given"),
        (["serve", "python", "app.py"], "python app.py: starts no server that is known here"),
        (["serve", "flask", "--app", "x", "shell"], "flask shell: only `flask run` is a server"),
        (["serve", "poetry", "run", "gunicorn"], "poetry: stays in front: poetry ... towline serve ..."),
        (["serve", "good:"], "'good:' is not of the form module:attribute; did you mean good:app?"),
        (
            ["serve", "good:app", "--config", "absent.toml"],
            "cannot read absent.toml: No such file or directory",
        ),
    ],
)
def test_an_invalid_command_line_is_status_2(directory: Path, arguments: list[str], message: str) -> None:
    completed = towline(directory, *arguments)
    assert completed.returncode == 2
    assert message in completed.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["goood:app"], "towline: no module 'goood' (looked in {here} first); did you mean 'good'?\n"),
        (["good:ap"], "towline: 'good' has no attribute 'ap'; did you mean 'app'?\n"),
        (["notcallable:app"], "towline: notcallable:app is an int and cannot be called\n"),
        (["refusing:app"], "towline: the application failed to start: no database\n"),
        (
            ["good:app", "--log-config", "x.json"],
            "towline: log_config: cannot read x.json: No such file or directory\n",
        ),
    ],
)
def test_a_failed_start_is_status_3_with_one_message(
    directory: Path, arguments: list[str], message: str
) -> None:
    completed = towline(directory, "serve", "--port", "0", *arguments)
    assert completed.returncode == 3
    assert completed.stderr == message.format(here=directory)


@pytest.mark.parametrize("workers", ["1", "3"])
def test_an_error_of_the_application_prints_only_its_traceback(directory: Path, workers: str) -> None:
    completed = towline(directory, "serve", "broken:app", "--port", "0", "--workers", workers)
    assert completed.returncode == 3
    lines = completed.stderr.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[-1] == "RuntimeError: boom"
    assert completed.stderr.count("Traceback") == 1
    assert "towline" not in completed.stderr.replace(str(directory), "")


def test_a_missing_dependency_is_the_applications_error(directory: Path) -> None:
    completed = towline(directory, "serve", "dependent:app", "--port", "0")
    assert completed.returncode == 3
    assert (
        completed.stderr.splitlines()[-1]
        == "ModuleNotFoundError: No module named 'a_package_that_is_not_there'"
    )


def test_a_factory_that_fails(directory: Path) -> None:
    completed = towline(directory, "serve", "factory:make", "--factory", "--port", "0")
    assert (completed.returncode, completed.stderr.splitlines()[-1]) == (3, "ValueError: no settings")


def test_a_port_in_use_is_named(directory: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        completed = towline(directory, "serve", "good:app", "--port", str(port))
    assert completed.returncode == 3
    # musl has words of its own.
    reason = os.strerror(errno.EADDRINUSE)
    assert completed.stderr == f"towline: cannot listen on 127.0.0.1:{port}: {reason}\n"


def test_an_unreadable_certificate_is_named(directory: Path) -> None:
    completed = towline(directory, "serve", "good:app", "--port", "0", "--ssl-certfile", "absent.pem")
    assert completed.returncode == 3
    assert "absent.pem" in completed.stderr
    assert len(completed.stderr.splitlines()) == 1


def test_importing_the_package_loads_nothing_else(directory: Path) -> None:
    script = "import sys, towline; print(sorted(m for m in sys.modules if m.startswith(('towline', 'asyncio', 'argparse'))))"
    completed = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=30, check=True
    )
    assert completed.stdout.strip() == "['towline']"
