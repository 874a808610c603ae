"""examples/httparena/nginx: the server with the command of each compose file behind a real nginx, under HttpArena's checks."""

from __future__ import annotations

import base64
import hmac
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from towline.testing import serve

from tests.support.http3.client import Client as Http3Client
from tests.support.programs import executable, free_port, listening
from tests.support.proxies import replaced

from .arena import ENTRY, Entry, check_item, check_items, running

for package in ("asyncpg", "google.protobuf", "msgspec"):
    pytest.importorskip(package)

COMPOSE = [
    ENTRY / "nginx" / f"compose.{profile}.yml" for profile in ("gateway", "gateway-h3", "production-stack")
]
SECRET = b"httparena-bench-secret-do-not-use-in-production"


def encoded(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


def token(user: str, secret: bytes = SECRET) -> str:
    signed = f"{encoded(b'{}')}.{encoded(json.dumps({'sub': user}).encode())}"
    return f"{signed}.{encoded(hmac.digest(secret, signed.encode(), 'sha256'))}"


async def authsvc(scope: Any, receive: Any, send: Any) -> None:
    """In place of the arena's program: 200 with the user of a token that is signed, or 401."""
    assert (scope["method"], scope["path"]) == ("GET", "/_auth")
    given = dict(scope["headers"]).get(b"authorization", b"").decode().removeprefix("Bearer ")
    users = [user for user in ("42", "77") if hmac.compare_digest(token(user), given)]
    headers = [(b"x-user-id", user.encode()) for user in users]
    await send({"type": "http.response.start", "status": 200 if users else 401, "headers": headers})
    await send({"type": "http.response.body", "body": b""})


def has_http3() -> bool:
    told = subprocess.run([executable("nginx"), "-V"], capture_output=True, text=True, check=True)
    return "http_v3_module" in told.stderr


@pytest.fixture(scope="module", params=COMPOSE, ids=lambda path: path.stem)
def proxied(
    request: pytest.FixtureRequest,
    arena_entry: Entry,
    arena_database: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Entry]:
    """nginx in front of the server with the command of the file. Versions of nginx before 1.25 have no HTTP/3."""
    folder, port, upstream = tmp_path_factory.mktemp("nginx"), free_port(), free_port()
    older = (
        []
        if has_http3()
        else [("listen 8443 quic reuseport;", ""), ("http2 on;", ""), ("8443 ssl", "8443 ssl http2")]
    )
    (folder / "dataset.json").symlink_to(arena_entry.data / "dataset.json")
    temporary = "".join(
        f"{name}_temp_path {folder}/{name}; " for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    words = yaml.safe_load(request.param.read_text())["services"]["server"]["command"]
    with (
        running([word.replace("8080", str(upstream)) for word in words], upstream, folder, arena_database),
        serve(authsvc, lifespan="off") as auth,
    ):
        configuration = replaced(
            (ENTRY / "nginx" / "proxy" / "nginx.conf").read_text(),
            *older,
            ("listen 8443", f"listen 127.0.0.1:{port}"),
            ("127.0.0.1:8080", f"127.0.0.1:{upstream}"),
            ("127.0.0.1:9090", f"127.0.0.1:{auth.port}"),
            ("/certs/", f"{arena_entry.data}/"),
            ("root /data;", f"root {arena_entry.data};"),
            (
                "http {",
                f"{'user root;' if os.geteuid() == 0 else ''} daemon off; pid {folder}/pid; http {{ {temporary}",
            ),
        )
        (folder / "nginx.conf").write_text(configuration)
        nginx = [executable("nginx"), "-e", "stderr", "-p", str(folder), "-c", f"{folder}/nginx.conf"]
        with listening(nginx, port, folder):
            yield Entry(arena_entry.data, arena_entry.authority, {8443: port})


def test_gateways(arena_entry: Entry, proxied: Entry) -> None:
    with proxied.client(8443, http2=True) as client:
        for name, kind in (("reset.css", "text/css"), ("app.js", "application/javascript")):
            expected = (arena_entry.data / "static" / name).read_bytes()
            for coding in ("identity", "br;q=1, gzip;q=0.8"):
                response = client.get(f"/static/{name}", headers={"accept-encoding": coding})
                assert (response.content, response.http_version) == (expected, "HTTP/2")
                assert response.headers["content-type"] == kind
                assert (response.headers.get("content-encoding") == "gzip") == (coding != "identity")
        assert client.get("/static/nonexistent.txt").status_code == 404
        check_items(arena_entry, client.get("/json/50"), 50, 1)
        found = client.get("/async-db?min=10&max=50&limit=50").json()
        assert found["count"] == len(found["items"]) == 50
        assert client.get("/async-db?min=9999&max=9999&limit=50").json()["count"] == 0
        assert client.get("/baseline2?a=13&b=42").text == "55"
    if has_http3():
        with Http3Client(("127.0.0.1", proxied.ports[8443]), ca=str(arena_entry.authority)) as http3:
            assert http3.fetch("GET", "/baseline2?a=13&b=42").body == b"55"
            assert (
                http3.fetch("GET", "/static/app.js").body
                == (arena_entry.data / "static" / "app.js").read_bytes()
            )


def test_production_stack(arena_entry: Entry, proxied: Entry) -> None:
    with proxied.client(8443, http2=True) as client:
        assert client.get("/public/baseline?a=13&b=42").text == "55"
        check_items(arena_entry, client.get("/public/json/25"), 25, 1)
        change = {"name": "changed", "price": 777, "quantity": 99}
        forged = token("42", b"another secret")
        for authorization in (
            {},
            {"authorization": "Bearer invalid.token.here"},
            {"authorization": f"Bearer {forged}"},
        ):
            headers = {**authorization, "x-user-id": "42"}
            assert client.get("/api/items/1", headers=headers).status_code == 401
            assert client.get("/api/me", headers=headers).status_code == 401
            assert client.post("/api/items/1", json=change, headers=headers).status_code == 401
        client.headers["authorization"] = f"Bearer {token('42')}"
        check_item(client.get("/api/items/1").json())
        assert [client.get("/api/items/7").headers["x-cache"] for _ in range(2)] == ["MISS", "HIT"]
        client.get("/api/items/3")
        assert client.post("/api/items/3", json=change).status_code == 204
        changed = client.get("/api/items/3")
        assert (changed.headers["x-cache"], changed.json()["price"]) == ("MISS", 777)
        assert client.post("/api/items/999999", json=change).status_code == 404
        # A user that the client names does not count.
        assert client.get("/api/me", headers={"x-user-id": "7"}).json()["id"] == 42
        assert client.get("/api/me", headers={"authorization": f"Bearer {token('77')}"}).status_code == 404


@pytest.mark.parametrize("path", COMPOSE, ids=lambda path: path.stem)
def test_the_processors_of_a_stack_are_64(path: Path) -> None:
    """The arena divides cores 0 to 31 and their siblings, 64 to 95, among the services, each core with its sibling."""
    sets = [service["cpuset"] for service in yaml.safe_load(path.read_text())["services"].values()]
    ends = [part.split("-") for one in sets for part in one.split(",")]
    assert sorted(n for end in ends for n in range(int(end[0]), int(end[-1]) + 1)) == [
        *range(32),
        *range(64, 96),
    ]
    for one in sets:
        core, sibling = (
            [int(n) + shift for n in part.split("-")]
            for part, shift in zip(one.split(","), (64, 0), strict=True)
        )
        assert core == sibling
