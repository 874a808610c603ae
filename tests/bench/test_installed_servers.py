"""Each installed server starts, serves (TLS too), is paused, measured and stopped, and leaves nothing."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from towline.bench.subjects import Process, Settings, installed, make_certificate, servers, versions
from towline.bench.subjects.installed import program
from towline.bench.subjects.readiness import readiness_status

from tests.bench.hostile import processes_with

ASGI = """
async def app(scope, receive, send):
    if scope["type"] == "lifespan":
        while True:
            message = await receive()
            await send({"type": message["type"] + ".complete"})
            if message["type"] == "lifespan.shutdown":
                return
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"7")]})
    await send({"type": "http.response.body", "body": b"alive\\r\\n"})
"""
WSGI = """
def app(environ, start_response):
    start_response("200 OK", [("Content-Length", "7")])
    return [b"alive\\r\\n"]
"""
CASES = [
    (name, interface, protocol)
    for name, one in sorted(servers().items())
    for interface in one.interfaces or (None,)
    for protocol in one.protocols
]
OURS = {"towline", "floor", "native"}


@pytest.fixture
def apps(tmp_path: Path) -> Path:
    (tmp_path / "asgi.py").write_text(ASGI)
    (tmp_path / "wsgi.py").write_text(WSGI)
    return tmp_path


def nginx_has_http3() -> bool:
    path = program("nginx")
    assert path is not None
    told = subprocess.run([path, "-V"], capture_output=True, text=True, timeout=10, check=True)
    return "http_v3" in told.stderr


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize(("name", "interface", "protocol"), CASES)
def test_it_starts_serves_and_stops(
    name: str, interface: str | None, protocol: str, tls: bool, apps: Path
) -> None:
    server = servers()[name]
    if reason := installed(server):
        pytest.skip(reason)
    if tls and not server.tls:
        pytest.skip("its definition does not support TLS")
    if protocol == "h3" and not tls:
        pytest.skip("HTTP/3 is always encrypted")
    if protocol == "h3" and name == "nginx" and not nginx_has_http3():
        pytest.skip("this nginx is built without HTTP/3")
    assert versions(server)
    certificate = make_certificate(apps).tls if tls else None
    settings = Settings(
        interface=interface, protocol=protocol, app_folder=apps, tls=certificate, padding_bytes=1000
    )
    with Process(server, settings) as process:
        process.wait_ready()
        assert process.base_url.startswith("https://" if tls else "http://")
        assert readiness_status("127.0.0.1", process.port, "/", 10.0, tls=tls, protocol=protocol) == 200
        process.pause()
        process.resume()
        assert readiness_status("127.0.0.1", process.port, "/", 10.0, tls=tls, protocol=protocol) == 200
        assert process.usage().cpu_s > 0
        result = process.stop()
    notes = result.notes(name)
    if name not in OURS:
        # Another's program may miss the signal (Granian sometimes does); that it is killed and reported is ours.
        notes = [note for note in notes if note != f"{name} did not end on SIGTERM and was killed"]
    assert notes == []
    assert processes_with(str(apps)) == []
