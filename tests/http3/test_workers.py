"""Several workers on one UDP port: clients that move, reloads, recycling and killed workers with live connections."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import signal
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from towline.bench.subjects.ports import free_port
from towline.testing import serve

from tests.lifecycle import apps
from tests.support.http3.client import Client
from tests.support.http3.datagram_proxy import DatagramProxy
from tests.support.http3.servers import Site
from tests.support.process import HERE, MAX_WAIT, Program, eventually, request, running

pytest.importorskip("aioquic", reason="aioquic is not installed")
APPS = [
    pytest.param(["apps:asgi"], id="asgi"),
    pytest.param(["apps:wsgi", "--threads", "8"], id="wsgi-threads"),
]
CHUNKS = 40
DOWNLOAD = f"/stream/{CHUNKS}/0.05"
"""A response of two seconds."""
DOWNLOADED = b"chunk" * CHUNKS


@contextlib.contextmanager
def serving(folder: Path, app: list[str], *options: str, pass_fds: Sequence[int] = ()) -> Iterator[Program]:
    site = Site(folder)
    certificate = ["--ssl-certfile", site.cert, "--ssl-keyfile", site.key]
    with running(
        *app, "--http3", "--no-http1", "--no-http2", *certificate, *options, cwd=HERE, pass_fds=pass_fds
    ) as program:
        yield program


def connected(port: int, folder: Path) -> Client:
    return Client(("127.0.0.1", port), ca=str(folder / "ca.pem"))


def pid(client: Client) -> int:
    """The worker that has the connection."""
    exchange = client.fetch("GET", "/pid")
    assert exchange.status == 200, exchange
    return int(exchange.body)


def metrics(port: int) -> dict[str, float]:
    text = request(port, "/metrics").body.decode()
    found = re.findall(r"^towline_quic_(\S+) (\S+)$", text, re.MULTILINE)
    return {name: float(value) for name, value in found}


class Requests:
    """Threads with one connection each, which send one request after the other until `stop`.

    A request is sent again only as RFC 9114 5.2 allows it: on another connection, after a GOAWAY that excludes it. On a
    connection that has had a GOAWAY nothing is begun.
    """

    def __init__(self, port: int, folder: Path, threads: int) -> None:
        self._port, self._folder = port, folder
        self.pids: list[int] = []
        self.failures: list[str] = []
        self.goaways = 0
        self._ending = threading.Event()
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(threads)]

    def __enter__(self) -> Requests:
        for thread in self._threads:
            thread.start()
        self.more()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        self._ending.set()
        for thread in self._threads:
            thread.join(2 * MAX_WAIT)

    def more(self, count: int = 50) -> None:
        """Waits for `count` further responses."""
        target = len(self.pids) + count
        eventually(lambda: len(self.pids) >= target or self.failures, "more responses")
        assert not self.failures

    def _run(self) -> None:
        while not self._ending.is_set() and not self.failures:
            try:
                with connected(self._port, self._folder) as client:
                    self._run_on(client)
            except Exception as error:  # also of the library, for which it is a failure
                self.failures.append(repr(error))

    def _run_on(self, client: Client) -> None:
        while not self._ending.is_set() and client.goaway is None:
            stream = client.begin("GET", "/pid")
            exchange = client.exchanges[stream]
            client.until(lambda exchange=exchange: exchange.over or client.closed)
            if exchange.ended:
                assert exchange.status == 200
                self.pids.append(int(exchange.body))
            else:
                assert client.goaway is not None, f"lost without GOAWAY: {client.closed} {exchange}"
                assert stream >= client.goaway, (
                    f"lost before the GOAWAY: {stream} {client.goaway} {client.closed}"
                )
        self.goaways += client.goaway is not None


@pytest.mark.parametrize("app", APPS)
def test_all_workers_serve(tmp_path: Path, app: list[str]) -> None:
    with serving(tmp_path, app, "--workers", "4") as program, contextlib.ExitStack() as stack:
        clients = [stack.enter_context(connected(program.port, tmp_path)) for _ in range(40)]
        streams = [client.begin_many(5, "GET", "/pid") for client in clients]
        found = [client.finish(*begun) for client, begun in zip(clients, streams, strict=True)]
        assert all(exchange.status == 200 for exchange in itertools.chain(*found))
        pids = [{int(exchange.body) for exchange in exchanges} for exchanges in found]
        assert all(len(owners) == 1 for owners in pids), "requests of a connection went to several workers"
        assert set.union(*pids) == set(program.children())


@pytest.mark.parametrize("app", APPS)
def test_a_client_that_moves_stays_with_its_worker(tmp_path: Path, app: list[str]) -> None:
    page = free_port()
    options = ["--workers", "4", "--metrics-address", f"127.0.0.1:{page}"]
    with (
        serving(tmp_path, app, *options) as program,
        DatagramProxy(program.port) as proxy,
        connected(proxy.port, tmp_path) as client,
    ):
        own = pid(client)
        download = client.begin("GET", DOWNLOAD)
        for number in range(16):
            # One connection ID at a new address (NAT rebinding), and another ID (migration, RFC 9000 9).
            proxy.rebind()
            if number % 4 == 3:
                client.migrate()
            assert pid(client) == own
        assert client.finish(download)[0].body == DOWNLOADED

        def has_arrived(counts: dict[str, float]) -> bool:
            return counts["forwarded_total"] == counts["forwarded_taken_total"]

        # The last acknowledgements may be on their way.
        eventually(lambda: has_arrived(metrics(page)), "arrival of all forwarded datagrams")
        counts = metrics(page)
        assert counts["migrations_total"] >= 8, counts
        assert counts["forwarded_total"] > 0, counts
        assert counts["forward_failures_total"] == 0


def test_a_client_of_a_server_in_this_process_moves(tmp_path: Path) -> None:
    site = Site(tmp_path)
    options = {
        "http3": True,
        "http1": False,
        "http2": False,
        "ssl_certfile": [site.cert],
        "ssl_keyfile": [site.key],
    }
    with (
        serve(apps.asgi, **options) as server,
        DatagramProxy(server.port) as proxy,
        connected(proxy.port, tmp_path) as client,
    ):
        for _ in range(3):
            assert pid(client) == os.getpid()
            proxy.rebind()
        assert client.fetch("GET", "/stream/5/0.01").body == b"chunk" * 5


@pytest.mark.parametrize("is_shared", [True, False])
def test_inherited_sockets(tmp_path: Path, is_shared: bool) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as inherited, contextlib.ExitStack() as stack:
        inherited.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, int(is_shared))
        inherited.bind(("127.0.0.1", 0))
        port = inherited.getsockname()[1]
        options = ["--workers", "3", "--bind", f"fd://{inherited.fileno()}"]
        program = stack.enter_context(
            serving(tmp_path, ["apps:asgi"], *options, pass_fds=[inherited.fileno()])
        )
        assert ("only one worker serves HTTP/3" in program.log) != is_shared
        clients = [stack.enter_context(connected(port, tmp_path)) for _ in range(40)]
        pids = {pid(client) for client in clients}
        assert len(pids) == (3 if is_shared else 1)
        program.signal(signal.SIGHUP)
        eventually(lambda: not pids & set(program.children()), "the old workers' end")
        with connected(port, tmp_path) as client:
            assert pid(client) in program.children()


@pytest.mark.parametrize("app", APPS)
@pytest.mark.parametrize(
    "options",
    [
        ["--workers", "1"],
        ["--workers", "3"],
        ["--workers", "3", "--spawn"],
        ["--worker-mode", "threads", "--workers", "3"],
    ],
)
def test_a_reload_loses_nothing(tmp_path: Path, app: list[str], options: list[str]) -> None:
    with (
        serving(tmp_path, app, *options) as program,
        Requests(program.port, tmp_path, 4) as requests,
        contextlib.ExitStack() as stack,
    ):
        for _ in range(2):
            before = set(program.children())
            clients = [stack.enter_context(connected(program.port, tmp_path)) for _ in range(12)]
            downloads = [(client, client.begin("GET", DOWNLOAD)) for client in clients]
            for client, stream in downloads:
                client.until(lambda client=client, stream=stream: client.exchanges[stream].body)
            program.signal(signal.SIGHUP)
            for client, stream in downloads:
                assert client.finish(stream)[0].body == DOWNLOADED
            eventually(lambda before=before: not before & set(program.children()), "the old workers' end")
            requests.more()
        requests.stop()
        assert not requests.failures
        assert requests.goaways >= 4, "the connections were not moved to the new workers"
        assert set(requests.pids[-4:]) <= set(program.children())


VERSION = """
async def app(scope, receive, send):
    await send({{"type": "http.response.start", "status": 200, "headers": [(b"x-version", b"{0}")]}})
    await send({{"type": "http.response.body", "body": b"{1}"}})
"""


def test_reload_of_changed_code_loses_nothing(tmp_path: Path) -> None:
    """`--reload` while connections are open: they get GOAWAY, and what they ask next comes from the new code."""
    source = tmp_path / "changing.py"
    source.write_text(VERSION.format(0, 1))
    site = Site(tmp_path)
    certificate = ["--ssl-certfile", site.cert, "--ssl-keyfile", site.key]
    with (
        running(
            "changing:app", "--reload", "--http3", "--no-http1", "--no-http2", *certificate, cwd=tmp_path
        ) as program,
        connected(program.port, tmp_path) as client,
        Requests(program.port, tmp_path, 4) as requests,
    ):
        assert set(requests.pids) == {1}
        assert client.fetch("GET", "/").fields["x-version"] == "0"
        for number in range(2, 5):
            # Other code of another length, again until the watcher has started.
            def changed(number: int = number) -> bool:
                source.write_text(VERSION.format(10**number, number))
                with contextlib.suppress(AssertionError):
                    eventually(lambda: number in requests.pids[-20:] or requests.failures, "the new code", 3)
                return number in requests.pids or bool(requests.failures)

            eventually(changed, "the new code")
            seen = len(requests.pids)
            requests.more()
            assert set(requests.pids[seen + 40 :]) == {number}
        # A connection that was idle has been told, and a new one has the newest code.
        client.until(lambda: client.goaway is not None)
        with connected(program.port, tmp_path) as another:
            assert another.fetch("GET", "/").fields["x-version"] == str(10**4)
        requests.stop()
        assert not requests.failures, program.log
        assert requests.goaways >= 4


def test_recycled_workers_lose_nothing(tmp_path: Path) -> None:
    options = ["--workers", "2", "--limit-max-requests", "40"]
    with (
        serving(tmp_path, ["apps:asgi"], *options) as program,
        Requests(program.port, tmp_path, 4) as requests,
    ):
        eventually(lambda: len(set(requests.pids)) >= 5 or requests.failures, "five workers that served")
        requests.stop()
        assert not requests.failures, program.log


@pytest.mark.parametrize("workers", ["1", "4"])
def test_the_clients_of_a_killed_worker_notice(tmp_path: Path, workers: str) -> None:
    options = ["--workers", workers]
    with serving(tmp_path, ["apps:asgi"], *options) as program, contextlib.ExitStack() as stack:
        clients = [stack.enter_context(connected(program.port, tmp_path)) for _ in range(16)]
        owners = [pid(client) for client in clients]
        killed = owners[0]
        streams = [client.begin("GET", DOWNLOAD) for client in clients]
        os.kill(killed, signal.SIGKILL)
        started = time.monotonic()
        for client, owner, stream in zip(clients, owners, streams, strict=True):
            if owner == killed:
                # A client that only waits for a response sends nothing, and would wait for its idle timeout.
                client.on_loop(lambda client=client: client.quic.send_ping(1))
                client.until(lambda client=client: client.was_reset)
            else:
                assert client.finish(stream)[0].body == DOWNLOADED
                assert pid(client) == owner
        assert time.monotonic() - started < 15
        for _ in range(8):
            with connected(program.port, tmp_path) as client:
                assert pid(client) != killed


def test_fewer_workers_keep_their_connections(tmp_path: Path) -> None:
    with (
        serving(tmp_path, ["apps:asgi"], "--workers", "3") as program,
        Requests(program.port, tmp_path, 4) as requests,
        contextlib.ExitStack() as stack,
    ):
        clients = [stack.enter_context(connected(program.port, tmp_path)) for _ in range(12)]
        downloads = [(client, client.begin("GET", DOWNLOAD)) for client in clients]
        for client, stream in downloads:
            client.until(lambda client=client, stream=stream: client.exchanges[stream].body)
        before = set(program.children())
        program.signal(signal.SIGTTOU)
        for client, stream in downloads:
            assert client.finish(stream)[0].body == DOWNLOADED
        eventually(lambda: len(program.children()) == 2, "two workers")
        assert set(program.children()) < before
        program.signal(signal.SIGTTIN)
        eventually(lambda: len(program.children()) == 3, "three workers again")
        requests.more()
        requests.stop()
        assert not requests.failures


def test_workers_share_the_tickets_of_early_data(tmp_path: Path) -> None:
    page = free_port()
    options = ["--workers", "3", "--http3-early-data", "--metrics-address", f"127.0.0.1:{page}"]
    with serving(tmp_path, ["apps:asgi"], *options) as program:
        pids: set[int] = set()

        def resumed(ticket: object) -> tuple[bool, object]:
            """Whether early data was accepted, and a new ticket. The request is served in either case."""
            known = {"ticket": ticket, "early": True} if ticket else {}
            with Client(("127.0.0.1", program.port), ca=str(tmp_path / "ca.pem"), **known) as client:
                pids.add(pid(client))
                client.until(lambda: client.tickets)
                return client.early_data_accepted, client.tickets[0]

        _, ticket = resumed(None)
        for _ in range(24):
            used = ticket
            is_accepted, ticket = resumed(used)
            assert is_accepted
        # The last one again, at whichever worker (RFC 8446 8.1).
        assert not any(resumed(used)[0] for _ in range(12))
        assert pids <= set(program.children())
        assert len(pids) > 1
        eventually(lambda: metrics(page)["early_accepted_total"] == 24, "the count of accepted ones")
        before = set(program.children())
        program.signal(signal.SIGHUP)
        eventually(lambda: not before & set(program.children()), "the old workers' end")
        # The new ones do not know it: another certificate or another trust may be in force.
        is_accepted, ticket = resumed(ticket)
        assert not is_accepted
        assert resumed(ticket)[0]


THREADS = ["--worker-mode", "threads", "--workers"]


def test_a_client_that_moves_stays_with_its_loop(tmp_path: Path) -> None:
    page = free_port()
    options = [*THREADS, "4", "--metrics-address", f"127.0.0.1:{page}"]
    with (
        serving(tmp_path, ["thread_apps:asgi"], *options) as program,
        DatagramProxy(program.port) as proxy,
        contextlib.ExitStack() as stack,
    ):
        others = [stack.enter_context(connected(program.port, tmp_path)) for _ in range(40)]
        assert {client.fetch("GET", "/thread").body for client in others} == {
            b"towline-loop-%d" % number for number in range(4)
        }
        client = stack.enter_context(connected(proxy.port, tmp_path))
        own = client.fetch("GET", "/thread").body
        for number in range(12):
            proxy.rebind()
            if number % 4 == 3:
                client.migrate()
            assert client.fetch("GET", "/thread").body == own
        counts = metrics(page)
        assert counts["forwarded_total"] > 0, counts
        assert counts["forward_failures_total"] == 0


def test_fewer_and_more_loops_keep_their_connections(tmp_path: Path) -> None:
    with (
        serving(tmp_path, ["thread_apps:asgi"], *THREADS, "3") as program,
        Requests(program.port, tmp_path, 4) as requests,
    ):
        for number in (signal.SIGTTOU, signal.SIGTTIN, signal.SIGTTIN):
            (before,) = program.children()
            program.signal(number)
            eventually(lambda before=before: before not in program.children(), "the old process' end")
            requests.more()
        requests.stop()
        assert not requests.failures
