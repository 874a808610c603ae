"""Lines of other servers beyond the corpus: files that a program reads unasked, applications of all forms, all errors at once."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from towline.cli.option_parser import CommandLineError
from towline.cli.serve import configure
from towline.config import ServerConfig
from towline.errors import ConfigError, ImportFromStringError
from towline.server import logs
from towline.server.importer import ApplicationImportError, import_from_string


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def errors(*arguments: str, **environment: str) -> list[str]:
    with pytest.raises((CommandLineError, ConfigError)) as caught:
        configure(arguments, environment)
    return str(caught.value).splitlines()


def test_all_bad_options_of_all_sources_are_reported_at_once(folder: Path) -> None:
    (folder / "towline.toml").write_text("backlog = 'many'\nunknown-key = 1\n")
    found = errors(
        "main:app",
        "--config=towline.toml",
        "--port=http",
        "-k",
        "gevent",
        "--daemon",
        "--no-such-option",
        "--limit-request-line=-1",
        TOWLINE_THREADS="many",
        WEB_CONCURRENCY="some",
        UVICORN_LOOP="asyncio",
        UVICORN_LIFESPAN="perhaps",
    )
    beginnings = [
        "-k gevent: nothing is monkey-patched here",
        "--daemon (gunicorn, hypercorn): run it under systemd",
        "argument --port/-p: expected a whole number, not 'http'",
        "argument --limit-request-line: expected a whole number, not '-1'",
        "unknown argument '--no-such-option'",
        "UVICORN_LIFESPAN: argument --lifespan: expected one of auto, on, off",
        "towline.toml: backlog: expected a whole number, not 'many'",
        "towline.toml: unknown option 'unknown-key'",
        "TOWLINE_THREADS: expected a whole number, not 'many'",
        "WEB_CONCURRENCY: expected a whole number or auto, not 'some'",
    ]
    assert len(found) == len(beginnings), found
    for line, beginning in zip(found, beginnings, strict=True):
        assert line.startswith(beginning)


def test_values_that_are_numbers_and_out_of_range_are_reported_together() -> None:
    assert errors("main:app", "--port=1", "--threads=0", "--backlog=0", "--timeout-keep-alive=-1") == [
        "backlog: must be a number of at least 1, not 0",
        "threads: must be a number of at least 1, not 0",
        "timeout_keep_alive: must be a number of at least 0, not -1.0",
    ]


def test_combinations_are_reported_together() -> None:
    found = errors("main:app", "--reload", "--preload", "--ssl-keyfile=key.pem", "--health-path=x")
    assert [line.partition(":")[0] for line in found] == ["ssl_keyfile", "health_path", "preload"]


def test_gunicorn_reads_its_file_unasked(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "gunicorn.conf.py").write_text(
        "workers = 3\ndaemon = False\nsecure_scheme_headers = {'X-FORWARDED-PROTO': 'https'}\n"
    )
    assert configure(["gunicorn", "main:app"], {}).workers == 3
    assert configure(["gunicorn", "main:app", "-w", "2"], {}).workers == 2
    assert configure(["main:app"], {}).workers == 1
    assert capsys.readouterr().err == ""
    (folder / "gunicorn.conf.py").write_text("daemon = True\nworker_class = 'gevent'\n")
    assert [line.partition(" (")[0] for line in errors("gunicorn", "main:app")] == [
        "gunicorn.conf.py: daemon: --daemon",
        "gunicorn.conf.py: worker_class: --worker-class gevent: nothing is monkey-patched here: greenlets of the "
        "application would not run, and its code would meet threads; if it uses neither, give --threads N instead",
    ]


def test_the_command_line_replaces_what_a_file_or_a_variable_could_not_have(folder: Path) -> None:
    (folder / "gunicorn.conf.py").write_text("worker_class = 'gevent'\nthreads = 2\n")
    config = configure(["gunicorn", "main:app", "-k", "gthread", "--threads", "8"], {})
    assert (config.interface, config.threads) == ("wsgi", 8)
    (folder / "gunicorn.conf.py").unlink()
    variables = {"GUNICORN_CMD_ARGS": "--worker-class=gevent --threads 3"}
    assert configure(["gunicorn", "main:app", "-k", "sync"], variables).threads == 3
    assert errors("gunicorn", "main:app", GUNICORN_CMD_ARGS="--bind '") == [
        "GUNICORN_CMD_ARGS: No closing quotation"
    ]


def test_defaults_of_a_program() -> None:
    assert configure(["gunicorn", "-m", "0o077", "main:app"], {}).uds_permissions == 0o700
    assert errors("gunicorn", "-m", "rwx", "main:app") == [
        "argument --umask/-m: expected octal permissions such as 660, not 'rwx'"
    ]
    assert configure(["gunicorn", "main:app"], {"SCRIPT_NAME": "/shop"}).root_path == "/shop"
    assert configure(["main:app"], {"SCRIPT_NAME": "/shop"}).root_path == ""
    plain = ["--insecure-bind", "0.0.0.0:80", "--certfile", "c"]
    assert configure(["hypercorn", *plain, "main:app"], {}).bind == ("http://0.0.0.0:80", "127.0.0.1:8000")
    assert errors("flask", "run") == ["no application given: towline serve module:app"]


def test_the_program_decides_in_its_variables_too(folder: Path) -> None:
    assert configure(["main:app"], {"GUNICORN_CMD_ARGS": "-p app.pid"}).pid_file == "app.pid"
    assert configure(["gunicorn", "-p", "app.pid", "main:app"], {}).pid_file == "app.pid"
    assert configure(["-p", "9000", "main:app"], {}).port == 9000


def test_flask_reads_its_files_and_variables(folder: Path) -> None:
    (folder / "wsgi.py").touch()
    (folder / ".flaskenv").write_text("FLASK_APP=notes\nFLASK_RUN_PORT=5001\n")
    (folder / ".env").write_text("FLASK_RUN_PORT=5002\nFLASK_DEBUG=1\n")
    config = configure(["flask", "run"], {})
    assert (config.app, config.port, config.reload) == ("notes", 5002, True)
    assert configure(["flask", "run"], {"FLASK_RUN_PORT": "5003"}).port == 5003
    assert configure(["flask", "run", "-p", "5004"], {"FLASK_SKIP_DOTENV": "1"}).app == "wsgi"
    assert configure([], {"FLASK_APP": "notes:create_app()"}).app == "notes:create_app()"


def test_a_name_that_is_misspelt_is_named() -> None:
    assert errors("gunicron", "main:app") == ["no program 'gunicron'; did you mean gunicorn?"]
    assert errors("uwsgi", "--http", ":80", "--module", "a") == [
        "uwsgi: its options are not read: towline serve module:callable --workers N --threads N"
    ]
    assert errors("gunicorn", "main:app", "--workers") == ["argument --workers/-w: expected one argument"]
    assert configure(["gunicorn:app"], {}).app == "gunicorn:app"
    assert configure(["./venv/bin/gunicorn", "main:app"], {}).app == "main:app"


APPLICATIONS = {
    "alone:application": "application",
    "alone": "application",
    "only_app": "app",
    "made": "made by make_app",
    "called:create('prod', debug=False)": ("prod", False),
    "called:nested.create(['a', 1], debug={'b': None})": (["a", 1], {"b": None}),
    "package.inner": "inner",
}
MODULES = {
    "alone.py": "application = 'application'\napp = 'app'\n",
    "only_app.py": "app = 'app'\n",
    "made.py": "def make_app():\n    return 'made by make_app'\n",
    "called.py": "def create(mode, debug):\n    return mode, debug\nclass nested:\n    create = staticmethod(create)\n",
    "package/__init__.py": "",
    "package/inner.py": "app = 'inner'\n",
    "empty.py": "",
}


@pytest.fixture
def modules(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    for name, source in MODULES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(source)
        monkeypatch.delitem(sys.modules, name.removesuffix(".py").replace("/", "."), raising=False)


@pytest.mark.usefixtures("modules")
@pytest.mark.parametrize(("target", "expected"), APPLICATIONS.items())
def test_forms_of_an_application(target: str, expected: Any) -> None:
    config = configure([target], {})
    assert import_from_string(config.app, app_dir=config.app_dir) == expected


@pytest.mark.usefixtures("modules")
def test_an_application_in_a_file(folder: Path) -> None:
    for target in ("package/inner.py:app", "./package/inner.py", str(folder / "package" / "inner.py")):
        config = configure([target], {})
        assert config.app.partition(":")[0] == "package.inner"
        assert import_from_string(config.app, app_dir=config.app_dir) == "inner"
    (folder / "elsewhere").mkdir()
    (folder / "elsewhere" / "site.py").touch()
    config = configure(["--chdir", "elsewhere", "site.py:app"], {})
    assert (config.app, config.app_dir) == ("site:app", str(folder / "elsewhere"))


@pytest.mark.usefixtures("modules")
@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("empty", "'empty' has none of application, app, api, create_app, make_app"),
        ("called:create(open('x'))", "expected module:function(...) with literals"),
        ("called:create(**{})", "expected module:function(...) with literals"),
        ("called:create('a', debug=False", "expected module:function(...) with literals"),
        ("called:create().wsgi", "expected module:function(...) with literals"),
    ],
)
def test_a_wrong_application_names_the_rule(target: str, message: str) -> None:
    with pytest.raises(ImportFromStringError) as caught:
        import_from_string(target)
    assert message in str(caught.value)


@pytest.mark.usefixtures("modules")
def test_a_factory_that_fails_shows_its_traceback() -> None:
    with pytest.raises(ApplicationImportError, match="missing 1 required positional argument: 'debug'"):
        import_from_string("called:create('prod')")


def test_the_server_log_goes_to_a_file_that_is_rotated(folder: Path) -> None:
    loggers = [logging.getLogger(name) for name in (logs.LOGGER, *logs.PEERS)]
    before = [(each, each.handlers[:], each.propagate, each.level) for each in loggers]
    for each in loggers:
        each.handlers = []
    try:
        logs.configure(ServerConfig("main:app", log_file="server.log"))
        loggers[0].info("first")
        (folder / "server.log").rename(folder / "server.log.1")
        loggers[0].info("second")
        assert "first" in (folder / "server.log.1").read_text()
        assert "second" in (folder / "server.log").read_text()
        loggers[0].handlers = []
        with pytest.raises(ConfigError, match=r"log_file: cannot write absent/server\.log: No such file"):
            logs.configure(ServerConfig("main:app", log_file="absent/server.log"))
    finally:
        for each, handlers, propagates, level in before:
            each.handlers, each.propagate = handlers, propagates
            each.setLevel(level)
