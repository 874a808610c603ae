"""`towline bench --requests`: a comparison with the requests of a file."""

from __future__ import annotations

from pathlib import Path

import pytest
from towline.cli.bench import main as bench_command

from tests.bench.comparisons import (
    TINY,
    compared,
    running,
    script,
    sizes_of,
)
from tests.support.nightly import by_night

ITEMS = """
import json
async def app(scope, receive, send):
    assert scope["type"] == "http"
    found = scope["path"] in ("/", "/cart", "/items")
    body = json.dumps([scope["method"], scope["path"]]).encode()
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200 if found else 404, "headers": headers})
    await send({"type": "http.response.body", "body": body})
"""
FILES = {
    "curl": "curl http://shop.example.org/\ncurl -d a=1 http://shop.example.org/cart\n",
    "vegeta": "GET http://shop.example.org/\n\nPOST http://shop.example.org/cart\n",
    "har": (
        '{"log": {"entries": [{"request": {"method": "GET", "url": "https://shop.example.org/"}, "response": '
        '{"status": 200}}, {"request": {"method": "POST", "url": "https://shop.example.org/cart", "postData": {"text": '
        '"a=1"}}, "response": {"status": 200}}, {"request": {"method": "GET", "url": "https://shop.example.org/icon"}, '
        '"response": {"status": 404}}]}}'
    ),
    "openapi": (
        '{"openapi": "3.0.0", "paths": {"/items": {"get": {}}, "/items/{item}": {"get": {"parameters": [{"name": '
        '"item", "in": "path", "required": true, "schema": {"type": "integer"}}]}, "delete": {}}}}'
    ),
}


@pytest.mark.parametrize("name", ["openapi", *by_night(name for name in FILES if name != "openapi")])
def test_requests_of_a_file(name: str, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(ITEMS)
    (tmp_path / name).write_text(FILES[name])
    arguments = ("--app", "old=shop:app", "--app", "new=shop:app", "--no-control", "--requests", name)
    lines, record = compared(tmp_path, *arguments, "--header", "Authorization: Bearer x")
    first = {"openapi": "GET /items and 1 more", "har": "GET / and 2 more"}.get(name, "GET / and 1 more")
    assert f"compares old and new: {first}, in turn" in lines[0]
    (experiment,) = record.experiments
    assert all(one.answered and not one.failed for one in experiment.slices)
    left_out = [note for note in experiment.notes if note.startswith("left out")]
    if name == "openapi":
        assert left_out == [
            "left out, not repeatable: DELETE /items/{item}",
            "left out, refused with values that were made up: /items/1",
        ]
    else:
        assert not left_out


def test_requests_of_a_file_to_running_servers(tmp_path: Path) -> None:
    (tmp_path / "requests.curl").write_text("curl http://shop.example.org/a\n")
    with running(script(tmp_path, "quick")) as port:
        _, record = compared(
            tmp_path,
            *(f"one=:{port}", f"two=http://localhost:{port}", "--requests", "requests.curl", "--no-control"),
        )
    # The path of the file, with each server's own Host.
    sizes = sizes_of(record)
    assert sizes["one"] == pytest.approx(len(f"/a 127.0.0.1:{port}"), abs=1)
    assert sizes["two"] == pytest.approx(len(f"/a localhost:{port}"), abs=1)


def test_files_of_requests_that_cannot_be_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "shop.py").write_text(ITEMS)
    (tmp_path / "bad.har").write_text("{")
    (tmp_path / "curl").write_text("curl http://a/nowhere\n")
    (tmp_path / "openapi.json").write_text(FILES["openapi"].replace('"/items": {"get": {}}, ', ""))
    monkeypatch.chdir(tmp_path)
    for arguments, message in (
        (("--requests", "none.har"), "cannot read none.har: No such file"),
        (("--requests", "bad.har"), "bad.har: is not JSON"),
        (("--requests", "curl"), "GET /nowhere: status 404 instead of 2xx or 3xx"),
        (("--requests", "openapi.json"), "requests: no request succeeds; the first one is GET /items/1"),
        (("--requests", "curl", "--path", "/"), "path: the requests are those of --requests"),
    ):
        assert (
            bench_command(["--app", "a=shop:app", "--app", "b=shop:app", *arguments, "--quiet", *TINY]) == 2
        )
        (line,) = capfd.readouterr().err.splitlines()
        assert message in line
