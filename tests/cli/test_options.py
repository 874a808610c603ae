"""Every option parses, from every source, and the sources rank as documented."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from towline._options import flags, options_of
from towline.cli.option_parser import CommandLineError
from towline.cli.serve import MANUAL, configure
from towline.config import CODINGS, GROUPS, ServerConfig
from towline.errors import ConfigError

APP = "module:app"

# One value for each option: as text, and as the field must then have it.
VALUES: dict[str, tuple[str, Any]] = {
    "interface": ("wsgi", "wsgi"),
    "app_dir": ("src", "src"),
    "lifespan": ("on", "on"),
    "lifespan_scope": ("process", "process"),
    "root_path": ("/api", "/api"),
    "mount": ("/admin=admin:app", (("/admin", "admin:app"),)),
    "chdir": ("/srv", "/srv"),
    "env": ("MODE=test", (("MODE", "test"),)),
    "env_file": (".env", (".env",)),
    "uds_permissions": ("660", 0o660),
    "user": ("www-data", "www-data"),
    "group": ("33", "33"),
    "umask": ("0027", 0o027),
    "ssl_crl": ("revoked.pem", ("revoked.pem",)),
    "ssl_min_version": ("TLSv1.3", "1.3"),
    "ssl_ciphers": ("TLS_AES_256_GCM_SHA384:x", ("TLS_AES_256_GCM_SHA384", "x")),
    "pathsend": ("off", "off"),
    "bind": ("127.0.0.1:9000", ("127.0.0.1:9000",)),
    "host": ("0.0.0.0", "0.0.0.0"),
    "port": ("9000", 9000),
    "uds": ("/run/app.sock", "/run/app.sock"),
    "fd": ("7", 7),
    "backlog": ("64", 64),
    "workers": ("3", 3),
    "worker_mode": ("threads", "threads"),
    "threads": ("4", 4),
    "loop": ("asyncio", "asyncio"),
    "limit_max_requests": ("1000", 1000),
    "limit_max_requests_jitter": ("50", 50),
    "workers_lifetime": ("3600", 3600.0),
    "workers_max_rss": ("512", 512),
    "timeout_worker_healthcheck": ("5", 5.0),
    "timeout_worker_startup": ("7.5", 7.5),
    "state": ("/var/lib/app/state", "/var/lib/app/state"),
    "pid_file": ("app.pid", "app.pid"),
    "limit_request_line": ("4096", 4096),
    "limit_request_fields": ("50", 50),
    "limit_request_field_size": ("4096", 4096),
    "limit_request_head": ("16384", 16384),
    "limit_request_body": ("1048576", 1048576),
    "wsgi_request_buffer": ("0", 0),
    "wsgi_response_buffer": ("1048576", 1048576),
    "timeout_wsgi_client": ("5", 5.0),
    "limit_concurrency": ("100", 100),
    "limit_rate": ("100/s", "100/s"),
    "limit_rate_burst": ("20", 20),
    "limit_rate_key": ("header:x-api-key", "header:x-api-key"),
    "limit_rate_exempt": ("/public", ("/public",)),
    "limit_connections": ("10000", 10000),
    "limit_connections_per_client": ("50", 50),
    "wsgi_websockets": ("5", 5),
    "timeout_keep_alive": ("5", 5.0),
    "timeout_request_header": ("5", 5.0),
    "timeout_request_body": ("5", 5.0),
    "min_bytes_per_second": ("0", 0),
    "timeout_graceful_shutdown": ("1.5", 1.5),
    "drain_delay": ("2.5", 2.5),
    "timeout_drain_idle": ("2.5", 2.5),
    "ssl_certfile": ("cert.pem", ("cert.pem",)),
    "ssl_keyfile": ("key.pem", ("key.pem",)),
    "ssl_keyfile_password": ("secret", "secret"),
    "ssl_ca_certs": ("ca.pem", "ca.pem"),
    "ssl_cert_reqs": ("2", "required"),
    "acme": ("a.example", ("a.example",)),
    "acme_email": ("ops@a.example", "ops@a.example"),
    "acme_directory": ("staging", "staging"),
    "acme_store": ("certificates", "certificates"),
    "acme_ca": ("root.pem", "root.pem"),
    "forwarded_headers": ("x-forwarded,host", ("x-forwarded", "host")),
    "redirect_https": ("443", 443),
    "hsts": ("3600; preload", "3600; preload"),
    "forwarded_allow_ips": ("10.0.0.0/8,::1", ("10.0.0.0/8", "::1")),
    "log_level": ("debug", "debug"),
    "log_config": ("logging.json", "logging.json"),
    "access_log": ("access.log", "access.log"),
    "access_log_format": ("json", "json"),
    "log_file": ("server.log", "server.log"),
    "log_format": ("json", "json"),
    "access_log_logger": ("my.access", "my.access"),
    "access_log_headers": ("x-a,x-b", ("x-a", "x-b")),
    "access_log_redact": ("none", ()),
    "access_log_exclude": ("2xx:/healthz", ("2xx:/healthz",)),
    "access_log_sample": ("0.1", 0.1),
    "access_log_slow": ("500ms", 0.5),
    "request_id_header": ("x-id", "x-id"),
    "static": ("/files=public", (("/files", "public"),)),
    "static_index": ("index.html", "index.html"),
    "static_expires": ("60", 60),
    "compress": ("br,gzip", ("br", "gzip")),
    "decompress_requests": ("gzip,br", ("gzip", "br")),
    "limit_decompressed_body": ("1048576", 1048576),
    "headers": ("x-frame-options: deny", ((b"x-frame-options", b"deny"),)),
    "metrics_address": ("127.0.0.1:9100", "127.0.0.1:9100"),
    "statsd": ("127.0.0.1:8125", "127.0.0.1:8125"),
    "statsd_prefix": ("shop", "shop"),
    "statsd_tags": ("env:test,zone:a", ("env:test", "zone:a")),
    "health_path": ("/healthz", "/healthz"),
    "http2_max_concurrent_streams": ("10", 10),
    "http2_initial_stream_window_size": ("65536", 65536),
    "http2_initial_connection_window_size": ("65536", 65536),
    "http2_max_headers_size": ("4096", 4096),
    "http3_max_concurrent_streams": ("10", 10),
    "http3_initial_stream_window_size": ("65536", 65536),
    "http3_retry_handshakes": ("0", 0),
    "http3_congestion": ("bbr", "bbr"),
    "http3_alt_svc_max_age": ("0", 0),
    "http3_alt_svc_port": ("443", 443),
    "ws_max_size": ("1024", 1024),
    "ws_ping_interval": ("none", None),
    "ws_ping_timeout": ("none", None),
    "reload_dir": ("src", ("src",)),
    "reload_include": ("*.html", ("*.html",)),
    "reload_exclude": ("build", ("build",)),
}
SWITCHES = [name for name, (option, _) in options_of(ServerConfig).items() if option.switch]
# Options that require other options.
NEEDS: dict[str, dict[str, str]] = {
    "ssl_keyfile": {"ssl_certfile": "cert.pem"},
    "ssl_cert_reqs": {"ssl_ca_certs": "ca.pem"},
    "hsts": {"ssl_certfile": "cert.pem"},
    "limit_rate_burst": {"limit_rate": "100/s"},
    "limit_rate_key": {"limit_rate": "100/s"},
    "limit_rate_exempt": {"limit_rate": "100/s"},
    "ssl_crl": {"ssl_ca_certs": "ca.pem", "ssl_cert_reqs": "required"},
}
OUR_FLAGS = [
    (name, flag)
    for name, (option, _) in options_of(ServerConfig).items()
    if not option.switch
    for flag in flags(name, option)
]


@pytest.fixture(autouse=True)
def in_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def run(*arguments: str, **environment: str) -> ServerConfig:
    return configure([*arguments, APP], environment)


def addresses_of(config: ServerConfig) -> tuple[str, ...]:
    return tuple(str(address) for address in config.given_addresses)


def needed(name: str) -> list[str]:
    return [f"--{key.replace('_', '-')}={value}" for key, value in NEEDS.get(name, {}).items()]


def test_no_option_is_left_out_of_these_tables() -> None:
    assert set(VALUES) | set(SWITCHES) == set(options_of(ServerConfig))
    assert {field.name for field in dataclasses.fields(ServerConfig)} == {
        "app",
        "hooks",
        *options_of(ServerConfig),
    }


@pytest.mark.parametrize(("name", "flag"), OUR_FLAGS)
def test_flag_and_alias(name: str, flag: str) -> None:
    value, expected = VALUES[name]
    given = [f"{flag}={value}"] if flag.startswith("--") else [flag, value]
    assert getattr(run(*needed(name), *given), name) == expected


@pytest.mark.parametrize("name", VALUES)
def test_variable(name: str) -> None:
    value, expected = VALUES[name]
    needs = {f"TOWLINE_{key.upper()}": text for key, text in NEEDS.get(name, {}).items()}
    assert getattr(run(**needs, **{f"TOWLINE_{name.upper()}": value}), name) == expected


@pytest.mark.parametrize("name", VALUES)
def test_file_key(name: str, tmp_path: Path) -> None:
    value, expected = VALUES[name]
    lines = [
        f'{key.replace("_", "-")} = "{text}"' for key, text in {**NEEDS.get(name, {}), name: value}.items()
    ]
    (tmp_path / "towline.toml").write_text("\n".join(lines))
    assert getattr(run("--config", "towline.toml"), name) == expected


@pytest.mark.parametrize("name", [name for name in SWITCHES if name != "reload"])
def test_switch(name: str) -> None:
    flag = name.replace("_", "-")
    others = ("--ssl-certfile", "cert.pem") if name == "http3" else ()
    assert getattr(run(f"--{flag}", *others), name) is True
    assert getattr(run(f"--no-{flag}", *others), name) is False
    assert getattr(run(*others, **{f"TOWLINE_{name.upper()}": "0"}), name) is False
    assert getattr(run(*others, **{f"TOWLINE_{name.upper()}": "true"}), name) is True


def test_command_line_over_environment_over_file_over_default(tmp_path: Path) -> None:
    assert run().workers == 1
    (tmp_path / "pyproject.toml").write_text("[tool.towline.serve]\nworkers = 2\nthreads = 2\n")
    assert run().workers == 2
    assert run(WEB_CONCURRENCY="3").workers == 3
    assert run(WEB_CONCURRENCY="3", TOWLINE_WORKERS="4").workers == 4
    five = run("--workers", "5", WEB_CONCURRENCY="3", TOWLINE_WORKERS="4")
    assert (five.workers, five.threads) == (5, 2)


def test_workers_auto_from_every_source(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.towline.serve]\nworkers = "auto"\n')
    assert run().workers == run("-w", "auto").workers == run("--workers", "0").workers == 0
    (tmp_path / "pyproject.toml").write_text("[tool.towline.serve]\nworkers = 0\n")
    assert run().workers == 0
    assert run("--workers", "2").workers == 2
    (tmp_path / "pyproject.toml").unlink()
    assert run(WEB_CONCURRENCY="auto").workers == run(TOWLINE_WORKERS="Auto").workers == 0
    with pytest.raises(CommandLineError, match="expected a whole number or auto, not 'many'"):
        run("--workers", "many")


PORT = {"PORT": "5000"}


@pytest.mark.parametrize(
    ("arguments", "environment", "addresses"),
    [
        ((), {}, ("0.0.0.0:5000",)),
        (("--host", "::"), {}, ("[::]:5000",)),
        (("--port", "81"), {}, ("127.0.0.1:81",)),
        (("--bind", ":82"), {}, (":82",)),
        (("--uds", "/run/a"), {}, ("unix:/run/a",)),
        ((), {"TOWLINE_PORT": "83"}, ("127.0.0.1:83",)),
        ((), {"TOWLINE_BIND": ":84"}, (":84",)),
        ((), {"TOWLINE_HOST": "localhost"}, ("localhost:5000",)),
        ((), {"UVICORN_PORT": "85"}, ("127.0.0.1:85",)),
        ((), {"UVICORN_HOST": "::1"}, ("[::1]:5000",)),
        ((), {"GUNICORN_CMD_ARGS": "--bind :86"}, (":86",)),
        ((), {"PORT": ""}, ("127.0.0.1:8000",)),
    ],
)
def test_the_port_of_a_platform_is_open_to_its_router(
    arguments: tuple[str, ...], environment: dict[str, str], addresses: tuple[str, ...]
) -> None:
    """PORT means 0.0.0.0, as in gunicorn, unless something says more about the address."""
    assert addresses_of(run(*arguments, **PORT | environment)) == addresses


@pytest.mark.parametrize(
    ("line", "address"),
    [
        ("port = 90", "0.0.0.0:5000"),
        ('host = "localhost"', "localhost:5000"),
        ('bind = "unix:/run/b"', "unix:/run/b"),
        ('uds = "/run/c"', "unix:/run/c"),
    ],
)
def test_the_port_of_a_platform_beside_a_file(tmp_path: Path, line: str, address: str) -> None:
    (tmp_path / "pyproject.toml").write_text(f"[tool.towline.serve]\n{line}\n")
    assert addresses_of(run(**PORT)) == (address,)


def test_variables_of_a_server_precede_those_of_a_platform() -> None:
    assert run(WEB_CONCURRENCY="3", UVICORN_WORKERS="4").workers == 4
    assert run(WEB_CONCURRENCY="3", GUNICORN_CMD_ARGS="-w 5").workers == 5
    with pytest.raises(ConfigError, match="PORT: expected a whole number, not 'http'"):
        run(PORT="http")


def test_config_option_replaces_pyproject(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.towline.serve]\nworkers = 2\n")
    (tmp_path / "other.toml").write_text('[tool.towline.serve]\napp = "file:app"\nthreads = 3\n')
    config = configure(["--config", "other.toml"], {})
    assert (config.app, config.workers, config.threads) == ("file:app", 1, 3)
    assert configure([], {"TOWLINE_CONFIG": "other.toml", "TOWLINE_APP": "env:app"}).app == "env:app"


def test_an_address_on_the_command_line_replaces_one_in_the_file(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.towline.serve]\nbind = ["127.0.0.1:1", "[::1]:1"]\n')

    assert addresses_of(run()) == ("127.0.0.1:1", "[::1]:1")
    assert addresses_of(run("--port", "9000")) == ("127.0.0.1:9000",)
    assert addresses_of(run("--bind", "unix:a", "-b", "b:1")) == ("unix:a", "b:1")
    assert addresses_of(run("--host", "::1")) == ("[::1]:8000",)


def test_toml_types(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(
        "[tool.towline.serve]\nport = 9000\ntimeout-keep-alive = 5\naccess-log = true\ncompress = true\n"
        'keep-alive = 6\nmetrics = true\nheaders = ["a: b", "c: d"]\n'
        '[tool.towline.serve.mount]\n"/x" = "x:app"\n"/y" = "y:app"\n'
    )
    config = run()
    assert (config.port, config.timeout_keep_alive, config.metrics) == (9000, 6, True)
    assert (config.access_log, config.compress) == ("-", CODINGS)
    assert config.headers == ((b"a", b"b"), (b"c", b"d"))
    assert config.mount == (("/x", "x:app"), ("/y", "y:app"))


def test_an_optional_argument_does_not_consume_the_application() -> None:
    for flag, name, expected in [("--access-log", "access_log", "-"), ("--compress", "compress", CODINGS)]:
        config = configure([flag, APP], {})
        assert (config.app, getattr(config, name)) == (APP, expected)
    assert configure([APP, "--access-log", "file"], {}).access_log == "file"
    assert run("--no-access-log", TOWLINE_ACCESS_LOG="x").access_log == ""


def test_static_in_granians_spelling() -> None:
    config = run("--static-path-mount", "a", "--static-path-route", "/files")
    assert config.static == (("/files", "a"),)
    assert run("--static-path-mount", "a").static == (("/static", "a"),)


def test_a_list_may_be_one_text_or_none() -> None:
    assert ServerConfig(APP, ssl_certfile="cert.pem").ssl_certfile == ("cert.pem",)  # type: ignore[arg-type]
    assert ServerConfig(APP, ssl_certfile=None).ssl_certfile == ()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"port": 65536}, "port: must be between 0 and 65535"),
        ({"workers": -1}, "workers: must be a number of at least 0"),
        ({"workers": True}, "workers: expected a whole number"),
        ({"timeout_keep_alive": 0}, "timeout_keep_alive: must be above 0"),
        ({"timeout_keep_alive": float("nan")}, "timeout_keep_alive: must be a number"),
        ({"timeout_graceful_shutdown": float("inf")}, "timeout_graceful_shutdown: must be a number"),
        ({"loop": "trio"}, "loop: expected one of auto, asyncio, uvloop"),
        ({"http3": "on"}, "http3: expected true or false"),
        ({"http1": False, "http2": False}, "http1, http2 and http3: one of them must be on"),
        ({"ssl_keyfile": "k"}, "ssl_keyfile: needs ssl_certfile"),
        ({"ssl_cert_reqs": "required"}, "ssl_cert_reqs: needs ssl_ca_certs"),
        ({"root_path": "api"}, "root_path: must start with /"),
        ({"health_path": "healthz"}, "health_path: must start with /"),
        ({"compress": ("lzw",)}, "compress: unknown coding 'lzw'"),
        ({"mount": (("x", "a:b"),)}, "a mounted prefix must start with /"),
        ({"metrics": "yes"}, "metrics: expected true or false"),
        ({"log_level": 3}, "log_level: expected one of"),
        ({"reload": True, "preload": True}, "preload: keeps the code"),
        ({"ssl_certfile": ("a", "b"), "ssl_keyfile": ("a",)}, "ssl_keyfile: needs one for each ssl_certfile"),
        ({"ssl_min_version": "1.1"}, "ssl_min_version: expected one of 1.2, 1.3"),
        ({"ssl_crl": ("a",)}, "ssl_crl: needs ssl_cert_reqs"),
        ({"uds_permissions": 0o1777}, "uds_permissions: must be a number of at most 511"),
    ],
)
def test_invalid_values_name_their_option(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match="^" + message.replace("(", r"\(")):
        ServerConfig(APP, **options)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("prot = 1", "unknown option 'prot'; did you mean 'port'"),
        ("port = 'x'", "port: expected a whole number"),
        ("port = ", "towline.toml: "),
    ],
)
def test_a_bad_file_is_named(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "towline.toml").write_text(text)
    with pytest.raises(ConfigError, match=message):
        run("--config", "towline.toml")
    with pytest.raises(ConfigError, match=r"cannot read absent\.toml"):
        run("--config", "absent.toml")


def test_a_bad_variable_is_named() -> None:
    with pytest.raises(ConfigError, match="WEB_CONCURRENCY: expected a whole number or auto, not 'many'"):
        run(WEB_CONCURRENCY="many")


def test_the_overview_and_each_group_fit_a_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert len(MANUAL.overview().splitlines()) <= 44
    for group in GROUPS:
        page = MANUAL.group(group)
        assert page is not None
        assert len(page.splitlines()) <= 24, group
        assert all(len(line) <= 80 for line in page.splitlines()), group


def test_the_groups_show_every_option() -> None:
    everything = MANUAL.group("all") or ""
    for name, (option, _) in options_of(ServerConfig).items():
        assert flags(name, option)[0].removeprefix("--") in everything


SERVICE = {
    "TOWLINE_SERVICE_HOST": "10.43.1.2",
    "TOWLINE_SERVICE_PORT": "80",
    "TOWLINE_SERVICE_PORT_HTTP": "80",
    "TOWLINE_PORT": "tcp://10.43.1.2:80",
    "TOWLINE_PORT_80_TCP": "tcp://10.43.1.2:80",
    "TOWLINE_PORT_80_TCP_PROTO": "tcp",
    "TOWLINE_PORT_80_TCP_PORT": "80",
    "TOWLINE_PORT_80_TCP_ADDR": "10.43.1.2",
    "TOWLINE_STATE_SERVICE_HOST": "10.43.1.3",
    "TOWLINE_STATE_PORT": "udp://10.43.1.3:53",
    "TOWLINE_STATE_PORT_53_UDP_ADDR": "10.43.1.3",
}


@pytest.mark.usefixtures("in_tmp_path")
@pytest.mark.parametrize(("arguments", "port"), [([], 8000), (["--port", "9000"], 9000)])
def test_variables_of_a_kubernetes_service_of_our_name(
    arguments: list[str], port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    for prefix in ("TOWLINE", "UVICORN", "GRANIAN"):
        environment = {name.replace("TOWLINE", prefix, 1): value for name, value in SERVICE.items()}
        assert configure([APP, *arguments], environment).port == port
        (notice,) = capsys.readouterr().err.splitlines()
        assert notice.startswith(
            f"towline serve: {prefix}_PORT=tcp://10.43.1.2:80 is ignored: Kubernetes sets it"
        )


@pytest.mark.usefixtures("in_tmp_path")
def test_overridden_values_are_not_checked() -> None:
    bad = {"TOWLINE_PORT": "http", "TOWLINE_WORKERS": "many"}
    Path("towline.toml").write_text("port = 'http'\nworkers = 'many'\nthreads = 2\n")
    for source, environment in ([], bad), (["--config", "towline.toml"], {}):
        for address in (["--port", "9000"], ["--bind", "127.0.0.1:9000"], ["--uds", "a"], ["--fd", "3"]):
            config = configure([APP, *source, *address, "--workers", "2"], environment)
            assert config.workers == 2
        with pytest.raises(ConfigError, match=r"(?i)port: expected"):
            configure([APP, *source, "--workers", "2"], environment)
        with pytest.raises(ConfigError, match=r"(?i)workers: expected"):
            configure([APP, *source, "--port", "9000"], environment)
