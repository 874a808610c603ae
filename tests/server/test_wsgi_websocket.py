"""WebSockets of WSGI applications: Flask-Sock, Flask-SocketIO and the environ's socket itself."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import signal
import socket
import ssl
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import socketio
import trustme
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from tests.support.process import request, running
from tests.support.running_server import RunningServer
from tests.support.sockets import read_all
from tests.support.waiting import until
from tests.support.websocket_server import TEXT, frame
from tests.support.websocket_server import request as handshake
from tests.support.wsgi_server import plain, serving
from tests.support.wsgi_websockets import Watched, flask_sock, flask_socketio

KEY = "werkzeug.socket"
UPGRADE = {"Connection": "Upgrade", "Upgrade": "websocket"}


def open_ws(served: RunningServer, path: str = "/echo", **options: Any) -> ClientConnection:
    options.setdefault("max_size", None)
    return connect(f"ws://127.0.0.1:{served.port}{path}", proxy=None, **options)


def ended(served: RunningServer) -> None:
    """Waits until no thread and no connection is left."""
    until(lambda: served.server.in_flight == 0)
    until(lambda: served.server.connections == 0)


def accepting(served: RunningServer, path: str = "/echo") -> socket.socket:
    """A connection after the handshake, whose client then sends exactly the bytes of the test."""
    conn = served.connect()
    conn.sendall(handshake(path))
    received = b""
    while b"\r\n\r\n" not in received:
        received += conn.recv(1)  # frames may follow at once: they are the test's
    assert received.startswith(b"HTTP/1.1 101 "), received
    return conn


def websocket_threads() -> list[threading.Thread]:
    """The threads of requests for WebSockets, and those that simple-websocket starts."""
    names = ("towline-websocket-", "(simple_websocket.")
    return [thread for thread in threading.enumerate() if any(name in thread.name for name in names)]


def test_text_bytes_large_and_fragmented_messages() -> None:
    with serving(flask_sock(), threads=2) as served, open_ws(served) as ws:
        large = os.urandom(3_000_000)
        for message in ("text", "", b"bytes", large, "ä" * 100_000):
            ws.send(message)
            assert ws.recv() == message
        ws.send(["frag", "", "men", "ted"])
        assert ws.recv() == "fragmented"
        ws.send(large[i : i + 100_000] for i in range(0, len(large), 100_000))
        assert ws.recv() == large
        assert ws.ping().wait(10)


def test_messages_in_one_segment_right_after_the_handshake() -> None:
    with serving(flask_sock(), threads=2) as served, accepting(served) as conn:
        conn.sendall(b"".join(frame(TEXT, b"%d" % i) for i in range(1000)))
        expected = b"".join(frame(TEXT, b"%d" % i, masked=False) for i in range(1000))
        received = b""
        while len(received) < len(expected):
            received += conn.recv(65536)
        assert received == expected


def test_fifty_at_once_do_not_delay_plain_requests() -> None:
    with serving(flask_sock(), threads=2) as served, contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(open_ws(served)) for _ in range(50)]
        assert served.server.in_flight == 50
        stop = threading.Event()

        def chat(ws: ClientConnection) -> None:
            while not stop.wait(0.02):
                ws.send("x" * 100)
                assert ws.recv() == "x" * 100

        chats = [threading.Thread(target=chat, args=(ws,)) for ws in sockets[:5]]
        for thread in chats:
            thread.start()
        took = []
        for _ in range(200):
            started = time.monotonic()
            assert served.get("/pid")[0] == 200
            took.append(time.monotonic() - started)
        stop.set()
        for thread in chats:
            thread.join()
        # With the sockets on the two threads of the pool no request would end at all.
        assert sorted(took)[197] < 0.5, sorted(took)[-5:]
        for ws in sockets:
            ws.send("still")
            assert ws.recv() == "still"


def test_the_client_closes() -> None:
    watched = Watched()
    with serving(flask_sock(watched), threads=2) as served:
        with open_ws(served) as ws:
            ws.close(4321, "bye")
            assert (ws.protocol.close_rcvd.code, ws.protocol.close_rcvd.reason) == (4321, "bye")  # type: ignore[union-attr]
        ended(served)
        assert watched.codes == [4321]
        assert served.log == []


def test_the_application_closes() -> None:
    with serving(flask_sock(), threads=2) as served:
        with open_ws(served, "/closing") as ws:
            assert ws.recv() == "hello"
            with pytest.raises(ConnectionClosed) as closed:
                ws.recv()
            assert closed.value.rcvd is not None
            assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (4001, "enough")
        ended(served)
        assert served.log == []


def test_a_client_that_never_answers_the_close_is_disconnected() -> None:
    with serving(flask_sock(), threads=2) as served, accepting(served, "/closing") as conn:
        started = time.monotonic()
        assert read_all(conn)[-8:] == b"\x0f\xa1enough"
        assert time.monotonic() - started < 6
        ended(served)


@pytest.mark.parametrize("path", ["/echo", "/ticks"])
def test_an_abrupt_disconnect_frees_the_thread(path: str) -> None:
    with serving(flask_sock(), threads=2) as served:
        conn = accepting(served, path)
        until(lambda: len(websocket_threads()) == 2)
        conn.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        conn.close()
        ended(served)
        until(lambda: not websocket_threads())
        assert served.log == []


def test_an_exception_after_the_handshake_is_logged_and_closes() -> None:
    with serving(flask_sock(), threads=2) as served:
        with open_ws(served, "/fail") as ws:
            ws.send("x")
            with pytest.raises(ConnectionClosed):
                ws.recv(10)
        ended(served)
    # Flask logs the exception itself, and makes a response of it, which nobody receives.
    assert all("ValueError" not in text for text in served.errors())


def test_no_descriptor_is_left() -> None:
    with serving(flask_sock(), threads=2) as served:
        for _ in range(3):
            with open_ws(served, "/closing"):
                pass
        ended(served)
        before = len(open_sockets())
        for _ in range(20):
            with open_ws(served) as ws:
                ws.send("x")
                assert ws.recv() == "x"
        ended(served)
        until(lambda: len(open_sockets()) <= before)


def open_sockets() -> list[str]:
    links = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            links.append(os.readlink(f"/proc/self/fd/{name}"))
    return [link for link in links if link.startswith("socket:")]


def test_timeouts_do_not_end_a_websocket() -> None:
    timeouts = {
        "timeout_keep_alive": 0.2,
        "timeout_request_header": 0.2,
        "timeout_request_body": 0.2,
        "timeout_wsgi_client": 0.2,
    }
    with serving(flask_sock(), threads=2, **timeouts) as served, open_ws(served) as ws:
        time.sleep(1)
        ws.send("awake")
        assert ws.recv() == "awake"


def test_over_the_bound_the_response_is_503() -> None:
    with serving(flask_sock(), threads=2, wsgi_websockets=2) as served:
        with open_ws(served), open_ws(served) as second:
            with pytest.raises(InvalidStatus) as refused:
                open_ws(served)
            assert refused.value.response.status_code == 503
            assert served.get("/pid")[0] == 200
            second.close()
            until(lambda: served.server.in_flight == 1)
            with open_ws(served) as third:
                third.send("x")
                assert third.recv() == "x"
        ended(served)


def test_plain_requests_over_limit_concurrency_and_websockets_have_separate_bounds() -> None:
    with serving(flask_sock(), threads=2, limit_concurrency=1) as served, open_ws(served), open_ws(served):
        assert served.get("/pid")[0] == 200


def test_a_drain_ends_the_input_of_the_application() -> None:
    watched = Watched()
    with serving(flask_sock(watched), threads=2) as served, open_ws(served) as ws:
        ws.send("x")
        assert ws.recv() == "x"
        served.server.stop_listening()
        served.server.drain()
        with pytest.raises(ConnectionClosed):
            ws.recv(10)
        ended(served)
        assert len(watched.codes) == 1


def test_a_stop_ends_an_application_that_does_not_read() -> None:
    watched = Watched()
    app = flask_sock(watched)
    with serving(app, threads=2) as served, open_ws(served, "/ticks") as ws:
        assert ws.recv() == "tick"
        threads = websocket_threads()
        assert len(threads) == 2
        served.server.stop()
        with pytest.raises(ConnectionClosed):
            [ws.recv(10) for _ in range(10_000)]
        until(lambda: not any(thread.is_alive() for thread in threads))


@contextlib.contextmanager
def client_of(served: RunningServer, **options: Any) -> Iterator[socketio.SimpleClient]:
    with socketio.SimpleClient() as client:
        client.connect(f"http://127.0.0.1:{served.port}", **options)
        yield client


# engineio's writer closes a WebSocket whose socket simple-websocket's reader may have closed: EBADF, under any server.
BOTH_ENDS_CLOSE = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")


@BOTH_ENDS_CLOSE
@pytest.mark.parametrize("transports", [["websocket"], ["polling", "websocket"]], ids=["direct", "upgraded"])
def test_flask_socketio(transports: list[str]) -> None:
    with serving(flask_socketio(), threads=4) as served:
        with client_of(served, transports=transports) as client:
            assert client.call("echo", {"n": 1}, timeout=10) == {"n": 1}
            assert client.receive(timeout=10) == ["echoed", {"n": 1}]
            until(lambda: client.client.eio.current_transport == "websocket")
            big = "x" * 300_000
            assert client.call("echo", big, timeout=10) == big
            assert client.receive(timeout=10) == ["echoed", big]
        ended(served)
        assert served.log == []


@BOTH_ENDS_CLOSE
def test_flask_socketio_with_many_clients() -> None:
    with serving(flask_socketio(), threads=2) as served, contextlib.ExitStack() as stack:
        clients = [stack.enter_context(client_of(served, transports=["websocket"])) for _ in range(20)]
        for number, client in enumerate(clients):
            assert client.call("echo", number, timeout=10) == number


def seen_environs(**options: Any) -> tuple[list[dict[str, Any]], Any]:
    environs: list[dict[str, Any]] = []

    def app(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        environs.append(environ)
        return plain()(environ, start_response)

    return environs, serving(app, **options)


def test_an_application_that_ignores_the_upgrade_responds_as_usual() -> None:
    environs, server = seen_environs(threads=2)
    with server as served, served.connect() as conn:
        for _ in range(3):
            conn.sendall(handshake("/"))
            received = b""
            while not received.endswith(b"ok"):
                received += conn.recv(4096)
            assert received.startswith(b"HTTP/1.1 200 ")
        assert [KEY in environ for environ in environs] == [True] * 3
        assert served.server.connections == 1
        # The connection is watched again: its end is noticed.
        conn.close()
        ended(served)
    # Looking at the environ takes nothing over.
    assert "ConnectionSocket" in repr(environs[0])
    assert not hasattr(environs[0][KEY], "_sock")
    with pytest.raises(RuntimeError, match="request is over"):
        environs[0][KEY].fileno()


@pytest.mark.parametrize("options", [{}, {"threads": 2, "ws": False}, {"threads": 2, "wsgi_websockets": 0}])
def test_no_socket_is_offered(options: dict[str, Any]) -> None:
    environs, server = seen_environs(**options)
    with server as served:
        assert served.get("/", headers=UPGRADE)[0] == 200
    assert KEY not in environs[0]
    assert environs[0]["HTTP_UPGRADE"] == "websocket"


@pytest.mark.parametrize(
    "wire",
    [
        b"GET / HTTP/1.0\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n",
        # Bytes behind the request would be lost for the application.
        handshake("/") + frame(TEXT, b"early"),
    ],
    ids=["http10", "post", "no-connection", "other", "early-bytes"],
)
def test_no_socket_for_other_requests(wire: bytes) -> None:
    environs, server = seen_environs(threads=2)
    with server as served:
        assert served.raw(wire, half_close=b"early" not in wire)[9:12] == b"200"
    assert KEY not in environs[0]


def test_bytes_behind_the_request_are_the_next_request() -> None:
    environs, server = seen_environs(threads=2)
    last = b"GET /next HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
    with server as served:
        assert served.raw(handshake("/") + last).count(b"HTTP/1.1 200 ") == 2
    assert [environ["PATH_INFO"] for environ in environs] == ["/", "/next"]


def test_the_socket_is_what_an_application_expects() -> None:
    found: dict[str, Any] = {}

    def app(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        sock = environ[KEY]
        fd = sock.fileno()
        found["timeout"] = sock.gettimeout()
        found["blocking"] = not fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_NONBLOCK
        found["cloexec"] = bool(fcntl.fcntl(fd, fcntl.F_GETFD) & fcntl.FD_CLOEXEC)
        found["timeouts"] = [
            sock.getsockopt(socket.SOL_SOCKET, option, 16)
            for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO)
        ]
        found["peer"] = sock.getpeername()
        sock.sendall(b"raw bytes")
        found["received"] = sock.recv(100)
        start_response("200 OK", [])
        sock.close()
        return [b"not sent"]

    socket.setdefaulttimeout(3)
    try:
        with serving(app, threads=2) as served, served.connect() as conn:
            conn.sendall(handshake("/"))
            assert conn.recv(9) == b"raw bytes"
            conn.sendall(b"from the client")
            assert read_all(conn) == b""
            assert found["peer"] == conn.getsockname()
            ended(served)
            assert served.log == []
    finally:
        socket.setdefaulttimeout(None)
    assert (found["timeout"], found["blocking"], found["cloexec"]) == (None, True, True)
    assert found["timeouts"] == [bytes(16), bytes(16)]
    assert found["received"] == b"from the client"


def test_no_socket_after_the_response_has_begun() -> None:
    errors = []

    def app(environ: dict[str, Any], start_response: Any) -> Iterator[bytes]:
        start_response("200 OK", [("Content-Length", "2")])
        yield b"o"
        try:
            environ[KEY].fileno()
        except RuntimeError as error:
            errors.append(str(error))
        yield b"k"

    with serving(app, threads=2) as served:
        assert served.get("/", headers=UPGRADE)[2] == b"ok"
    assert "the response has begun" in errors[0]


def test_the_access_log_has_one_line_at_the_end(tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    options = {"access_log": str(log), "access_log_format": '"%(r)s" %(s)s %(M)s'}
    with serving(flask_sock(), threads=2, **options) as served:
        with open_ws(served) as ws:
            time.sleep(0.3)
            assert log.read_text() == ""
            ws.close()
        ended(served)
        until(lambda: log.read_text())
    found = re.fullmatch(r'"GET /echo HTTP/1.1" 101 (\d+)\n', log.read_text())
    assert found is not None
    assert int(found[1]) >= 300


def test_over_tls_the_socket_is_absent(tmp_path: Path) -> None:
    cert = trustme.CA().issue_cert("127.0.0.1")
    path = tmp_path / "cert.pem"
    cert.private_key_and_cert_chain_pem.write_to_path(str(path))
    environs, server = seen_environs(threads=2, ssl_certfile=(str(path),))
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with server as served, context.wrap_socket(served.connect()) as conn:
        conn.sendall(handshake("/"))
        assert conn.recv(4096).startswith(b"HTTP/1.1 200 ")
    assert KEY not in environs[0]


FOLDER = Path(__file__).parents[2]
APP = "tests.support.wsgi_websockets:flask_sock"
OPTIONS = ("--factory", "--interface", "wsgi", "--threads", "2")


def test_limit_max_requests_counts_websockets() -> None:
    with running(APP, *OPTIONS, "--limit-max-requests", "3", cwd=FOLDER) as program:
        workers = program.children()
        for _ in range(3):
            with connect(f"ws://127.0.0.1:{program.port}/closing", proxy=None) as ws:
                assert ws.recv() == "hello"
        until(lambda: not set(workers) & set(program.children()), timeout=20)


def test_a_reload_and_the_metrics() -> None:
    with running(APP, *OPTIONS, "--metrics", cwd=FOLDER) as program:
        url = f"ws://127.0.0.1:{program.port}/echo"

        def metric(name: str) -> float:
            page = request(program.port, "/metrics").body.decode()
            found = re.findall(rf"^{re.escape(name)} (\S+)$", page, re.MULTILINE)
            return float(found[0]) if found else 0.0

        first = program.pids(1)
        with connect(url, proxy=None) as ws:
            assert metric("towline_websockets_open") == 1
            program.signal(signal.SIGHUP)
            with pytest.raises(ConnectionClosed):
                ws.recv(20)
        until(lambda: program.pids(1) != first, timeout=20)
        with connect(url, proxy=None) as ws:
            ws.send("new")
            assert ws.recv() == "new"
        until(lambda: metric("towline_websockets_open") == 0)


def test_the_log_has_the_reason_once() -> None:
    with serving(plain()) as served:
        served.get("/", headers={**UPGRADE, "Upgrade": "h2c"})
        assert served.log == []
        for _ in range(3):
            served.get("/", headers=UPGRADE)
        assert len(served.log) == 1
        assert "--threads 2 or more" in served.errors()[0]
