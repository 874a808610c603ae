"""`towline serve --print-config`: the effective options as TOML, which `--config` reads again."""

from __future__ import annotations

import json
from typing import Any

from .._options import Option, options_of
from ..config import GROUPS, ServerConfig

OCTAL = ("uds_permissions", "umask")


def as_toml(config: ServerConfig) -> str:
    """Every option with its value. Defaults are comments, so that a saved file keeps following them."""
    lines = ["[tool.towline.serve]"]
    if isinstance(config.app, str):
        lines.append(f"app = {json.dumps(config.app)}")
    options = options_of(ServerConfig)
    for group, summary in GROUPS.items():
        lines += ["", f"# {group}: {summary}"]
        for name, (option, default) in options.items():
            if option.group == group:
                lines.append(_line(name, option, getattr(config, name), default))
    return "\n".join([*lines, ""])


def _line(name: str, option: Option, value: Any, default: Any) -> str:
    key = name.replace("_", "-")
    if value is None or value == ():
        return f"# {key} ="
    if option.secret:
        return f"# {key} = (given, not shown)"
    text = f'"{value:o}"' if name in OCTAL else _value(option, value)
    return f"# {key} = {text}" if value == default else f"{key} = {text}"


def _value(option: Option, value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return f"{value:g}" if isinstance(value, float) else str(value)
    if isinstance(value, tuple):
        return "[" + ", ".join(_value(option, _joined(option, item)) for item in value) + "]"
    # A JSON string is a TOML string.
    return json.dumps(str(value))


def _joined(option: Option, item: Any) -> Any:
    """A pair in the form of its flag: ROUTE=DIR, or NAME:VALUE of a header."""
    if not isinstance(item, tuple):
        return item
    parts = [part.decode("latin-1") if isinstance(part, bytes) else part for part in item]
    return ("=" if "=" in option.metavar else ":").join(parts)
