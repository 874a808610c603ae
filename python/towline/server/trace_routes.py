"""`http.route`: the template of the route that a framework has chosen, as it leaves it in the scope or the environ.

There is none for a framework that does not: a path is no substitute, because its values are unbounded.
"""

from __future__ import annotations

from typing import Any


def asgi_route(scope: dict[str, Any]) -> str | None:
    """The template of Starlette, FastAPI (`route`) or Litestar (`path_template`), with the root path in front."""
    template = scope.get("path_template")
    route = scope.get("route")
    if template is None and route is not None:
        template = _included(scope) or getattr(route, "path_format", None)
        if not hasattr(route, "endpoint") and hasattr(route, "app"):
            # A Mount of an application without routes: the root path has its path already.
            template = "/{path}"
    if not isinstance(template, str):
        return None
    return _root(scope).rstrip("/") + template or "/"


def _included(scope: dict[str, Any]) -> Any:
    """The template with the prefixes of FastAPI's `include_router`, which its routes lack since 0.130."""
    own = scope.get("fastapi")
    found = own.get("effective_route_context") if isinstance(own, dict) else None
    return getattr(found, "path_format", None)


def _root(scope: dict[str, Any]) -> str:
    """The root path, in which Starlette has put the paths of mounts, with the parameters of those as `{name}`."""
    root: str = scope.get("root_path") or ""
    given: str = scope.get("app_root_path", root)
    mounted = root[len(given) :] if root.startswith(given) else ""
    if not mounted:
        return root
    names = {str(value): name for name, value in (scope.get("path_params") or {}).items()}
    segments = (f"{{{names[part]}}}" if part in names else part for part in mounted.split("/"))
    return given + "/".join(segments)


def wsgi_route(environ: dict[str, Any]) -> str | None:
    """The rule of Flask, or of any application with a request of Werkzeug."""
    rule = getattr(getattr(environ.get("werkzeug.request"), "url_rule", None), "rule", None)
    if not isinstance(rule, str):
        return None
    script: str = environ.get("SCRIPT_NAME", "")
    return script + rule
