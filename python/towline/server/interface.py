"""Detection of the calling convention of an application.

The decision follows from the parameters and the kind of the callable, in this order:

| the callable                                                            | is        |
|-------------------------------------------------------------------------|-----------|
| has parameters called `receive` and `send` after a first one            | ASGI 3    |
| has a second parameter called `start_response`                          | WSGI      |
| is a coroutine function that takes three arguments, or a class whose instances are awaited | ASGI 3 |
| needs three arguments                                                   | ASGI 3    |
| needs two                                                               | WSGI      |
| needs one called `scope`, or is a class whose instances take two        | ASGI 2    |
| takes any (`*args`), or has no signature (defined in C)                 | see below |
| anything else                                                           | refused   |

Wrappers that take any arguments are looked through: functools.partial, `__wrapped__` of decorators and proxies, and
objects that give another class than their own. If the innermost callable takes any arguments as well, it is called
once as an ASGI server would, with a lifespan scope: an awaitable as the result means ASGI 3, and a TypeError about the
three arguments means WSGI. The awaitable is closed and never runs.

An application that cannot serve a request is refused at start, with a message of one line.
"""

from __future__ import annotations

import functools
import inspect
import sys
import types
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Literal, NamedTuple

from ..errors import StartupError
from .signature import Signature, is_coroutine_function, returns_only_none, signature_of

Interface = Literal["asgi", "wsgi"]
Found = Literal["asgi3", "asgi2", "wsgi"]

WRAPPERS = 32
"""Wrappers that are looked through. More are a cycle of `__wrapped__`."""


class Verdict(NamedTuple):
    """Result of detection. With a `problem`, the application is accepted only if the user names the interface `found`."""

    found: Found | None = None
    problem: str = ""
    certain: bool = True


UNKNOWN = Verdict()
DESCRIBED = {"asgi3": "an ASGI application", "asgi2": "an ASGI 2 application", "wsgi": "a WSGI application"}


def resolve(app: Any, wanted: str, name: str | None = None) -> tuple[Any, Interface]:
    """The application (ASGI 2 wrapped as ASGI 3) and its interface.

    `wanted`: auto, asgi, asgi2, asgi3 or wsgi. `name`: its import string, for messages. Raises `StartupError` if the
    application cannot serve requests through that interface.
    """
    name = name or f"the application {app!r}"
    if not callable(app):
        raise StartupError(f"{name} is {_article(type(app).__name__)} and cannot be called{_inside(app)}")
    verdict = detect(app)
    if verdict.problem and verdict.found != wanted:
        raise StartupError(f"{name} {verdict.problem}")
    if wanted == "auto":
        kind = verdict.found
    elif wanted == "asgi":
        kind = "asgi2" if verdict.found == "asgi2" else "asgi3"
    else:
        kind = wanted  # type: ignore[assignment]
    if verdict.found and verdict.certain and kind != verdict.found:
        raise StartupError(
            f"{name} is {DESCRIBED[verdict.found]}: --interface {wanted} cannot serve it, leave the option out"
        )
    if kind is None:
        raise StartupError(f"{name} takes any arguments: choose --interface asgi or --interface wsgi")
    if kind == "asgi2":
        return _single_callable(app), "asgi"
    return app, "wsgi" if kind == "wsgi" else "asgi"


def detect(app: Any) -> Verdict:
    """Apply the table above, then the call."""
    for layer in _layers(app):
        verdict = _class(layer) if inspect.isclass(layer) else _callable(layer)
        if verdict != UNKNOWN:
            break
    else:
        return _by_calling(app)
    if (
        verdict.found == "asgi3"
        and not verdict.problem
        and not _asynchronous(layer)
        and _by_calling(app).problem
    ):
        # A plain function may return the coroutine of another one, but this one returned something else.
        return Verdict(None, NOT_ASYNC)
    return verdict


def _layers(app: Any) -> Iterator[Any]:
    """The application, and what each wrapper around it contains, from the outside."""
    for _ in range(WRAPPERS):
        yield app
        inner = _wrapped(app)
        if inner is None:
            return
        app = inner


def _wrapped(app: Any) -> Any:
    if isinstance(app, functools.partial):
        inner = _wrapped(app.func)
        return None if inner is None else functools.partial(inner, *app.args, **app.keywords)
    if isinstance(app, types.MethodType):
        inner = _wrapped(app.__func__)
        return None if inner is None else types.MethodType(inner, app.__self__)
    inner = _attribute(app, "__wrapped__")
    if callable(inner) and not (_is_proxy(app) and not isinstance(inner, app.__class__)):
        return inner
    if inspect.isclass(app) or isinstance(app, (types.FunctionType, types.BuiltinFunctionType)):
        return None
    # The class that the object gives as its own decides, as a lazy proxy does with that of its target.
    method = getattr(app.__class__ if _is_proxy(app) else type(app), "__call__", None)  # noqa: B004
    if not isinstance(method, types.FunctionType):
        return _bound_call(app)
    return types.MethodType(method, app)


def _is_proxy(app: Any) -> bool:
    return not inspect.isclass(app) and app.__class__ is not type(app)


def _attribute(app: Any, name: str) -> Any:
    try:
        return getattr(app, name, None)
    except Exception:  # a proxy without its target
        return None


def _bound_call(app: Any) -> Any:
    """The bound `__call__` of an object whose class does not define it as a function, such as a slot."""
    call = _attribute(app, "__call__")
    return call if isinstance(call, (types.MethodType, types.FunctionType)) else None


def _callable(app: Any) -> Verdict:
    signature = signature_of(app)
    if signature is None or signature.any_arguments:
        return UNKNOWN
    return _by_signature(signature, is_coroutine_function(app), app)


def _by_signature(signature: Signature, coroutine: bool, app: Any) -> Verdict:
    names = signature.names
    if names[1:3] == ("receive", "send") and signature.takes(3):
        found: Found | None = "asgi3"
    elif names[1:2] == ("start_response",) and signature.takes(2):
        found = "wsgi"
    elif coroutine or signature.required == 3:
        found = "asgi3" if signature.takes(3) else None
    elif signature.required == 2 and names[:2] != ("receive", "send"):
        found = "wsgi"
    elif signature.required == 1 and names[0] == "scope":
        found = "asgi2"
    elif signature.variadic and signature.required <= 1:
        return UNKNOWN
    else:
        found = None
    if found is None or signature.keyword_only:
        possible: Found | None = "asgi2" if signature.required == 1 and not coroutine else None
        return Verdict(possible, _refused(signature, coroutine))
    if inspect.isasyncgenfunction(app):
        return Verdict(None, "is an asynchronous generator; an ASGI application sends and does not yield")
    if found == "wsgi" and coroutine:
        return Verdict(
            None, "is a coroutine function with WSGI's parameters; WSGI applications are synchronous"
        )
    if found == "asgi3" and not coroutine and (inspect.isgeneratorfunction(app) or returns_only_none(app)):
        return Verdict(None, NOT_ASYNC)
    return Verdict(found)


NOT_ASYNC = "has ASGI's parameters and returns no awaitable: it must be `async def`"
FACTORY = "is a factory, which returns the application: give --factory"


def _refused(signature: Signature, coroutine: bool) -> str:
    if signature.keyword_only:
        return f"needs the keyword argument {signature.keyword_only[0]!r}, which no server gives"
    if signature.required == 0 and coroutine:
        return "is a coroutine function without parameters; a factory (--factory) must be a plain function"
    if signature.required == 0:
        return f"takes no arguments: it {FACTORY}"
    arguments = f"({', '.join(signature.names[: signature.required])})"
    if signature.required == 1:
        return (
            f"takes {arguments}, and is neither ASGI (scope, receive, send) nor WSGI (environ, start_response); "
            "for ASGI 2 give --interface asgi2"
        )
    return f"takes {arguments}, and is neither ASGI (scope, receive, send) nor WSGI (environ, start_response)"


def _class(app: type) -> Verdict:
    """A class is called with the arguments, and its instance is the response, or the second half of ASGI 2."""
    signature = signature_of(app)
    if hasattr(app, "__await__") and (signature is None or signature.takes(3)):
        return Verdict("asgi3")
    if signature is None or signature.any_arguments:
        return Verdict(None, CLASS) if _instances_serve(app) else UNKNOWN
    if signature.required == 2 and hasattr(app, "__iter__"):
        return Verdict("wsgi")
    if signature.takes(1) and _instances_take_two(app):
        return Verdict("asgi2")
    if signature.required == 0 and _instances_serve(app):
        return Verdict(None, CLASS)
    if signature.required == 2 and not _instances_serve(app):
        return Verdict("wsgi")  # an iterable through __getitem__
    arguments = f"({', '.join(signature.names[: signature.required])})"
    return Verdict(
        None, f"is a class that takes {arguments}; give an instance of it, or a factory with --factory"
    )


CLASS = "is a class whose instances are applications: give an instance, or --factory"


def _instances_serve(app: type) -> bool:
    call = _call_of_instances(app)
    return call is not None and (call.takes(3) or call.takes(2))


def _instances_take_two(app: type) -> bool:
    """Whether an instance is called with (receive, send)."""
    call = _call_of_instances(app)
    return call is not None and call.takes(2) and not call.takes(3) and call.names[:1] != ("environ",)


def _call_of_instances(app: type) -> Signature | None:
    # getattr would find that of the metaclass.
    for base in app.__mro__:
        if "__call__" in vars(base):
            return signature_of(vars(base)["__call__"], skip=1)
    return None


def _asynchronous(app: Any) -> bool:
    return inspect.isclass(app) or is_coroutine_function(app)


def _by_calling(app: Any) -> Verdict:
    """Call an application of unknown kind with a lifespan scope, and look at the result without awaiting it."""
    if inspect.isclass(app):
        return UNKNOWN
    scope = {"type": "lifespan", "asgi": {"version": "3.0", "spec_version": "2.0"}, "state": {}}
    try:
        result = app(scope, _receive, _send)
    except Exception as error:
        # Not certain, because the application may raise for the scope as well.
        return Verdict("wsgi" if _as_wsgi(error) else "asgi3", certain=False)
    if inspect.isawaitable(result):
        close = getattr(result, "close", None) or getattr(result, "cancel", None)
        if close is not None:
            close()
        return Verdict("asgi3")
    return Verdict(None, FACTORY if callable(result) else NOT_ASYNC)


def _as_wsgi(error: Exception) -> bool:
    """Whether a call failed because of the number of its arguments, or because they are not WSGI's."""
    if isinstance(error, KeyError):
        return any(isinstance(key, str) and (key.isupper() or key.startswith("wsgi.")) for key in error.args)
    return isinstance(error, TypeError) and any(
        word in str(error) for word in ("argument", "takes ", "expected ")
    )


async def _receive() -> dict[str, Any]:
    return {"type": "lifespan.startup"}


async def _send(message: dict[str, Any]) -> None:
    raise RuntimeError("this call only finds out the interface of the application")


def _article(name: str) -> str:
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"


def _inside(app: Any) -> str:
    """A hint for a module that contains an application."""
    if not isinstance(app, types.ModuleType) or sys.modules.get(app.__name__) is not app:
        return ""
    for name in ("app", "application", "api", "create_app"):
        if callable(getattr(app, name, None)):
            return f"; did you mean {app.__name__}:{name}?"
    return ""


def _single_callable(app: Callable[[Any], Any]) -> Callable[[Any, Any, Any], Awaitable[None]]:
    """ASGI 2's application(scope)(receive, send) as ASGI 3's application(scope, receive, send)."""

    async def asgi3(scope: Any, receive: Any, send: Any) -> None:
        await app(scope)(receive, send)

    return asgi3
