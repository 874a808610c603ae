"""examples/httparena as a process, for the tests of its profiles with and without a proxy."""

from __future__ import annotations

import contextlib
import json
import os
import re
import ssl
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import trustme

from tests.support.process import MAX_WAIT, eventually
from tests.support.programs import free_port
from tests.support.proxies import replaced

ENTRY = Path(__file__).parents[2] / "examples" / "httparena"

NO_DATABASE = "postgresql://127.0.0.1:1/none"


@dataclass(frozen=True)
class Entry:
    """The running entry: its data, and its ports by their numbers in the arena."""

    data: Path
    authority: Path
    ports: dict[int, int]

    def client(self, port: int, **options: Any) -> httpx.Client:
        scheme = "https" if port in (8081, 8443) else "http"
        context = ssl.create_default_context(cafile=str(self.authority))
        headers = {"accept-encoding": "identity"}
        url = f"{scheme}://127.0.0.1:{self.ports[port]}"
        return httpx.Client(verify=context, base_url=url, headers=headers, timeout=MAX_WAIT, **options)


@contextlib.contextmanager
def running(words: list[str], port: int, folder: Path, database: str) -> Iterator[None]:
    """The server with a command of the entry, until it responds on a port. `folder` has its data and gets its log."""
    environment = {**os.environ, "DATABASE_URL": database, "DATABASE_MAX_CONN": "20"}
    environment["DATASET_PATH"] = f"{folder}/dataset.json"
    command = [sys.executable, "-m", *words]
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen(command, cwd=ENTRY, env=environment, stdout=log, stderr=log)
    try:
        eventually(lambda: process.poll() is not None or responds(port), "the entry")
        assert process.poll() is None, (folder / "log").read_text()
        yield
    finally:
        process.terminate()
        process.wait(MAX_WAIT)


def responds(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/pipeline").text == "ok"
    except httpx.HTTPError:
        return False


@contextlib.contextmanager
def started(folder: Path, database: str) -> Iterator[Entry]:
    """The entry with the command of its Dockerfile, and the configuration with other ports and folders."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(folder / "ca.pem")
    issued = authority.issue_cert("127.0.0.1", "localhost")
    (folder / "server.crt").write_bytes(b"".join(pem.bytes() for pem in issued.cert_chain_pems))
    (folder / "server.key").write_bytes(issued.private_key_pem.bytes())
    ports = {port: free_port() for port in (8080, 8081, 8082, 8443)}
    configuration = replaced(
        (ENTRY / "towline.toml").read_text(),
        *((f"0.0.0.0:{port}", f"127.0.0.1:{free}") for port, free in ports.items()),
        ("/certs/", f"{folder}/"),
        ("/data/", f"{folder}/"),
    )
    (folder / "towline.toml").write_text(configuration)
    [command] = re.findall(r"^CMD (.*)$", (ENTRY / "Dockerfile").read_text(), re.MULTILINE)
    words = json.loads(replaced(command, ('"towline.toml"', json.dumps(f"{folder}/towline.toml"))))
    with running(words, ports[8080], folder, database):
        yield Entry(folder, folder / "ca.pem", ports)


def check_items(entry: Entry, response: Any, count: int, factor: int) -> None:
    items = json.loads((entry.data / "dataset.json").read_text())[:count]
    for item in items:
        item["total"] = item["price"] * item["quantity"] * factor
    assert response.json() == {"items": items, "count": count}
    assert response.headers["content-type"] == "application/json"


def check_item(item: dict[str, Any]) -> None:
    assert [*item] == ["id", "name", "category", "price", "quantity", "active", "tags", "rating"]
    assert isinstance(item["active"], bool)
    assert isinstance(item["tags"], list)
    assert {*item["rating"]} == {"score", "count"}
