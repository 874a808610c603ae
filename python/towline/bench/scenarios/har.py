"""A scenario from a HAR file (HTTP Archive 1.2), as browsers save it: the requests of a page, in their order.

Requests to the server that has most of them are kept. Headers of the connection are dropped, and conditional ones, so
that each response is complete; cookies and credentials are sent as recorded. A request whose body the file does not
have is left out.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from .har_body import LostBody, body_of
from .imported import ANY, MAX_REQUESTS, Imported, imported, request_of, same_origin
from .model import OF_CONNECTIONS, Expect, Request
from .table import ScenarioError

DROPPED = OF_CONNECTIONS | {
    *("host", "content-length", "te", "expect", "http2-settings"),
    *("if-none-match", "if-modified-since", "if-match", "if-unmodified-since", "if-range"),
}
ORIGIN = re.compile(r"(https?)://(?:[^/?#]*@)?([^/?#@]+)", re.IGNORECASE)


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
    found: list[tuple[str, Request]] = []
    lost: list[str] = []
    for number, entry in enumerate(ours[:MAX_REQUESTS], 1):
        try:
            found.append(_request(entry, f"{name}: request {number}", notes))
        except LostBody as why:
            lost.append(f"{entry['request']['method']} {entry['request']['url'][:80]!r} ({why})")
        except ScenarioError:
            raise
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise ScenarioError(
                f"{name}: request {number} is no entry of a HAR file ({error!r:.200})"
            ) from None
    if lost:
        more = f" and {len(lost) - 3} more" if len(lost) > 3 else ""
        notes.append(f"left out, the file does not have the body: {', '.join(lost[:3])}{more}")
    if not found:
        raise ScenarioError(f"{name}: no request can be sent: {notes[-1]}")
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
        status = response.get("status", 0) if isinstance(response, dict) else 0
        ended = status in (0, 101, None) or (isinstance(status, int) and status < 0)
        if ORIGIN.match(request["url"]) and not ended and entry.get("_resourceType") != "websocket":
            yield entry


def _origin(entry: Any) -> str:
    found = ORIGIN.match(entry["request"]["url"])
    return same_origin(f"{found[1]}://{found[2]}") if found else ""


def _request(entry: Any, where: str, notes: list[str]) -> tuple[str, Request]:
    request, status = entry["request"], entry["response"]["status"]
    recorded = [(one["name"], one["value"]) for one in request.get("headers") or []]
    # Values of a header that was sent several times are joined by line ends.
    fields = [
        (name, value)
        for name, values in recorded
        for value in ([values.replace("\n", "; ")] if name.lower() == "cookie" else values.split("\n"))
        if not name.startswith(":") and name.lower() not in DROPPED
    ]
    cookies = request.get("cookies") or []
    if cookies and not any(name.lower() == "cookie" for name, _ in fields):
        fields.append(("Cookie", "; ".join(f"{one['name']}={one['value']}" for one in cookies)))
    body = body_of(request, recorded)
    if body.content_type is not None:
        fields = [pair for pair in fields if pair[0].lower() != "content-type"]
        fields.append(("Content-Type", body.content_type))
    # A recorded failure, such as a missing favicon, is expected again.
    expect = Expect(status=status, body=None) if status >= 400 else ANY
    url = _origin(entry) + ORIGIN.sub("", request["url"], count=1)
    found = request_of(where, url, request["method"], fields, body.content, expect)
    if body.recorded is not None and body.recorded != len(body.content or b""):
        notes.append(
            f"{request['method']} {found[1].target:.80} is sent with {len(body.content or b''):,} bytes, as the file has "
            f"them; {body.recorded:,} were recorded"
        )
    return found
