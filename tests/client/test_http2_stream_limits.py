"""Many calls at once on new HTTP/2 connections to servers with few streams: all of them succeed."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import towline
from towline.bench.subjects.ports import free_port

from tests.support.http2_clients import Open, h2_client  # noqa: F401
from tests.support.interop_app import SMALL
from tests.support.interop_servers import LIMITED, Running, Site


@pytest.fixture(params=[True, False], ids=["tls", "plain"])
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Site:
    return Site(tmp_path, free_port(), request.param)


@pytest.mark.parametrize("limit", [1, 3, 10, 100])
@pytest.mark.parametrize("name", LIMITED)
def test_many_calls_at_once_on_new_connections(
    h2_client: Open,  # noqa: F811
    site: Site,
    name: str,
    limit: int,
) -> None:
    with LIMITED[name](site, limit) as server:
        for count in (100, 300):
            client = h2_client(base_url=server.url, verify=server.trust, timeout=60)
            responses = client.at_once(*[("GET", "/small", {})] * count)
            assert [(response.status_code, response.content) for response in responses] == [
                (200, SMALL)
            ] * count
            versions = {response.http_version for response in responses}
            assert versions == {"HTTP/2"}
            client.close()
    log = (site.folder / "log").read_text()
    assert "connection error" not in log, "a stream above the limit"


@pytest.fixture
def strict(tmp_path: Path) -> Iterator[Running]:
    with LIMITED["python-h2"](Site(tmp_path, free_port(), False), 3) as server:
        yield server


def test_calls_begin_while_the_first_upload_makes_its_body(strict: Running) -> None:
    # The thread of the upload does not read from the connection, on which the limit arrives.
    began, ends = threading.Event(), threading.Event()

    def body() -> Iterator[bytes]:
        yield b"one"
        began.set()
        assert ends.wait(20)
        yield b"two"

    with towline.Client(http1=False, http2=True, trust_env=False, base_url=strict.url) as client:
        upload: list[Any] = []
        uploading = threading.Thread(target=lambda: upload.append(client.post("/", content=body())))
        uploading.start()
        assert began.wait(20)
        started = time.monotonic()
        assert client.get("/").content == SMALL
        assert sum(map(client.pool_status().get, ("active", "idle"))) == 1, "on the connection of the upload"
        assert time.monotonic() - started < 5
        ends.set()
        uploading.join(20)
        assert upload[0].content == SMALL
