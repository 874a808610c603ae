"""Bodies, headers and origins of HAR files: sent as they were, or left out with a reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from towline.bench.scenarios import ScenarioError
from towline.bench.scenarios.imported import Imported
from towline.bench.scenarios.request_files import from_file

FORM = "application/x-www-form-urlencoded"
PARTS = "multipart/form-data; boundary=XX"
FILE = {"name": "f", "fileName": "x.txt", "contentType": "text/plain"}
WHOLE = (
    b'--XX\r\nContent-Disposition: form-data; name="a"\r\n\r\nb\r\n--XX\r\nContent-Disposition: form-data; name="f"; '
    b'filename="x.txt"\r\nContent-Type: text/plain\r\n\r\nhello\r\n--XX--\r\n'
)


def entry(url: str = "http://h/x", method: str = "POST", headers: Any = (), **request: Any) -> dict[str, Any]:
    named = [{"name": name, "value": value} for name, value in headers]
    return {
        "request": {"method": method, "url": url, "headers": named, **request},
        "response": {"status": 200},
    }


def read(folder: Path, *entries: Any) -> Imported:
    (folder / "x.har").write_text(json.dumps({"log": {"entries": entries}}))
    return from_file(folder / "x.har")


@pytest.mark.parametrize(
    ("length", "data", "sent"),
    [
        (None, {"text": "é😀"}, "é😀".encode()),
        (6, {"text": "é😀"}, "é😀".encode()),
        (3, {"text": "\xff\xfe\0"}, b"\xff\xfe\0"),
        (2, {"text": "AAE=", "encoding": "base64"}, b"\0\1"),
        (
            None,
            {"mimeType": FORM, "params": [{"name": "a", "value": "b c"}, {"name": "é"}]},
            b"a=b+c&%C3%A9=",
        ),
        (None, {"mimeType": FORM, "params": [{"name": "a%5B%5D", "value": "b%20c"}]}, b"a%5B%5D=b%20c"),
        (7, {"mimeType": FORM, "params": [{"name": "a", "value": "b c"}]}, b"a=b%20c"),
        (None, {"mimeType": FORM, "params": [{"name": "a", "value": "100%"}]}, b"a=100%25"),
        (
            None,
            {"mimeType": PARTS, "params": [{"name": "a", "value": "b"}, {**FILE, "value": "hello"}]},
            WHOLE,
        ),
        (
            len(WHOLE),
            {"mimeType": PARTS, "params": [{"name": "a", "value": "b"}, {**FILE, "value": "hello"}]},
            WHOLE,
        ),
        (None, {"text": ""}, b""),
        (0, {}, b""),
        (None, None, b""),
    ],
)
def test_bodies_have_the_bytes_that_were_sent(
    length: int | None, data: Any, sent: bytes, tmp_path: Path
) -> None:
    headers = [] if length is None else [("Content-Length", str(length))]
    (request,) = read(tmp_path, entry(headers=headers, postData=data)).scenario.requests
    assert request.body is not None
    assert request.body.whole() == sent
    fields = dict(request.fields)
    assert fields["Content-Length"] == str(len(sent))
    assert fields.get("Content-Type") == (
        (data or {}).get("mimeType") or (FORM if "params" in (data or {}) else None)
    )


@pytest.mark.parametrize(
    ("length", "data", "why"),
    [
        (5000, None, "5,000 bytes"),
        (5000, {"mimeType": PARTS}, "5,000 bytes"),
        (None, {"mimeType": PARTS, "params": [FILE]}, "the content of 'x.txt'"),
        (None, {"mimeType": PARTS, "params": [{**FILE, "value": "(binary)"}]}, "the content of 'x.txt'"),
        (500, {"mimeType": PARTS, "params": [{**FILE, "value": "(binary)"}]}, "500 bytes, of which"),
        (500, {"mimeType": PARTS, "text": "--XX\r\n\r\n--XX--\r\n"}, "500 bytes, of which 16 are there"),
        (2, {"mimeType": "image/png", "text": "\ufffdPNG"}, "2 bytes, of which 6 are there"),
        (None, {"text": "\ud83d"}, "half a character"),
    ],
)
def test_requests_without_their_body_are_left_out(
    length: int | None, data: Any, why: str, tmp_path: Path
) -> None:
    headers = [] if length is None else [("content-length", str(length))]
    lost = entry("http://h/lost", headers=headers, postData=data)
    found = read(tmp_path, lost, entry("http://h/kept", "GET"))
    assert [one.target for one in found.scenario.requests] == ["/kept"]
    (note,) = found.scenario.notes
    assert note.startswith("left out, the file does not have the body: POST 'http://h/lost' (")
    assert why in note
    with pytest.raises(ScenarioError, match="no request can be sent: left out"):
        read(tmp_path, lost)


def test_another_length_is_noted(tmp_path: Path) -> None:
    found = read(
        tmp_path, entry(headers=[("content-length", "9")], postData={"mimeType": "x/y", "text": "abc"})
    )
    assert found.scenario.notes == ("POST /x is sent with 3 bytes, as the file has them; 9 were recorded",)


def test_headers_are_those_that_were_sent(tmp_path: Path) -> None:
    cookies = [{"name": "a", "value": "1"}, {"name": "b", "value": "2"}]
    found = read(
        tmp_path,
        entry(
            "https://H:443/1", "GET", [(":path", "/1"), ("X-A", "1\n2"), ("te", "trailers")], cookies=cookies
        ),
        entry("https://h/2?q=ü x#y", "GET", [("cookie", "c=3\nd=4")], cookies=cookies),
        entry("https://u:p@h/ä", "GET", [("content-type", "x/y")], postData={}),
    )
    assert found.origin == "https://h"
    first, second, third = found.scenario.requests
    assert first.fields[1:] == (("X-A", "1"), ("X-A", "2"), ("Cookie", "a=1; b=2"))
    assert (second.target, second.fields[1:]) == ("/2?q=%C3%BC%20x", (("cookie", "c=3; d=4"),))
    assert (third.target, third.fields) == ("/%C3%A4", (("Host", "h"), ("content-type", "x/y")))
    assert third.body is None
