"""Descriptions of options: the source of the dataclass field, the flag, the environment variable and the file key.

`towline.config` declares each option once with `option(...)`. The command line, the environment and the TOML file use
that declaration, so that each name, default and help text is defined in one place.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeVar

from .errors import ConfigError

T = TypeVar("T")
Parse = Callable[[str], Any]

METADATA_KEY = "towline"


@dataclasses.dataclass(frozen=True)
class Option:
    """The description of a configuration field.

    `help` gives the unit and the reason for the default. `parse` converts text (the argument of a flag, or a variable)
    to the value. `check` raises `ConfigError` for an invalid value from any source. `const` is the value of a flag
    without an argument, `off` that of `--no-FLAG`. `repeat`: the flag may be given several times.
    """

    group: str
    help: str
    parse: Parse
    metavar: str = "VALUE"
    flag: str | None = None
    aliases: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()
    check: Callable[[str, Any], None] | None = None
    const: Any = None
    off: Any = None
    switch: bool = False
    repeat: bool = False
    secret: bool = False
    """Excluded from `repr()`, and so from logs and tracebacks."""


class Section:
    """A group of options: a class that inherits from this one declares them. One without a summary adds to another's group.

    It has no methods of a dataclass: only the class that joins the groups has instances.
    """

    GROUP: ClassVar[str]
    SUMMARY: ClassVar[str]

    def __init_subclass__(cls, *, group: str = "", summary: str = "") -> None:
        if group:
            cls.GROUP, cls.SUMMARY = group, summary
            for field in vars(cls).values():
                if isinstance(field, dataclasses.Field) and METADATA_KEY in field.metadata:
                    object.__setattr__(field.metadata[METADATA_KEY], "group", group)


def option(
    default: T,
    help: str,
    *,
    group: str = "",
    parse: Parse | None = None,
    choices: tuple[str, ...] = (),
    **rest: Any,
) -> T:
    """Returns a dataclass field with an `Option` in its metadata. Its static type is that of the default.

    `group`: where the class is no `Section`.
    """
    switch = rest.pop("switch", isinstance(default, bool))
    if choices:
        parse = _one_of(choices)
        rest.setdefault("metavar", "|".join(choices))
    described = Option(
        group=group,
        help=help,
        parse=parse or (boolean if switch else text),
        choices=choices,
        switch=switch,
        **rest,
    )
    metadata: Mapping[str, Any] = {METADATA_KEY: described}
    field: Any = dataclasses.field(default=default, repr=not described.secret, metadata=metadata)
    return field  # type: ignore[no-any-return]


def number(default: T, help: str, *, least: float | None = 1, **rest: Any) -> T:
    """An option whose value is a whole number."""
    if least is not None:
        rest.setdefault("check", at_least(least))
    more: dict[str, Any] = {"parse": integer, "metavar": "N"}
    return option(default, help, **more | rest)


def limit(default: T, help: str, **rest: Any) -> T:
    """An option whose value is a whole number of at least 1; None is no limit."""
    return number(default, help, **{"parse": optional_integer} | rest)


def size(default: T, help: str, **rest: Any) -> T:
    """An option whose value is a number of bytes."""
    return number(default, help, metavar="BYTES", **rest)


def period(default: T, help: str, **rest: Any) -> T:
    """An option whose value is a time, above 0."""
    more: dict[str, Any] = {"parse": seconds, "metavar": "SECONDS", "check": above_zero}
    return option(default, help, **more | rest)


def each(default: T, help: str, **rest: Any) -> T:
    """An option that may be repeated, with one value each time."""
    return option(default, help, parse=lambda value: (value,), repeat=True, **rest)


def options_of(config_class: type) -> dict[str, tuple[Option, Any]]:
    """Returns {field name: (option, default)}, in declaration order."""
    return {
        field.name: (field.metadata[METADATA_KEY], field.default)
        for field in dataclasses.fields(config_class)
        if METADATA_KEY in field.metadata
    }


def groups_of(config_class: type) -> dict[str, str]:
    """The summaries of the sections of a class, by group, in declaration order."""
    bases: Any = reversed(config_class.__mro__)
    return {base.GROUP: base.SUMMARY for base in bases if vars(base).get("SUMMARY")}


def check_values(config: Any) -> None:
    """Check the values that are given. Raises `ConfigError` with the name of the option."""
    for name, (described, _) in options_of(type(config)).items():
        if described.check is not None and getattr(config, name) is not None:
            described.check(name.replace("_", "-"), getattr(config, name))


def flags(name: str, option: Option) -> list[str]:
    """The flag first, then its aliases."""
    return [option.flag or "--" + name.replace("_", "-"), *option.aliases]


UNITS = {"BYTES": "bytes", "SECONDS": "seconds", "MIB": "MiB"}
"""Units by metavar."""


def default_text(described: Option, default: Any) -> str:
    """A default for readers; empty if there is none, or if it stands for "not given"."""
    if default is None or default == () or default == "":
        return ""
    if described.metavar == "MODE":
        return f"0o{default:o}"
    if isinstance(default, tuple):
        return ",".join(default)
    return f"{default:g}" if isinstance(default, float) else str(default)


def rows_of(config_class: type) -> str:
    """A line for each option, for docstrings: its name, meaning, choices, unit and default."""
    lines = []
    for name, (described, default) in options_of(config_class).items():
        more = [f"one of {listed(described.choices)}"] if described.choices else []
        if described.metavar in UNITS:
            more.append(UNITS[described.metavar])
        if "(default:" not in described.help:
            more.append(f"default {default_text(described, default) or repr(default)}")
        ending = f" ({'; '.join(more)})" if more else ""
        lines.append(f"- {name}: {described.help}{ending}")
    return "\n".join(lines)


# Parsers of text. Each raises ValueError with a message that completes "NAME: ...".


def text(value: str) -> str:
    return value


def boolean(value: str) -> bool:
    lowered = value.strip().lower()
    if lowered in ("1", "true", "yes", "on"):
        return True
    if lowered in ("0", "false", "no", "off", ""):
        return False
    raise ValueError(f"expected true or false, not {value!r}")


def integer(value: str) -> int:
    stripped = value.strip()
    if not (stripped.isascii() and stripped.isdigit()):
        raise ValueError(f"expected a whole number, not {value!r}")
    return int(stripped)


def optional_integer(value: str) -> int | None:
    """Parses a whole number; `none`, or 0 as in gunicorn, means no limit."""
    if value.strip().lower() == "none":
        return None
    return integer(value) or None


DURATION = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s)?(?:(\d+)ms)?")


def seconds(value: str) -> float:
    """Parses a number of seconds, or a duration such as `500ms`, `30s`, `5m` or `1h30m`."""
    stripped = value.strip().lower()
    match = DURATION.fullmatch(stripped)
    if stripped and match is not None:
        days, hours, minutes, rest, ms = (float(part or 0) for part in match.groups())
        return ((days * 24 + hours) * 60 + minutes) * 60 + rest + ms / 1000
    try:
        return float(value)
    except ValueError:
        raise ValueError(f"expected a number of seconds, not {value!r}") from None


def optional_seconds(value: str) -> float | None:
    if value.strip().lower() == "none":
        return None
    return seconds(value) or None


def words(value: str) -> tuple[str, ...]:
    """Parses a list separated by commas or spaces."""
    return tuple(value.replace(",", " ").split())


def listed(choices: tuple[str, ...]) -> str:
    """The choices of an option, for readers. Some contain commas."""
    return ("; " if any("," in choice for choice in choices) else ", ").join(choices)


def _one_of(choices: tuple[str, ...]) -> Parse:
    def parse(value: str) -> str:
        found = value if value in choices else value.lower()
        if found not in choices:
            raise ValueError(f"expected one of {listed(choices)}, not {value!r}")
        return found

    return parse


# Checks of values.


def at_least(bound: float) -> Callable[[str, Any], None]:
    """Returns a check for a number of at least `bound`, or None for "no limit"."""

    def check(name: str, value: Any) -> None:
        if value is None:
            return
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ConfigError(f"{name}: expected a number, not {value!r}")
        # `not (>=)` also rejects NaN.
        if not value >= bound or value == float("inf"):
            raise ConfigError(f"{name}: must be a number of at least {bound:g}, not {value!r}")

    return check


def between(lowest: int, highest: int) -> Callable[[str, Any], None]:
    """Returns a check for a number between two inclusive bounds, or None."""

    def check(name: str, value: Any) -> None:
        at_least(lowest)(name, value)
        if value is not None and value > highest:
            raise ConfigError(f"{name}: must be a number of at most {highest}, not {value!r}")

    return check


def above_zero(name: str, value: Any) -> None:
    at_least(0)(name, value)
    if value == 0:
        raise ConfigError(f"{name}: must be above 0")
