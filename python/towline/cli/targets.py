"""Import strings of the command line: `mysite.wsgi`, `src/main.py:app`, `notes:create_app()`, and those that cannot be one."""

from __future__ import annotations

import ast
import os

USUAL = ("app", "application", "api", "asgi_app", "wsgi_app", "create_app", "make_app")


def located(target: str, base: str) -> tuple[str, str]:
    """The directory that must be on the path, and `module:attribute`, for a file: the directory above its packages. `base`:
    the directory of relative paths."""
    path, separator, attribute = target.partition(":")
    if not _is_path(path):
        return "", target
    directory, name = os.path.split(os.path.abspath(os.path.join(base, path.removesuffix(".py"))))
    if name == "__init__":
        directory, name = os.path.split(directory)
    while os.path.exists(os.path.join(directory, "__init__.py")):
        directory, package = os.path.split(directory)
        name = f"{package}.{name}"
    return directory, name + separator + attribute


def problem(target: str, base: str) -> str | None:
    """The message for a string that is not `module`, `module:attribute`, `module:function(...)` or the file of a module, with
    a suggestion; None if it is well formed."""
    module, separator, attribute = target.partition(":")
    if _is_path(module):
        path = os.path.normpath(os.path.join(base, module))
        if any(map(os.path.exists, (path, f"{path}.py"))):
            return None if attribute or not separator else _wrong(target, module)
        return f"{target!r}: there is no file {path}"
    names = [*module.split("."), *(attribute.partition("(")[0].split(".") if separator else ())]
    return None if all(name.isidentifier() for name in names) else _wrong(target, module)


def _wrong(target: str, module: str) -> str:
    meant = f"{module.replace('/', '.').removesuffix('.py')}:{_application_in(module) or 'app'}"
    hint = "" if meant == target else f"; did you mean {meant}?"
    return f"{target!r} is not of the form module:attribute{hint}"


def _is_path(module: str) -> bool:
    return "/" in module or module.endswith(".py")


def _application_in(path: str) -> str | None:
    """The name of the application in a file, without running it."""
    try:
        with open(path, encoding="utf-8") as file:
            tree = ast.parse(file.read())
    except (OSError, SyntaxError, ValueError):
        return None
    names: set[str] = set()
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
    return next((name for name in USUAL if name in names), None)
