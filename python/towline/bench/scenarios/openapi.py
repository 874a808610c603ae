"""A scenario from an OpenAPI description (3.x or Swagger 2.0, JSON): its GET and HEAD operations, in turn.

Required parameters have their example, default or first allowed value, or one made for their type. Operations that
change something are left out, because a benchmark repeats them thousands of times. So are those that another file
describes, or another server has.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from .imported import Imported, imported, request_of, same_origin
from .model import Request
from .openapi_style import cookie_text, header_text, path_text, query_text
from .openapi_values import NoValue, Schemas, resolved
from .table import ScenarioError

SAFE = ("get", "head")
UNSAFE = ("post", "put", "patch", "delete")
ACCEPT = ("Accept", "*/*")
NOBODY = "http://localhost"
"""The origin of a description that names none; it is replaced by the subject's."""


def from_openapi(plain: Any, name: str) -> Imported:
    """Raises `ScenarioError` if it is no description, or has no operation that can be sent."""
    paths = plain.get("paths")
    if not isinstance(paths, dict):
        raise ScenarioError(f"{name}: is no OpenAPI description: it has no paths")
    found: list[tuple[str, tuple[str, Request]]] = []
    guessed: list[str] = []
    left_out: list[str] = []
    changing: list[str] = []
    elsewhere: list[str] = []
    for path, given in ((str(path), given) for path, given in paths.items()):
        # Extensions, which may be anything.
        if path.startswith("x-"):
            continue
        try:
            methods = resolved(plain, given)
        except NoValue as missing:
            elsewhere.append(f"{path} ({missing})")
            continue
        if not isinstance(methods, dict):
            raise ScenarioError(f"{name}: paths.{' '.join(path.split())} is no object")
        changing += [f"{method.upper()} {path}" for method in UNSAFE if method in methods]
        for method in (one for one in SAFE if one in methods):
            title = f"{method.upper()} {' '.join(path.split())}"
            try:
                call = _Call(plain, path, methods, methods[method])
            except NoValue as missing:
                left_out.append(f"{title} ({missing})")
                continue
            except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
                raise ScenarioError(
                    f"{name}: {method} of {title.split()[-1]} is no operation ({error!r:.200})"
                ) from None
            request = request_of(f"{name}: {title}", call.url, method.upper(), call.fields, None)
            found.append((title, request))
            if call.guessed:
                guessed.append(request[1].target)
    origins = Counter(same_origin(origin) for _, (origin, _) in found)
    origin = max(origins, key=lambda one: origins[one], default="")
    elsewhere += [f"{title} ({one})" for title, (one, _) in found if same_origin(one) != origin]
    ours = [request for _, request in found if same_origin(request[0]) == origin]
    notes = (
        *_note("no value for a parameter", left_out),
        *_note("in another file or on another server", elsewhere),
        *_note("not repeatable", changing),
    )
    if not found:
        why = f": {'; '.join(notes)}" if notes else ""
        raise ScenarioError(f"{name}: it has no GET operation that can be sent{why}")
    return imported(ours, name, f"OpenAPI: {name}", notes, frozenset(guessed))


def _note(reason: str, operations: list[str]) -> Iterator[str]:
    if operations:
        more = f" and {len(operations) - 3} more" if len(operations) > 3 else ""
        # In one line, whatever a path is.
        shown = " ".join(", ".join(operations[:3]).split())
        yield f"left out, {reason}: {shown:.500}{more}"


def _base(plain: Any, methods: Any, operation: Any) -> str:
    """The URL of the server, which an operation or a path may have of its own, without a slash at the end."""
    if "swagger" in plain:
        scheme = "http" if "http" in (plain.get("schemes") or ["http"]) else "https"
        path = str(plain.get("basePath") or "")
        url = f"{scheme}://{plain.get('host') or 'localhost'}{'' if path.startswith('/') else '/'}{path}"
        return url.rstrip("/")
    servers = operation.get("servers") or methods.get("servers") or plain.get("servers") or [{"url": "/"}]
    server = servers[0]
    url = str(server.get("url", "/"))
    for variable, described in (server.get("variables") or {}).items():
        value = described.get("default", next(iter(described.get("enum") or []), None))
        if value is not None:
            url = url.replace(f"{{{variable}}}", str(value))
    if "{" in url:
        raise NoValue(f"the server {url:.80} has a variable without a default")
    # A relative URL begins where the description is, which is not known here: at the root.
    if url.startswith("//"):
        url = f"http:{url}"
    elif not re.match(r"(?i)https?://", url):
        url = f"{NOBODY}/{re.sub(r'^(?:[.]{0,2}/)+', '', re.sub(r'^[a-z+]+://[^/]*', '', url))}"
    return re.split(r"[?#]", url)[0].rstrip("/")


class _Call:
    """One operation with values for its required parameters. Raises `NoValue`."""

    def __init__(self, whole: Any, path: str, shared: Any, operation: Any) -> None:
        self._schemas = Schemas(whole)
        given = {}
        for one in (*(shared.get("parameters") or []), *(operation.get("parameters") or [])):
            parameter = resolved(whole, one)
            given[parameter["name"], parameter["in"]] = parameter  # an operation's own replaces a shared one
        query: list[str] = []
        cookies: list[str] = []
        self.fields = [ACCEPT]
        for (name, place), parameter in given.items():
            if place == "path":
                path = path.replace(f"{{{name}}}", path_text(name, self._value(parameter), parameter))
            elif not parameter.get("required"):
                continue
            elif place == "query":
                query += query_text(name, self._value(parameter), parameter)
            # The description of these headers is elsewhere (OpenAPI 3.1, 4.8.12.2).
            elif place == "header" and name.lower() not in ("accept", "content-type"):
                self.fields.append((name, header_text(self._value(parameter), parameter)))
            elif place == "cookie":
                cookies.append(cookie_text(name, self._value(parameter), parameter))
            elif place == "querystring":
                raise NoValue(f"{name} is a whole query")
        if "{" in path:
            raise NoValue(f"{path[path.index('{') :].partition('}')[0][1:]} is not described")
        if cookies:
            self.fields.append(("Cookie", "; ".join(cookies)))
        self.url = f"{_base(whole, shared, operation)}{'' if path.startswith('/') else '/'}{path}"
        if query:
            self.url += f"{'&' if '?' in path else '?'}{'&'.join(query)}"

    @property
    def guessed(self) -> bool:
        """Whether a value was made from its type: the server need not know it."""
        return self._schemas.guessed

    def _value(self, parameter: Mapping[str, Any]) -> Any:
        value = self._schemas.value_of(parameter)
        media = next(iter(parameter.get("content") or {}), "")
        is_json = "json" in media.lower() and not isinstance(value, str)
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False) if is_json else value
