"""Keyword arguments of `towline.run`, as `uvicorn.run` takes them."""

from __future__ import annotations

import inspect
import ssl
from pathlib import Path
from typing import Any

import pytest
import towline
from towline._keywords import fields
from towline.config import ServerConfig
from towline.errors import ConfigError


@pytest.mark.parametrize(
    ("keywords", "expected"),
    [
        ({"port": 9000, "workers": 2}, {"port": 9000, "workers": 2}),
        ({"access_log": True}, {"access_log": "-"}),
        ({"access_log": False}, {"access_log": ""}),
        ({"compress": True}, {"compress": ("br", "zstd", "gzip")}),
        ({"http": "h11"}, {"http2": False}),
        ({"http": "auto"}, {}),
        ({"http1": False}, {"http1": False}),
        ({"ws": "none"}, {"ws": False}),
        ({"ws": "websockets"}, {"ws": True}),
        ({"ws": False}, {"ws": False}),
        ({"reload_dirs": ["a", "b"]}, {"reload_dir": ("a", "b")}),
        ({"reload_includes": None, "workers": None, "timeout_graceful_shutdown": None}, {}),
        (
            {"ws_ping_interval": None, "limit_concurrency": None},
            {"ws_ping_interval": None, "limit_concurrency": None},
        ),
        ({"headers": [("X-A", "b")]}, {"headers": ((b"X-A", b"b"),)}),
        ({"ssl_certfile": Path("cert.pem")}, {"ssl_certfile": "cert.pem"}),
        ({"ssl_version": 17}, {}),
        ({"use_colors": None}, {}),
        ({"use_colors": False}, {}),
        ({"log_level": "warn"}, {"log_level": "warning"}),
        ({"h11_max_incomplete_event_size": 9000}, {"limit_request_head": 9000}),
        ({"timeout": 90}, {"timeout_worker_healthcheck": 90.0}),
        ({"log_config": {"version": 1}}, {"log_config": {"version": 1}}),
        ({"port": "9000", "fd": "3", "workers": "2"}, {"port": 9000, "fd": 3, "workers": 2}),
        (
            {"limit_concurrency": "10", "timeout_keep_alive": "5"},
            {"limit_concurrency": 10, "timeout_keep_alive": 5.0},
        ),
        ({"log_level": 20}, {"log_level": "info"}),
        ({"log_level": 25}, {"log_level": "warning"}),
        ({"log_level": "INFO"}, {"log_level": "info"}),
        ({"ssl_cert_reqs": ssl.CERT_NONE}, {"ssl_cert_reqs": "none"}),
        ({"loop": "none"}, {"loop": "asyncio"}),
        (
            {"forwarded_allow_ips": "127.0.0.1,10.0.0.0/8"},
            {"forwarded_allow_ips": ("127.0.0.1", "10.0.0.0/8")},
        ),
        (
            {"reload_dirs": [Path("a")], "env_file": Path(".env")},
            {"reload_dir": ("a",), "env_file": ".env"},
        ),
    ],
)
def test_arguments_of_uvicorn(keywords: dict[str, Any], expected: dict[str, Any]) -> None:
    found = fields(keywords)
    assert found == expected
    ServerConfig("module:app", **found)


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"wrokers": 2}, "wrokers: there is no such option; did you mean workers?"),
        ({"port": "http"}, "port: expected a whole number, not 'http'"),
        ({"http": "all"}, "http: all: each version has a switch"),
        ({"limit_max_requests": -1}, "limit_max_requests: must be a number of at least 1"),
    ],
)
def test_refusals_name_the_argument(keywords: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        towline.run("module:app", **keywords)
    assert message in str(caught.value)


def test_what_is_ignored_is_warned_about() -> None:
    with pytest.warns(UserWarning, match="ignored: ") as caught:
        assert fields({"ws_max_queue": 16, "use_colors": True, "loop": "rloop"}) == {}
    assert [str(each.message).partition(": ")[0] for each in caught] == ["ws_max_queue", "use_colors", "loop"]


def test_every_argument_of_uvicorn_is_taken_or_refused_with_a_reason() -> None:
    uvicorn = pytest.importorskip("uvicorn")
    defaults = {
        name: parameter.default
        for name, parameter in inspect.signature(uvicorn.run).parameters.items()
        if name not in ("app", "log_config")
    }
    assert len(defaults) > 40
    for name, default in defaults.items():
        try:
            ServerConfig("module:app", **fields({name: default}))
        except ConfigError as error:
            assert "no such option" not in str(error), name
