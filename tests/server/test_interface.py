"""The interface of every kind of application is detected, and what cannot serve is refused at start."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import pytest
from towline import testing
from towline.errors import StartupError
from towline.server.interface import resolve

from tests.support.interface_kinds import KINDS, PACKAGES, asgi, wsgi
from tests.support.process import request


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_callable_serves(kind: str) -> None:
    assert served(KINDS[kind]()) == (b"wsgi" if "WSGI" in kind or "environ" in kind else b"asgi")


@pytest.mark.parametrize("kind", PACKAGES)
def test_applications_of_packages(kind: str) -> None:
    package, make = PACKAGES[kind]
    pytest.importorskip(package)
    assert served(make()) == (b"wsgi" if "Flask" in kind else b"asgi")


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "any arguments" in kind])
def test_a_choice_is_obeyed_where_nothing_is_certain(kind: str) -> None:
    app = KINDS[kind]()
    interface = "wsgi" if "WSGI" in kind else "asgi"
    assert resolve(app, interface)[1] == interface


def served(app: Any) -> bytes:
    with testing.serve(app) as server:
        response = request(server.port, "/")
        assert response.status == 200
        return response.body


APPS = """
    import functools

    async def asgi(scope, receive, send): ...
    def wsgi(environ, start_response): return []
    def forgot_async(scope, receive, send): inner(scope)
    def returns_nothing(scope, receive, send): return
    def returns_text(scope, receive, send): return str(scope)
    def inner(scope): return None
    def yields(scope, receive, send): yield
    async def async_yields(scope, receive, send): yield
    async def async_wsgi(environ, start_response): return []
    def create_app(): return wsgi
    def create_app_with(config=None, testing=False): return asgi
    def create_app_any(*args, **kwargs): return asgi
    async def create_app_async(): return asgi
    def create_app_needs(config): return asgi
    def create_module(): return functools
    def view(request): return "hello"
    async def handler(request): return "hello"
    def keyword(scope, receive, send, *, settings): ...
    def four(a, b, c, d): ...
    class Application:
        async def __call__(self, scope, receive, send): ...
    class WsgiApplication:
        def __init__(self, settings=None): ...
        def __call__(self, environ, start_response): return []
    app = asgi
"""
REFUSED = [
    (
        ["kinds:forgot_async"],
        "kinds:forgot_async has ASGI's parameters and returns no awaitable: it must be `async def`",
    ),
    (
        ["kinds:returns_nothing", "--lifespan", "off"],
        "kinds:returns_nothing has ASGI's parameters and returns no",
    ),
    (
        ["kinds:returns_text", "--lifespan", "off"],
        "kinds:returns_text has ASGI's parameters and returns no awaitable",
    ),
    (["kinds:yields"], "kinds:yields has ASGI's parameters and returns no awaitable: it must be `async def`"),
    (["kinds:async_yields"], "kinds:async_yields is an asynchronous generator"),
    (["kinds:async_wsgi"], "kinds:async_wsgi is a coroutine function with WSGI's parameters"),
    (["kinds:create_app"], "kinds:create_app takes no arguments: it is a factory"),
    (["kinds:create_app", "--interface", "wsgi"], "which returns the application: give --factory"),
    (["kinds:create_app_with"], "kinds:create_app_with takes no arguments: it is a factory"),
    (
        ["kinds:create_app_any"],
        "kinds:create_app_any is a factory, which returns the application: give --factory",
    ),
    (["kinds:create_app_async"], "a factory (--factory) must be a plain function"),
    (["kinds:create_app_async", "--factory"], "a factory (--factory) must be a plain function"),
    (["kinds:create_app_needs"], "kinds:create_app_needs takes (config), and is neither ASGI"),
    (
        ["kinds:create_app_needs", "--factory"],
        "kinds:create_app_needs needs arguments (config), so it is no factory",
    ),
    (["kinds:asgi", "--factory"], "kinds:asgi needs arguments (scope, receive, send), so it is no factory"),
    (
        ["kinds:create_module", "--factory"],
        "the application that kinds:create_module returned is a module and cannot",
    ),
    (["kinds:view"], "kinds:view takes (request), and is neither ASGI (scope, receive, send) nor WSGI"),
    (["kinds:handler"], "kinds:handler takes (request), and is neither ASGI (scope, receive, send) nor WSGI"),
    (["kinds:keyword"], "kinds:keyword needs the keyword argument 'settings', which no server gives"),
    (["kinds:four"], "kinds:four takes (a, b, c, d), and is neither ASGI (scope, receive, send) nor WSGI"),
    (
        ["kinds:Application"],
        "kinds:Application is a class whose instances are applications: give an instance",
    ),
    (["kinds:WsgiApplication"], "kinds:WsgiApplication is a class whose instances are applications: give an"),
    (
        ["kinds:asgi", "--interface", "wsgi"],
        "kinds:asgi is an ASGI application: --interface wsgi cannot serve it",
    ),
    (
        ["kinds:wsgi", "--interface", "asgi"],
        "kinds:wsgi is a WSGI application: --interface asgi cannot serve it",
    ),
    (
        ["kinds:wsgi", "--interface", "asgi3", "--lifespan", "off"],
        "kinds:wsgi is a WSGI application: --interface asgi3",
    ),
    (
        ["kinds:asgi", "--interface", "asgi2"],
        "kinds:asgi is an ASGI application: --interface asgi2 cannot serve it",
    ),
    (["kinds:asgi", "--mount", "/x=kinds:create_app"], "--mount: kinds:create_app takes no arguments"),
]


@pytest.mark.parametrize(("arguments", "message"), REFUSED, ids=[" ".join(a) for a, _ in REFUSED])
def test_a_wrong_application_is_one_line_and_status_3(
    arguments: list[str], message: str, tmp_path: Path
) -> None:
    (tmp_path / "kinds.py").write_text(textwrap.dedent(APPS))
    command = [sys.executable, "-m", "towline", "serve", *arguments, "--port", "0"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=30)
    assert (ended.returncode, len(ended.stderr.splitlines())) == (3, 1), ended.stderr
    assert ended.stderr.startswith("towline: ")
    assert message in ended.stderr


def test_a_callable_of_one_parameter_is_asgi2_on_request() -> None:
    def other_name(s: Any) -> Any:
        async def call(receive: Any, send: Any) -> None:
            await asgi(s, receive, send)

        return call

    with pytest.raises(StartupError, match="for ASGI 2 give --interface asgi2"):
        resolve(other_name, "auto")
    with testing.serve(other_name, interface="asgi2") as server:
        assert request(server.port, "/").body == b"asgi"


def test_an_application_that_nothing_can_decide_is_refused_by_lifespan() -> None:
    class Odd:
        """Looks like ASGI to the first call, and returns something else afterwards."""

        def __init__(self) -> None:
            self.calls = 0

        def __call__(self, *args: Any) -> Any:
            self.calls += 1
            return asgi(*args) if self.calls == 1 else wsgi

    with pytest.raises(StartupError, match=r"returned <function wsgi .* and no awaitable"):
        with testing.serve(Odd()):
            pass


def test_detection_leaves_no_thread_and_no_warning(recwarn: pytest.WarningsRecorder) -> None:
    before = threading.active_count()
    for make in KINDS.values():
        resolve(make(), "auto")
    assert threading.active_count() == before
    assert not [str(each.message) for each in recwarn if "never awaited" in str(each.message)]
