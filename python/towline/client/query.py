"""`QueryParams`: the query of a URL as an immutable multi-dict (application/x-www-form-urlencoded)."""

from __future__ import annotations

from collections.abc import ItemsView, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias
from urllib.parse import parse_qsl, urlencode

from ..errors import InvalidURL
from .hints import checked_pairs

PrimitiveData: TypeAlias = "str | int | float | bool | None"
QueryParamTypes: TypeAlias = """
    QueryParams | Mapping[str, PrimitiveData | Iterable[PrimitiveData]] | Sequence[tuple[str, PrimitiveData]]
    | ItemsView[str, PrimitiveData] | str | bytes | None
"""

_MAX_FIELDS = 10_000  # of a parsed query; a URL on the wire has far fewer


class QueryParams(Mapping[str, str]):
    """Compatible with httpx's QueryParams: `params["a"]` is the first value, `get_list("a")` returns all values."""

    __slots__ = ("_items",)

    def __init__(self, *args: QueryParamTypes, **kwargs: Any) -> None:
        if len(args) > 1 or (args and kwargs):
            raise TypeError("QueryParams takes one mapping, string or list of pairs, or keyword arguments")
        self._items: tuple[tuple[str, str], ...] = tuple(_items(args[0] if args else kwargs))

    def keys(self) -> Any:
        return self._first().keys()

    def values(self) -> Any:
        return self._first().values()

    def items(self) -> Any:
        return self._first().items()

    def multi_items(self) -> list[tuple[str, str]]:
        """Returns every pair, in order."""
        return list(self._items)

    def get_list(self, key: str) -> list[str]:
        """All values of a name, in order."""
        return [value for name, value in self._items if name == key]

    def set(self, key: str, value: Any = None) -> QueryParams:
        """Returns a copy in which `key` has only this value."""
        return self.merge({key: value})

    def add(self, key: str, value: Any = None) -> QueryParams:
        """Returns a copy with an additional pair."""
        return _from_items((*self._items, *_items({key: value})))

    def remove(self, key: str) -> QueryParams:
        """Returns a copy without `key`."""
        return _from_items(tuple(item for item in self._items if item[0] != key))

    def merge(self, params: QueryParamTypes = None) -> QueryParams:
        """Returns a copy in which `params` replace the values of their names."""
        new = tuple(_items(params))
        names = {name for name, _ in new}
        return _from_items((*(item for item in self._items if item[0] not in names), *new))

    def _first(self) -> dict[str, str]:
        first: dict[str, str] = {}
        for key, value in self._items:
            first.setdefault(key, value)
        return first

    def __getitem__(self, key: str) -> str:
        return self._first()[key]

    def __contains__(self, key: object) -> bool:
        return any(name == key for name, _ in self._items)

    def __iter__(self) -> Iterator[str]:
        return iter(self._first())

    def __len__(self) -> int:
        return len(self._first())

    def __bool__(self) -> bool:
        return bool(self._items)

    def __hash__(self) -> int:
        return hash(str(self))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, QueryParams) and sorted(self._items) == sorted(other._items)

    def __str__(self) -> str:
        return urlencode(self._items)

    def __repr__(self) -> str:
        return f"QueryParams({str(self)!r})"


def _from_items(items: tuple[tuple[str, str], ...]) -> QueryParams:
    params = QueryParams()
    params._items = items
    return params


def _items(value: QueryParamTypes) -> Iterator[tuple[str, str]]:
    if not value:
        return
    if isinstance(value, QueryParams):
        yield from value._items
    elif isinstance(value, (str, bytes)):
        yield from _parse(value)
    elif hasattr(value, "multi_items"):
        yield from ((_text(key), _text(item)) for key, item in value.multi_items())
    else:
        pairs: Iterable[Any] = value.items() if isinstance(value, Mapping) else checked_pairs("params", value)
        for key, item in pairs:
            if isinstance(item, (list, tuple, set, frozenset)):
                yield from ((_text(key), _text(part)) for part in item)
            else:
                yield _text(key), _text(item)


def _parse(value: str | bytes) -> list[tuple[str, str]]:
    text = value.decode("ascii", "surrogateescape") if isinstance(value, bytes) else value
    try:
        return parse_qsl(text, keep_blank_values=True, max_num_fields=_MAX_FIELDS)
    except ValueError as error:
        raise InvalidURL(f"query: {error}") from None


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if value is True:
        return "true"
    if value is False:
        return "false"
    if value is None:
        return ""
    return value.decode() if isinstance(value, bytes) else str(value)
