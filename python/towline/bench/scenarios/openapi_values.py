"""Values of parameters of OpenAPI descriptions, from examples, defaults and types."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

MAX_DEPTH = 20
"""Depth of references and combined schemas, which may be recursive."""
MAX_STEPS = 2000
"""Steps of the search for one value, among alternatives of alternatives."""
MAX_LENGTH = 8000
"""Length of a text that is made: servers take no longer request target."""
BY_FORMAT = {
    "uuid": "00000000-0000-4000-8000-000000000000",
    "date": "2024-01-01",
    "date-time": "2024-01-01T00:00:00Z",
    "email": "user@example.org",
    "uri": "https://example.org/",
    "ipv4": "192.0.2.1",
}


class NoValue(Exception):
    """A required parameter for which no value can be made."""


def resolved(whole: Any, given: Any) -> Any:
    """The object that a local `$ref` refers to, with the keys beside it. Raises `NoValue`."""
    for _ in range(MAX_DEPTH):
        if not isinstance(given, dict) or "$ref" not in given:
            return given
        reference = str(given["$ref"])
        if not reference.startswith("#"):
            raise NoValue(f"{reference:.80} is in another file")
        found = whole
        try:
            for key in unquote(reference[1:]).split("/")[1:]:
                key = key.replace("~1", "/").replace("~0", "~")
                found = found[int(key)] if isinstance(found, list) else found[key]
        except (LookupError, TypeError, ValueError):
            raise NoValue(f"{reference:.80} is not in the description") from None
        beside = {key: value for key, value in given.items() if key != "$ref"}
        given = {**found, **beside} if isinstance(found, dict) else found
    raise NoValue("its references have no end")


class Schemas:
    """The schemas of a description. Raises `NoValue`, and what Python raises for one of the wrong form."""

    def __init__(self, whole: Any) -> None:
        self._whole = whole
        self._steps = 0
        self.guessed = False
        """Whether a value was made from its type."""

    def value_of(self, parameter: Mapping[str, Any]) -> Any:
        """The example of a parameter, or a value of its schema, which Swagger 2.0 has in the parameter itself."""
        media = _first(parameter.get("content")) or {}
        for one in (parameter, media):
            if one.get("example") is not None:
                return one["example"]
            example = resolved(self._whole, _first(one.get("examples")))
            if isinstance(example, dict) and example.get("value") is not None:
                return example["value"]
        self._steps = 0
        schema = parameter.get("schema") or media.get("schema") or parameter
        return self._value(schema, str(parameter["name"]), MAX_DEPTH)

    def _value(self, given: Any, name: str, depth: int) -> Any:
        self._steps += 1
        schema = resolved(self._whole, given)
        if depth == 0 or self._steps > MAX_STEPS or not isinstance(schema, dict):
            raise NoValue(name)
        for key in ("example", "default", "const"):
            if schema.get(key) is not None:
                return schema[key]
        for key in ("examples", "enum"):
            if isinstance(schema.get(key), list) and schema[key]:
                return schema[key][0]
        if schema.get("allOf"):
            return self._value(self._merged(schema), name, depth - 1)
        for key in ("anyOf", "oneOf"):
            for part in schema.get(key) or []:
                one = resolved(self._whole, part)
                if isinstance(one, dict) and one.get("type") != "null":
                    return self._value(part, name, depth - 1)
        return self._made(schema, name, depth)

    def _merged(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        """The schema with those of its `allOf`."""
        merged: dict[str, Any] = {}
        for part in (*schema["allOf"], {key: value for key, value in schema.items() if key != "allOf"}):
            one = resolved(self._whole, part)
            if not isinstance(one, dict):
                continue
            properties = {**merged.get("properties", {}), **one.get("properties", {})}
            required = [*merged.get("required", []), *one.get("required", [])]
            merged = {**merged, **one, "required": required}
            if properties:
                merged["properties"] = properties
        return merged

    def _made(self, schema: Mapping[str, Any], name: str, depth: int) -> Any:
        """A value of the type."""
        types = schema.get("type")
        kind = next((one for one in types if one != "null"), None) if isinstance(types, list) else types
        if kind == "array" and "items" in schema:
            return [self._value(schema["items"], name, depth - 1)]
        properties = schema.get("properties")
        if properties and kind in ("object", None):
            required = schema.get("required") or []
            names = [key for key in properties if key in required or not required]
            return {key: self._value(properties[key], f"{name}.{key}", depth - 1) for key in names}
        self.guessed = True
        if kind in ("integer", "number"):
            return _number(schema, name)
        if kind == "boolean":
            return True
        if kind == "string" and "pattern" not in schema and schema.get("minLength", 0) <= MAX_LENGTH:
            made = BY_FORMAT.get(schema.get("format", ""), "example")
            return made.ljust(schema.get("minLength", 0), "x")[: schema.get("maxLength", MAX_LENGTH)]
        raise NoValue(name)


def _number(schema: Mapping[str, Any], name: str) -> Any:
    """1, or the next number that the bounds allow."""
    low, above = schema.get("minimum"), schema.get("exclusiveMinimum")
    high, below = schema.get("maximum"), schema.get("exclusiveMaximum")
    # In 3.0 the exclusive bounds are booleans, which make the others exclusive.
    step = schema.get("multipleOf") or 1
    if above is True and low is not None:
        low += 1
    elif above is not None and above is not True and above is not False:
        low = above + 1
    if below is True and high is not None:
        high -= 1
    elif below is not None and below is not True and below is not False:
        high = below - 1
    value = 1 if low is None else max(1, low)
    if high is not None and high < value:
        value = high
    if schema.get("multipleOf"):
        value = -(-value // step) * step
    if (low is not None and value < low) or (high is not None and value > high):
        raise NoValue(name)
    return value


def _first(members: Any) -> Any:
    """The first member of an object of objects."""
    first = next(iter(members.values()), None) if isinstance(members, dict) else None
    return first if isinstance(first, dict) else None
