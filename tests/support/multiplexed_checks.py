"""Checks that are the same over HTTP/2 and HTTP/3. `client`: of `http2_client` or `http3.client`, connected to `http2_apps`."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

from tests.support.http2_apps import payload

TEXTS = [payload(size) for size in (0, 1, 70_000, 1_500_000)]
"""Contents of files."""


def check_fields(client: Any, authority: str) -> bytes:
    """Returns the body: the fields as the application has them."""
    headers = [("x-one", "1"), ("cookie", "a=1"), ("cookie", "b=2")]
    response = client.fetch(path="/fields", headers=headers)
    output = response.body.decode().lower().replace("_", "-").replace("http-", "")
    assert {f"host: {authority}", "x-one: 1", "cookie: a=1; b=2"} <= set(output.splitlines())
    assert response.fields["x-mixed"] == "Case"
    assert not {"connection", "keep-alive", "transfer-encoding"} & set(response.fields)
    assert {"date", "server"} <= set(response.fields)
    return bytes(response.body)


def check_response_without_body(client: Any, path: str) -> None:
    response = client.fetch(path=path)
    assert (response.status, response.body, response.ended) == (int(path[-3:]), b"", True)
    assert client.fetch(path="/after").body == b"/after"


def check_head(client: Any) -> None:
    response = client.fetch("HEAD", "/text")
    assert (response.status, response.body, response.fields["content-length"]) == (200, b"", "5")
    assert client.fetch(path="/after").body == b"/after"


def write_files(folder: Path) -> tuple[tuple[str, str], ...]:
    """Writes files for `check_files`, and returns the server's option `static`."""
    for index, content in enumerate(TEXTS):
        (folder / f"{index}.bin").write_bytes(content)
    (folder / "static").mkdir()
    (folder / "static" / "page.txt").write_bytes(TEXTS[2])
    return (("/static", str(folder / "static")),)


def check_files(client: Any, folder: Path) -> None:
    streams = [client.begin("GET", f"/file{folder}/{index}.bin") for index in range(len(TEXTS))]
    page = client.begin("GET", "/static/page.txt")
    partial = client.begin("GET", "/static/page.txt", [("range", "bytes=10-19")])
    # Lists of truth values: bodies of a megabyte make no readable message.
    responses = client.finish(*streams)
    same = [response.body == content for response, content in zip(responses, TEXTS, strict=True)]
    assert same == [True] * len(TEXTS)
    assert client.finish(page)[0].body == TEXTS[2]
    part = client.finish(partial)[0]
    assert (part.status, part.body) == (206, TEXTS[2][10:20])


def check_failing_application(client: Any, code: int) -> None:
    """`code`: of the reset of a response that is cut off."""
    failed, cut, fine = (client.begin("GET", path) for path in ("/fail", "/cut", "/fine"))
    responses = client.finish(failed, cut, fine)
    assert responses[0].status == 500
    assert (responses[1].reset, responses[1].ended) == (code, False)
    assert responses[2].body == b"/fine"


def check_body_limit(client: Any) -> None:
    """For the option `limit_request_body=1000`."""
    stream = client.begin("POST", "/echo", [("content-length", "2000")], end=False)
    assert client.finish(stream)[0].status == 413
    assert client.fetch(path="/after").body == b"/after"


def check_header_limit(client: Any) -> None:
    """For the option `http2_max_headers_size=2000`."""
    assert client.fetch(headers=[("x-long", "a" * 3000)]).status == 431
    assert client.fetch(path="/after").body == b"/after"


def check_compression(client: Any) -> None:
    """For the option `compress=("gzip",)`."""
    response = client.fetch(path="/" + "a" * 2000, headers=[("accept-encoding", "gzip")])
    assert response.fields["content-encoding"] == "gzip"
    assert gzip.decompress(response.body) == b"/" + b"a" * 2000
