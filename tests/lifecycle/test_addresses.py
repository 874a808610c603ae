"""Addresses with settings of their own in one server: plain, TLS, Unix; redirects to TLS and HSTS."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import signal
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from tests.support import http2_client
from tests.support.exchange import Exchange
from tests.support.feature_server import Response, parse
from tests.support.http3 import client as http3_client
from tests.support.process import Program, eventually, running

ROOT = Path(__file__).parents[2]
KINDS = {
    "asgi": ["asgi_app"],
    "wsgi": ["wsgi_app"],
    "wsgi-threads": ["wsgi_app", "--threads", "2"],
}
every_kind = pytest.mark.parametrize("kind", KINDS)
HSTS = "max-age=31536000; includeSubDomains"
FORWARDED = {"x-forwarded-for": "192.0.2.7", "x-forwarded-proto": "https"}


@dataclasses.dataclass
class Site:
    """A server with several addresses, in the order of their `--bind`."""

    program: Program
    ca: Path

    @property
    def ports(self) -> list[int]:
        line = next(line for line in self.program.lines if " on http" in line or " on unix" in line)
        return [int(port) for port in re.findall(r"https?://127\.0\.0\.1:(\d+)", line)]

    def tls(self, *alpn: str) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self.ca))
        context.set_alpn_protocols(list(alpn))
        return context

    def fetch(self, port: int, target: str = "/client", *, tls: bool = False, **more: str) -> Response:
        """A request over HTTP/1.1. `more`: method, host, or other fields."""
        with socket.create_connection(("127.0.0.1", port), timeout=20) as sock:
            if tls:
                sock = self.tls("http/1.1").wrap_socket(sock, server_hostname="127.0.0.1")
            return exchange(sock, target, **more)

    def certificate(self, port: int, *alpn: str) -> tuple[str, str | None]:
        """Organisation of the certificate, and the protocol that ALPN has selected."""
        with (
            socket.create_connection(("127.0.0.1", port), timeout=20) as sock,
            self.tls(*alpn).wrap_socket(sock, server_hostname="127.0.0.1") as secured,
        ):
            subject = dict(pair[0] for pair in secured.getpeercert()["subject"])  # type: ignore[index,misc]
            return subject["organizationName"], secured.selected_alpn_protocol()

    def reload(self) -> None:
        before = set(self.program.children())
        self.program.signal(signal.SIGHUP)
        eventually(lambda: not before & set(self.program.children()), "the old workers' end")


def exchange(
    sock: socket.socket, target: str, method: str = "GET", host: str = "test", **fields: str
) -> Response:
    head = f"{method} {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n"
    head += "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in fields.items())
    sock.sendall(head.encode("latin-1") + b"\r\n")
    received = b""
    while part := sock.recv(65536):
        received += part
    return parse(received)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("addresses")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(folder / "ca.pem")
    for name in ("one", "two"):
        certificate = authority.issue_cert("127.0.0.1", organization_name=name)
        certificate.private_key_and_cert_chain_pem.write_to_path(folder / f"{name}.pem")
    (folder / "static").mkdir()
    (folder / "static" / "a.txt").write_text("file")
    return folder


@contextlib.contextmanager
def serving(folder: Path, kind: str, *options: str) -> Iterator[Site]:
    app, *more = KINDS[kind]
    fixed = ["--lifespan=off", "--app-dir", str(ROOT), "--timeout-drain-idle=0.1"]
    with running(f"tests.support.feature_server:{app}", *more, *fixed, *options, cwd=folder) as program:
        yield Site(program, folder / "ca.pem")


def over_h2(site: Site, port: int, tls: bool = True) -> Exchange:
    context = site.tls("h2") if tls else None
    with http2_client.Client(("127.0.0.1", port), tls=context) as client:
        return client.fetch(path="/client")


def check_settings(site: Site, socket_path: Path) -> None:
    plain, first, second = site.ports
    # The plain address trusts the proxy on this machine; the others trust none, or others.
    assert site.fetch(plain, **FORWARDED).body == b"https 192.0.2.7 0"
    assert site.fetch(first, tls=True, **FORWARDED).body.startswith(b"https 127.0.0.1 ")
    assert site.certificate(first, "h2", "http/1.1") == ("one", "http/1.1")
    assert site.certificate(second, "h2", "http/1.1") == ("two", "h2")
    assert site.fetch(first, tls=True).field("alt-svc") is None
    assert site.fetch(plain).field("alt-svc") is None
    announced = site.fetch(second, tls=True).field("alt-svc")
    assert announced is not None
    assert announced.startswith(f'h3=":{second}";')
    assert over_h2(site, plain, tls=False).body.startswith(b"http ")
    answered = over_h2(site, second)
    assert answered.body.startswith(b"https ")
    assert answered.fields.get("alt-svc") == announced
    with http3_client.Client(("127.0.0.1", second), ca=str(site.ca)) as client:
        response = client.fetch("GET", "/client")
        assert response.body.startswith(b"https ")
        assert response.fields.get("alt-svc") is None
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(20)
        sock.connect(str(socket_path))
        sock.sendall(b"PROXY TCP4 192.0.2.9 192.0.2.1 5555 80\r\n")
        assert exchange(sock, "/client").body == b"http 192.0.2.9 5555"


@every_kind
@pytest.mark.parametrize("workers", [1, 2])
def test_each_address_has_its_settings(folder: Path, kind: str, workers: int) -> None:
    socket_path = folder / f"{kind}-{workers}.sock"
    binds = [
        "http://127.0.0.1:0",
        "127.0.0.1:0?certfile=one.pem&http=1&forwarded_allow_ips=10.0.0.0/8",
        "https://127.0.0.1:0?http=1,2,3",
        f"unix:{socket_path}?tls=off&proxy_protocol",
    ]
    options = [f"--bind={bind}" for bind in binds]
    with serving(folder, kind, *options, "--ssl-certfile=two.pem", f"--workers={workers}") as site:
        start = next(line for line in site.program.lines if " on http" in line)
        assert ", HTTP/3" in start
        assert f"unix:{socket_path}" in start
        check_settings(site, socket_path)
        site.reload()
        check_settings(site, socket_path)


def test_http3_can_have_an_address_of_its_own(folder: Path) -> None:
    """As hypercorn's --quic-bind: TCP and UDP of one port."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    options = [f"--bind=127.0.0.1:{port}", f"--quic-bind=127.0.0.1:{port}", "--insecure-bind=127.0.0.1:0"]
    with serving(folder, "asgi", "--ssl-certfile=two.pem", *options) as site:
        tls, plain = site.ports
        assert tls == port
        assert site.fetch(plain).body.startswith(b"http ")
        announced = site.fetch(port, tls=True).field("alt-svc")
        assert announced is not None
        assert announced.startswith(f'h3=":{port}";')
        with http3_client.Client(("127.0.0.1", port), ca=str(site.ca)) as client:
            assert client.fetch("GET", "/client").status == 200


def test_the_expiry_in_the_metrics_is_the_first_of_all_addresses(folder: Path) -> None:
    binds = ["--bind=http://127.0.0.1:0", "--bind=https://127.0.0.1:0?certfile=one.pem"]
    with serving(folder, "asgi", *binds, "--metrics") as site:
        page = site.fetch(site.ports[0], "/metrics").body.decode()
        found = re.search(r"^towline_tls_certificate_expiry_timestamp_seconds\S* (\S+)", page, re.MULTILINE)
        assert found is not None
        assert float(found[1]) > 1.7e9


@pytest.fixture(scope="module", params=KINDS)
def redirecting(folder: Path, request: pytest.FixtureRequest) -> Iterator[Site]:
    kind = request.param
    binds = ["http://127.0.0.1:0", "https://127.0.0.1:0?certfile=one.pem&http=1,2,3"]
    options = [f"--bind={bind}" for bind in [*binds, f"unix:{folder}/{kind}.sock"]]
    options += ["--redirect-https", "--hsts=31536000; includeSubDomains", "--health-path=/up", "--metrics"]
    with serving(folder, kind, *options, "--static=/static=static") as site:
        yield site


def test_a_plain_address_redirects(redirecting: Site) -> None:
    plain, tls = redirecting.ports
    for method in ("GET", "HEAD", "POST", "PUT", "OPTIONS"):
        response = redirecting.fetch(plain, "/a?b=1", method=method, host="example.org:8080")
        assert response.status == (301 if method in ("GET", "HEAD") else 308)
        assert response.field("location") == f"https://example.org:{tls}/a?b=1"
        assert response.field("strict-transport-security") is None
    # Static files, WebSockets and absolute targets are redirected as well.
    upgrade = {"upgrade": "websocket", "sec_websocket_version": "13", "sec_websocket_key": "A" * 22 + "=="}
    for target, fields in (("/static/a.txt", {}), ("/", upgrade), ("http://test/static/a.txt", {})):
        response = redirecting.fetch(plain, target, **fields)
        assert (response.status, response.field("location")) == (
            301,
            f"https://test:{tls}{target.removeprefix('http://test')}",
        )


def test_health_checks_metrics_and_challenges_are_not_redirected(redirecting: Site, folder: Path) -> None:
    plain, _ = redirecting.ports
    assert redirecting.fetch(plain, "/up").body == b"ok"
    assert redirecting.fetch(plain, "/up/live").body == b"ok"
    assert b"towline_" in redirecting.fetch(plain, "/metrics").body
    challenge = "/.well-known/acme-challenge/token"
    assert redirecting.fetch(plain, challenge).body == challenge.encode()
    # A trusted proxy has received this request over TLS.
    assert redirecting.fetch(plain, **FORWARDED).body == b"https 192.0.2.7 0"
    for path in folder.glob("*.sock"):
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(20)
            with contextlib.suppress(ConnectionRefusedError):
                sock.connect(str(path))
                assert exchange(sock, "/client").status == 200


@pytest.mark.parametrize(
    "host", ["", "a b", "evil.example/", "user@evil.example", "a:b", "[::1", "a?b", "\xe4"]
)
def test_a_host_that_is_none_gets_400(redirecting: Site, host: str) -> None:
    response = redirecting.fetch(redirecting.ports[0], host=host)
    assert (response.status, response.field("location")) == (400, None)


def test_a_target_without_a_path_gets_no_redirect(redirecting: Site) -> None:
    plain, _ = redirecting.ports
    assert redirecting.fetch(plain, "*", method="OPTIONS").status == 400
    assert (
        redirecting.fetch(plain, "evil.example:443", method="CONNECT", host="evil.example:443").status == 501
    )
    with socket.create_connection(("127.0.0.1", plain), timeout=20) as sock:
        sock.sendall(b"GET / HTTP/1.0\r\n\r\n")
        assert sock.recv(65536).startswith(b"HTTP/1.1 400 ")


def test_http2_without_tls_is_redirected(redirecting: Site) -> None:
    plain, tls = redirecting.ports
    with http2_client.Client(("127.0.0.1", plain)) as client:
        found = client.fetch("POST", "/a", b"body", [("x-a", "b")])
        assert (found.status, found.fields.get("strict-transport-security")) == (308, None)
        authority = found.fields.get("location") or ""
        assert re.fullmatch(rf"https://[^/]+:{tls}/a", authority)
        if client.conn.remote_settings.get(8):
            stream = http2_client.open_websocket(client, "/chat")
            opened = client.exchanges[stream]
            assert (opened.status, opened.fields.get("location")) == (308, f"{authority[:-2]}/chat")


def test_hsts_is_sent_over_tls_only(redirecting: Site) -> None:
    plain, tls = redirecting.ports
    for target in ("/client", "/static/a.txt", "/static/none", "/up"):
        assert redirecting.fetch(tls, target, tls=True).field("strict-transport-security") == HSTS
    refused = redirecting.fetch(tls, "a:1", tls=True, method="CONNECT", host="a:1")
    assert (refused.status, refused.field("strict-transport-security")) == (501, HSTS)
    assert over_h2(redirecting, tls).fields.get("strict-transport-security") == HSTS
    with http3_client.Client(("127.0.0.1", tls), ca=str(redirecting.ca)) as client:
        for path in ("/client", "/static/a.txt"):
            assert client.fetch("GET", path).fields.get("strict-transport-security") == HSTS
    assert redirecting.fetch(plain, "/up").field("strict-transport-security") is None


OWN_HSTS = """
async def asgi(scope, receive, send):
    headers = [(b"content-length", b"0"), (b"Strict-Transport-Security", b"max-age=1")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body"})

def wsgi(environ, start_response):
    start_response("200 OK", [("Content-Length", "0"), ("Strict-Transport-Security", "max-age=1")])
    return []
"""


@pytest.mark.parametrize("app", ["asgi", "wsgi"])
def test_the_header_of_the_application_wins(folder: Path, app: str) -> None:
    (folder / "own_hsts.py").write_text(OWN_HSTS)
    options = ["--lifespan=off", "--ssl-certfile=one.pem", "--hsts=60"]
    with running(f"own_hsts:{app}", *options, cwd=folder) as program:
        site = Site(program, folder / "ca.pem")
        assert site.fetch(program.port, tls=True).field("strict-transport-security") == "max-age=1"


def test_the_port_of_a_redirect_can_be_given(folder: Path) -> None:
    """TLS ends elsewhere, or the port outside of a container is another."""
    with serving(folder, "asgi", "--bind=http://127.0.0.1:0", "--redirect-https=443") as site:
        assert site.fetch(site.ports[0], "/a").field("location") == "https://test/a"
