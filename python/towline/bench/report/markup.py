"""HTML and SVG by construction: everything that is not `Markup` is escaped."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable

VOID = frozenset({"meta", "link", "br", "hr", "img", "rect", "line", "circle", "path"})

Attribute = str | int | float | bool | None


class Markup(str):
    """Text that is already HTML."""

    __slots__ = ()


def el(name: str, /, *children: object, **attributes: Attribute) -> Markup:
    """An element. `class_` is class, `stroke_width` is stroke-width; None and False omit an attribute."""
    content = []
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        key = key.rstrip("_").replace("_", "-")
        content.append(f" {key}" if value is True else f' {key}="{html.escape(printable(str(value)))}"')
    if name in VOID:
        return Markup(f"<{name}{''.join(content)}/>")
    return Markup(f"<{name}{''.join(content)}>{join(children)}</{name}>")


def join(children: object) -> Markup:
    """Concatenates children; lists are flattened, None is empty."""
    if children is None:
        return Markup("")
    if isinstance(children, Markup):
        return children
    if isinstance(children, str):
        return Markup(html.escape(printable(children)))
    if isinstance(children, Iterable):
        return Markup("".join(join(one) for one in children))
    return Markup(html.escape(str(children)))


def data(value: object) -> Markup:
    """JSON for a script element: nothing in it can end the element."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


def printable(text: str) -> str:
    """Without control characters and surrogates, which HTML cannot represent."""
    return "".join(
        "\ufffd"
        if (ord(one) < 32 and one not in "\t\n\r") or 0xD800 <= ord(one) < 0xE000 or one in "\x7f\ufffe\uffff"
        else one
        for one in text
    )
