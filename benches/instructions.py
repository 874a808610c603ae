"""Instructions per hello request: `python -m benches.instructions`.

Counted by callgrind in one worker that responds to pipelined requests, and in the generator that sends them one by one. The
figure hardly depends on other load on the machine, so that a change of one per cent is visible. It excludes the kernel
and is no measure of time. The generator is target/release/towline-load (`cargo build --release -p towline-load`).
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from benches import report
from benches.generators import responder

APPS = {"asgi": "asgi_suite", "wsgi": "wsgi_hello"}
GENERATOR = "generator"
PROGRAM = Path(__file__).resolve().parent.parent / "target" / "release" / "towline-load"
CONNECTIONS, DEEP, WARM_UP, ROUNDS = 4, 16, 20, 40
FEW, MANY = 5_000, 25_000
"""Requests of two runs of the generator; their difference is the cost of requests, without start and end."""
REQUEST = b"GET / HTTP/1.1\r\nHost: 127.0.0.1:8000\r\n\r\n"
START_TIMEOUT = 60.0
Function = tuple[str, str]
"""The library and the name of a function."""

SERVER = """
import importlib, sys
from towline.config import ServerConfig
from towline.server import health, listeners
interface, module, port = sys.argv[1:]
app = importlib.import_module("benches.apps." + module).app
config = ServerConfig(app, interface=interface, port=int(port))
binds = listeners.open_all(config).binds
slot = health.WorkerSlots().acquire()
if interface == "asgi":
    from towline.server.asgi import AsgiWorker, new_loop, run_to_end
    loop, _ = new_loop(config.loop)
    async def main():
        await AsgiWorker(app, config, binds, slot=slot).serve(lambda: None)
    run_to_end(loop, main())
else:
    from towline.server.wsgi import WsgiWorker
    WsgiWorker(app, config, binds, slot=slot).serve(lambda: None)
"""
"""A worker as the supervisor forks it, but in a new process: valgrind cannot start in a forked child."""


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benches.instructions", description=(__doc__ or "").split("\n\n")[0]
    )
    parser.add_argument("--what", choices=[*APPS, GENERATOR], action="append", help="default: all")
    parser.add_argument(
        "--functions", type=int, default=0, metavar="N", help="print the N most expensive functions"
    )
    parser.add_argument("--no-save", dest="save", action="store_false", help="leave benches/results/ alone")
    options = parser.parse_args()
    if shutil.which("valgrind") is None or shutil.which("callgrind_control") is None:
        print("valgrind is not installed: nothing was counted")
        return 0
    for target in options.what or [*APPS, GENERATOR]:
        counts = count_generator() if target == GENERATOR else count(target)
        total, parts = sum(counts.values()), groups(counts)
        listed = ", ".join(f"{name} {instructions / total:.0%}" for name, instructions in parts.items())
        print(f"{target}: {total:,.0f} instructions per request ({listed})", flush=True)
        for (_, name), instructions in counts.most_common(options.functions):
            print(f"{instructions:9.1f}  {name}")
        if options.save:
            entry = {
                "date": datetime.date.today().isoformat(),
                "versions": report.versions(),
                "instructions": parts,
            }
            report.save("instructions", {target: entry})
    return 0


def groups(counts: Counter[Function]) -> dict[str, float]:
    """Instructions in our code, in CPython with its extension modules, and in other libraries."""
    found: Counter[str] = Counter()
    for (library, _), instructions in counts.items():
        found[group(library)] += instructions
    return {name: round(instructions, 1) for name, instructions in found.most_common()}


def group(library: str) -> str:
    name = Path(library).name
    if name.startswith("_native") or name == PROGRAM.name:
        return "Towline"
    if "python" in library:
        return "uvloop" if "uvloop" in library else "CPython"
    return "C library and others"


def count(interface: str) -> Counter[Function]:
    """Instructions per request, by function."""
    with tempfile.TemporaryDirectory() as folder, worker(interface, Path(folder)) as (pid, port):
        connections = [socket.create_connection(("127.0.0.1", port)) for _ in range(CONNECTIONS)]
        length = response_length(connections[0])
        exchange(connections, WARM_UP, length)
        control("--zero", pid)
        exchange(connections, ROUNDS, length)
        control("--dump", pid)
        exchange(connections, 1, length)  # the dump is made by the worker, when it runs again
        dump = next(path for path in Path(folder).iterdir() if re.fullmatch(r"callgrind\.\d+\.1", path.name))
        for connection in connections:
            connection.close()
        requests = CONNECTIONS * DEEP * ROUNDS
        return Counter({name: n / requests for name, n in exclusive(dump).items()})


def count_generator() -> Counter[Function]:
    """Instructions of the generator, on one connection: with more, timing decides how many responses a turn finds."""
    if not PROGRAM.exists():
        sys.exit(f"{PROGRAM} is not there: cargo build --release -p towline-load")
    with tempfile.TemporaryDirectory() as folder, responder() as (url, pinned):
        few, many = (generate(pinned, requests, url, Path(folder)) for requests in (FEW, MANY))
    many.subtract(few)
    return Counter({name: n / (MANY - FEW) for name, n in many.items()})


def generate(before: list[str], requests: int, url: str, folder: Path) -> Counter[Function]:
    """Instructions of each function in one run."""
    dump = folder / f"generator.{requests}"
    command = [*before, "valgrind", "--tool=callgrind", "-q", f"--callgrind-out-file={dump}", str(PROGRAM)]
    command += ["-n", str(requests), "-c", "1", "--json", url]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return exclusive(dump)


@contextlib.contextmanager
def worker(interface: str, folder: Path) -> Iterator[tuple[int, int]]:
    """A worker under callgrind that accepts requests: its pid and port."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = ["valgrind", "--tool=callgrind", "-q", f"--callgrind-out-file={folder}/callgrind.%p"]
    command += [sys.executable, "-c", SERVER, interface, APPS[interface], str(port)]
    process = subprocess.Popen(command, env={**os.environ, "PYTHONHASHSEED": "0"}, stdout=subprocess.DEVNULL)
    try:
        wait_for(port, process)
        yield process.pid, port
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


def wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_TIMEOUT
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)) as connection:
            connection.settimeout(START_TIMEOUT)
            connection.sendall(REQUEST)
            if connection.recv(65536).startswith(b"HTTP/1.1 200"):
                return
        time.sleep(0.1)
    sys.exit("the worker under valgrind does not answer")


def response_length(connection: socket.socket) -> int:
    connection.settimeout(START_TIMEOUT)
    connection.sendall(REQUEST)
    received = b""
    while b"\r\n\r\n" not in received:
        received += connection.recv(65536)
    head, body = received.split(b"\r\n\r\n", 1)
    declared = re.search(rb"(?i)content-length: (\d+)", head)
    assert declared is not None, head
    length = int(declared[1])
    while len(body) < length:
        body += connection.recv(65536)
    return len(head) + 4 + length


def exchange(connections: list[socket.socket], rounds: int, length: int) -> None:
    for _ in range(rounds):
        for connection in connections:
            connection.sendall(REQUEST * DEEP)
        for connection in connections:
            remaining = length * DEEP
            while remaining:
                received = len(connection.recv(remaining))
                assert received, "the server closed"
                remaining -= received


def control(action: str, pid: int) -> None:
    subprocess.run(
        ["callgrind_control", action, str(pid)],
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def exclusive(dump: Path) -> Counter[Function]:
    """Exclusive instructions of each function. Format: valgrind's manual, "Callgrind Format Specification"."""
    names: dict[tuple[str, str], str] = {}
    counts: Counter[Function] = Counter()
    library, function, is_call = "?", "?", False
    for line in dump.read_text().splitlines():
        named = re.match(r"(c?)(fn|ob)=\((\d+)\)(?: (.*))?", line)
        if named:
            called, kind, number, name = named.groups()
            names.setdefault((kind, number), name or "?")
            if kind == "fn" and not called:
                function = re.sub(r"'\d+$", "", names[kind, number])
            elif not called:
                library = names[kind, number]
        elif line.startswith("calls="):
            is_call = True
        elif re.match(r"[\d+*-]", line):
            # The line after `calls=` holds the inclusive cost of the callee.
            if not is_call:
                counts[library, function] += int(line.split()[1])
            is_call = False
    return counts


if __name__ == "__main__":
    sys.exit(main())
