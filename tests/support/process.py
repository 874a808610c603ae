"""The real program as a process, a small HTTP client on a socket, and a load generator built on it."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from tests.support.patience import PATIENCE

HERE = Path(__file__).parents[1] / "lifecycle"
MAX_WAIT = 20.0 * PATIENCE
"""Seconds that any step may take on a busy machine before a test fails."""


def eventually(condition: Callable[[], object], description: str, timeout: float = MAX_WAIT) -> float:
    """Wait until `condition()` is true; returns the seconds it took."""
    started = time.monotonic()
    while not condition():
        assert time.monotonic() - started < timeout, f"{description}: not within {timeout} s"
        time.sleep(0.005)
    return time.monotonic() - started


def children(pid: int) -> list[int]:
    """The child processes of a process."""
    if sys.platform != "linux":
        return [child for child, (parent, state) in processes().items() if parent == pid and state != "Z"]
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except OSError:
        return []
    return [child for child in map(int, text.split()) if alive(child)]


def processes() -> dict[int, tuple[int, str]]:
    """Parent and state of each process, where there is no /proc."""
    listed = subprocess.run(
        ["ps", "-A", "-o", "pid=,ppid=,stat="], capture_output=True, text=True, check=True
    )
    found = (line.split() for line in listed.stdout.splitlines())
    return {int(pid): (int(parent), state[0]) for pid, parent, state in found}


def alive(pid: int) -> bool:
    """Whether the process runs; a zombie does not."""
    return state_of(pid) not in ("", "Z")


def state_of(pid: int) -> str:
    """The letter of its state in /proc (proc(5)); empty if there is no such process."""
    if sys.platform != "linux":
        return processes().get(pid, (0, ""))[1]
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


class Program:
    """`towline serve`, started on a free port of 127.0.0.1. `pass_fds`: descriptors that it inherits."""

    def __init__(self, app: str, *options: str, cwd: Path = HERE, pass_fds: Sequence[int] = ()) -> None:
        command = [sys.executable, "-m", "towline", "serve", app, "--port", "0", *options]
        self.process = subprocess.Popen(
            command, cwd=cwd, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, pass_fds=pass_fds
        )
        self.lines: list[str] = []
        self._readers = [
            threading.Thread(target=self._read, args=(stream,), daemon=True)
            for stream in (self.process.stderr, self.process.stdout)
        ]
        for reader in self._readers:
            reader.start()
        eventually(lambda: self.port or self.process.poll() is not None, "start")
        assert self.process.poll() is None, self.log

    def _read(self, stream: Iterator[str]) -> None:
        self.lines.extend(stream)

    @property
    def log(self) -> str:
        return "".join(self.lines)

    @property
    def port(self) -> int:
        found = re.search(r"Towline .*? on .*?https?://127\.0\.0\.1:(\d+)(?![\d/])", self.log)
        return int(found[1]) if found else 0

    @property
    def pid(self) -> int:
        return self.process.pid

    def children(self) -> list[int]:
        return children(self.pid)

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait(self, timeout: float = MAX_WAIT) -> int:
        """The exit status."""
        status = self.process.wait(timeout)
        for reader in self._readers:
            reader.join(MAX_WAIT)
        return status

    def pids(self, count: int, timeout: float = MAX_WAIT) -> set[int]:
        """Ids of `count` workers that respond: connections that stay open are shared among them."""
        found: set[int] = set()
        with contextlib.ExitStack() as connections:

            def enough() -> bool:
                with contextlib.suppress(OSError):
                    found.add(int(connections.enter_context(connect(self.port)).get("/pid").body))
                return len(found) >= count

            eventually(enough, f"{count} workers that respond (found {found})\n{self.log}", timeout)
        return found

    def each_worker(self, count: int) -> Iterator[int]:
        """The `count` workers one after the other: while one is yielded, the others are stopped, so that it serves every
        new connection. That must take less time than `--timeout-worker-healthcheck`."""
        eventually(lambda: len(self.children()) == count, f"{count} workers")
        workers = self.children()
        for one in workers:
            others = [worker for worker in workers if worker != one]
            try:
                for other in others:
                    os.kill(other, signal.SIGSTOP)
                # The process may still run for a moment after kill() has returned.
                eventually(lambda others=others: {*map(state_of, others)} == {"T"}, "the others are stopped")
                yield one
            finally:
                for other in others:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(other, signal.SIGCONT)


@contextlib.contextmanager
def running(app: str, *options: str, cwd: Path = HERE, pass_fds: Sequence[int] = ()) -> Iterator[Program]:
    """A program that is ended on exit with its workers, also after an error."""
    program = Program(app, *options, cwd=cwd, pass_fds=pass_fds)
    try:
        yield program
    except BaseException:
        sys.stderr.write(program.log)
        raise
    finally:
        pids = [program.pid, *program.children()]
        if program.process.poll() is None:
            program.signal(signal.SIGQUIT)
            try:
                program.wait()
            except subprocess.TimeoutExpired:
                for pid in pids:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                raise


@dataclasses.dataclass
class Response:
    status: int
    body: bytes
    closes: bool


def request(port: int, path: str, timeout: float = MAX_WAIT) -> Response:
    """One request on a new connection. Raises OSError unless the response is complete."""
    with connect(port, timeout) as conn:
        return conn.get(path)


@contextlib.contextmanager
def connect(port: int, timeout: float = MAX_WAIT) -> Iterator[Conn]:
    with socket.create_connection(("127.0.0.1", port), timeout) as sock:
        yield Conn(sock)


class Conn:
    """HTTP/1.1 connection that detects a truncated response."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._buffer = b""

    def get(self, path: str) -> Response:
        self.send(path)
        return self.response()

    def send(self, path: str) -> None:
        self.sock.sendall(f"GET {path} HTTP/1.1\r\nhost: test\r\n\r\n".encode())

    def response(self) -> Response:
        head = self.head()
        if "transfer-encoding: chunked" in head:
            return Response(int(head[9:12]), b"".join(self._chunks()), "connection: close" in head)
        length = re.search(r"content-length: (\d+)", head)
        assert length, head
        body = self._take(int(length[1]))
        return Response(int(head[9:12]), body, "connection: close" in head)

    def head(self) -> str:
        while b"\r\n\r\n" not in self._buffer:
            self._fill()
        head, _, self._buffer = self._buffer.partition(b"\r\n\r\n")
        return head.decode().lower()

    def _chunks(self) -> Iterator[bytes]:
        while True:
            while b"\r\n" not in self._buffer:
                self._fill()
            size, _, self._buffer = self._buffer.partition(b"\r\n")
            data = self._take(int(size, 16) + 2)[:-2]
            if not data:
                return
            yield data

    def _take(self, count: int) -> bytes:
        while len(self._buffer) < count:
            self._fill()
        data, self._buffer = self._buffer[:count], self._buffer[count:]
        return data

    def _fill(self) -> None:
        data = self.sock.recv(65536)
        if not data:
            raise ConnectionError("the server closed the connection before the response was whole")
        self._buffer += data


class Load:
    """Threads that send requests until `stop`. `failures` must stay empty.

    With `keep_alive`, a request on a reused connection that ends before the first byte of a response is sent
    again on a new one, as RFC 9112 9.3.1 allows: the server may close an idle connection at any time.
    """

    def __init__(self, port: int, path: str = "/pid", *, threads: int = 4, keep_alive: bool = False) -> None:
        self.port, self.path, self.keep_alive = port, path, keep_alive
        self.responses: list[bytes] = []
        self.failures: list[str] = []
        self._stopped = threading.Event()
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(threads)]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        eventually(lambda: len(self.responses) > 20, f"a first few answers {self.failures[:3]}")
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join(MAX_WAIT)

    def more(self, count: int = 50) -> None:
        """Waits for `count` further responses."""
        target = len(self.responses) + count
        eventually(lambda: len(self.responses) >= target or self.failures, "more answers")

    def _run(self) -> None:
        conn: Conn | None = None
        while not self._stopped.is_set() and len(self.failures) < 20:
            reused = conn is not None
            try:
                if conn is None:
                    conn = Conn(socket.create_connection(("127.0.0.1", self.port), MAX_WAIT))
                response = conn.get(self.path)
                assert response.status == 200, response
                self.responses.append(response.body)
                if response.closes or not self.keep_alive:
                    conn.sock.close()
                    conn = None
            except (OSError, AssertionError) as error:
                stale = reused and conn is not None and not conn._buffer and isinstance(error, OSError)
                if not stale:
                    self.failures.append(repr(error))
                if conn is not None:
                    conn.sock.close()
                conn = None
        if conn is not None:
            conn.sock.close()


def python(script: str, *arguments: str, timeout: float = 30) -> subprocess.CompletedProcess[str]:
    """Runs a script in its own process: for exits, signals and forks."""
    command = [sys.executable, "-X", "dev", "-c", textwrap.dedent(script), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
