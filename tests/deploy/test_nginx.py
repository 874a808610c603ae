"""A request through a real nginx with deploy/nginx/app.conf (TOWLINE_NGINX, or nginx on PATH)."""

from __future__ import annotations

import http.client
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

NGINX = os.environ.get("TOWLINE_NGINX") or shutil.which("nginx")
CONFIG = Path(__file__).parents[2] / "deploy/nginx/app.conf"
pytestmark = pytest.mark.skipif(not NGINX, reason="needs nginx (TOWLINE_NGINX or PATH)")
APPLICATION = """
import asyncio

async def app(scope, receive, send):
    host = dict(scope["headers"])[b"host"].decode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
    first = f"{scope['scheme']} {scope['client'][0]} {host}\\n".encode()
    await send({"type": "http.response.body", "body": first, "more_body": True})
    if scope["path"] == "/stream":
        await asyncio.sleep(3)
    await send({"type": "http.response.body", "body": b"end"})
"""


def connect(port: int) -> http.client.HTTPConnection:
    # An address that is not a trusted proxy.
    return http.client.HTTPConnection("127.0.0.1", port, timeout=20, source_address=("127.0.0.2", 0))


def wait_for(ready: Path | int) -> None:
    for _ in range(200):
        try:
            if isinstance(ready, int):
                socket.create_connection(("127.0.0.1", ready)).close()
                return
            with socket.socket(socket.AF_UNIX) as peer:
                peer.connect(str(ready))
                return
        except OSError:
            time.sleep(0.05)
    raise AssertionError(f"{ready} does not accept connections")


@pytest.fixture
def port(tmp_path: Path) -> Iterator[int]:
    (tmp_path / "main.py").write_text(APPLICATION)
    upstream = tmp_path / "http.sock"
    with socket.create_server(("127.0.0.1", 0)) as free:
        chosen: int = free.getsockname()[1]
    site = CONFIG.read_text().replace("/run/app/http.sock", str(upstream))
    site = site.replace("listen 80;", f"listen 127.0.0.1:{chosen};")
    user = "user root;" if os.getuid() == 0 else ""
    main = f"{user} daemon off; pid {tmp_path}/nginx.pid; error_log stderr; events {{}} http {{ access_log off; {site} }}"
    (tmp_path / "nginx.conf").write_text(main)
    command = [
        sys.executable,
        "-m",
        "towline",
        "serve",
        "main:app",
        "--lifespan",
        "off",
        "--bind",
        f"unix:{upstream}",
    ]
    server = subprocess.Popen(command, cwd=tmp_path)
    proxy = subprocess.Popen([str(NGINX), "-p", str(tmp_path), "-c", str(tmp_path / "nginx.conf")])
    try:
        wait_for(upstream)
        wait_for(chosen)
        yield chosen
    finally:
        for process in (proxy, server):
            process.terminate()
        for process in (proxy, server):
            process.wait(20)


def test_the_application_sees_the_client_scheme_and_host(port: int) -> None:
    connection = connect(port)
    connection.request("GET", "/", headers={"Host": "example.test:81"})
    assert connection.getresponse().read() == b"http 127.0.0.2 example.test:81\nend"
    connection.close()


def test_an_event_stream_is_not_buffered(port: int) -> None:
    connection = connect(port)
    started = time.monotonic()
    connection.request("GET", "/stream")
    response = connection.getresponse()
    assert response.readline().startswith(b"http 127.0.0.2 ")
    assert time.monotonic() - started < 2
    assert response.read() == b"end"
    assert time.monotonic() - started >= 2.9
    connection.close()
