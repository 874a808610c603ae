"""Parameters of a callable, as far as they can be known without calling it."""

from __future__ import annotations

import dis
import inspect
import sys
import types
from typing import Any, NamedTuple

POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
RESULTS = ("RETURN_VALUE", "RETURN_CONST")
CO_ITERABLE_COROUTINE = 0x100


class Signature(NamedTuple):
    """Positional parameters; `keyword_only`: those that must be given by name."""

    names: tuple[str, ...]
    required: int
    variadic: bool
    keyword_only: tuple[str, ...]

    def takes(self, count: int) -> bool:
        """Whether the callable can be called with this number of positional arguments."""
        return self.required <= count and (self.variadic or count <= len(self.names))

    @property
    def any_arguments(self) -> bool:
        return self.variadic and not self.names


def signature_of(app: Any, skip: int = 0) -> Signature | None:
    """The callable's own signature, not that of a function it wraps; None if it has none (some callables in C).

    `skip`: leading parameters to leave out, such as `self` of an unbound method.
    """
    try:
        found = inspect.signature(app, follow_wrapped=False)
    except (TypeError, ValueError, AttributeError, NameError):
        return None
    parameters = list(found.parameters.values())
    positional = [each for each in parameters if each.kind in POSITIONAL]
    return Signature(
        tuple(each.name for each in positional)[skip:],
        max(0, sum(each.default is each.empty for each in positional) - skip),
        any(each.kind is each.VAR_POSITIONAL for each in parameters),
        tuple(
            each.name for each in parameters if each.kind is each.KEYWORD_ONLY and each.default is each.empty
        ),
    )


def is_coroutine_function(app: Any) -> bool:
    """Whether a call gives a coroutine; also for methods, partial objects and objects with such a `__call__`."""
    method = getattr(app, "__call__", None)  # noqa: B004 - its kind is needed
    return any(_is_coroutine_function(each) for each in (app, method))


def _is_coroutine_function(app: Any) -> bool:
    if inspect.iscoroutinefunction(app):
        return True
    # Marked by Cython and, before Python 3.12, by asgiref.
    marker = getattr(sys.modules.get("asyncio.coroutines"), "_is_coroutine", None)
    if marker is not None and getattr(app, "_is_coroutine", None) is marker:
        return True
    code = code_of(app)
    return code is not None and bool(code.co_flags & CO_ITERABLE_COROUTINE)


def code_of(app: Any) -> types.CodeType | None:
    function = app.__func__ if isinstance(app, types.MethodType) else app
    if not isinstance(function, types.FunctionType):
        method = getattr(type(app), "__call__", None)  # noqa: B004 - its code is needed
        function = method if isinstance(method, types.FunctionType) else None
    return function.__code__ if isinstance(function, types.FunctionType) else None


def returns_only_none(app: Any) -> bool:
    """Whether every `return` of a Python function gives None, so that its result cannot be awaited."""
    code = code_of(app)
    if code is None:
        return False
    if code.co_flags & (inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR | CO_ITERABLE_COROUTINE):
        return False
    loaded: Any = ...  # the constant on the stack, if the previous instruction loaded one
    for instruction in dis.get_instructions(code):
        if instruction.opname == "RETURN_CONST":
            loaded = instruction.argval
        if instruction.opname in RESULTS and loaded is not None:
            return False
        loaded = instruction.argval if instruction.opname == "LOAD_CONST" else ...
    return True
