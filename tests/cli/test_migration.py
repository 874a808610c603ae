"""Options, variables and configuration files of other servers."""

from __future__ import annotations

import importlib
import runpy
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from towline._migration import ALL_ROWS, NAMED
from towline.cli import peer_settings
from towline.cli.option_parser import CommandLineError
from towline.cli.serve import configure
from towline.cli.serve_arguments import parse
from towline.config.hooks import HOOKS
from towline.errors import ConfigError

APP = "module:app"
# Values for an option, tried in turn.
SAMPLES = (
    "1",
    "10",
    "a",
    "true",
    "error",
    "a=b",
    "/a=b",
    "auto",
    "none",
    "tls1.2",
    "a: b",
    "h1,h2",
    "asyncio",
)
SAMPLES += ("x-forwarded-for", "tcp:80", "17", "http", "uvicorn.workers.UvicornWorker", "CERT_REQUIRED")
OWN = {"--help", "-h", "--version", "-v"}


PEERS = runpy.run_path(str(Path(__file__).parents[2] / "scripts" / "peer_options.py"))["SERVERS"]


def options_of(server: str) -> dict[str, bool]:
    """Flag -> whether it takes a value."""
    return {flag: takes_value for flag, takes_value, _ in PEERS[server]()}


# Options that only the programs' own parsers know: their help, and the application as an option.
LEAST = {
    "uvicorn": 0.9,
    "gunicorn": 0.8,
    "granian": 0.9,
    "hypercorn": 0.7,
    "daphne": 0.9,
    "waitress": 0.8,
    "flask": 0.9,
}


def outcome(server: str, flag: str, takes_value: bool) -> str:
    """Result for a documented option: `taken`, or the message of the refusal."""
    message = ""
    for sample in SAMPLES if takes_value else (None,):
        program = "" if (server, flag) not in NAMED else server
        try:
            words = [flag, sample] if sample else [flag]
            given = parse(words if flag in ("--app", "-A") else [*words, APP], program)
        except CommandLineError as error:
            message = str(error)
            continue
        # The value is not mistaken for the application, or the reverse.
        found = given.pop("app")
        assert found == (sample if flag in ("--app", "-A") else APP), flag
        return "taken"
    if flag == "--static-path-route" and "needs a --static-path-mount" in message:
        return "taken"
    return message


@pytest.mark.parametrize("server", PEERS)
def test_every_option_of_a_peer_is_taken_or_refused_with_a_reason(server: str) -> None:
    pytest.importorskip(server)
    outcomes = {
        flag: outcome(server, flag, value) for flag, value in options_of(server).items() if flag not in OWN
    }
    assert len(outcomes) > 15
    assert {flag: text for flag, text in outcomes.items() if "unknown argument" in text} == {}
    for flag, text in outcomes.items():
        if text != "taken":
            assert "\n" not in text, flag
            assert text.startswith(flag), flag
            assert server in text, flag
    taken = sum(text == "taken" for text in outcomes.values())
    assert taken / len(outcomes) > LEAST[server]


@pytest.mark.parametrize("server", PEERS)
def test_the_table_has_only_options_that_exist(server: str) -> None:
    pytest.importorskip(server)
    real = options_of(server)
    rows = {row.flag: row.takes_value for row in ALL_ROWS if server in row.servers.split()}
    assert {flag: real.get(flag) for flag in rows} == rows


@pytest.mark.parametrize(
    ("arguments", "field", "expected"),
    [
        ("--http h11", "http2", False),
        ("--http 1", "http2", False),
        ("--http 2", "http1", False),
        ("--http auto", "versions", (1, 2)),
        ("--http2", "versions", (1, 2)),
        ("--ws none", "ws", False),
        ("--ws wsproto", "ws", True),
        ("--no-ws", "ws", False),
        ("--ws-per-message-deflate false", "ws_per_message_deflate", False),
        ("--ws-per-message-deflate true", "ws_per_message_deflate", True),
        ("--interface asgi3", "interface", "asgi3"),
        ("--interface asginl", "lifespan", "off"),
        ("--h11-max-incomplete-event-size 9000", "limit_request_head", 9000),
        ("-k uvicorn.workers.UvicornWorker", "interface", "asgi"),
        ("-k uvloop", "loop", "uvloop"),
        ("--worker-class gthread", "interface", "wsgi"),
        ("-t 60", "timeout_worker_healthcheck", 60.0),
        ("--timeout 0", "timeout_worker_healthcheck", 31536000.0),
        ("--timeout=90", "timeout_worker_healthcheck", 90.0),
        ("--insecure-bind :80", "bind", ("http://:80",)),
        ("--insecure-bind unix:/a --insecure-bind a:1", "bind", ("unix:/a?tls=off", "http://a:1")),
        ("--quic-bind :443 --certfile c", "bind", ("https://:443?http=3",)),
        ("--pid app.pid", "pid_file", "app.pid"),
        ("--access-logfile -", "access_log", "-"),
        ("--limit-request-field_size 100", "limit_request_field_size", 100),
        ("--ssl-version TLS", "ssl_min_version", "1.2"),
        ("--ssl-version 17", "ssl_min_version", "1.2"),
        ("--cert-reqs 2 --ca-certs ca.pem", "ssl_cert_reqs", "required"),
        ("--verify-mode CERT_OPTIONAL --ssl-ca ca.pem", "ssl_cert_reqs", "optional"),
        ("--http-protocols h2", "http1", False),
        ("--http1-header-read-timeout 2500", "timeout_request_header", 2.5),
        ("--workers-kill-timeout 1m30s", "timeout_graceful_shutdown", 90.0),
        ("--workers-lifetime 6h", "workers_lifetime", 21600.0),
        ("--ssl-certificate cert.pem", "ssl_certfile", ("cert.pem",)),
        ("--ssl-protocol-min tls1.3", "ssl_min_version", "1.3"),
        ("--metrics-port 9100", "metrics_address", "127.0.0.1:9100"),
        ("--no-log", "log_level", "critical"),
        ("--log-level warn", "log_level", "warning"),
        ("--working-dir /srv", "chdir", "/srv"),
        ("--env-files a --env-files b", "env_file", ("a", "b")),
        ("--proxy-protocol v1", "proxy_protocol", True),
        ("--reload true", "reload", True),
        ("--debug", "log_level", "debug"),
    ],
)
def test_translations(
    arguments: str, field: str, expected: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert getattr(configure([*arguments.split(), APP], {}), field) == expected
    assert getattr(configure([APP, *arguments.split()], {}), field) == expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("-k gevent", "-k gevent: nothing is monkey-patched here"),
        ("-k tornado", "-k tornado: the application must be ASGI on asyncio, or WSGI"),
        ("--daemon", "--daemon (gunicorn, hypercorn): run it under systemd"),
        ("-D", "-D (gunicorn, hypercorn): run it under systemd"),
        ("--ssl-min-version 1.0", "TLS 1.0 is insecure and not supported"),
        ("--interface rsgi", "--interface rsgi: RSGI is Granian's own"),
        ("--http all", "--http all: each version has a switch: --http1, --http2, --http3"),
        ("--protocol uwsgi", "--protocol uwsgi: there is HTTP only"),
        ("--umask rwx", "expected octal permissions such as 660, not 'rwx'"),
    ],
)
def test_refusals_give_the_reason(arguments: str, message: str) -> None:
    with pytest.raises(CommandLineError) as caught:
        parse([*arguments.split(), APP])
    assert message in str(caught.value)


@pytest.fixture
def in_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("in_tmp_path")
def test_variables_of_other_servers(capsys: pytest.CaptureFixture[str]) -> None:
    environment = {
        "UVICORN_APP": APP,
        "UVICORN_PORT": "9000",
        "UVICORN_RELOAD": "false",
        "UVICORN_RELOAD_DIR": "src lib",
        "UVICORN_HTTP": "httptools",
        "GRANIAN_BLOCKING_THREADS": "3",
        "GUNICORN_CMD_ARGS": "--workers 4 --bind 0.0.0.0:80 -b unix:/a --worker-tmp-dir /dev/shm --max-requests 100",
    }
    config = configure([], environment)
    assert (config.app, config.port, config.http2, config.threads) == (APP, 9000, False, 3)
    assert (config.workers, config.limit_max_requests) == (4, 100)
    assert (config.bind, config.reload_dir) == (("0.0.0.0:80", "unix:/a"), ("src", "lib"))
    notices = capsys.readouterr().err.splitlines()
    assert notices == [
        "towline serve: GUNICORN_CMD_ARGS: --worker-tmp-dir: ignored: heartbeats are in shared memory, not in a file",
    ]
    assert configure([], {**environment, "TOWLINE_PORT": "9001"}).port == 9001
    assert configure(["--port", "9002"], {**environment, "TOWLINE_PORT": "9001"}).port == 9002


GUNICORN = """
    import multiprocessing
    import pathlib

    bind = ["127.0.0.1:8001", "unix:app.sock"]
    workers = min(3, multiprocessing.cpu_count() * 2 + 1)
    worker_class = "gthread"
    threads = 8
    timeout = 0
    keepalive = 5
    accesslog = "-"
    errorlog = "-"
    loglevel = "WARNING".lower()
    pidfile = str(pathlib.Path("app.pid"))
    umask = 0o027
    raw_env = ["A=1", "B=2"]
    preload_app = True
    reload = False
    certfile = None
    proc_name = "shop"
    wsgi_app = "shop:app"
    logconfig_dict = {"version": 1}

    def on_starting(server):
        raise RuntimeError("called by the supervisor")

    def post_fork(server, worker):
        pass

    def pre_request(worker, req):
        pass

    on_exit = None
"""


@pytest.mark.usefixtures("in_tmp_path")
def test_the_configuration_of_gunicorn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "gunicorn.conf.py"
    path.write_text(textwrap.dedent(GUNICORN))
    config = configure(["-c", "gunicorn.conf.py"], {})
    assert (config.app, config.bind) == ("shop:app", ("127.0.0.1:8001", "unix:app.sock"))
    assert (config.workers, config.threads, config.interface) == (3, 8, "wsgi")
    assert (config.timeout_keep_alive, config.access_log, config.log_level) == (5.0, "-", "warning")
    assert (config.pid_file, config.umask, config.preload, config.reload) == ("app.pid", 0o027, True, False)
    assert config.uds_permissions == 0o750
    assert (config.env, config.log_config) == ((("A", "1"), ("B", "2")), {"version": 1})
    named = [line.split(": ")[2] for line in capsys.readouterr().err.splitlines()]
    assert named == ["proc_name", "pre_request"]
    assert config.hooks is not None
    assert set(config.hooks.functions) == {"on_starting", "post_fork"}
    assert config.hooks.settings["proc_name"] == "shop"
    assert "pathlib" not in config.hooks.settings
    assert configure(["-c", f"file:{path}", "--threads", "2"], {}).threads == 2
    assert configure([], {"GUNICORN_CMD_ARGS": "-c gunicorn.conf.py"}).threads == 8


def test_every_setting_of_gunicorn_is_read_or_named() -> None:
    pytest.importorskip("gunicorn")
    settings = {setting.name for setting in importlib.import_module("gunicorn.config").KNOWN_SETTINGS}
    special = {"wsgi_app", "logconfig_dict", "config", *HOOKS}
    unmapped = settings - special - set(peer_settings.GUNICORN_UNMAPPED)
    assert {name for name in unmapped if peer_settings._flag(name) is None} == set()
    assert set(peer_settings.GUNICORN_FLAGS) | set(peer_settings.GUNICORN_UNMAPPED) | set(HOOKS) <= settings


@pytest.mark.usefixtures("in_tmp_path")
@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("def when_ready(): pass", "gunicorn.conf.py: when_ready: must take one argument"),
        ("def post_fork(server): pass", "gunicorn.conf.py: post_fork: must take 2 arguments"),
        ("on_exit = 'done'", "gunicorn.conf.py: on_exit: expected a function, not 'done'"),
    ],
)
def test_a_hook_that_cannot_be_called_is_refused(line: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "gunicorn.conf.py").write_text(line)
    with pytest.raises(ConfigError) as caught:
        configure(["-c", "gunicorn.conf.py", APP], {})
    assert str(caught.value) == message


@pytest.mark.usefixtures("in_tmp_path")
def test_a_broken_python_configuration_is_named(tmp_path: Path) -> None:
    (tmp_path / "gunicorn.conf.py").write_text("workers = nothing\n")
    completed = subprocess.run(
        [sys.executable, "-m", "towline", "serve", APP, "-c", "gunicorn.conf.py"],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert completed.returncode == 2
    assert completed.stderr == "towline serve: gunicorn.conf.py: NameError: name 'nothing' is not defined\n"


@pytest.mark.usefixtures("in_tmp_path")
def test_an_unknown_towline_variable_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    others = {"TOWLINE_SERVICE_HOST": "10.0.0.1", "TOWLINE_PORT_80_TCP": "", "TOWLINE_BENCH_HISTORY": "x"}
    configure([APP], {"TOWLINE_WRKERS": "3", "TOWLINE_WORKERS": "2", **others})
    assert capsys.readouterr().err == (
        "towline serve: the variable TOWLINE_WRKERS is not an option and is ignored; did you mean TOWLINE_WORKERS?\n"
    )
