"""How the calling convention of an application is recognised, and how mounted ones are found."""

from __future__ import annotations

import functools
from typing import Any

import pytest
from towline.errors import StartupError
from towline.server.interface import detect, resolve
from towline.server.mount import WsgiMounts, combine, find


async def asgi(scope: Any, receive: Any, send: Any) -> None: ...


def asgi_plain(scope: Any, receive: Any, send: Any) -> Any: ...


def asgi2(scope: Any) -> Any: ...


def wsgi(environ: Any, start_response: Any) -> Any: ...


class Asgi:
    async def __call__(self, scope: Any, receive: Any, send: Any) -> None: ...


class AsgiAwaited:
    def __init__(self, scope: Any, receive: Any, send: Any) -> None: ...

    def __await__(self) -> Any: ...


class Asgi2:
    def __init__(self, scope: Any) -> None: ...

    async def __call__(self, receive: Any, send: Any) -> None: ...


class Wsgi:
    def __call__(self, environ: Any, start_response: Any) -> Any: ...


class WsgiIterable:
    def __init__(self, environ: Any, start_response: Any) -> None: ...


@pytest.mark.parametrize(
    ("app", "expected"),
    [
        (asgi, "asgi3"),
        (asgi_plain, "asgi3"),
        (Asgi(), "asgi3"),
        (Asgi().__call__, "asgi3"),
        (functools.partial(asgi), "asgi3"),
        (functools.partial(functools.partial(asgi)), "asgi3"),
        (asgi2, "asgi2"),
        (AsgiAwaited, "asgi3"),
        (Asgi2, "asgi2"),
        (wsgi, "wsgi"),
        (Wsgi(), "wsgi"),
        (Wsgi().__call__, "wsgi"),
        (WsgiIterable, "wsgi"),
        (functools.partial(wsgi), "wsgi"),
    ],
)
def test_detection(app: Any, expected: str) -> None:
    assert detect(app) == expected


def test_an_explicit_setting_wins() -> None:
    assert resolve(wsgi, "asgi")[1] == "asgi"
    assert resolve(asgi, "wsgi")[1] == "wsgi"
    with pytest.raises(StartupError, match="cannot be called"):
        resolve("text", "auto")


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
