"""Limits before the application: requests of each client by rate, and connections. Over every version of HTTP."""

from __future__ import annotations

import contextlib
import logging
import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from towline.config import ServerConfig
from towline.errors import ConfigError
from towline.testing import Running

from tests.support.feature_server import KINDS, Response, every_kind, fetch, parse, samples, serving
from tests.support.http2_apps import APPS
from tests.support.http2_client import Client as Http2Client
from tests.support.http2_client import open_websocket
from tests.support.http3.client import Client as Http3Client
from tests.support.http3.connected import Certificates, connected
from tests.support.http3.connected import serving as serving_http3
from tests.support.waiting import until
from tests.support.websocket_server import Raw, echo

TEXT = b"Too Many Requests"
PROXY = "PROXY TCP4 {} 198.51.100.7 5555 80\r\n"


@pytest.fixture(params=[*KINDS, "wsgi-4-threads"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@contextlib.contextmanager
def limited(kind: str, app: Any = None, **options: Any) -> Iterator[Running]:
    """A server with a burst of 2 that the rate hardly gives back, and metrics."""
    threads = {"threads": 4} if kind == "wsgi-4-threads" else {}
    options = {"limit_rate": "1/h", "limit_rate_burst": 2, "metrics": True} | threads | options
    with serving("wsgi-threads" if threads else kind, app, **options) as server:
        yield server


def statuses(server: Running, target: str, *fields: str, count: int = 3, **more: Any) -> list[int]:
    return [fetch(server, target, *fields, **more).status for _ in range(count)]


def refused(server: Running, reason: str) -> float:
    page = samples(fetch(server, "/metrics").body.decode())
    return page.get(f'towline_refused_total{{reason="{reason}"}}', 0)


def fetch_from(address: str, server: Running, target: str = "/x") -> Response:
    with socket.create_connection((server.host, server.port), 10, (address, 0)) as client:
        client.sendall(f"GET {target} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n".encode())
        received = b""
        while part := client.recv(65536):
            received += part
    return parse(received)


def test_a_refusal_says_when_to_come_back(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger("towline").propagate = True
    with limited(kind) as server:
        assert statuses(server, "/a", count=2) == [200, 200]
        response = fetch(server, "/a?secret=1")
        assert (response.status, response.body) == (429, TEXT)
        wait = int(response.field("retry-after") or 0)
        assert 3590 <= wait <= 3600
        assert response.field("ratelimit-policy") == '"default";q=1;w=3600'
        assert response.field("ratelimit") == f'"default";r=0;t={wait}'
        assert response.field("date")
        assert response.field("server") == "towline"
        head = fetch(server, "/a", method="HEAD")
        assert (head.status, head.body, head.field("content-length")) == (429, b"", "17")
        assert refused(server, "rate_limit") == 2
        until(lambda: "refused with 429: more requests than --limit-rate (rate_limit), GET /a" in caplog.text)


def test_a_kept_connection_gets_whole_refusals_one_after_the_other(kind: str) -> None:
    with limited(kind) as server, socket.create_connection((server.host, server.port), timeout=10) as client:
        one = b"GET /x HTTP/1.1\r\nHost: a\r\n\r\n"
        client.sendall(one * 12 + b"HEAD /x HTTP/1.1\r\nHost: a\r\n\r\n" + one.replace(b"1.1\r", b"1.0\r"))
        data = b""
        while part := client.recv(65536):
            data += part
        parts = data.split(b"HTTP/1.1 ")[1:]
        assert [part[:3] for part in parts] == [b"200"] * 2 + [b"429"] * 12
        assert [part.endswith(TEXT) for part in parts[2:]] == [True] * 10 + [False, True]
        assert parts[-1].count(b"connection: close") == 1
        assert {part.count(b"\r\ndate: ") for part in parts} == {1}


def test_a_refused_upload_leaves_the_connection_usable(kind: str) -> None:
    with limited(kind, limit_rate_exempt=("/free",)) as server:
        assert statuses(server, "/x", count=2) == [200, 200]
        with socket.create_connection((server.host, server.port), timeout=10) as client:
            body = b"x" * 20_000
            client.sendall(b"POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            client.sendall(b"GET /free HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
            data = b""
            while part := client.recv(65536):
                data += part
        assert [part[:3] for part in data.split(b"HTTP/1.1 ")[1:]] == [b"429", b"200"]


def test_paths_that_do_not_count(kind: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("text")
    options = {
        "limit_rate_exempt": ("/free",),
        "health_path": "/health",
        "static": (("/static", str(tmp_path)),),
    }
    with limited(kind, **options) as server:
        for path in ("/free", "/free/below?a=1", "/health", "/health/live", "/metrics"):
            assert statuses(server, path, count=4) == [200] * 4, path
        assert statuses(server, "/static/file") == [200, 200, 429], "files count"
        for path in ("/freedom", "/free/../x", "/free/%2e%2e/x"):
            assert fetch(server, path).status == 429, path


def test_the_client_is_the_forwarded_one_of_a_trusted_proxy(kind: str) -> None:
    with limited(kind) as server:
        forwarded = "X-Forwarded-For: {}".format
        assert statuses(server, "/x", forwarded("192.0.2.1")) == [200, 200, 429]
        assert statuses(server, "/x", forwarded("192.0.2.2")) == [200, 200, 429]
        # An entry left of the proxy's own entry may be forged.
        assert fetch(server, "/x", forwarded("203.0.113.9, 192.0.2.1")).status == 429
        # A subscriber has a /64.
        assert statuses(server, "/x", forwarded("2001:db8::1"), count=2) == [200, 200]
        assert fetch(server, "/x", forwarded("2001:db8::ffff:0:0:9")).status == 429
        assert fetch(server, "/x", forwarded("2001:db8:0:1::1")).status == 200
        # Without a header it is the proxy.
        assert statuses(server, "/x") == [200, 200, 429]


def test_a_peer_that_is_not_trusted_cannot_choose_its_address(kind: str) -> None:
    with limited(kind, forwarded_allow_ips=("10.0.0.0/8",)) as server:
        found = [fetch(server, "/x", f"X-Forwarded-For: 192.0.2.{n}").status for n in range(4)]
        assert found == [200, 200, 429, 429]
        assert fetch_from("127.0.0.2", server).status == 200, "another address"


def test_a_header_tells_clients_apart(kind: str) -> None:
    with limited(kind, limit_rate_key="header:X-Api-Key") as server:
        assert statuses(server, "/x", "x-api-key: one") == [200, 200, 429]
        assert statuses(server, "/x", "X-API-Key: two") == [200, 200, 429]
        assert statuses(server, "/x") == [200, 200, 429], "the address, without the header"


def test_peers_on_a_unix_socket_are_one_client(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "socket"

    def ask(*fields: str) -> int:
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
            lines = "".join(f"{field}\r\n" for field in fields)
            client.sendall(f"GET /x HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{lines}\r\n".encode())
            received = b""
            while part := client.recv(65536):
                received += part
            return parse(received).status

    with limited(kind, bind=(f"unix:{path}",)):
        assert [ask() for _ in range(3)] == [200, 200, 429]
        assert ask("X-Forwarded-For: 192.0.2.1") == 200


def test_the_rate_gives_requests_back(kind: str) -> None:
    with limited(kind, limit_rate="20/s", limit_rate_burst=3) as server:
        began = time.monotonic()
        admitted = 0
        while time.monotonic() < began + 1:
            admitted += fetch(server, "/x").status == 200
        elapsed = time.monotonic() - began
        assert admitted <= 3 + 20 * elapsed
        assert admitted >= 12


def test_streams_of_http2_count_each(kind: str) -> None:
    with limited(kind) as server, Http2Client((server.host, server.port)) as client:
        streams = [client.begin("GET", "/x") for _ in range(5)]
        found = sorted(int(exchange.status or 0) for exchange in client.finish(*streams))
        assert found == [200, 200, 429, 429, 429]
        refusal = client.fetch(path="/x")
        assert (refusal.status, refusal.body) == (429, TEXT)
        assert refusal.fields["ratelimit-policy"] == '"default";q=1;w=3600'
        upload = client.fetch("POST", "/x", b"x" * 100_000)
        assert upload.status == 429


@every_kind
def test_streams_of_http3_count_each(kind: str, tmp_path: Path) -> None:
    options = {"limit_rate": "1/h", "limit_rate_burst": 2}
    with connected(kind, APPS[kind], tmp_path, **options) as client:
        streams = client.begin_many(5, path="/version")
        found = sorted(int(exchange.status or 0) for exchange in client.finish(*streams))
        assert found == [200, 200, 429, 429, 429]
        assert client.fetch(path="/version").body == TEXT


def test_a_websocket_handshake_counts() -> None:
    with limited("asgi", echo) as server:
        for status in (101, 101, 429):
            with Raw(server) as client:
                assert client.status == status
        with Http2Client((server.host, server.port)) as client:
            stream = open_websocket(client)
            assert client.until(lambda: client.exchanges[stream].status) == 429


def test_the_access_log_has_refusals(kind: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    options = {"access_log": str(log), "access_log_format": "%(h)s %(U)s %(s)s %(B)s %({ratelimit-policy}o)s"}
    with limited(kind, **options) as server:
        assert statuses(server, "/x", "X-Forwarded-For: 192.0.2.1", count=4) == [200, 200, 429, 429]
    assert log.read_text().splitlines()[2:] == ['192.0.2.1 /x 429 17 \\"default\\";q=1;w=3600'] * 2


def test_a_connection_over_the_limit(kind: str) -> None:
    options = {"limit_rate": None, "limit_rate_burst": None, "limit_connections": 2}
    with limited(kind, **options) as server, contextlib.ExitStack() as stack:
        address = (server.host, server.port)
        held = [stack.enter_context(socket.create_connection(address, timeout=10)) for _ in range(2)]
        for client in held:
            client.sendall(b"GET /a HTTP/1.1\r\nHost: a\r\n\r\n")
            assert client.recv(65536).startswith(b"HTTP/1.1 200")
        for _ in range(3):
            with socket.create_connection(address, timeout=10) as over:
                assert parse(over.recv(65536)).status == 503
                assert over.recv(10) == b""
        held[0].close()
        # The page needs a connection as well.
        until(lambda: refused(server, "connection_limit") >= 3)


def test_connections_of_each_client(kind: str) -> None:
    options = {"limit_rate": None, "limit_rate_burst": None, "limit_connections_per_client": 2}
    with limited(kind, **options) as server, contextlib.ExitStack() as stack:
        address = (server.host, server.port)

        def hold(source: str) -> bytes:
            client = stack.enter_context(socket.create_connection(address, 10, (source, 0)))
            client.sendall(b"GET /a HTTP/1.1\r\nHost: a\r\n\r\n")
            return client.recv(65536)[9:12]

        assert [hold("127.0.0.2") for _ in range(3)] == [b"200", b"200", b"503"]
        assert [hold("127.0.0.3") for _ in range(2)] == [b"200", b"200"]
        # 127.0.0.1 is a trusted proxy.
        assert [hold("127.0.0.1") for _ in range(4)] == [b"200"] * 4
        assert refused(server, "client_connection_limit") == 1


def test_a_client_behind_the_proxy_protocol(kind: str) -> None:
    options = {"limit_rate": None, "limit_rate_burst": None, "limit_connections_per_client": 1}
    with limited(kind, proxy_protocol=True, **options) as server, contextlib.ExitStack() as stack:

        def hold(source: str) -> bytes:
            address = (server.host, server.port)
            client = stack.enter_context(socket.create_connection(address, timeout=10))
            client.sendall(PROXY.format(source).encode() + b"GET /a HTTP/1.1\r\nHost: a\r\n\r\n")
            try:
                return client.recv(65536)[9:12]
            except ConnectionResetError:
                return b""

        assert [hold(f"192.0.2.{n}") for n in (1, 2, 1, 2, 3)] == [b"200", b"200", b"", b"", b"200"]
        stack.close()

        def is_free() -> bool:
            with stack:
                return hold("192.0.2.1") == b"200"

        until(is_free)


def test_a_connection_with_tls_is_closed_before_the_handshake(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)
    with serving("asgi", limit_connections=1, ssl_certfile=str(certificates.chain)) as server:
        context = ssl.create_default_context(cafile=str(certificates.ca))
        context.set_alpn_protocols(["h2"])
        with Http2Client((server.host, server.port), tls=context) as client:
            assert client.fetch(path="/a").status == 200
            with socket.create_connection((server.host, server.port), timeout=10) as over:
                assert over.recv(10) == b""


@every_kind
def test_connections_of_quic(kind: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"limit_connections_per_client": 2, "forwarded_allow_ips": ("unix",)}
    with serving_http3(kind, APPS[kind], tmp_path, **options) as (server, certificates):
        address, ca = (server.host, server.port), str(certificates.ca)
        with Http3Client(address, ca=ca) as one:
            with Http3Client(address, ca=ca) as two:
                assert one.fetch(path="/version").status == two.fetch(path="/version").status == 200
                with pytest.raises(ConnectionError), Http3Client(address, ca=ca):
                    pass

            def admitted() -> bool:
                try:
                    with Http3Client(address, ca=ca) as third:
                        return third.fetch(path="/version").status == 200
                except ConnectionError:
                    return False

            until(admitted)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"limit_rate": "100"}, "limit_rate: expected a rate such as 100/s, 600/m or 5000/h"),
        ({"limit_rate": "0/s"}, "limit_rate: expected a rate"),
        ({"limit_rate": "50001/s"}, "up to 50000/s"),
        ({"limit_rate": "1.5/s"}, "limit_rate: expected a rate"),
        (
            {"limit_rate": "1/h", "limit_rate_burst": 73},
            "limit_rate_burst: 1/h gives 73 requests back in more than",
        ),
        ({"limit_rate_burst": 5}, "limit_rate_burst: needs limit_rate"),
        ({"limit_rate_key": "header:a"}, "limit_rate_key: needs limit_rate"),
        ({"limit_rate": "1/s", "limit_rate_key": "cookie"}, "expected address or header:NAME, not 'cookie'"),
        ({"limit_rate": "1/s", "limit_rate_key": "header:a b"}, "expected address or header:NAME"),
        ({"limit_rate": "1/s", "limit_rate_exempt": ("free",)}, "limit_rate_exempt: must start with /"),
        (
            {"limit_rate": "1/s", "http3": True, "ssl_certfile": ("a.pem",), "http3_early_data": True},
            "limit_rate: with http3_early_data",
        ),
        ({"limit_connections": 0}, "limit_connections: must be a number of at least 1"),
        ({"limit_connections_per_client": 10_001}, "must be a number of at most 10000"),
    ],
)
def test_a_wrong_option_names_its_rule(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ServerConfig("a:b", **options)


@pytest.mark.parametrize("text", ["50000/s", "100r/s", "10r/m", "72/h"])
def test_rates(text: str) -> None:
    config = ServerConfig("a:b", limit_rate=text)
    assert config.rate is not None
    assert config.rate[2] == config.rate[0], "the burst is what the rate gives in its unit"
