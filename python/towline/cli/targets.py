"""Import strings that cannot be one: `main`, `main.py`, `./main:app`, with the one that was probably meant."""

from __future__ import annotations

import ast
import os

USUAL = ("app", "application", "api", "asgi_app", "wsgi_app", "create_app", "make_app")


def problem(target: str) -> str | None:
    """The message for a string that is not `module:attribute`, with a suggestion; None if it is well formed."""
    module, separator, attribute = target.partition(":")
    is_path = "/" in module or module.endswith(".py")
    if separator and module and attribute and not is_path:
        dotted = all(part.isidentifier() for part in module.split("."))
        return None if dotted else f"{target!r} is not of the form module:attribute"
    name = module.removesuffix(".py").removeprefix("./").strip("/").replace("/", ".") or "main"
    guess = attribute or _application_in(module if is_path else module.replace(".", "/") + ".py") or "app"
    meant = f"{name}:{guess}"
    directory, file = os.path.split(module)
    if os.path.isabs(module) or ".." in module.split("/"):
        meant = f"--app-dir {directory} {file.removesuffix('.py')}:{guess}"
    return f"{target!r} is not of the form module:attribute; did you mean {meant}?"


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
