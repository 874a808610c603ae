"""`flask --app x towline`: the options of `flask run`, with the server of Towline."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
import towline

from tests.support.process import MAX_WAIT, eventually
from tests.support.server_processes import Certified

NOTES = """
    import threading
    from flask import Flask, current_app

    def create_app(greeting="hello"):
        app = Flask(__name__)

        @app.get("/")
        def hello():
            return f"{greeting} {threading.current_thread() is threading.main_thread()} {current_app.debug}"

        @app.get("/error")
        def error():
            raise RuntimeError("as asked")

        return app

    app = create_app()
"""


class Flask:
    """The command in a process group of its own, as a terminal starts it."""

    def __init__(self, folder: Path, *arguments: str, command: str = "towline", **variables: str) -> None:
        self._log = folder / "log"
        before, own = (
            [word for word in arguments if word == "--debug"],
            [w for w in arguments if w != "--debug"],
        )
        line = [sys.executable, "-m", "flask", "--app", variables.pop("app", "notes"), *before, command, *own]
        with self._log.open("wb") as out:
            self.process = subprocess.Popen(
                line,
                cwd=folder,
                stdout=out,
                stderr=out,
                start_new_session=True,
                env={**os.environ, **variables},
            )

    @property
    def log(self) -> str:
        return self._log.read_text()

    def url(self) -> str:
        def found() -> list[str]:
            assert self.process.poll() is None, self.log
            return re.findall(r"Towline \S+ on (\S+) ", self.log)

        eventually(found, "the start")
        return found()[-1]


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    (tmp_path / "notes.py").write_text(textwrap.dedent(NOTES))
    return tmp_path


@contextlib.contextmanager
def serving(folder: Path, *arguments: str, **variables: str) -> Iterator[Flask]:
    flask = Flask(folder, *(arguments or ("--port", "0")), **variables)
    try:
        yield flask
    except BaseException:
        sys.stderr.write(flask.log)
        raise
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(flask.process.pid, signal.SIGKILL)
        flask.process.wait(MAX_WAIT)


def get(url: str) -> towline.Response:
    return towline.get(url, timeout=MAX_WAIT)


def test_the_application_is_served_on_threads(notes: Path) -> None:
    with serving(notes) as flask:
        assert get(flask.url()).text == "hello False False"
        assert get(flask.url()).headers["server"] == "towline"
        assert get(f"{flask.url()}/error").status_code == 500
        assert "as asked" not in get(f"{flask.url()}/error").text
        assert "* Serving Flask app 'notes'" in flask.log
        assert "ignored" not in flask.log
        eventually(lambda: '"GET /error HTTP/1.1" 500' in flask.log, "the line of a request")
        os.killpg(flask.process.pid, signal.SIGINT)
        assert flask.process.wait(5) == 0


def test_factories_threads_and_variables(notes: Path) -> None:
    with serving(notes, "--without-threads", app="notes:create_app('hi')", FLASK_RUN_PORT="0") as flask:
        assert get(flask.url()).text == "hi True False"
    with serving(notes, "--port", "0", TOWLINE_WORKERS="2") as flask:
        flask.url()
        assert "2 workers" in flask.log


def test_debug_reloads_and_shows_the_debugger(notes: Path) -> None:
    with serving(notes, "--debug", "--port", "0") as flask:
        url = flask.url()
        assert get(url).text == "hello False True"
        error = get(f"{url}/error")
        assert (error.status_code, "Werkzeug" in error.text) == (500, True)
        assert "Debugger PIN" in flask.log
        secret = re.search(r'SECRET = "(\w+)"', error.text)
        assert secret
        query = f"__debugger__=yes&cmd=printpin&s={secret[1]}"
        assert get(f"{url}/?{query}").status_code == 200
        for wrong in ("raise RuntimeError('broken')", None):
            text = wrong or textwrap.dedent(NOTES).replace('"hello"', '"changed"')
            (notes / "notes.py").write_text(text)
            if wrong:
                eventually(lambda: "RuntimeError: broken" in flask.log, "the error of the new code")
        eventually(lambda: _text(url) == "changed False True", "the new code")


def test_no_reload_and_no_debugger_beside_debug(notes: Path) -> None:
    with serving(notes, "--debug", "--no-reload", "--no-debugger", "--port", "0") as flask:
        error = get(f"{flask.url()}/error")
        assert "Werkzeug" not in error.text
        assert "has changed" not in flask.log


def test_an_extra_file_reloads(notes: Path) -> None:
    (notes / "words.txt").write_text("one")
    with serving(notes, "--reload", "--port", "0", "--extra-files", str(notes / "words.txt")) as flask:
        flask.url()

        def is_noticed() -> bool:
            os.utime(notes / "words.txt")
            return "words.txt has changed" in flask.log

        eventually(is_noticed, "the change")


def test_certificates(notes: Path, tmp_path: Path) -> None:
    certified = Certified(tmp_path)
    certified.issue()
    with serving(notes, "--port", "0", "--cert", certified.cert, "--key", certified.key) as flask:
        assert towline.get(flask.url(), verify=certified.ca).text.startswith("hello")
    with serving(notes, "--port", "0", "--cert", "adhoc") as flask:
        assert towline.get(flask.url(), verify=False).text.startswith("hello")


def test_errors_are_those_of_flask(notes: Path) -> None:
    for app, message in (
        ("nowhere", "Could not import 'nowhere'"),
        ("notes:missing", "Failed to find attribute 'missing'"),
    ):
        with serving(notes, "--port", "0", app=app) as flask:
            assert flask.process.wait(MAX_WAIT) != 0
            assert message in " ".join(flask.log.split())
            assert "Traceback" not in flask.log
    with serving(notes, "--exclude-patterns", "x") as flask:
        assert flask.process.wait(MAX_WAIT) == 2
        assert "TOWLINE_RELOAD_EXCLUDE" in flask.log


def test_a_project_may_replace_run(notes: Path) -> None:
    """An entry point of the project's own, as docs/flask.md shows it."""
    metadata = notes / "notes-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: notes\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text("[flask.commands]\nrun = towline.flask:command\n")
    with serving(notes, "--port", "0", command="run", PYTHONPATH=str(notes)) as flask:
        assert get(flask.url()).headers["server"] == "towline"


def _text(url: str) -> str | None:
    try:
        return get(url).text
    except towline.TransportError:
        return None
