"""`make hello`: serves examples/hello with .venv/bin/towline, calls it with both clients and shows the responses.

At a terminal the ASGI server stays up afterwards until Ctrl-C; without one, and with `--brief` (`make run`), it is
stopped at once. `--brief` shows one line for each response.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import towline

ROOT = Path(__file__).resolve().parent.parent
TOWLINE = Path(sys.prefix, "bin", "towline")
APP_DIR = "examples/hello"
REQUESTS: list[tuple[str, str, bytes | None]] = [
    ("GET", "/", None),
    ("GET", "/scope?from=make-hello", None),
    ("POST", "/echo", b"what goes in comes out"),
    ("GET", "/stream", None),
    ("HEAD", "/", None),
    ("GET", "/nowhere", None),
]
EXPECTED = [200, 200, 200, 200, 200, 404]
START_TIMEOUT, STOP_TIMEOUT = 15, 10
TOGETHER = 20


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_until_open(port: int, server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_TIMEOUT
    while time.monotonic() < deadline:
        if server.poll() is not None:
            sys.exit(f"towline ended during start-up with status {server.returncode}")
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.05)
    sys.exit(f"no listener on port {port} after {START_TIMEOUT} s")


@contextmanager
def running_server(target: str, app_dir: str = APP_DIR) -> Iterator[int]:
    """Runs the server in its own process. SIGTERM must end it cleanly."""
    port = free_port()
    command = [TOWLINE, "serve", target, "--app-dir", app_dir, "--port", str(port)]
    print(f"\n$ towline serve {target} --app-dir {app_dir} --port {port}", flush=True)
    server = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL)
    try:
        wait_until_open(port, server)
        yield port
    finally:
        server.send_signal(signal.SIGTERM)
        try:
            status = server.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            server.kill()
            sys.exit(f"towline did not stop within {STOP_TIMEOUT} s of SIGTERM")
    if status not in (0, -signal.SIGINT):
        sys.exit(f"towline ended with status {status}")
    print("stopped cleanly")


def exchange(port: int, brief: bool) -> list[int]:
    """All requests over one kept-alive connection of `towline.Client`. Returns the statuses."""
    statuses = []
    with towline.Client(base_url=f"http://127.0.0.1:{port}") as client:
        for method, path, body in REQUESTS:
            response = client.request(method, path, content=body)
            statuses.append(response.status_code)
            kind = response.headers.get("content-type", "")
            if brief:
                print(
                    f"  {method:4} {path:24} {response.status_code} {response.reason_phrase}, {first_line(response.text)}"
                )
                continue
            print(f"\n> {method} {path}" + (f"   ({len(body)} bytes)" if body else ""))
            print(
                f"< {response.status_code} {response.reason_phrase}   {kind}   {len(response.content)} bytes"
            )
            print("".join(f"  {line}\n" for line in response.text.splitlines()), end="")
    return statuses


def first_line(text: str) -> str:
    first, _, rest = text.partition("\n")
    return (first + (" ..." if rest else "")) or "no body"


async def gather(port: int) -> list[int]:
    """Several requests at once with `towline.AsyncClient`. Returns the statuses."""
    async with towline.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
        started = time.perf_counter()
        responses = await asyncio.gather(*(client.get(f"/scope?n={n}") for n in range(TOGETHER)))
        elapsed = time.perf_counter() - started
    print(f"{TOGETHER} x GET /scope at once: {elapsed * 1000:.1f} ms, connections included")
    return [response.status_code for response in responses]


def main() -> int:
    if not TOWLINE.exists():
        sys.exit(f"{TOWLINE.name} is not installed in this environment: use `make hello`")
    brief = "--brief" in sys.argv
    stay = not brief and sys.stdin.isatty() and sys.stdout.isatty() and not os.environ.get("CI")
    for target in ("wsgi_app:app", "asgi_app:app"):
        with running_server(target) as port:
            if (statuses := exchange(port, brief)) != EXPECTED:
                sys.exit(f"expected the statuses {EXPECTED}, got {statuses}")
            if (statuses := asyncio.run(gather(port))) != [200] * TOGETHER:
                sys.exit(f"expected {TOGETHER} times 200, got {statuses}")
            if stay and target.startswith("asgi"):
                print(f"\n{target} is served at http://127.0.0.1:{port}/")
                wait_for_interrupt()
    return 0


def wait_for_interrupt() -> None:
    print("press Ctrl-C to stop it", flush=True)
    try:
        signal.pause()
    except KeyboardInterrupt:
        print()


if __name__ == "__main__":
    sys.exit(main())
