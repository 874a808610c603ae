"""Mixed traffic for a long time, with reloads and killed workers: `python -m benches.soak [--minutes 30]`.

Four servers with two workers each: ASGI and WSGI, each once undisturbed and once with a reload every minute and a
worker killed every five. Valid traffic of every kind is paced, so that nothing is overloaded, and never sends a
request twice; hostile traffic runs beside it. Counted are valid requests without a complete and right response; the
requests that a killed worker held are counted apart. Memory, descriptors and threads are sampled every ten seconds.
The exit status is 1 if a valid request failed or a server grew.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import datetime
import functools
import itertools
import os
import random
import signal
import socket
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection
from websockets.sync.client import connect as connect_websocket

from benches import report
from benches.apps.soak import PART, PARTS, WORKER
from tests.server.test_refusals import REFUSED
from tests.support.http2_client import Client as Http2Client
from tests.support.process import Program
from tests.support.process_resources import descriptors, resident_bytes
from tests.wire import http2_attacks

APPS = Path(__file__).parent / "apps"
TIMEOUT_S = 40.0
"""For any step of a valid request: more than the server's longest default timeout."""
KILL_S = 3.0
"""After a worker is killed, connections that had not received a response may have been its own."""
SAMPLE_S = 10.0
BODY = bytes(4096)
UPLOAD = bytes(65536)
GOING_AWAY, SERVICE_RESTART = 1001, 1012
MAX_GROWTH = 1.10
MAX_GROWTH_BYTES = 2 << 20
"""Resident memory of an undisturbed worker after its warm-up may grow by the larger of the two."""


@dataclass
class ServerUnderTest:
    """One server under test, and what its clients have seen."""

    name: str
    program: Program
    is_disturbed: bool
    completed: collections.Counter[str] = field(default_factory=collections.Counter)
    """Valid requests with a complete and right response, by kind of traffic."""
    killed_with: collections.Counter[str] = field(default_factory=collections.Counter)
    """Valid requests that a killed worker held."""
    failures: list[str] = field(default_factory=list)
    hostile: int = 0
    reloads: int = 0
    kills: list[tuple[float, int]] = field(default_factory=list)
    samples: list[dict[str, Any]] = field(default_factory=list)

    def failed(self, kind: str, worker: int | None, error: BaseException) -> None:
        """Counts a valid request without a response; `worker` is that of the connection, if it is known."""
        now = time.monotonic()
        held = any(pid == worker or (worker is None and now < at + KILL_S) for at, pid in self.kills)
        if held and isinstance(error, OSError | ConnectionClosed):
            self.killed_with[kind] += 1
        else:
            self.failures.append(f"{datetime.datetime.now():%H:%M:%S} {kind}, worker {worker}: {error!r}")


class Stopped:
    """Ends all traffic; a pause ends with it."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def __bool__(self) -> bool:
        return self._event.is_set()

    def set(self) -> None:
        self._event.set()

    def pause(self, seconds: float) -> None:
        self._event.wait(random.uniform(0.5, 1.5) * seconds)


class Http1:
    """Keep-alive connection that detects a truncated response and remembers its worker."""

    def __init__(self, port: int) -> None:
        self.worker: int | None = None
        self.closes = False
        self.socket = socket.create_connection(("127.0.0.1", port), TIMEOUT_S)
        self._file = self.socket.makefile("rb")

    def close(self) -> None:
        self._file.close()
        self.socket.close()

    def post(self, body: bytes, *, parts: int = 1, pause: Callable[[], None] = lambda: None) -> bytes:
        """Sends a request, its body in `parts`, and returns the response's body."""
        head = b"POST /length HTTP/1.1\r\nHost: test\r\nContent-Length: %d\r\n\r\n" % len(body)
        size = -(-len(body) // parts)
        self.socket.sendall(head + body[:size])
        for at in range(size, len(body), size):
            pause()
            self.socket.sendall(body[at : at + size])
        return b"".join(self.response())

    def response(self, pause: Callable[[], None] = lambda: None) -> Iterator[bytes]:
        """The parts of the body. Raises OSError unless the response is a complete 200."""
        status, fields = self._line(), {}
        while line := self._line():
            name, _, value = line.partition(b": ")
            fields[name.lower()] = value
        if not status.startswith(b"HTTP/1.1 200"):
            raise ValueError(f"{status!r}")
        self.worker = int(fields[WORKER.encode()])
        self.closes = fields.get(b"connection") == b"close"
        if b"content-length" in fields:
            yield self._exactly(int(fields[b"content-length"]))
            return
        while size := int(self._line(), 16):
            yield self._exactly(size)
            self._line()
            pause()
        self._line()

    def _line(self) -> bytes:
        line = self._file.readline()
        if not line.endswith(b"\r\n"):
            raise ConnectionError(f"closed after {line!r}")
        return line[:-2]

    def _exactly(self, size: int) -> bytes:
        data = self._file.read(size)
        if len(data) < size:
            raise ConnectionError(f"closed after {len(data)} of {size} bytes")
        return data


def right(received: bytes, expected: bytes) -> None:
    if received != expected:
        raise ValueError(f"received {received[:80]!r}, expected {expected[:80]!r}")


# Valid traffic: each function is one client, until `stopped`.


def keep_alive(server: ServerUnderTest, stopped: Stopped) -> None:
    """POSTs on a connection for as long as the server keeps it."""
    while not stopped:
        connection = None
        try:
            connection = Http1(server.program.port)
            while not stopped and not connection.closes:
                right(connection.post(BODY), b"%d" % len(BODY))
                server.completed["keep-alive"] += 1
                stopped.pause(0.05)
        except (OSError, ValueError) as error:
            server.failed("keep-alive", connection.worker if connection else None, error)
        finally:
            if connection is not None:
                connection.close()


def new_connections(server: ServerUnderTest, stopped: Stopped) -> None:
    """A connection for each request."""
    while not stopped:
        try:
            with contextlib.closing(Http1(server.program.port)) as connection:
                right(connection.post(BODY), b"%d" % len(BODY))
                server.completed["new connection"] += 1
        except (OSError, ValueError) as error:
            server.failed("new connection", None, error)
        stopped.pause(0.1)


def slow_sender(server: ServerUnderTest, stopped: Stopped) -> None:
    """Takes about three seconds to send a body."""
    while not stopped:
        connection = None
        try:
            connection = Http1(server.program.port)
            received = connection.post(UPLOAD, parts=30, pause=lambda: stopped.pause(0.1))
            right(received, b"%d" % len(UPLOAD))
            server.completed["slow sender"] += 1
        except (OSError, ValueError) as error:
            server.failed("slow sender", None, error)
        finally:
            if connection is not None:
                connection.close()


def slow_reader(server: ServerUnderTest, stopped: Stopped) -> None:
    """Takes about three seconds to read a response of 2 MiB."""
    while not stopped:
        connection = None
        try:
            connection = Http1(server.program.port)
            connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
            connection.socket.sendall(b"GET /parts HTTP/1.1\r\nHost: test\r\n\r\n")
            received = sum(map(len, connection.response(lambda: stopped.pause(0.1))))
            right(b"%d" % received, b"%d" % (PARTS * len(PART)))
            server.completed["slow reader"] += 1
        except (OSError, ValueError) as error:
            server.failed("slow reader", connection.worker if connection else None, error)
        finally:
            if connection is not None:
                connection.close()


def http2(server: ServerUnderTest, stopped: Stopped) -> None:
    """Five POSTs at a time over HTTP/2; a new connection after GOAWAY, which says what may be sent again."""
    while not stopped:
        worker, client = None, None
        try:
            client = Http2Client(("127.0.0.1", server.program.port))
            while not stopped and not client.goaway:
                streams = [client.begin("POST", "/length", end=False) for _ in range(5)]
                for stream in streams:
                    client.write(stream, BODY, end=True)
                client.until(functools.partial(are_over, client, streams))
                for stream in streams:
                    exchange = client.exchanges.pop(stream)
                    if not exchange.over and client.goaway:
                        continue  # above GOAWAY's last stream: not processed (RFC 9113 6.8)
                    right(exchange.body, b"%d" % len(BODY))
                    worker = int(exchange.fields[WORKER])
                    server.completed["HTTP/2"] += 1
                stopped.pause(0.2)
        except (OSError, ValueError, AssertionError) as error:
            wrapped = error if isinstance(error, OSError | ValueError) else ConnectionError(str(error))
            server.failed("HTTP/2", worker, wrapped)
        finally:
            if client is not None:
                client.close()


def are_over(client: Http2Client, streams: list[int]) -> bool:
    """Whether each stream is over, or is above the last that GOAWAY promises to process."""
    last = client.goaway[-1][0] if client.goaway else 2**31
    return all(client.exchanges[stream].over or stream > last for stream in streams)


def websocket(server: ServerUnderTest, stopped: Stopped) -> None:
    """Messages and their echoes, until the server closes with 1012 (reload) or 1001 (stop)."""
    while not stopped:
        worker = None
        try:
            with connect_websocket(
                f"ws://127.0.0.1:{server.program.port}/", open_timeout=TIMEOUT_S, ping_interval=None
            ) as connection:
                worker = worker_of(connection)
                for number in itertools.count():
                    if stopped:
                        break
                    connection.send(message := f"message {number} " * 20)
                    right(str(connection.recv(TIMEOUT_S)).encode(), message.encode())
                    server.completed["WebSocket"] += 1
                    stopped.pause(0.1)
        except ConnectionClosed as error:
            if error.rcvd is None or error.rcvd.code not in (GOING_AWAY, SERVICE_RESTART):
                server.failed("WebSocket", worker, error)
        except (OSError, ValueError) as error:
            server.failed("WebSocket", worker, error)


def worker_of(connection: ClientConnection) -> int:
    assert connection.response is not None
    return int(connection.response.headers[WORKER])


# Hostile traffic: its responses do not matter.


def malformed(server: ServerUnderTest, stopped: Stopped) -> None:
    """Requests that must be refused, connections that stop in the middle of a head, and resets."""
    left: collections.deque[socket.socket] = collections.deque()
    for wire, _, _ in itertools.cycle(REFUSED.values()):
        if stopped:
            break
        with contextlib.suppress(OSError):
            connection = socket.create_connection(("127.0.0.1", server.program.port), 5)
            connection.sendall(wire)
            left.append(connection)
            server.hostile += 1
        if len(left) > 20:
            left.popleft().close()
        stopped.pause(0.1)
    for connection in left:
        connection.close()


def attacks(server: ServerUnderTest, stopped: Stopped) -> None:
    """The known attacks on HTTP/2, one after the other."""
    for name in itertools.cycle(http2_attacks.ATTACKS):
        if stopped:
            break
        with contextlib.suppress(OSError):
            http2_attacks.attack(("127.0.0.1", server.program.port), name)
        server.hostile += 1
        stopped.pause(5.0)


TRAFFIC: list[tuple[Callable[[ServerUnderTest, Stopped], None], int]] = [
    (keep_alive, 8),
    (new_connections, 2),
    (slow_sender, 2),
    (slow_reader, 2),
    (http2, 2),
    (websocket, 4),
    (malformed, 1),
    (attacks, 1),
]
"""Each kind and its number of clients for each server."""


def sample(server: ServerUnderTest, started: float) -> None:
    """Adds resident memory, descriptors and threads of the supervisor and its workers."""
    processes = []
    for pid in (server.program.pid, *server.program.children()):
        with contextlib.suppress(OSError):  # it has ended since
            tasks = len(os.listdir(f"/proc/{pid}/task"))
            processes.append([pid, resident_bytes(pid), len(descriptors(pid)), tasks])
    server.samples.append({"at": round(time.monotonic() - started, 1), "processes": processes})


def growth(server: ServerUnderTest, warm_up_s: float) -> list[str]:
    """Returns what grew: the supervisor always, the workers if they lived from the warm-up to the end."""
    found = []
    late = [one["processes"] for one in server.samples if one["at"] >= warm_up_s]
    quarter = max(1, len(late) // 4)
    for pid in [one[0] for one in late[-1]] if late else []:
        series = [one for processes in late for one in processes if one[0] == pid]
        if len(series) < len(late):
            continue
        first, last = series[:quarter], series[-quarter:]
        for at, what in enumerate(("resident bytes", "descriptors", "threads"), 1):
            before, after = (statistics.median(one[at] for one in part) for part in (first, last))
            allowed = max(MAX_GROWTH_BYTES, before * (MAX_GROWTH - 1)) if at == 1 else 2
            if after > before + allowed:
                found.append(f"process {pid}: {what} {before:,.0f} -> {after:,.0f}")
    return found


def disturb(servers: list[ServerUnderTest], stopped: Stopped, reload_s: float, kill_s: float) -> None:
    """Reloads each disturbed server every `reload_s`, and kills a worker every `kill_s`."""
    started = time.monotonic()
    reload_at, kill_at = started + reload_s, started + kill_s
    while not stopped:
        time.sleep(0.1)
        now = time.monotonic()
        if now >= reload_at:
            reload_at += reload_s
            for one in servers:
                one.program.signal(signal.SIGHUP)
                one.reloads += 1
        if now >= kill_at:
            kill_at += kill_s
            for one in servers:
                pid = random.choice(one.program.children())
                one.kills.append((time.monotonic(), pid))
                os.kill(pid, signal.SIGKILL)


def run(seconds: float, reload_s: float, kill_s: float) -> list[ServerUnderTest]:
    """Serves, sends the traffic for `seconds`, and returns what was seen of each server."""
    stopped = Stopped()
    with contextlib.ExitStack() as stack:
        servers = []
        for kind, is_disturbed in itertools.product(("asgi", "wsgi"), (False, True)):
            threads = ["--threads", "4"] if kind == "wsgi" else []
            program = Program(f"soak:{kind}", "--workers", "2", *threads, cwd=APPS)
            stack.callback(stop, program)
            name = f"{kind.upper()}, {'reloads and kills' if is_disturbed else 'undisturbed'}"
            servers.append(ServerUnderTest(name, program, is_disturbed))
        clients = [
            threading.Thread(target=client, args=(one, stopped), daemon=True)
            for one in servers
            for client, count in TRAFFIC
            if client is not websocket or one.name.startswith("ASGI")
            for _ in range(count)
        ]
        disturbed = [one for one in servers if one.is_disturbed]
        clients.append(
            threading.Thread(target=disturb, args=(disturbed, stopped, reload_s, kill_s), daemon=True)
        )
        for thread in clients:
            thread.start()
        started = time.monotonic()
        while (now := time.monotonic()) < started + seconds:
            for one in servers:
                sample(one, started)
            time.sleep(min(SAMPLE_S, max(0.0, started + seconds - now)))
        stopped.set()
        for thread in clients:
            thread.join(2 * TIMEOUT_S)
    return servers


def stop(program: Program) -> None:
    program.signal(signal.SIGTERM)
    program.wait(TIMEOUT_S)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benches.soak", description=__doc__.split("\n\n")[0])
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--reload", type=float, default=60, metavar="SECONDS", help="between reloads")
    parser.add_argument("--kill", type=float, default=300, metavar="SECONDS", help="between killed workers")
    parser.add_argument("--no-save", dest="save", action="store_false", help="leave benches/results/ alone")
    options = parser.parse_args()
    servers = run(options.minutes * 60, options.reload, options.kill)
    warm_up_s = min(300.0, options.minutes * 20)
    entries = {one.name: entry(one, options.minutes, warm_up_s) for one in servers}
    for name, found in entries.items():
        print(f"{name}: {found['completed']}")
        for text in (*found["failures"], *found["grew"]):
            print(f"  {text}")
    if options.save:
        report.save("soak", entries, replace=True)
        write_tables()
    return 1 if any(one["failures"] or one["grew"] for one in entries.values()) else 0


def entry(server: ServerUnderTest, minutes: float, warm_up_s: float) -> dict[str, Any]:
    return {
        "date": datetime.date.today().isoformat(),
        "machine": report.machine(),
        "versions": report.versions(),
        "minutes": minutes,
        "completed": dict(server.completed),
        "killed_with": dict(server.killed_with),
        "failures": server.failures,
        "hostile": server.hostile,
        "reloads": server.reloads,
        "kills": len(server.kills),
        "grew": growth(server, warm_up_s),
        "samples": server.samples,
    }


def write_tables() -> None:
    found = report.load("soak")
    kinds = sorted({kind for one in found.values() for kind in one["completed"]})
    completed = report.table(
        ["valid requests completed", *kinds, "failed", "held by killed workers"],
        [
            [
                name,
                *(f"{one['completed'].get(kind, 0):,}" for kind in kinds),
                str(len(one["failures"])),
                str(sum(one["killed_with"].values())),
            ]
            for name, one in found.items()
        ],
    )
    disturbed = report.table(
        ["", "reloads", "workers killed", "hostile connections"],
        [
            [name, str(one["reloads"]), str(one["kills"]), f"{one['hostile']:,}"]
            for name, one in found.items()
        ],
    )
    resources = report.table(
        ["sum of all processes: first quarter, last quarter", "resident MiB", "descriptors", "threads"],
        [[name, *(changes(one["samples"], at) for at in (1, 2, 3))] for name, one in found.items()],
    )
    (minutes,) = {one["minutes"] for one in found.values()}
    text = (
        f"{minutes:g} minutes of mixed traffic to servers with two workers; see the driver's description.\n"
    )
    about = "\n".join({report.conditions(one): None for one in found.values()}) + "\n"
    report.write_markdown(
        "soak", "Soak", [text, completed, disturbed, resources, about], "python -m benches.soak"
    )


def changes(samples: list[dict[str, Any]], at: int) -> str:
    """The median in the first and in the last quarter of the time."""
    quarter = max(1, len(samples) // 4)
    parts = (samples[:quarter], samples[-quarter:])
    sums = [statistics.median(sum(one[at] for one in each["processes"]) for each in part) for part in parts]
    return " -> ".join(f"{one / 2**20:.1f}" if at == 1 else f"{one:.0f}" for one in sums)


if __name__ == "__main__":
    sys.exit(main())
