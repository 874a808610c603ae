"""A scenario from a HAR file (HTTP Archive 1.2), as browsers save it: the requests of a page, in their order.

Requests to the server that has most of them are kept. Headers of the connection are dropped, and conditional ones, so
that each response is complete; cookies and credentials are sent as recorded.
"""

from __future__ import annotations

import base64
import binascii
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import urlencode, urlsplit

from .imported import ANY, Imported, imported, request_of
from .model import OF_CONNECTIONS, Expect
from .table import ScenarioError

MAX_REQUESTS = 1000
DROPPED = OF_CONNECTIONS | {
    *("host", "content-length", "te", "expect", "http2-settings"),
    *("if-none-match", "if-modified-since", "if-match", "if-unmodified-since", "if-range"),
}


def from_har(plain: Any, name: str) -> Imported:
    """Raises `ScenarioError` if it is no HAR, or has no request to an HTTP server."""
    entries = list(_sent(_entries(plain, name)))
    if not entries:
        raise ScenarioError(f"{name}: it contains no request of http or https")
    origins = Counter(_origin(entry) for entry in entries)
    origin = max(origins, key=lambda one: origins[one])
    notes = [
        f"{count} request{'s' * (count != 1)} to {other} left out: one server is measured at a time"
        for other, count in origins.items()
        if other != origin
    ]
    ours = [entry for entry in entries if _origin(entry) == origin]
    if len(ours) > MAX_REQUESTS:
        notes.append(f"the first {MAX_REQUESTS:,} of {len(ours):,} requests are sent")
    found = []
    for number, entry in enumerate(ours[:MAX_REQUESTS], 1):
        try:
            found.append(_request(entry, f"{name}: request {number}"))
        except (KeyError, TypeError, AttributeError, binascii.Error) as error:
            raise ScenarioError(f"{name}: request {number} is no entry of a HAR file ({error!r})") from None
    return imported(found, name, f"HAR: {name}", tuple(notes))


def _entries(plain: Any, name: str) -> list[Any]:
    log = plain.get("log")
    entries = log.get("entries") if isinstance(log, dict) else None
    if not isinstance(entries, list) or not all(isinstance(one, dict) for one in entries):
        raise ScenarioError(f"{name}: is no HAR file: log.entries is missing, or no list of objects")
    return entries


def _sent(entries: Iterable[Any]) -> Iterator[Any]:
    """Entries of requests over HTTP that had a response: no WebSockets, data URLs and cancelled requests."""
    for entry in entries:
        request, response = entry.get("request"), entry.get("response")
        if not isinstance(request, dict) or not isinstance(request.get("url"), str):
            continue
        of_http = urlsplit(request["url"]).scheme in ("http", "https")
        status = response.get("status", 0) if isinstance(response, dict) else 0
        if of_http and status not in (0, 101) and entry.get("_resourceType") != "websocket":
            yield entry


def _origin(entry: Any) -> str:
    parts = urlsplit(entry["request"]["url"])
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


def _request(entry: Any, where: str) -> Any:
    request, status = entry["request"], entry["response"]["status"]
    fields = [
        (one["name"], one["value"])
        for one in request.get("headers", [])
        if not one["name"].startswith(":") and one["name"].lower() not in DROPPED
    ]
    # A recorded failure, such as a missing favicon, is expected again.
    expect = Expect(status=status, body=None) if status >= 400 else ANY
    url = request["url"].partition("#")[0]
    return request_of(where, url, request["method"], fields, _body(request.get("postData")), expect)


def _body(data: Any) -> bytes | None:
    if not data:
        return None
    if data.get("text"):
        text: str = data["text"]
        return base64.b64decode(text, validate=True) if data.get("encoding") == "base64" else text.encode()
    params = [(one["name"], one.get("value", "")) for one in data.get("params", [])]
    return urlencode(params).encode() if params else None
