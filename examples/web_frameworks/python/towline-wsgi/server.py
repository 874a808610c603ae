"""The routes of the contract as a WSGI application without a framework."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
    status, body = route(environ["REQUEST_METHOD"], environ["PATH_INFO"])
    start_response(status, [("Content-Type", "text/plain"), ("Content-Length", str(len(body)))])
    return [body]


def route(method: str, path: str) -> tuple[str, bytes]:
    if path == "/":
        return ("200 OK", b"") if method == "GET" else ("405 Method Not Allowed", b"")
    if path == "/user":
        return ("200 OK", b"") if method == "POST" else ("405 Method Not Allowed", b"")
    if path.startswith("/user/"):
        user = path[len("/user/") :].encode("latin-1")
        return ("200 OK", user) if method == "GET" else ("405 Method Not Allowed", b"")
    return "404 Not Found", b""
