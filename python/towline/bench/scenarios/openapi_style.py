"""The styles of parameters in OpenAPI: how lists and objects are written (OpenAPI 3.1, 4.8.12; RFC 6570 3.2).

Delimiters are written as they are, and values percent-encoded. Swagger 2.0 has `collectionFormat` in place of styles.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote, quote_plus

from .openapi_values import NoValue

DELIMITERS = {
    **{"form": ",", "simple": ",", "spaceDelimited": "%20", "pipeDelimited": "%7C"},
    **{"csv": ",", "ssv": "%20", "tsv": "%09", "pipes": "%7C"},
}
RESERVED = ":/?@!$'()*,;=[]"
Encode = Callable[[str], str]


def path_text(name: str, value: Any, parameter: Mapping[str, Any]) -> str:
    """`simple`, `label` or `matrix`."""
    style, explode = _style(parameter, "simple")

    def encode(text: str) -> str:
        return quote(text, safe="")

    name = encode(name)
    if style == "matrix":
        if isinstance(value, dict) and explode:
            return "".join(f";{key}" for key in _pairs(value, encode))
        if isinstance(value, list) and explode:
            return "".join(f";{name}={one}" for one in _texts(value, encode))
        return f";{name}={_joined(value, ',', encode)}"
    if style == "label":
        return "." + _joined(value, "." if explode else ",", encode, pairs=explode)
    return _joined(value, DELIMITERS.get(style, ","), encode, pairs=explode)


def query_text(name: str, value: Any, parameter: Mapping[str, Any]) -> list[str]:
    """The pairs of a query: `form`, `spaceDelimited`, `pipeDelimited`, `deepObject`."""
    style, explode = _style(parameter, "form")
    safe = RESERVED if parameter.get("allowReserved") else ""
    key = quote_plus(name)

    def encode(text: str) -> str:
        return quote_plus(text, safe=safe)

    if style == "deepObject" and isinstance(value, dict):
        return _deep(key, value, encode)
    if isinstance(value, dict) and explode:
        return _pairs(value, encode)
    if isinstance(value, list) and explode:
        return [f"{key}={one}" for one in _texts(value, encode)]
    return [f"{key}={_joined(value, DELIMITERS.get(style, ','), encode)}"]


def header_text(value: Any, parameter: Mapping[str, Any]) -> str:
    """`simple`, without encoding."""
    style, explode = _style(parameter, "simple")
    delimiter = {"ssv": " ", "tsv": "\t", "pipes": "|"}.get(style, ",")
    return _joined(value, delimiter, str, pairs=explode)


def cookie_text(name: str, value: Any, parameter: Mapping[str, Any]) -> str:
    """`form`, in which only what a cookie cannot have is encoded (RFC 6265 4.1.1)."""
    _, explode = _style(parameter, "form")

    def encode(text: str) -> str:
        return quote(text, safe="!#$&'()*+/:<=>?@[]^`{|}")

    if isinstance(value, dict) and explode:
        return "; ".join(_pairs(value, encode))
    return f"{name}={_joined(value, ',', encode)}"


def _style(parameter: Mapping[str, Any], default: str) -> tuple[str, bool]:
    """The style, and whether the members of a list are written one by one."""
    if "type" in parameter and "schema" not in parameter:
        collection = str(parameter.get("collectionFormat") or "csv")
        return collection, collection == "multi"
    style = str(parameter.get("style") or default)
    return style, bool(parameter.get("explode", style in ("form", "deepObject")))


def _joined(value: Any, delimiter: str, encode: Encode, *, pairs: bool = False) -> str:
    if isinstance(value, dict):
        members = [[encode(str(key)), encode(_text(one))] for key, one in value.items()]
        return delimiter.join("=".join(one) if pairs else delimiter.join(one) for one in members)
    return delimiter.join(_texts(value if isinstance(value, list) else [value], encode))


def _pairs(value: Mapping[str, Any], encode: Encode) -> list[str]:
    return [f"{encode(str(key))}={encode(_text(one))}" for key, one in value.items()]


def _texts(values: list[Any], encode: Encode) -> list[str]:
    return [encode(_text(one)) for one in values]


def _deep(key: str, value: Any, encode: Encode) -> list[str]:
    """`a[b]=1&a[c][d]=2`, with encoded brackets."""
    if isinstance(value, dict):
        return [
            pair
            for name, one in value.items()
            for pair in _deep(f"{key}%5B{encode(str(name))}%5D", one, encode)
        ]
    many = value if isinstance(value, list) else [value]
    return [f"{key}={encode(_text(one))}" for one in many]


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (dict, list)):
        raise NoValue("a list or an object inside another has no style")
    return "" if value is None else str(value)
