"""Proxy fields over real sockets: believed from trusted addresses only."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from towline.config import ServerConfig
from towline.errors import ConfigError
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from tests.support.every_version import described_by, every_version_and_kind, fetching
from tests.support.feature_server import KINDS, every_kind, fetch, serving
from tests.support.websocket_server import connect_to


@every_kind
def test_a_trusted_proxy_names_client_and_scheme(kind: str) -> None:
    with serving(kind, forwarded_allow_ips=("127.0.0.1",)) as server:
        response = fetch(server, "/client", "X-Forwarded-For: 6.6.6.6, 192.0.2.9", "X-Forwarded-Proto: https")
        assert response.body == b"https 192.0.2.9 0"
        assert fetch(server, "/client", "X-Forwarded-For: 192.0.2.9:77").body == b"http 192.0.2.9 77"


@every_kind
def test_nobody_else_is_believed(kind: str) -> None:
    fields = ("X-Forwarded-For: 192.0.2.9", "X-Forwarded-Proto: https")
    with serving(kind, forwarded_allow_ips=("10.0.0.0/8",)) as server:
        assert fetch(server, "/client", *fields).body.startswith(b"http 127.0.0.1 ")
    with serving(kind, proxy_headers=False) as server:
        assert fetch(server, "/client", *fields).body.startswith(b"http 127.0.0.1 ")


@pytest.mark.parametrize("value", ["unknown", "1.2.3", "", "192.0.2.9, junk"])
def test_nonsense_is_no_address(value: str) -> None:
    with serving("asgi") as server:
        assert fetch(server, "/client", f"X-Forwarded-For: {value}").body.startswith(b"http 127.0.0.1 ")


def test_other_fields_change_nothing() -> None:
    with serving("asgi") as server:
        response = fetch(server, "/client", "Forwarded: for=192.0.2.9;proto=https", "X-Forwarded-Host: evil")
        assert response.body.startswith(b"http 127.0.0.1 ")


PROXY = ("X-Forwarded-For", "192.0.2.9")
PUBLIC = (
    PROXY,
    ("X-Forwarded-Proto", "https"),
    ("X-Forwarded-Host", "evil.example, shop.example"),
    ("X-Forwarded-Port", "8443"),
    ("X-Forwarded-Prefix", "/evil"),
    ("X-Forwarded-Prefix", "/api/"),
)


@every_version_and_kind
def test_host_port_and_prefix_of_the_proxy(version: str, kind: str, tmp_path: Path) -> None:
    headers = ("x-forwarded", "host", "port", "prefix")
    app = described_by(kind)
    with fetching(version, kind, app, tmp_path, forwarded_headers=headers, root_path="/own") as get:
        public = json.loads(get("GET", "/a%20b?c", headers=PUBLIC).body)
        plain = json.loads(get("GET", "/", headers=(PROXY,)).body)
        at_root = json.loads(get("GET", "/", headers=(("X-Forwarded-Prefix", "/"),)).body)
    assert public == {
        "scheme": "https",
        "client": "192.0.2.9",
        "server": ["shop.example", 8443],
        "hosts": ["shop.example:8443"],
        "root_path": "/api",
        "path": "/api/a b",
        "queue_time": None,
    }
    assert plain["root_path"] == "/own"
    assert plain["server"][0] == "127.0.0.1"
    assert plain["client"] == "192.0.2.9"
    assert "example" not in plain["hosts"][0]
    assert (at_root["root_path"], at_root["path"]) == ("", "/")


@every_version_and_kind
def test_forwarded_of_rfc_7239(version: str, kind: str, tmp_path: Path) -> None:
    value = 'for=6.6.6.6;host=evil, for="[2001:db8::7]:99";by=_lb;proto=https;host="shop.example:444"'
    fields = (("Forwarded", value), *PUBLIC)
    app = described_by(kind)
    with fetching(version, kind, app, tmp_path, forwarded_headers=("forwarded", "host")) as get:
        described = json.loads(get("GET", "/", headers=fields).body)
    assert described["client"] == "2001:db8::7"
    assert described["scheme"] == "https"
    assert described["server"] == ["shop.example", 444]
    assert described["hosts"] == ["shop.example:444"]
    assert described["root_path"] == ""
    with fetching(version, kind, app, tmp_path, forwarded_headers=("forwarded",)) as get:
        described = json.loads(get("GET", "/", headers=fields).body)
    assert described["client"] == "2001:db8::7"
    assert described["server"][0] == "127.0.0.1"
    assert "example" not in described["hosts"][0]


@every_kind
@pytest.mark.parametrize(
    "options",
    [
        {"forwarded_headers": ("none",)},
        {"forwarded_headers": ("x-forwarded",)},
        {"forwarded_headers": ("x-forwarded", "host", "port", "prefix"), "proxy_headers": False},
        {
            "forwarded_headers": ("x-forwarded", "host", "port", "prefix"),
            "forwarded_allow_ips": ("10.0.0.1",),
        },
        {"forwarded_headers": ("forwarded", "host"), "forwarded_allow_ips": ("10.0.0.1",)},
    ],
)
def test_a_url_is_believed_only_if_it_was_asked_for(kind: str, options: Any, tmp_path: Path) -> None:
    fields = (*PUBLIC, ("Forwarded", "for=6.6.6.6;proto=https;host=evil"))
    with fetching("1.1", kind, described_by(kind), tmp_path, **options) as get:
        described = json.loads(get("GET", "/", headers=fields).body)
    assert described["hosts"] == ["test"]
    assert described["server"][0] == "127.0.0.1"
    assert described["root_path"] == ""
    assert described["path"] == "/"
    if options != {"forwarded_headers": ("x-forwarded",)}:
        assert described["client"] == "127.0.0.1"
        assert described["scheme"] == "http"


@pytest.mark.parametrize("version", ["1.1", "2"])
def test_a_websocket_has_the_url_of_the_proxy(version: str) -> None:
    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope)
        await receive()
        await send({"type": "websocket.accept"})
        await send({"type": "websocket.close"})

    headers = ("x-forwarded", "host", "port", "prefix")
    with serving("asgi", app, forwarded_headers=headers) as server:
        sock = connect_to(server, version)
        with connect(f"ws://test:{server.port}/chat", sock=sock, additional_headers=PUBLIC) as client:
            with pytest.raises(ConnectionClosed):
                client.recv()
    (scope,) = seen
    hosts = [value for name, value in scope["headers"] if name == b"host"]
    assert hosts == [b"shop.example:8443"]
    assert scope["server"] == ("shop.example", 8443)
    assert (scope["scheme"], scope["root_path"], scope["path"]) == ("wss", "/api", "/api/chat")


def test_the_access_log_has_the_host_that_was_received(tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    options = {"access_log": str(log), "access_log_format": "%(h)s %({host}i)s %(U)s"}
    for kind in KINDS:
        with serving(kind, forwarded_headers=("x-forwarded", "host", "prefix"), **options) as server:
            fetch(server, "/client", *(f"{name}: {value}" for name, value in PUBLIC))
    assert log.read_text().splitlines() == ["192.0.2.9 test /client"] * len(KINDS)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("host", "expected one of x-forwarded, forwarded, none, not 'host'"),
        ("x-forwarded,forwarded", "expected one of"),
        ("x-forwarded,hosts", "unknown word 'hosts'"),
        ("none,host", "none reads no header, so it cannot have host"),
        ("forwarded,prefix", "Forwarded has no port or prefix of its own"),
    ],
)
def test_a_list_of_headers_names_one_kind(words: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ServerConfig("app:app", forwarded_headers=tuple(words.split(",")))
