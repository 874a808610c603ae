"""A TOML table read strictly: keys that are missing, unknown or of the wrong type are errors with their place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from ..._suggest import closest
from ...errors import ConfigError

T = TypeVar("T")

KINDS: dict[type, str] = {
    str: "a string",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    dict: "a table",
    list: "an array",
}


class ScenarioError(ConfigError):
    """A scenario file is invalid; the message names the file, the scenario and the key."""


class Table:
    """Every key must be taken before `end`."""

    def __init__(self, plain: Mapping[str, Any], where: str) -> None:
        self._plain = dict(plain)
        self._known: list[str] = []
        self.where = where

    def __contains__(self, key: str) -> bool:
        return key in self._plain

    def names(self) -> list[str]:
        """The keys that are not taken yet."""
        return list(self._plain)

    def error(self, text: str) -> ScenarioError:
        return ScenarioError(f"{self.where}: {text}")

    def take(self, key: str, kind: type[T], default: T) -> T:
        found = self.maybe(key, kind)
        return default if found is None else found

    def need(self, key: str, kind: type[T]) -> T:
        found = self.maybe(key, kind)
        if found is None:
            raise self.error(f"`{key}` is missing")
        return found

    def maybe(self, key: str, kind: type[T]) -> T | None:
        self._known.append(key)
        if key not in self._plain:
            return None
        return self._of(key, kind, self._plain.pop(key))

    def several(self, key: str, kind: type[T], default: tuple[T, ...] = ()) -> tuple[T, ...]:
        """An array of one type; a single value needs no brackets."""
        self._known.append(key)
        if key not in self._plain:
            return default
        found = self._plain.pop(key)
        items = found if isinstance(found, list) else [found]
        return tuple(self._of(key, kind, item) for item in items)

    def choice(self, key: str, choices: tuple[T, ...], default: T) -> T:
        self._known.append(key)
        return self._chosen(key, choices, self._plain.pop(key)) if key in self._plain else default

    def choices(self, key: str, choices: tuple[T, ...], default: tuple[T, ...]) -> tuple[T, ...]:
        found = self.several(key, str)
        return tuple(self._chosen(key, choices, one) for one in found) if found else default

    def at_least(self, key: str, least: int, default: T) -> int | T:
        """A whole number with a minimum."""
        found = self.maybe(key, int)
        if found is None:
            return default
        if found < least:
            raise self.error(f"`{key}` is {found}; it must be at least {least}")
        return found

    def seconds(self, key: str, default: T) -> float | T:
        """A time or another quantity that is not negative."""
        found = self.maybe(key, float)
        if found is None:
            return default
        if not 0 <= found < float("inf"):
            raise self.error(f"`{key}` is {found:g}; it must be 0 or more")
        return found

    def end(self) -> None:
        for key in self._plain:
            near = closest(key, self._known)
            hint = f"; did you mean `{near}`?" if near else f" (known: {', '.join(self._known)})"
            raise self.error(f"`{key}` is unknown{hint}")

    def _of(self, key: str, kind: type[T], value: Any) -> T:
        if kind is float and type(value) is int:
            value = float(value)
        if type(value) is not kind:
            raise self.error(f"`{key}` must be {KINDS[kind]}, not {value!r:.60}")
        found: T = value
        return found

    def _chosen(self, key: str, choices: tuple[T, ...], value: Any) -> T:
        for one in choices:
            if one == value:
                return one
        raise self.error(
            f"`{key}` is {value!r:.60}; it must be one of {', '.join(str(one) for one in choices if one)}"
        )
