"""A scenario from an OpenAPI description (3.x or Swagger 2.0, JSON): its GET and HEAD operations, in turn.

Required parameters have their example, default or first allowed value, or one made for their type. Operations that
change something are left out, because a benchmark repeats them thousands of times.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from .imported import Imported, imported, request_of
from .model import Request
from .table import ScenarioError

SAFE = ("get", "head")
UNSAFE = ("post", "put", "patch", "delete")
MAX_DEPTH = 20
"""Of references and combined schemas, which may be recursive."""
BY_FORMAT = {
    "uuid": "00000000-0000-4000-8000-000000000000",
    "date": "2024-01-01",
    "date-time": "2024-01-01T00:00:00Z",
    "email": "user@example.org",
    "uri": "https://example.org/",
    "ipv4": "192.0.2.1",
}
ACCEPT = ("Accept", "*/*")


class _NoValue(Exception):
    """A required parameter for which no value can be made."""


def from_openapi(plain: Any, name: str) -> Imported:
    """Raises `ScenarioError` if it is no description, or has no operation that can be sent."""
    paths = plain.get("paths")
    if not isinstance(paths, dict):
        raise ScenarioError(f"{name}: is no OpenAPI description: it has no paths")
    origin, prefix = _base(plain)
    found: list[tuple[str, Request]] = []
    guessed: list[str] = []
    left_out: list[str] = []
    changing: list[str] = []
    for path, methods in paths.items():
        if not isinstance(methods, dict):
            raise ScenarioError(f"{name}: paths.{path} is no object")
        changing += [f"{method.upper()} {path}" for method in UNSAFE if method in methods]
        for method in (one for one in SAFE if one in methods):
            try:
                call = _Call(plain, prefix + path, methods, methods[method])
            except _NoValue as missing:
                left_out.append(f"{method.upper()} {path} ({missing})")
                continue
            except (AttributeError, TypeError, KeyError) as error:
                raise ScenarioError(f"{name}: {method} of {path} is no operation ({error!r})") from None
            where = f"{name}: {method.upper()} {path}"
            request = request_of(where, origin + call.target, method.upper(), call.fields, None)
            found.append(request)
            if call.guessed:
                guessed.append(request[1].target)
    notes = [*_note("no value for a parameter", left_out), *_note("not repeatable", changing)]
    if not found:
        why = f": {'; '.join(notes)}" if notes else ""
        raise ScenarioError(f"{name}: it has no GET operation that can be sent{why}")
    return imported(found, name, f"OpenAPI: {name}", tuple(notes), frozenset(guessed))


def _note(reason: str, operations: list[str]) -> Iterator[str]:
    if operations:
        more = f" and {len(operations) - 3} more" if len(operations) > 3 else ""
        yield f"left out, {reason}: {', '.join(operations[:3])}{more}"


def _base(plain: Any) -> tuple[str, str]:
    """The origin, which is replaced by the subject's, and the prefix of all paths."""
    if "swagger" in plain:
        prefix = plain.get("basePath", "")
        return f"http://{plain.get('host', 'localhost')}", prefix.rstrip("/")
    servers = plain.get("servers") or [{"url": "/"}]
    url = servers[0].get("url", "/")
    for variable, described in servers[0].get("variables", {}).items():
        url = url.replace(f"{{{variable}}}", str(described.get("default", "")))
    parts = urlsplit(url)
    origin = f"{parts.scheme}://{parts.netloc}" if parts.scheme in ("http", "https") else "http://localhost"
    return origin, parts.path.rstrip("/")


class _Call:
    """One operation with values for its required parameters. Raises `_NoValue`."""

    def __init__(self, whole: Any, path: str, shared: Any, operation: Any) -> None:
        self._whole = whole
        self.guessed = False
        """Whether a value was made from its type: the server need not know it."""
        given = {}
        for one in (*shared.get("parameters", []), *operation.get("parameters", [])):
            parameter = self._resolved(one)
            given[parameter["name"], parameter["in"]] = parameter  # an operation's own replaces a shared one
        query: list[tuple[str, str]] = []
        cookies: list[str] = []
        self.fields = [ACCEPT]
        for (name, place), parameter in given.items():
            if not (parameter.get("required") or place == "path") or place not in (
                "path",
                "query",
                "header",
                "cookie",
            ):
                continue
            values = self._values(parameter)
            if place == "path":
                path = path.replace(f"{{{name}}}", quote(",".join(values), safe=","))
            elif place == "query":
                query += [(name, value) for value in values]
            elif place == "header":
                self.fields.append((name, ",".join(values)))
            else:
                cookies.append(f"{name}={','.join(values)}")
        if "{" in path:
            raise _NoValue(f"{path[path.index('{') :].partition('}')[0][1:]} is not described")
        if cookies:
            self.fields.append(("Cookie", "; ".join(cookies)))
        self.target = path + (f"?{urlencode(query)}" if query else "")

    def _values(self, parameter: Mapping[str, Any]) -> list[str]:
        """One value, or those of a list."""
        value = _example(parameter)
        if value is None:
            # Swagger 2.0 has the schema in the parameter itself.
            schema = parameter.get("schema") or _first(parameter.get("content"), "schema") or parameter
            value = self._value(schema, parameter["name"], MAX_DEPTH)
        many = value if isinstance(value, list) else [value]
        return [("true" if one else "false") if isinstance(one, bool) else str(one) for one in many]

    def _value(self, schema: Any, name: str, depth: int) -> Any:
        if depth == 0:
            raise _NoValue(name)
        schema = self._resolved(schema)
        for key in ("example", "default", "const"):
            if schema.get(key) is not None:
                return schema[key]
        for key in ("examples", "enum"):
            if isinstance(schema.get(key), list) and schema[key]:
                return schema[key][0]
        for key in ("allOf", "anyOf", "oneOf"):
            for part in schema.get(key, []):
                if self._resolved(part).get("type") != "null":
                    return self._value(part, name, depth - 1)
        return self._made(schema, name, depth)

    def _made(self, schema: Mapping[str, Any], name: str, depth: int) -> Any:
        """A value of the type."""
        types = schema.get("type")
        kind = next((one for one in types if one != "null"), None) if isinstance(types, list) else types
        if kind == "array" and "items" in schema:
            return [self._value(schema["items"], name, depth - 1)]
        self.guessed = True
        if kind in ("integer", "number"):
            return max(1, schema.get("minimum", 1))
        if kind == "boolean":
            return True
        if kind == "string" and "pattern" not in schema:
            made = BY_FORMAT.get(schema.get("format", ""), "example")
            return made.ljust(schema.get("minLength", 0), "x")[: schema.get("maxLength", len(made) + 100)]
        raise _NoValue(name)

    def _resolved(self, given: Any) -> Any:
        """The object that a local `$ref` refers to."""
        for _ in range(MAX_DEPTH):
            if not isinstance(given, dict) or "$ref" not in given:
                return given
            reference = str(given["$ref"])
            if not reference.startswith("#/"):
                raise _NoValue(f"{reference} is in another file")
            given = self._whole
            for key in reference[2:].split("/"):
                given = given[key.replace("~1", "/").replace("~0", "~")]
        raise _NoValue("its references have no end")


def _example(parameter: Mapping[str, Any]) -> Any:
    if parameter.get("example") is not None:
        return parameter["example"]
    return _first(parameter.get("examples"), "value")


def _first(members: Any, key: str) -> Any:
    """`key` of the first member of an object of objects."""
    first = next(iter(members.values()), None) if isinstance(members, dict) else None
    return first.get(key) if isinstance(first, dict) else None
