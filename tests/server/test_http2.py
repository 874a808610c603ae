"""HTTP/2 from an independent client: what both interfaces must do alike."""

from __future__ import annotations

import ssl
import time
from pathlib import Path

import pytest
import trustme
from h2.settings import SettingCodes

from tests.support.feature_server import every_kind, serving
from tests.support.http2_apps import APPS, PIECE, payload
from tests.support.http2_client import Client, connected_client
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

VERSION = {"asgi": b"2 http", "wsgi": b"HTTP/2.0 http", "wsgi-threads": b"HTTP/2.0 http"}
CANCEL = 8
INTERNAL_ERROR = 2


@every_kind
def test_prior_knowledge_beside_http_1(kind: str) -> None:
    with serving(kind, APPS[kind]) as server:
        with Client((server.host, server.port)) as client:
            assert client.fetch(path="/version").body == VERSION[kind]
            response = client.fetch(path="/second")
        assert (response.status, response.body, response.fields["content-length"]) == (200, b"/second", "7")
        with Client((server.host, server.port)) as client:
            client.socket.sendall(b"")
            assert client.fetch("POST", "/echo", b"body").body == b"body"


@every_kind
def test_alpn_chooses(kind: str, tmp_path: Path) -> None:
    ca = trustme.CA()
    leaf = ca.issue_cert("127.0.0.1")
    chain = tmp_path / "chain.pem"
    leaf.private_key_and_cert_chain_pem.write_to_path(str(chain))
    for versions, offered, chosen in [
        ({}, ["h2", "http/1.1"], "h2"),
        ({}, ["http/1.1"], "http/1.1"),
        ({}, [], None),
        ({"http2": False}, ["h2", "http/1.1"], "http/1.1"),
        ({"http1": False}, ["h2", "http/1.1"], "h2"),
    ]:
        context = ssl.create_default_context()
        ca.configure_trust(context)
        context.set_alpn_protocols(offered)
        with (
            serving(kind, APPS[kind], ssl_certfile=str(chain), **versions) as server,
            Client((server.host, server.port), tls=context) as client,
        ):
            assert isinstance(client.socket, ssl.SSLSocket)
            assert client.socket.selected_alpn_protocol() == chosen
            if chosen == "h2":
                assert client.fetch(path="/version").body == VERSION[kind] + b"s"
                body = payload(300_000)
                assert client.fetch("POST", "/echo", body).body == body


@every_kind
def test_only_http_2(kind: str) -> None:
    with serving(kind, APPS[kind], http1=False) as server:
        with Client((server.host, server.port)) as client:
            assert client.fetch(path="/version").body == VERSION[kind]
        with Client((server.host, server.port), before=b"GET / HTTP/1.1\r\nHost: test\r\n\r\n") as client:
            data = b""
            while part := client.socket.recv(65536):
                data += part
            assert b"HTTP/1" not in data


@every_kind
def test_only_http_1(kind: str) -> None:
    with serving(kind, APPS[kind], http2=False) as server, Client((server.host, server.port)) as client:
        assert client.socket.recv(65536).startswith(b"HTTP/1.1 ")


@every_kind
def test_fields_both_ways(kind: str) -> None:
    with connected_client(kind, APPS[kind]) as client:
        body = check_fields(client, "test")
    assert kind != "asgi" or body.startswith(b"host: test\n")


@every_kind
def test_many_streams_at_once(kind: str) -> None:
    with connected_client(kind, APPS[kind]) as client:
        for _ in range(5):
            streams = [client.begin("GET", f"/{number}", send=False) for number in range(100)]
            client.flush()
            responses = client.finish(*streams)
            assert [response.body for response in responses] == [b"/%d" % number for number in range(100)]


@every_kind
def test_uploads_side_by_side(kind: str) -> None:
    # Fewer calls run at a time than streams are open: the others must fit into their windows.
    size = 400_000 if kind == "asgi" else 200_000
    bodies = [payload(size + number) for number in range(6)]
    with connected_client(kind, APPS[kind]) as client:
        streams = [client.begin("POST", "/echo", end=False) for _ in bodies]
        at = [0] * len(bodies)
        while any(at[index] < len(body) for index, body in enumerate(bodies)):
            for index, (stream, body) in enumerate(zip(streams, bodies, strict=True)):
                part = body[at[index] : at[index] + 10_000]
                client.write(stream, part)
                at[index] += len(part)
        for stream in streams:
            client.conn.end_stream(stream)
        client.flush()
        responses = client.finish(*streams)
    assert [response.body == body for response, body in zip(responses, bodies, strict=True)] == [True] * len(
        bodies
    )


@every_kind
def test_a_slow_reader_does_not_hold_the_others_up(kind: str) -> None:
    with connected_client(kind, APPS[kind]) as client:
        client.reads = set()
        # Threads wait for the reader: there are two of them.
        slow = client.begin("GET", "/pieces/40")
        client.until(lambda: len(client.exchanges[slow].body) == 65535 or kind == "wsgi")
        for number in range(3):
            if kind != "wsgi":
                quick = client.begin("GET", f"/{number}")
                client.reads.add(quick)
                assert client.finish(quick)[0].body == b"/%d" % number
        client.read(slow)
        assert client.finish(slow)[0].body == PIECE * 40


@every_kind
def test_websockets_are_offered_where_there_are_any(kind: str) -> None:
    with serving(kind, APPS[kind]) as server, Client((server.host, server.port)) as client:
        assert client.fetch(path="/x").status == 200
        assert client.conn.remote_settings.enable_connect_protocol == (kind == "asgi")


@every_kind
def test_a_small_window_is_respected(kind: str) -> None:
    with serving(kind, APPS[kind]) as server:
        settings = {SettingCodes.INITIAL_WINDOW_SIZE: 100}
        with Client((server.host, server.port), settings=settings) as client:
            assert client.fetch(path="/pieces/3").body == PIECE * 3


@every_kind
@pytest.mark.parametrize("path", ["/status/204", "/status/304"])
def test_answers_without_a_body(kind: str, path: str) -> None:
    with connected_client(kind, APPS[kind]) as client:
        check_response_without_body(client, path)


@every_kind
def test_head(kind: str) -> None:
    with connected_client(kind, APPS[kind]) as client:
        check_head(client)


@every_kind
def test_files_side_by_side(kind: str, tmp_path: Path) -> None:
    with connected_client(kind, APPS[kind], static=write_files(tmp_path)) as client:
        check_files(client, tmp_path)


@every_kind
def test_a_file_that_nobody_reads_holds_nothing_up(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "large.bin"
    path.write_bytes(payload(3_000_000))
    with connected_client(kind, APPS[kind]) as client:
        client.reads = set()
        slow = client.begin("GET", f"/file{path}")
        client.until_body(slow, 65535)
        # The connection's window is spent: only what needs none can pass.
        assert client.fetch("HEAD", "/text").status == 200
        client.read(slow)
        assert client.finish(slow)[0].body == path.read_bytes()


@every_kind
def test_an_application_that_fails(kind: str) -> None:
    with connected_client(kind, APPS[kind]) as client:
        check_failing_application(client, INTERNAL_ERROR)


@every_kind
def test_an_unread_upload_that_stands_still_is_stopped_after_the_answer(kind: str) -> None:
    with connected_client(kind, APPS[kind], wsgi_request_buffer=0, timeout_request_body=1) as client:
        stream = client.begin("POST", "/ignored", end=False)
        client.write(stream, payload(100_000))
        response = client.finish(stream)[0]
        assert (response.status, response.body) == (200, b"/ignored")
        client.until(lambda: client.exchanges[stream].reset is not None)
        assert client.exchanges[stream].reset == 0
        assert client.fetch(path="/after").body == b"/after"


@every_kind
@pytest.mark.parametrize("path", ["/sleep/0.3", "/pieces/1000", "/echo", "/cut"])
def test_a_reset_stream_harms_no_other(kind: str, path: str) -> None:
    with connected_client(kind, APPS[kind]) as client:
        client.reads = set()
        streams = [client.begin("POST", path, end=False) for _ in range(10)]
        for stream in streams:
            client.write(stream, b"some")
        time.sleep(0.05)
        for stream in streams:
            if not client.exchanges[stream].over:
                client.conn.reset_stream(stream, CANCEL)
        client.reads = None
        client.flush()
        assert client.fetch("POST", "/echo", b"after").body == b"after"


@every_kind
def test_streams_over_the_limit_are_refused(kind: str) -> None:
    with serving(kind, APPS[kind], http2_max_concurrent_streams=3) as server:
        with Client((server.host, server.port)) as client:
            client.until(lambda: client.conn.remote_settings.max_concurrent_streams == 3)
            client.conn.remote_settings[SettingCodes.MAX_CONCURRENT_STREAMS] = 100
            client.conn.remote_settings.acknowledge()
            streams = [client.begin("POST", "/echo", end=False) for _ in range(5)]
            client.until(lambda: all(client.exchanges[stream].over for stream in streams[3:]))
            assert [client.exchanges[stream].reset for stream in streams[3:]] == [7, 7]
            for stream in streams[:3]:
                client.write(stream, b"x", end=True)
            assert [response.body for response in client.finish(*streams[:3])] == [b"x"] * 3


@every_kind
def test_a_header_list_over_the_limit(kind: str) -> None:
    with connected_client(kind, APPS[kind], http2_max_headers_size=2000) as client:
        check_header_limit(client)


@every_kind
def test_a_body_over_the_limit(kind: str) -> None:
    with connected_client(kind, APPS[kind], limit_request_body=1000) as client:
        check_body_limit(client)


@every_kind
def test_going_away_finishes_what_is_under_way(kind: str) -> None:
    app = APPS[kind]
    with serving(kind, app, timeout_graceful_shutdown=10.0) as server:
        client = Client((server.host, server.port))
        slow = client.begin("GET", "/sleep/0.5")
        idle = Client((server.host, server.port))
        idle.fetch(path="/first")
        time.sleep(0.1)
    # The server has stopped.
    client.until_closed()
    idle.until_closed()
    response = client.exchanges[slow]
    assert (response.status, response.body, response.ended) == (200, b"/sleep/0.5", True)
    assert client.goaway
    assert {code for _, code in client.goaway + idle.goaway} == {0}
    assert client.goaway[-1][0] == slow


@every_kind
def test_the_access_log(kind: str, tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    with connected_client(
        kind, APPS[kind], access_log=str(log), access_log_format="%(r)s %(H)s %(s)s %(B)s"
    ) as client:
        streams = [client.begin("GET", f"/{number}") for number in range(5)]
        client.finish(*streams)
        lines = until(lambda: len(text := log.read_text().splitlines()) == 5 and text)
    assert sorted(lines) == [f"GET /{number} HTTP/2.0 HTTP/2.0 200 2" for number in range(5)]


@every_kind
def test_compression(kind: str) -> None:
    with connected_client(kind, APPS[kind], compress=("gzip",)) as client:
        check_compression(client)


@every_kind
def test_behind_the_proxy_protocol(kind: str) -> None:
    before = b"PROXY TCP4 192.0.2.7 192.0.2.1 1234 80\r\n"
    with serving(kind, APPS[kind], proxy_protocol=True, forwarded_allow_ips=("127.0.0.1",)) as server:
        with Client((server.host, server.port), before=before) as client:
            assert client.fetch(path="/client").body == b"192.0.2.7"


@every_kind
def test_requests_over_the_concurrency_limit(kind: str) -> None:
    if kind == "wsgi":
        pytest.skip("one call at a time: nothing is ever in flight beside it")
    with connected_client(kind, APPS[kind], limit_concurrency=1) as client:
        # The responses come in this order, and the first is far from over.
        slow = client.begin("GET", "/sleep/3")
        response = client.fetch(path="/x")
        assert (response.status, response.fields["retry-after"]) == (503, "1")
        assert client.finish(slow)[0].status == 200
