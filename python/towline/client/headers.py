"""`Headers`: a case-insensitive multi-dict that keeps the order and the case of the wire.

Its fields are valid on the wire: names are tokens (RFC 9110 5.1), values have no CR, LF or NUL (5.5).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from typing import Any, TypeAlias

from .._redact import is_secret, without_secrets
from ..errors import InvalidHeader
from .hints import checked_pairs

HeaderTypes: TypeAlias = """
    Headers | Mapping[str, str] | Mapping[bytes, bytes] | Iterable[tuple[str, str]] | Iterable[tuple[bytes, bytes]]
    | None
"""

_TOKEN = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_FORBIDDEN = re.compile(rb"[\x00\r\n]")


class Headers(MutableMapping[str, str]):
    """Compatible with httpx's Headers. `headers["name"]` joins the fields of one name with ", " (RFC 9110 5.2).

    Raises InvalidHeader.
    """

    __slots__ = ("_encoding", "_fields")

    def __init__(self, headers: HeaderTypes = None, encoding: str | None = None) -> None:
        self._encoding = encoding
        # (name as on the wire, name in lower case, value)
        self._fields: list[tuple[bytes, bytes, bytes]]
        if headers is None:
            self._fields = []
        elif isinstance(headers, Headers):
            self._fields = list(headers._fields)
            self._encoding = encoding or headers._encoding
        else:
            pairs: Iterable[tuple[Any, Any]]
            if hasattr(headers, "multi_items"):  # httpx's
                pairs = headers.multi_items()
            elif isinstance(headers, Mapping):
                pairs = headers.items()
            else:
                pairs = checked_pairs("headers", headers)
            self._fields = [_field(name, value, encoding) for name, value in pairs]

    @classmethod
    def _of_wire(cls, raw: Iterable[tuple[bytes, bytes]]) -> Headers:
        """Creates headers from fields that a parser has checked already."""
        self = cls()
        self._fields = [(name, name.lower(), value) for name, value in raw]
        return self

    @property
    def encoding(self) -> str:
        """The encoding of values: the one that was set, else the first of ascii, utf-8, iso-8859-1 that fits."""
        if self._encoding is None:
            for encoding in ("ascii", "utf-8"):
                try:
                    for name, _, value in self._fields:
                        name.decode(encoding), value.decode(encoding)
                except UnicodeDecodeError:
                    continue
                self._encoding = encoding
                break
            else:
                self._encoding = "iso-8859-1"
        return self._encoding

    @encoding.setter
    def encoding(self, value: str) -> None:
        self._encoding = value

    @property
    def raw(self) -> list[tuple[bytes, bytes]]:
        """The fields as on the wire."""
        return [(name, value) for name, _, value in self._fields]

    def multi_items(self) -> list[tuple[str, str]]:
        """Returns every field separately, names in lower case."""
        encoding = self.encoding
        return [(lower.decode(encoding), value.decode(encoding)) for _, lower, value in self._fields]

    def get_list(self, key: str, split_commas: bool = False) -> list[str]:
        """Returns the values of one name. `split_commas` splits lists, without regard to quotes, as httpx does."""
        values = self._values(key)
        if not split_commas:
            return values
        return [part.strip() for value in values for part in value.split(",")]

    def copy(self) -> Headers:
        """A copy that changes independently."""
        return Headers(self)

    def update(self, headers: HeaderTypes = None) -> None:  # type: ignore[override]
        """Replaces existing names. Several new fields of one name are all added."""
        new = Headers(headers)
        names = {lower for _, lower, _ in new._fields}
        self._fields = [field for field in self._fields if field[1] not in names] + new._fields
        self._reset_detected_encoding()

    def _append(self, name: bytes, value: bytes) -> None:
        """Adds a field that is known to be well-formed."""
        self._fields.append((name, name.lower(), value))
        self._reset_detected_encoding()

    def _values(self, key: str | bytes) -> list[str]:
        wanted, encoding = self._key(key), self.encoding
        return [value.decode(encoding) for _, lower, value in self._fields if lower == wanted]

    def _key(self, key: str | bytes) -> bytes:
        if isinstance(key, bytes):
            return key.lower()
        if key.isascii():
            return key.lower().encode("ascii")
        # a name that cannot be encoded is not an error: no field has it
        return key.encode(self.encoding, "backslashreplace").lower()

    def _reset_detected_encoding(self) -> None:
        # a new field may not fit the detected encoding: ascii may be too small, iso-8859-1 no longer necessary
        if self._encoding in ("ascii", "iso-8859-1"):
            self._encoding = None

    def __getitem__(self, key: str) -> str:
        values = self._values(key)
        if not values:
            raise KeyError(key)
        return values[0] if len(values) == 1 else ", ".join(values)

    def __setitem__(self, key: str, value: str) -> None:
        new = _field(key, value, self._encoding)
        places = [place for place, field in enumerate(self._fields) if field[1] == new[1]]
        for place in reversed(places[1:]):
            del self._fields[place]
        if places:
            self._fields[places[0]] = new
        else:
            self._fields.append(new)
        self._reset_detected_encoding()

    def __delitem__(self, key: str) -> None:
        wanted = self._key(key)
        kept = [field for field in self._fields if field[1] != wanted]
        if len(kept) == len(self._fields):
            raise KeyError(key)
        self._fields = kept

    def __contains__(self, key: object) -> bool:
        if not isinstance(key, (str, bytes)):
            return False
        wanted = self._key(key)
        for _, lower, _ in self._fields:  # noqa: SIM110  # any() takes three times as long, and this runs for every request
            if lower == wanted:
                return True
        return False

    def __iter__(self) -> Iterator[str]:
        encoding = self.encoding
        return iter(dict.fromkeys(lower.decode(encoding) for _, lower, _ in self._fields))

    def __len__(self) -> int:
        return len({lower for _, lower, _ in self._fields})

    def __bool__(self) -> bool:
        return bool(self._fields)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Headers):
            try:
                other = Headers(other)  # type: ignore[arg-type]
            except (InvalidHeader, TypeError, ValueError):
                return NotImplemented
        return sorted(field[1:] for field in self._fields) == sorted(field[1:] for field in other._fields)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        items = without_secrets(self.multi_items())
        shown = repr(dict(items)) if len(dict(items)) == len(items) else repr(items)
        return f"Headers({shown})"

    def __getstate__(self) -> tuple[list[tuple[bytes, bytes]], str | None]:
        return self.raw, self._encoding

    def __setstate__(self, state: tuple[list[tuple[bytes, bytes]], str | None]) -> None:
        self._fields = [(name, name.lower(), value) for name, value in state[0]]
        self._encoding = state[1]


def is_token(text: str) -> bool:
    """Whether a text is a token (RFC 9110 5.6.2), as header names and methods are."""
    return text.isascii() and _TOKEN.fullmatch(text.encode("ascii")) is not None


def _field(name: Any, value: Any, encoding: str | None) -> tuple[bytes, bytes, bytes]:
    raw_name = _bytes(name, name, encoding or "ascii")
    raw_value = _bytes(value, name, encoding or "ascii")
    if not _TOKEN.fullmatch(raw_name):
        raise InvalidHeader(f"header name {name!r}: only letters, digits and !#$%&'*+-.^_`|~ (RFC 9110 5.1)")
    if _FORBIDDEN.search(raw_value):
        shown = "" if is_secret(raw_name) else f": {value!r}"
        raise InvalidHeader(
            f"header {name!r} has a line break or NUL in its value, which RFC 9110 5.5 forbids; "
            f"strip() it if it came from a file or a variable{shown}"
        )
    return raw_name, raw_name.lower(), raw_value


def _bytes(part: Any, name: Any, encoding: str) -> bytes:
    if isinstance(part, bytes):
        return part
    if not isinstance(part, str):
        raise InvalidHeader(
            f"header {name!r}: expected str or bytes, not {type(part).__name__}; write str(...)"
        )
    try:
        return part.encode(encoding)
    except UnicodeEncodeError:
        raise InvalidHeader(
            f"header {name!r} cannot be encoded as {encoding}; pass bytes, or Headers(..., encoding='utf-8') if the peer expects it"
        ) from None


class ObservedHeaders(Headers):
    """Headers that call a function when they have changed."""

    __slots__ = ("_changed",)

    def __init__(self, headers: Headers, changed: Callable[[], None]) -> None:
        self._changed: Callable[[], None] = lambda: None
        super().__init__(headers)
        self._changed = changed

    def __setitem__(self, key: str, value: str) -> None:
        super().__setitem__(key, value)
        self._changed()

    def __delitem__(self, key: str) -> None:
        super().__delitem__(key)
        self._changed()

    def update(self, headers: HeaderTypes = None) -> None:  # type: ignore[override]
        super().update(headers)
        self._changed()
