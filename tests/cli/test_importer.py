"""How mounted applications are found."""

from __future__ import annotations

from typing import Any

import pytest
from towline.errors import StartupError
from towline.server.mount import WsgiMounts, combine, find


async def asgi(scope: Any, receive: Any, send: Any) -> None: ...


def wsgi(environ: Any, start_response: Any) -> Any: ...


def test_the_longest_prefix_wins_on_whole_segments() -> None:
    table = combine(wsgi, "wsgi", [("/a", "A", "wsgi"), ("/a/b/", "B", "wsgi"), ("/", "R", "wsgi")])._table
    expected = {"/a": "A", "/a/x": "A", "/a/b": "B", "/a/b/c": "B", "/a/bc": "A", "/ab": "R", "/": "R"}
    assert {path: (find(table, path) or ("", None))[1] for path in expected} == expected
    assert find([("/a", "A")], "/ab") is None


def test_a_mounted_wsgi_application_sees_its_own_paths() -> None:
    seen: list[tuple[str, str]] = []

    def app(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        seen.append((environ["SCRIPT_NAME"], environ["PATH_INFO"]))
        return []

    mounts = WsgiMounts(app, [("/api", app)])
    for path in ("/api/x", "/api", "/apis"):
        mounts({"SCRIPT_NAME": "/base", "PATH_INFO": path}, lambda *_: None)
    assert seen == [("/base/api", "/x"), ("/base/api", ""), ("/base", "/apis")]


def test_interfaces_do_not_mix() -> None:
    with pytest.raises(StartupError, match="--mount /x: a wsgi application"):
        combine(asgi, "asgi", [("/x", wsgi, "wsgi")])
