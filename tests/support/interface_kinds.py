"""Applications of every kind of callable. Each responds to any request with 200 and `KIND`."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

# ASGI.


async def asgi(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] != "http":
        raise NotImplementedError(scope["type"])
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4")]})
    await send({"type": "http.response.body", "body": b"asgi"})


def asgi_by_lambda() -> Any:
    return lambda scope, receive, send: asgi(scope, receive, send)


def asgi_returning(scope: Any, receive: Any, send: Any) -> Any:
    return asgi(scope, receive, send)


def asgi_after_a_check(scope: Any, receive: Any, send: Any) -> Any:
    if scope["type"] == "lifespan":
        raise RuntimeError("no lifespan here")
    return asgi(scope, receive, send)


async def asgi_other_names(a: Any, b: Any, c: Any) -> None:
    await asgi(a, b, c)


async def asgi_any(*args: Any) -> None:
    await asgi(*args)


async def asgi_extra(scope: Any, receive: Any, send: Any, extra: Any = None) -> None:
    await asgi(scope, receive, send)


def asgi_optional(scope: Any, receive: Any = None, send: Any = None) -> Any:
    return asgi(scope, receive, send)


@types.coroutine
def asgi_generator(scope: Any, receive: Any, send: Any) -> Any:
    yield from asgi(scope, receive, send).__await__()


class Asgi:
    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await asgi(scope, receive, send)

    async def method(self, scope: Any, receive: Any, send: Any) -> None:
        await asgi(scope, receive, send)

    @classmethod
    async def class_method(cls, scope: Any, receive: Any, send: Any) -> None:
        await asgi(scope, receive, send)

    @staticmethod
    async def static_method(scope: Any, receive: Any, send: Any) -> None:
        await asgi(scope, receive, send)


class AsgiSub(Asgi):
    pass


class AsgiSync:
    def __call__(self, scope: Any, receive: Any, send: Any) -> Any:
        return asgi(scope, receive, send)


class AsgiSyncAny:
    """Takes any arguments and returns what the inner application returns."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.inner(*args, **kwargs)


class SlotCall:
    """`__call__` is an attribute of the instance in a slot, as in sentry_sdk's middleware."""

    __slots__ = ("__call__",)

    def __init__(self, call: Any) -> None:
        self.__call__ = call


class AsgiAwaited:
    def __init__(self, scope: Any, receive: Any, send: Any) -> None:
        self.call = asgi(scope, receive, send)

    def __await__(self) -> Any:
        return self.call.__await__()


class ByGetattr:
    """A decorator that is an object."""

    def __init__(self, function: Any) -> None:
        functools.update_wrapper(self, function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.__wrapped__(*args, **kwargs)  # type: ignore[attr-defined]


class Proxy:
    """Transparent proxy with the class and the attributes of its target."""

    def __init__(self, target: Any) -> None:
        object.__setattr__(self, "_target", target)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return type(object.__getattribute__(self, "_target"))

    def __getattr__(self, name: str) -> Any:
        return getattr(object.__getattribute__(self, "_target"), name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return object.__getattribute__(self, "_target")(*args, **kwargs)


def decorated(function: Any) -> Any:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


def undeclared(function: Any) -> Any:
    """A decorator without functools.wraps."""

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


class Asgi2:
    def __init__(self, scope: Any) -> None:
        self.scope = scope

    async def __call__(self, receive: Any, send: Any) -> None:
        await asgi(self.scope, receive, send)


def asgi2(scope: Any) -> Any:
    return functools.partial(asgi, scope)


class DecoratedMethod:
    @decorated
    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await asgi(scope, receive, send)


def asgi_with(settings: Any, scope: Any, receive: Any, send: Any) -> Any:
    return asgi(scope, receive, send)


# WSGI.


def wsgi(environ: Any, start_response: Any) -> Any:
    start_response("200 OK", [("content-length", "4")])
    return [b"wsgi"]


def wsgi_generator(environ: Any, start_response: Any) -> Any:
    start_response("200 OK", [("content-length", "4")])
    yield b"wsgi"


def wsgi_other_names(e: Any, s: Any) -> Any:
    return wsgi(e, s)


def wsgi_extra(environ: Any, start_response: Any, settings: Any = None) -> Any:
    return wsgi(environ, start_response)


def wsgi_with(settings: Any, environ: Any, start_response: Any) -> Any:
    return wsgi(environ, start_response)


class Wsgi:
    def __call__(self, environ: Any, start_response: Any) -> Any:
        return wsgi(environ, start_response)

    def method(self, environ: Any, start_response: Any) -> Any:
        return wsgi(environ, start_response)


class WsgiIterable:
    def __init__(self, environ: Any, start_response: Any) -> None:
        self.start = start_response

    def __iter__(self) -> Any:
        self.start("200 OK", [("content-length", "4")])
        yield b"wsgi"


class WsgiSniffing:
    """Takes any arguments and reads the environ before it calls the application."""

    def __call__(self, *args: Any) -> Any:
        assert args[0]["PATH_INFO"]
        return wsgi(*args)


KINDS: dict[str, Callable[[], Any]] = {
    "an async function": lambda: asgi,
    "a lambda around it": asgi_by_lambda,
    "a plain function that returns a coroutine": lambda: asgi_returning,
    "a plain function that raises for lifespan": lambda: asgi_after_a_check,
    "an async function with other names": lambda: asgi_other_names,
    "an async function of any arguments": lambda: asgi_any,
    "an async function with an optional fourth": lambda: asgi_extra,
    "a function with optional receive and send": lambda: asgi_optional,
    "a generator-based coroutine": lambda: asgi_generator,
    "an instance": Asgi,
    "an instance of a subclass": AsgiSub,
    "a bound method": lambda: Asgi().method,
    "a bound __call__": lambda: Asgi().__call__,
    "a class method": lambda: Asgi.class_method,
    "a static method": lambda: Asgi.static_method,
    "an instance with a plain __call__": AsgiSync,
    "an instance of any arguments around ASGI": lambda: AsgiSyncAny(asgi),
    "two instances of any arguments around ASGI": lambda: AsgiSyncAny(AsgiSyncAny(Asgi())),
    "an instance with __call__ in a slot": lambda: SlotCall(Asgi().method),
    "a class whose instances are awaited": lambda: AsgiAwaited,
    "a partial": lambda: functools.partial(asgi),
    "a partial of a partial": lambda: functools.partial(functools.partial(asgi_with), None),
    "a partial with a keyword": lambda: functools.partial(asgi_extra, extra=1),
    "a partial of a decorated function": lambda: functools.partial(decorated(asgi_with), None),
    "a decorated function": lambda: decorated(asgi),
    "a function decorated twice": lambda: decorated(decorated(asgi)),
    "a function decorated without functools.wraps": lambda: undeclared(asgi),
    "a decorator that is an object": lambda: ByGetattr(asgi),
    "a decorated method": DecoratedMethod,
    "a proxy of an instance": lambda: Proxy(Asgi()),
    "a proxy of a function": lambda: Proxy(asgi),
    "a function bound to another object": lambda: types.MethodType(asgi_with, object()),
    "a callable in C without a signature around ASGI": lambda: operator_call(asgi),
    "an ASGI 2 class": lambda: Asgi2,
    "an ASGI 2 function": lambda: asgi2,
    "a WSGI function": lambda: wsgi,
    "a WSGI generator": lambda: wsgi_generator,
    "a WSGI function with other names": lambda: wsgi_other_names,
    "a WSGI function with an optional third": lambda: wsgi_extra,
    "a WSGI instance": Wsgi,
    "a WSGI bound method": lambda: Wsgi().method,
    "a WSGI class": lambda: WsgiIterable,
    "a WSGI partial": lambda: functools.partial(wsgi_with, None),
    "a decorated WSGI function": lambda: decorated(wsgi),
    "a WSGI function decorated without functools.wraps": lambda: undeclared(wsgi),
    "an instance of any arguments around WSGI": lambda: AsgiSyncAny(Wsgi()),
    "an instance that reads the environ first": WsgiSniffing,
    "a proxy of a WSGI instance": lambda: Proxy(Wsgi()),
    "a callable in C without a signature around WSGI": lambda: operator_call(wsgi),
}


def operator_call(target: Any) -> Any:
    """`target.__call__` of a C type: a method-wrapper, whose signature is only `*args, **kwargs`."""
    return target.__call__


def sentry_around_starlette() -> Any:
    from sentry_sdk.integrations.asgi import SentryAsgiMiddleware

    return SentryAsgiMiddleware(starlette())


def starlette() -> Any:
    from starlette.applications import Starlette
    from starlette.responses import PlainTextResponse
    from starlette.routing import Route

    return Starlette(routes=[Route("/", lambda request: PlainTextResponse("asgi"))])


def wrapt_proxy(target: Any) -> Any:
    import wrapt

    return wrapt.CallableObjectProxy(target)


def wrapt_decorated(target: Any) -> Any:
    import wrapt

    @wrapt.decorator
    def through(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        return wrapped(*args, **kwargs)

    return through(target)


def flask() -> Any:
    from flask import Flask

    app = Flask(__name__)
    app.route("/")(lambda: "wsgi")
    return app


def werkzeug_proxy() -> Any:
    from werkzeug.local import LocalProxy

    app = flask()
    return LocalProxy(lambda: app)


PACKAGES: dict[str, tuple[str, Callable[[], Any]]] = {
    "Starlette": ("starlette", starlette),
    "SentryAsgiMiddleware around Starlette": ("sentry_sdk", sentry_around_starlette),
    "a wrapt proxy of Starlette": ("wrapt", lambda: wrapt_proxy(starlette())),
    "a wrapt proxy of a function": ("wrapt", lambda: wrapt_proxy(asgi)),
    "a wrapt decorator": ("wrapt", lambda: wrapt_decorated(asgi)),
    "a wrapt decorator around an instance": ("wrapt", lambda: wrapt_decorated(Asgi())),
    "a wrapt proxy of Flask": ("wrapt", lambda: wrapt_proxy(flask())),
    "Flask": ("flask", flask),
    "werkzeug's LocalProxy of Flask": ("werkzeug", werkzeug_proxy),
}
