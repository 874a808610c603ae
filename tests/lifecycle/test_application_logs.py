"""Records of the application with `--log-format json`, and configurations that were written for other servers."""

from __future__ import annotations

import json
import signal
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from uvicorn.config import LOGGING_CONFIG

from tests.support.process import Program, eventually, request, running

APP = """
import logging, threading, warnings
from flask import Flask

{configuration}

log = logging.getLogger("shop")


def act(path):
    if path == "/warning":
        log.warning("sold %d", 3, extra={{"user": "anna", "when": object}})
    elif path == "/info":
        log.info("quiet")
    elif path == "/warn":
        warnings.warn("old\\nway", stacklevel=1)
    elif path == "/thread":
        thread = threading.Thread(target=lambda: 1 / 0)
        thread.start()
        thread.join()
    elif path == "/basic":
        logging.basicConfig(level="INFO", format="PLAIN %(message)s")
        log.info("configured")
    elif path == "/names":
        logging.getLogger("uvicorn.error").info("by the name of uvicorn")
        logging.getLogger("gunicorn.error").info("by the name of gunicorn")
    elif path == "/fail":
        raise ValueError("as planned")


flask = Flask("shop.web")

@flask.get("/<path:path>")
def view(path):
    act("/" + path)
    return "ok"


def wsgi(environ, start_response):
    act(environ["PATH_INFO"])
    start_response("200 OK", [])
    return [b"ok"]


async def asgi(scope, receive, send):
    if scope["type"] == "lifespan":
        raise NotImplementedError
    act(scope["path"])
    await send({{"type": "http.response.start", "status": 200, "headers": []}})
    await send({{"type": "http.response.body", "body": b"ok"}})
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path)
    return tmp_path


def write(folder: Path, configuration: str = "") -> None:
    (folder / "shop.py").write_text(APP.format(configuration=textwrap.dedent(configuration)))


def objects(program: Program, logger: str) -> list[dict[str, Any]]:
    """The lines of a logger. Every line of the program is an object."""
    lines = [json.loads(line) for line in program.lines]
    return [line for line in lines if line.get("logger") == logger]


every_app = pytest.mark.parametrize("app", ["asgi", "wsgi", "flask"])
JSON = ("--log-format", "json", "--request-id-header")


@every_app
def test_each_record_is_one_object(app: str, folder: Path) -> None:
    with running(f"shop:{app}", *JSON, "--access-log", cwd=folder) as program:
        for path in ("/warning", "/info", "/warn", "/thread", "/names", "/fail"):
            request(program.port, path)
        failing = {"flask": "shop.web"}.get(app, "towline.server")
        eventually(lambda: [line for line in objects(program, failing) if "exception" in line], "the failure")
        eventually(
            lambda: sum('"path": "' in line or '"path":"' in line for line in program.lines) == 6,
            "access lines",
        )
        program.signal(signal.SIGTERM)
        assert program.wait() == 0
    [sold] = objects(program, "shop")
    assert (sold["level"], sold["message"], sold["user"]) == ("warning", "sold 3", "anna")
    assert sold["when"] == "<class 'object'>"
    [failure] = [line for line in objects(program, failing) if "exception" in line]
    assert failure["exception_type"] == "ValueError"
    assert "Traceback" in failure["exception"]
    [warning] = objects(program, "py.warnings")
    assert "UserWarning: old\nway" in warning["message"]
    [thread] = objects(program, "threading")
    assert thread["exception_type"] == "ZeroDivisionError"
    assert objects(program, "uvicorn.error")[0]["message"] == "by the name of uvicorn"
    assert objects(program, "gunicorn.error")[0]["level"] == "info"
    access = {line["path"]: line for line in map(json.loads, program.lines) if "path" in line}
    for line, path in ((sold, "/warning"), (failure, "/fail"), (warning, "/warn")):
        assert line["request_id"] == access[path]["request_id"]


def test_the_access_log_through_a_logger_is_not_quoted_twice(folder: Path) -> None:
    with running("shop:asgi", *JSON, "--access-log-logger", cwd=folder) as program:
        request(program.port, "/info?a=b")
        eventually(lambda: "/info" in program.log, "the access line")
        [line] = [json.loads(line) for line in program.lines if "/info" in line]
        assert (line["path"], line["query"], line["status"]) == ("/info", "a=b", 200)


CONSOLE = """
import logging.config
logging.config.dictConfig({"version": 1, "disable_existing_loggers": False,
    "formatters": {"plain": {"format": "OWN %(message)s"}},
    "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "plain"}},
    "KEY": VALUE})
"""
CONFIGURATIONS = {
    "dictConfig of root": CONSOLE.replace(
        '"KEY": VALUE', '"root": {"level": "INFO", "handlers": ["console"]}'
    ),
    "dictConfig of a logger": CONSOLE.replace(
        '"KEY": VALUE', '"loggers": {"shop": {"level": "INFO", "handlers": ["console"]}}'
    ),
    "basicConfig": 'logging.basicConfig(level="INFO", format="OWN %(message)s")',
    "basicConfig with force": 'logging.basicConfig(level="INFO", format="OWN %(message)s", force=True)',
    "addHandler": """
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("OWN %(message)s"))
        logging.getLogger().addHandler(handler)
        logging.getLogger().setLevel("INFO")
    """,
    "queue": """
        import logging.handlers, queue
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("OWN %(message)s"))
        records = queue.Queue()
        logging.handlers.QueueListener(records, handler).start()
        logging.getLogger("shop").addHandler(logging.handlers.QueueHandler(records))
        logging.getLogger("shop").setLevel("INFO")
    """,
}


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_the_configuration_of_the_application_wins(name: str, tmp_path: Path) -> None:
    write(tmp_path, CONFIGURATIONS[name])
    with running("shop:asgi", *JSON, "--workers", "2", cwd=tmp_path) as program:
        request(program.port, "/warning")
        eventually(lambda: program.log.count("OWN sold 3\n") == 1, "the application's own line")
        program.signal(signal.SIGHUP)
        eventually(lambda: "reloaded in" in program.log, "the reload")
        request(program.port, "/info")
        eventually(lambda: "OWN quiet\n" in program.log, "the line after the reload")
        program.signal(signal.SIGTERM)
        program.wait()
    assert '"shop"' not in program.log
    assert program.log.count("sold 3") == program.log.count("quiet") == 1


def test_basic_config_at_run_time(folder: Path) -> None:
    with running("shop:flask", *JSON, cwd=folder) as program:
        request(program.port, "/warning")
        request(program.port, "/basic")
        request(program.port, "/warning")
        eventually(lambda: "PLAIN sold 3\n" in program.log, "the line after the configuration")
        assert "PLAIN configured\n" in program.log
        assert len([line for line in program.lines if '"shop"' in line]) == 1


def test_a_handler_that_sends_elsewhere_does_not_silence_the_log(tmp_path: Path) -> None:
    write(
        tmp_path,
        "class Mail(logging.Handler):\n    def emit(self, record): pass\n\nlogging.getLogger().addHandler(Mail())",
    )
    with running("shop:asgi", *JSON, cwd=tmp_path) as program:
        request(program.port, "/warning")
        eventually(lambda: objects(program, "shop"), "the line")


def test_django_without_a_configuration(tmp_path: Path) -> None:
    (tmp_path / "project.py").write_text(
        textwrap.dedent("""
            import django
            from django.conf import settings
            settings.configure(ALLOWED_HOSTS=["*"], ROOT_URLCONF=__name__, SECRET_KEY="x")
            django.setup()
            from django.core.wsgi import get_wsgi_application
            from django.urls import path

            def fail(request):
                raise ValueError("as planned")

            urlpatterns = [path("fail", fail)]
            application = get_wsgi_application()
        """)
    )
    with running("project:application", *JSON, cwd=tmp_path) as program:
        assert request(program.port, "/fail").status == 500
        eventually(lambda: objects(program, "django.request"), "the traceback")
        [line] = objects(program, "django.request")
        assert line["exception_type"] == "ValueError"


@pytest.mark.parametrize("source", ["import nothing_like_it", "1/0", "def broken(:", "app = 5"])
def test_a_start_that_fails_is_one_object(source: str, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(source + "\n")
    done = start(tmp_path, "broken:app", "--log-format", "json")
    [line] = [json.loads(text) for text in done.splitlines()]
    assert (line["level"], line["logger"]) == ("critical", "towline.server")


def start(folder: Path, *arguments: str) -> str:
    """The output of a start that fails."""
    import subprocess

    command = [sys.executable, "-m", "towline", "serve", *arguments, "--port", "0"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode == 3, done.stderr
    return done.stdout + done.stderr


UVICORN_INI = """
[loggers]
keys=root,uvicorn,access
[handlers]
keys=error,access
[formatters]
keys=error,access
[logger_root]
handlers=
[logger_uvicorn]
qualname=uvicorn
level=INFO
handlers=error
propagate=0
[logger_access]
qualname=uvicorn.access
level=INFO
handlers=access
propagate=0
[handler_error]
class=StreamHandler
formatter=error
args=(sys.stderr,)
[handler_access]
class=StreamHandler
formatter=access
args=(sys.stdout,)
[formatter_error]
class=uvicorn.logging.DefaultFormatter
format=%(levelprefix)s %(message)s
[formatter_access]
class=uvicorn.logging.AccessFormatter
format=%(levelprefix)s %(client_addr)s - "%(request_line)s" %(status_code)s
"""


@pytest.mark.parametrize("app", ["asgi", "wsgi"])
@pytest.mark.parametrize("form", ["json", "ini"])
@pytest.mark.parametrize("installed", [True, False])
def test_a_configuration_for_uvicorn(
    app: str, form: str, installed: bool, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not installed:
        (folder / "sitecustomize.py").write_text("import sys\nsys.modules['uvicorn'] = None\n")
        monkeypatch.setenv("PYTHONPATH", str(folder))
    file = folder / f"uvicorn.{form}"
    file.write_text(UVICORN_INI if form == "ini" else json.dumps(LOGGING_CONFIG))
    with running(f"shop:{app}", "--log-config", file.name, cwd=folder) as program:
        request(program.port, "/names?a=b%0A")
        request(program.port, "/fail")
        eventually(lambda: "/fail HTTP/1.1" in program.log, "the access lines")
    log = program.log
    assert "INFO:     Towline " in log
    assert 'INFO:     127.0.0.1 - "GET /names?a=b%0A HTTP/1.1" 200 OK\n' in log
    assert 'INFO:     127.0.0.1 - "GET /fail HTTP/1.1" 500 Internal Server Error\n' in log
    assert "INFO:     by the name of uvicorn\n" in log
    assert "ERROR:    " in log
    assert log.count("ValueError: as planned") == 1
    assert ("Towline's formatters" in log) == (not installed)


def test_a_filter_for_uvicorn_sees_its_arguments(folder: Path) -> None:
    (folder / "filters.py").write_text(
        textwrap.dedent("""
            import logging

            class NoHealth(logging.Filter):
                def filter(self, record):
                    return record.args[2] != "/healthz"
        """)
    )
    config = {
        **LOGGING_CONFIG,
        "filters": {"no_health": {"()": "filters.NoHealth"}},
        "handlers": {
            **LOGGING_CONFIG["handlers"],
            "access": {**LOGGING_CONFIG["handlers"]["access"], "filters": ["no_health"]},
        },
    }
    (folder / "log.json").write_text(json.dumps(config))
    with running("shop:asgi", "--log-config", "log.json", "--app-dir", ".", cwd=folder) as program:
        request(program.port, "/healthz")
        request(program.port, "/other")
        eventually(lambda: "GET /other" in program.log, "the access line")
        assert "/healthz" not in program.log


def test_an_access_log_that_is_named_wins(folder: Path) -> None:
    (folder / "log.json").write_text(json.dumps(LOGGING_CONFIG))
    options = ("--log-config", "log.json", "--access-log", "access.log")
    with running("shop:asgi", *options, cwd=folder) as program:
        request(program.port, "/here")
        eventually(lambda: "GET /here" in (folder / "access.log").read_text(), "the access line")
        assert "/here" not in program.log
    with running("shop:asgi", "--log-config", "log.json", "--no-access-log", cwd=folder) as program:
        request(program.port, "/here")
        request(program.port, "/names")
        eventually(lambda: "by the name of uvicorn" in program.log, "a record")
        program.signal(signal.SIGTERM)
        program.wait()
        assert "/here" not in program.log


GUNICORN_CONF = """
logconfig_dict = {
    "formatters": {"short": {"format": "G %(name)s %(message)s"}, "access": {"format": "A %(message)s"},
                   "generic": {"format": "ROOT %(message)s"}},
    "handlers": {"short": {"class": "logging.StreamHandler", "formatter": "short"},
                 "access": {"class": "logging.FileHandler", "filename": "access.log", "formatter": "access"},
                 "console": {"class": "logging.NullHandler"}},
    "loggers": {"gunicorn.error": {"handlers": ["short"], "level": "INFO", "propagate": False},
                "gunicorn.access": {"handlers": ["access"], "level": "INFO", "propagate": False}},
}
"""


@pytest.mark.parametrize("app", ["asgi", "wsgi"])
def test_a_configuration_for_gunicorn(app: str, folder: Path) -> None:
    (folder / "gunicorn.conf.py").write_text(GUNICORN_CONF)
    with running(f"shop:{app}", "-c", "gunicorn.conf.py", cwd=folder) as program:
        assert "G towline.server Towline " in program.log
        request(program.port, "/names?q")
        log = folder / "access.log"
        eventually(lambda: "/names" in log.read_text(), "the access line")
        assert "A 127.0.0.1 - - [" in log.read_text()
        assert '"GET /names?q HTTP/1.1" 200 2 "-" ' in log.read_text()
        assert "G gunicorn.error by the name of gunicorn\n" in program.log


def test_a_formatter_for_gunicorn_reads_its_atoms(folder: Path) -> None:
    (folder / "formatters.py").write_text(
        textwrap.dedent("""
            import logging

            class Atoms(logging.Formatter):
                def format(self, record):
                    return "ATOMS {m} {U} {q} {s} {B} {h}".format(**record.args)
        """)
    )
    config = {
        "version": 1,
        "formatters": {"atoms": {"()": "formatters.Atoms"}},
        "handlers": {"atoms": {"class": "logging.StreamHandler", "formatter": "atoms"}},
        "loggers": {"gunicorn.access": {"handlers": ["atoms"], "propagate": False}},
    }
    (folder / "log.json").write_text(json.dumps(config))
    with running("shop:wsgi", "--log-config", "log.json", cwd=folder) as program:
        request(program.port, "/a?b=1")
        eventually(lambda: "ATOMS GET /a b=1 200 2 127.0.0.1\n" in program.log, "the access line")


HANDLER = {"class": "logging.FileHandler", "filename": "/nonexistent/folder/app.log"}
MISTAKES: dict[str, tuple[str, str]] = {
    "syntax.json": ('{"version": 1,\n "root": {,}}', "line 2 column 11"),
    "list.json": ("[]", "expected a mapping with the keys of logging.config.dictConfig"),
    "folder.json": (
        json.dumps({"version": 1, "handlers": {"file": HANDLER}}),
        "Unable to configure handler 'file': the directory /nonexistent/folder does not exist: create it",
    ),
    "class.json": (
        json.dumps({"version": 1, "handlers": {"file": {"class": "nothing.Handler"}}}),
        "Unable to configure handler 'file': No module named 'nothing': install the package, or correct the name",
    ),
    "reference.json": (
        json.dumps(
            {"version": 1, "handlers": {"a": {"class": "logging.StreamHandler", "formatter": "jsno"}}}
        ),
        "Unable to configure handler 'a': 'jsno' is not defined in the configuration",
    ),
    "level.json": (json.dumps({"version": 1, "root": {"level": "LOUD"}}), "Unknown level: 'LOUD'"),
    "syntax.toml": ("[a\nb = 1\n", "(at line 1, column 3)"),
    "sections.ini": ("[a]\nb=1\n", "expected the sections of an .ini file"),
    "missing.ini": ("[loggers]\nkeys=root\n", "'formatters' is not defined in the configuration"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_line_with_its_cause(name: str, folder: Path) -> None:
    text, expected = MISTAKES[name]
    (folder / name).write_text(text)
    [line] = start(folder, "shop:asgi", "--log-config", name).splitlines()
    assert line.startswith(f"towline: log_config: {name}: ")
    assert expected in line
