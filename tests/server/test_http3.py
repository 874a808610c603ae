"""HTTP/3 from independent clients: what both interfaces must do alike, and as over HTTP/2."""

from __future__ import annotations

import contextlib
import re
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from towline import Client as OwnClient
from towline.config import ServerConfig
from towline.errors import ConfigError, TLSError

from tests.support.feature_server import every_kind
from tests.support.http2_apps import APPS, payload
from tests.support.http3.client import LIBRARIES, Client
from tests.support.http3.connected import connected, serving
from tests.support.multiplexed_checks import (
    check_body_limit,
    check_compression,
    check_failing_application,
    check_fields,
    check_files,
    check_head,
    check_header_limit,
    check_response_without_body,
    write_files,
)
from tests.support.waiting import until

VERSION = {"asgi": b"3 https", "wsgi": b"HTTP/3.0 https", "wsgi-threads": b"HTTP/3.0 https"}
NO_ERROR, INTERNAL_ERROR = 0x100, 0x102


@every_kind
@pytest.mark.parametrize("library", LIBRARIES)
def test_a_response_and_an_upload(kind: str, library: str, tmp_path: Path) -> None:
    with connected(kind, APPS[kind], tmp_path, library) as client:
        assert client.fetch(path="/version").body == VERSION[kind]
        response = client.fetch(path="/second")
        assert (response.status, response.body, response.fields["content-length"]) == (200, b"/second", "7")
        # The client is at HTTP/3 already.
        assert "alt-svc" not in response.fields
        body = payload(1_000_000)
        assert client.fetch("POST", "/echo", body).body == body


@every_kind
def test_beside_tcp_on_one_port(kind: str, tmp_path: Path) -> None:
    with serving(kind, APPS[kind], tmp_path, http1=True, http2=True) as (server, certificates):
        with OwnClient(verify=str(certificates.ca)) as over_tcp:
            response = over_tcp.get(f"https://127.0.0.1:{server.port}/version")
            assert response.headers["alt-svc"] == f'h3=":{server.port}"; ma=86400'
        with Client((server.host, server.port), ca=str(certificates.ca)) as client:
            assert client.fetch(path="/version").body == VERSION[kind]


@pytest.mark.parametrize(
    ("options", "value"),
    [
        ({"http3_alt_svc_max_age": 0}, None),
        ({"http3_alt_svc_max_age": 60, "http3_alt_svc_port": 443}, 'h3=":443"; ma=60'),
        ({"headers": ((b"alt-svc", b"clear"),)}, "clear"),
    ],
)
def test_alt_svc(options: dict[str, Any], value: str | None, tmp_path: Path) -> None:
    with serving("asgi", APPS["asgi"], tmp_path, http1=True, **options) as (
        server,
        certificates,
    ):
        with OwnClient(verify=str(certificates.ca)) as client:
            assert client.get(f"https://127.0.0.1:{server.port}/").headers.get("alt-svc") == value


def test_certificates_and_a_port_are_required() -> None:
    with pytest.raises(ConfigError, match="http3: needs ssl_certfile"):
        ServerConfig("app:app", http3=True, http1=False, http2=False)
    with pytest.raises(ConfigError, match="http3: needs an address with a port"):
        ServerConfig(
            "app:app", http3=True, http1=False, http2=False, ssl_certfile=("cert.pem",), uds="app.sock"
        )


@every_kind
def test_fields_both_ways(kind: str, tmp_path: Path) -> None:
    with connected(kind, APPS[kind], tmp_path) as client:
        check_fields(client, client.authority)


@every_kind
def test_many_streams_at_once(kind: str, tmp_path: Path) -> None:
    with connected(kind, APPS[kind], tmp_path) as client:
        for number in range(5):
            streams = client.begin_many(100, path=f"/{number}")
            assert [response.body for response in client.finish(*streams)] == [b"/%d" % number] * 100


@every_kind
def test_uploads_side_by_side(kind: str, tmp_path: Path) -> None:
    size = 400_000 if kind == "asgi" else 200_000
    bodies = [payload(size + number) for number in range(6)]
    with connected(kind, APPS[kind], tmp_path) as client:
        streams = [client.begin("POST", "/echo", end=False) for _ in bodies]
        for at in range(0, size, 50_000):
            for stream, body in zip(streams, bodies, strict=True):
                last = at + 50_000 >= size
                client.write(stream, body[at:] if last else body[at : at + 50_000], end=last)
        responses = client.finish(*streams)
    assert [response.body == body for response, body in zip(responses, bodies, strict=True)] == [True] * 6


@every_kind
def test_a_reader_without_credit_holds_what_its_window_allows(kind: str, tmp_path: Path) -> None:
    with connected(kind, APPS[kind], tmp_path) as client:
        client.withhold_credit()
        stream = client.begin("GET", "/pieces/1000")
        window = 1 << 20
        client.until(lambda: len(client.exchanges[stream].body) > window * 0.9)
        time.sleep(0.3)
        assert len(client.exchanges[stream].body) <= window


@every_kind
@pytest.mark.parametrize("path", ["/status/204", "/status/304"])
def test_answers_without_a_body(kind: str, path: str, tmp_path: Path) -> None:
    with connected(kind, APPS[kind], tmp_path) as client:
        check_response_without_body(client, path)


@every_kind
def test_head(kind: str, tmp_path: Path) -> None:
    # aioquic takes the length of the GET for that of the HEAD.
    with connected(kind, APPS[kind], tmp_path, "qh3") as client:
        check_head(client)


@every_kind
def test_files_side_by_side(kind: str, tmp_path: Path) -> None:
    with connected(kind, APPS[kind], tmp_path, static=write_files(tmp_path)) as client:
        check_files(client, tmp_path)


@every_kind
def test_an_application_that_fails(kind: str, tmp_path: Path) -> None:
    with connected(kind, APPS[kind], tmp_path) as client:
        check_failing_application(client, INTERNAL_ERROR)


@every_kind
def test_an_unread_upload_that_stands_still_is_stopped_after_the_answer(kind: str, tmp_path: Path) -> None:
    options = {"wsgi_request_buffer": 0, "timeout_request_body": 1}
    with connected(kind, APPS[kind], tmp_path, **options) as client:
        stream = client.begin("POST", "/ignored", end=False)
        client.write(stream, payload(100_000))
        response = client.finish(stream)[0]
        assert (response.status, response.body) == (200, b"/ignored")
        client.until(lambda: client.exchanges[stream].stopped is not None)
        assert client.exchanges[stream].stopped == NO_ERROR
        assert client.fetch(path="/after").body == b"/after"


@every_kind
@pytest.mark.parametrize("path", ["/sleep/0.3", "/pieces/1000", "/echo", "/cut"])
def test_a_reset_stream_harms_no_other(kind: str, path: str, tmp_path: Path) -> None:
    with connected(kind, APPS[kind], tmp_path) as client:
        streams = [client.begin("POST", path, end=False) for _ in range(10)]
        for stream in streams:
            # The library refuses bytes for a stream that the server has ended.
            with contextlib.suppress(ValueError, RuntimeError):
                client.write(stream, b"some")
        time.sleep(0.05)
        for stream in streams:
            # Streams that are over are forgotten by the library.
            with contextlib.suppress(ValueError):
                client.stop(stream)
                client.reset(stream)
        assert client.fetch("POST", "/echo", b"after").body == b"after"


@every_kind
def test_a_body_over_the_limit(kind: str, tmp_path: Path) -> None:
    with connected(kind, APPS[kind], tmp_path, limit_request_body=1000) as client:
        check_body_limit(client)


@every_kind
def test_a_header_list_over_the_limit(kind: str, tmp_path: Path) -> None:
    with connected(kind, APPS[kind], tmp_path, http2_max_headers_size=2000) as client:
        check_header_limit(client)


@every_kind
def test_going_away_finishes_what_is_under_way(kind: str, tmp_path: Path) -> None:
    with serving(kind, APPS[kind], tmp_path, timeout_graceful_shutdown=10.0) as (server, certificates):
        address, ca = (server.host, server.port), str(certificates.ca)
        client, idle = Client(address, ca=ca), Client(address, ca=ca)
        slow = client.begin("GET", "/sleep/0.5")
        idle.fetch(path="/first")
        time.sleep(0.1)
    # The server has stopped.
    assert client.until_closed().code == idle.until_closed().code == NO_ERROR
    response = client.exchanges[slow]
    assert (response.status, response.body, response.ended) == (200, b"/sleep/0.5", True)
    client.close()
    idle.close()


@every_kind
def test_the_access_log(kind: str, tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    with connected(
        kind, APPS[kind], tmp_path, access_log=str(log), access_log_format="%(h)s %(r)s %(H)s %(s)s %(B)s"
    ) as client:
        client.finish(*client.begin_many(5))
        lines = until(lambda: len(text := log.read_text().splitlines()) == 5 and text)
    assert lines == ["127.0.0.1 GET / HTTP/3.0 HTTP/3.0 200 1"] * 5


@every_kind
def test_compression(kind: str, tmp_path: Path) -> None:
    with connected(kind, APPS[kind], tmp_path, compress=("gzip",)) as client:
        check_compression(client)


@every_kind
def test_requests_over_the_concurrency_limit(kind: str, tmp_path: Path) -> None:
    if kind == "wsgi":
        pytest.skip("one call at a time: nothing is ever in flight beside it")
    with connected(kind, APPS[kind], tmp_path, limit_concurrency=1) as client:
        slow = client.begin("GET", "/sleep/3")
        response = client.fetch(path="/x")
        assert (response.status, response.fields["retry-after"]) == (503, "1")
        assert client.finish(slow)[0].status == 200


def test_another_protocol_is_refused(tmp_path: Path) -> None:
    with serving("asgi", APPS["asgi"], tmp_path) as (server, certificates):
        address, ca = (server.host, server.port), str(certificates.ca)
        other = Client(address, ca=ca, alpn=("hq-interop",), wait=False)
        # no_application_protocol (RFC 9001 8.1)
        assert other.until_closed().code == 0x100 + 120
        other.close()
        with Client(address, ca=ca) as client:
            assert client.fetch(path="/x").body == b"/x"


def test_garbage_harms_nobody(tmp_path: Path) -> None:
    with serving("asgi", APPS["asgi"], tmp_path) as (server, certificates):
        with Client((server.host, server.port), ca=str(certificates.ca)) as client:
            assert client.fetch(path="/1").body == b"/1"
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
                for length in (0, 1, 20, 21, 40, 1199, 1200, 1500, 9000, 65000):
                    for first in (0x00, 0x40, 0x7F, 0xC0, 0xD0, 0xFF):
                        data = bytes([first]) + payload(length)
                        stranger.sendto(data, (server.host, server.port))
            assert client.fetch(path="/2").body == b"/2"


def test_every_client_must_prove_its_address(tmp_path: Path) -> None:
    with serving("asgi", APPS["asgi"], tmp_path, http3_retry_handshakes=0) as (server, certificates):
        with Client((server.host, server.port), ca=str(certificates.ca)) as client:
            assert client.fetch(path="/x").body == b"/x"
            # The library has sent the token of a Retry.
            assert client.quic._retry_source_connection_id is not None


def test_many_streams_with_bbr(tmp_path: Path) -> None:
    with serving("asgi", APPS["asgi"], tmp_path, http3_congestion="bbr") as (server, certificates):
        with Client((server.host, server.port), ca=str(certificates.ca)) as client:
            streams = client.begin_many(100, path="/many")
            assert [response.body for response in client.finish(*streams)] == [b"/many"] * 100


def metric(client: OwnClient, url: str, name: str) -> int:
    page = client.get(f"{url}/metrics").text
    found = re.search(rf"^towline_{name} (\d+)", page, re.MULTILINE)
    assert found is not None, page
    return int(found[1])


def test_the_generator_closes_its_connections(tmp_path: Path) -> None:
    """Otherwise they are open until their idle timeout of 90 s."""
    with serving("asgi", APPS["asgi"], tmp_path, http1=True, http2=True, metrics=True) as (
        server,
        certificates,
    ):
        url = f"https://127.0.0.1:{server.port}"
        load = ["load", "--http3", "-c", "5", "-m", "2", "-n", "100", f"{url}/x"]
        subprocess.run([sys.executable, "-m", "towline", *load], check=True, capture_output=True, timeout=60)
        with OwnClient(verify=str(certificates.ca)) as client:
            assert metric(client, url, "quic_handshakes_total") == 5
            until(lambda: metric(client, url, "quic_connections_open") == 0, 20.0)


def test_a_refused_certificate_is_reported_to_the_server(tmp_path: Path) -> None:
    """Otherwise the handshake is in progress until its timeout."""
    options = {"http1": True, "http2": True, "metrics": True, "timeout_request_header": 60.0}
    with serving("asgi", APPS["asgi"], tmp_path, **options) as (server, certificates):
        url = f"https://127.0.0.1:{server.port}"
        with (
            OwnClient(http1=False, http3=True) as stranger,
            pytest.raises(TLSError, match="not trusted here"),
        ):
            stranger.get(url)
        with OwnClient(verify=str(certificates.ca)) as client:
            until(lambda: metric(client, url, "tls_handshake_failures_total") == 1, 20.0)
