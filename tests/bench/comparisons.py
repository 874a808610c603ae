"""`towline bench URL URL` and its relatives as the tests run it: servers, applications, and the record."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from towline.bench import record as records
from towline.bench.record import ExperimentRecord, Record
from towline.bench.subjects import make_certificate
from towline.bench.subjects.attached import Address
from towline.bench.subjects.ports import free_port, is_free

from tests.bench.test_run import processes_of, program
from tests.support.process import eventually

TINY = ("--runs", "2", "--duration", "0.2", "--warm-up", "0.3", "--no-history", "-o", "out", "-c", "4")
SERVER = """
import socketserver, sys, time
class Handler(socketserver.StreamRequestHandler):
    def handle(self):
        while line := self.rfile.readline():
            host = b""
            while (field := self.rfile.readline()) not in (b"\\r\\n", b""):
                if field.lower().startswith(b"host:"):
                    host = field[5:].strip()
            time.sleep({delay})
            path = line.split()[1]
            body = path + b" " + host
            self.wfile.write(b"HTTP/1.1 200 OK\\r\\ncontent-length: %d\\r\\n\\r\\n" % len(body) + body)
class Server(socketserver.ThreadingTCPServer):
    daemon_threads = allow_reuse_address = True
    request_queue_size = 100
Server(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""
APP = """
async def app(scope, receive, send):
    assert scope["type"] == "http"
    body = b"{body} " + scope["path"].encode()
    headers = [(b"content-length", str(len(body)).encode())]
    await send({{"type": "http.response.start", "status": 200, "headers": headers}})
    await send({{"type": "http.response.body", "body": body}})
"""


def servers_of(folder: Path) -> set[str]:
    """Command lines of the servers of `script` that run, without that of the bench, which names them."""
    return {line for line in processes_of(folder) if "--command" not in line}


def script(folder: Path, name: str, delay: float = 0.0) -> Path:
    path = folder / f"{name}.py"
    path.write_text(SERVER.format(delay=delay))
    return path


@contextmanager
def running(path: Path) -> Iterator[int]:
    """The server of a script, started by somebody else."""
    port = free_port()
    server = subprocess.Popen([sys.executable, str(path), str(port)])
    try:
        eventually(lambda: not is_free(port), "the server listens")
        yield port
        assert server.poll() is None, "the bench has stopped a server that it had not started"
    finally:
        server.kill()
        server.wait()


def compared(
    folder: Path, *arguments: str, status: int = 0, tiny: Sequence[str] = TINY
) -> tuple[list[str], Record]:
    """The lines of output and the record."""
    run = program(*arguments, *tiny, cwd=folder)
    out, err = run.communicate(timeout=200)
    assert run.returncode == status, err + out
    return out.splitlines(), records.load(folder / "out" / "result.json.gz")


def concludes(line: str, record: Record, faster: str, slower: str) -> bool:
    """Whether the figures have this order, and the line is about it; other load on the machine may leave no verdict."""
    rates = {
        name: median(one.per_s for one in record.experiments[0].slices if one.subject == name)
        for name in (faster, slower)
    }
    either = {
        f"{a} {words} {b}: "
        for a, b in ((faster, slower), (slower, faster))
        for words in ("compared with", "and")
    }
    undecided = any(pair.removesuffix(": ") in line for pair in either)
    return rates[faster] > rates[slower] and (
        line.startswith(f"{faster} is faster than {slower}: ") or undecided
    )


def commands_of(*names: str) -> list[str]:
    """`--command` for the scripts of these names."""
    return [word for name in names for word in ("--command", f"{name}={{python}} {name}.py {{port}}")]


def application(folder: Path, body: str = "shop") -> None:
    """`shop:app`, which responds with `body` and the path."""
    (folder / "shop.py").write_text(APP.format(body=body))


@contextmanager
def serving_with_tls(folder: Path, *options: str, over_udp: bool = False) -> Iterator[int]:
    """The application on Towline with a certificate, started by somebody else."""
    application(folder)
    certificate, key = make_certificate(folder).tls
    port = free_port()
    serve = [sys.executable, "-m", "towline", "serve", "shop:app", "--port", str(port), *options]
    tls = ["--ssl-certfile", str(certificate), "--ssl-keyfile", str(key)]
    address = Address("https", "127.0.0.1", port, "/", over_udp=over_udp)
    with subprocess.Popen([*serve, *tls], cwd=folder) as server:
        try:
            eventually(lambda: address.connect() is None, "the server listens")
            yield port
        finally:
            server.terminate()


def flawless(record: Record, *, all_cost: bool = False) -> ExperimentRecord:
    """The only experiment, in which no subject and no request failed; `all_cost`: CPU time of each slice is known."""
    (experiment,) = record.experiments
    assert not any(one.failure for one in experiment.subjects)
    assert all(one.answered and not one.failed for one in experiment.slices)
    assert not all_cost or all(one.subject_cpu_s > 0 for one in experiment.slices)
    return experiment


def sizes_of(record: Record) -> dict[str, int]:
    found = {one.subject: one.body_bytes / one.answered for one in record.experiments[0].slices}
    return {name: round(size) for name, size in found.items()}
