"""Import of `module:attribute.path`.

There are two kinds of failure: the import string names nothing (`ImportFromStringError`, with a suggestion), or the
application raised an exception during import (`ApplicationImportError`, with the application's part of the
traceback).
"""

from __future__ import annotations

import ast
import importlib
import os
import sys
import traceback
from collections.abc import Iterable
from types import ModuleType
from typing import Any

from .._suggest import closest
from ..errors import ImportFromStringError, StartupError
from .signature import is_coroutine_function, signature_of

FACTORIES = ("create_app", "make_app")
USUAL = ("application", "app", "api", *FACTORIES)
INSTALLED = {"site-packages", "dist-packages"}


class ApplicationImportError(StartupError):
    """The application raised an exception during import; the message is its traceback."""


def import_application(target: Any, *, app_dir: str = ".", factory: bool = False) -> Any:
    """The application at the import string `target`, called once if it is a factory. Other objects are returned."""
    name = target
    if isinstance(target, str):
        target = import_from_string(target, app_dir=app_dir)
        factory = factory and not name.endswith(")")
    if not factory:
        return target
    if not callable(target):
        raise ImportFromStringError(f"--factory: {name} is a {type(target).__name__} and cannot be called")
    name = name if isinstance(name, str) else f"{name!r}"
    arguments = signature_of(target)
    if arguments is not None and (arguments.required or arguments.keyword_only):
        needed = ", ".join((*arguments.names[: arguments.required], *arguments.keyword_only))
        raise ImportFromStringError(
            f"{name} needs arguments ({needed}), so it is no factory: leave --factory out, or bind them"
        )
    if is_coroutine_function(target):
        raise ImportFromStringError(
            f"{name} is a coroutine function; a factory (--factory) must be a plain function"
        )
    try:
        return target()
    except StartupError:
        raise  # its message says all
    except Exception as error:
        raise ApplicationImportError(own_traceback(error)) from error


def import_from_string(target: str, *, app_dir: str = ".") -> Any:
    """Import `module:attribute.path` with `app_dir` first on the path; `module:function("a", b=1)` is called.

    The attribute of a module alone is `application`, `app` or `api`, or the result of `create_app` or `make_app`.
    """
    module_name, separator, attributes = target.partition(":")
    if not module_name or bool(separator) != bool(attributes):
        raise ImportFromStringError(f"{target!r} is not of the form module:attribute ({_hint(target)})")
    attributes, has_arguments, _ = attributes.partition("(")
    call = _arguments(target) if has_arguments else None
    folders = search_path(app_dir)
    for directory in reversed(folders):
        if directory not in sys.path:
            sys.path.insert(0, directory)
    found: Any = _module(module_name, folders[0])
    if not separator:
        attributes = next((name for name in USUAL if hasattr(found, name)), "")
        if not attributes:
            raise ImportFromStringError(f"{module_name!r} has none of {', '.join(USUAL)}")
        call = ([], {}) if attributes in FACTORIES else None
    for attribute in attributes.split("."):
        found = _attribute(found, attribute, module_name)
    if call is None:
        return found
    try:
        return found(*call[0], **call[1])
    except Exception as error:
        raise ApplicationImportError(own_traceback(error)) from error


def _arguments(target: str) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of the call in an import string, which are literals."""
    try:
        node = ast.parse(target.partition(":")[2], mode="eval").body
        if not isinstance(node, ast.Call) or any(keyword.arg is None for keyword in node.keywords):
            raise ValueError
        keywords = {str(each.arg): ast.literal_eval(each.value) for each in node.keywords}
        return [ast.literal_eval(each) for each in node.args], keywords
    except (SyntaxError, ValueError):
        raise ImportFromStringError(
            f"{target!r}: expected module:function(...) with literals, such as app:create_app('prod', debug=False)"
        ) from None


def search_path(app_dir: str) -> list[str]:
    """The directories of `--app-dir`, separated as in PYTHONPATH."""
    return [os.path.abspath(directory) for directory in app_dir.split(os.pathsep)]


def forget_modules(directories: Iterable[str]) -> None:
    """Forget the modules in these directories, but not installed packages: they are imported again."""
    roots = tuple(os.path.join(os.path.abspath(directory), "") for directory in directories)
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if not isinstance(file, str) or name.partition(".")[0] in ("__main__", "towline"):
            continue
        path = os.path.abspath(file)
        if path.startswith(roots) and not INSTALLED & {*path.split(os.sep)}:
            del sys.modules[name]


def _hint(target: str) -> str:
    if target.endswith(".py") or "/" in target:
        return f"for example {target.removesuffix('.py').strip('./').replace('/', '.')}:app"
    return f"for example {target or 'main'}:app"


def _module(name: str, directory: str) -> ModuleType:
    importlib.invalidate_caches()
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        # Another missing module is a dependency of the application; if `name` is missing, it is misspelt.
        missing = error.name or ""
        if name != missing and not name.startswith(missing + "."):
            raise ApplicationImportError(own_traceback(error)) from error
        raise ImportFromStringError(
            f"no module {missing!r} (looked in {directory} first){_did_you_mean(missing, _modules(name, directory))}"
        ) from None
    except Exception as error:
        raise ApplicationImportError(own_traceback(error)) from error
    except SystemExit as error:
        raise StartupError(f"{name} ended the process during import (SystemExit {error.code})") from None


def _attribute(owner: Any, attribute: str, module_name: str) -> Any:
    try:
        return getattr(owner, attribute)
    except AttributeError:
        names = [name for name in dir(owner) if not name.startswith("_")]
        raise ImportFromStringError(
            f"{module_name!r} has no attribute {attribute!r}{_did_you_mean(attribute, names, usual=True)}"
        ) from None


def _modules(name: str, directory: str) -> list[str]:
    """The modules in the same package as the missing one."""
    import pkgutil

    parent, _, _ = name.rpartition(".")
    where = os.path.join(directory, *parent.split(".")) if parent else directory
    prefix = f"{parent}." if parent else ""
    return [prefix + info.name for info in pkgutil.iter_modules([where])]


def _did_you_mean(name: str, candidates: list[str], *, usual: bool = False) -> str:
    close = closest(name, candidates)
    if close is None and usual:
        close = next((candidate for candidate in ("app", "application") if candidate in candidates), None)
    return f"; did you mean {close!r}?" if close else ""


def own_traceback(error: BaseException) -> str:
    """The traceback from the first frame outside this module and the import system."""
    frame = error.__traceback__
    while frame is not None and _is_machinery(frame.tb_frame.f_code.co_filename):
        frame = frame.tb_next
    lines = traceback.format_exception(type(error), error.with_traceback(frame), frame)
    return "".join(lines).rstrip("\n")


def _is_machinery(filename: str) -> bool:
    return (
        filename == __file__
        or filename.startswith("<frozen importlib")
        or "importlib" in filename.split(os.sep)
    )
