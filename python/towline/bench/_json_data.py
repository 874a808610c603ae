"""Conversion of dataclasses to JSON data and back, with their types."""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from typing import Any, TypeVar

T = TypeVar("T")


def to_plain(value: Any) -> Any:
    """Dictionaries, lists, strings, numbers, booleans and None."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain(item) for item in value]
    return value


def from_plain(kind: type[T], plain: Any) -> T:
    """The dataclass `kind` from a dictionary. Unknown keys are ignored: a later version may have more."""
    found: T = _value(kind, plain)
    return found


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    """Type hints, cached: a file has thousands of slices."""
    hints = typing.get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


def _value(kind: Any, plain: Any) -> Any:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        inner = [one for one in arguments if one is not type(None)]
        return None if plain is None else _value(inner[0], plain)
    if origin is list:
        return [_value(arguments[0], item) for item in plain]
    if origin is tuple:
        return tuple(_value(arguments[0], item) for item in plain)
    if origin is dict:
        return {key: _value(arguments[1], item) for key, item in plain.items()}
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        hints = _hints(kind)
        return kind(**{key: _value(hints[key], item) for key, item in plain.items() if key in hints})
    if kind is float:
        return float(plain)
    return plain
