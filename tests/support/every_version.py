"""One request to an application in either interface, over HTTP/1.1, HTTP/2 or HTTP/3."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support import feature_server, http2_client
from tests.support.exchange import Exchange
from tests.support.feature_server import KINDS
from tests.support.http3 import connected

Pairs = tuple[tuple[str, str], ...]
Fetch = Callable[..., Exchange]

every_version_and_kind = pytest.mark.parametrize(
    ("version", "kind"), [(version, kind) for version in ("1.1", "2", "3") for kind in KINDS]
)


async def _described_asgi(scope: Any, receive: Any, send: Any) -> None:
    headers = [(name.decode(), value.decode("latin-1")) for name, value in scope["headers"]]
    described = {
        "scheme": scope["scheme"],
        "client": scope["client"] and scope["client"][0],
        "server": list(scope["server"]),
        "hosts": [value for name, value in headers if name == "host"],
        "root_path": scope["root_path"],
        "path": scope["path"],
        "queue_time": scope["extensions"].get("towline.queue_time", {}).get("seconds"),
    }
    body = json.dumps(described).encode()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": body})


def _described_wsgi(environ: dict[str, Any], start_response: Any) -> Any:
    described = {
        "scheme": environ["wsgi.url_scheme"],
        "client": environ["REMOTE_ADDR"],
        "server": [environ["SERVER_NAME"], int(environ["SERVER_PORT"])],
        "hosts": [environ["HTTP_HOST"]],
        "root_path": environ["SCRIPT_NAME"],
        "path": environ["SCRIPT_NAME"] + environ["PATH_INFO"],
        "queue_time": environ.get("towline.queue_time"),
    }
    start_response("200 OK", [])
    return [json.dumps(described).encode()]


def described_by(kind: str) -> Any:
    """An application that responds with what it has been told about the request, as JSON."""
    return _described_asgi if kind == "asgi" else _described_wsgi


@contextmanager
def fetching(version: str, kind: str, app: Any, tmp_path: Path, **options: Any) -> Iterator[Fetch]:
    """Serves `app` and gives `fetch(method, path, body, headers)`, which sends one request over `version`."""
    if version == "3":
        with connected.connected(kind, app, tmp_path, **options) as client:

            def fetch3(method: str, path: str, body: bytes = b"", headers: Pairs = ()) -> Exchange:
                return client.fetch(method, path, body, [(name.lower(), value) for name, value in headers])

            yield fetch3
    elif version == "2":
        with http2_client.connected_client(kind, app, **options) as client:
            yield client.fetch
    else:
        with feature_server.serving(kind, app, **options) as server:

            def fetch(method: str, path: str, body: bytes = b"", headers: Pairs = ()) -> Exchange:
                lines = [f"{method} {path} HTTP/1.1", "Host: test", "Connection: close"]
                lines += [f"{name}: {value}" for name, value in headers]
                if body:
                    lines.append(f"Content-Length: {len(body)}")
                head = "\r\n".join([*lines, "", ""]).encode("latin-1")
                response = feature_server.exchange((server.host, server.port), head + body)
                return Exchange(response.status, dict(response.fields), response.body)

            yield fetch
