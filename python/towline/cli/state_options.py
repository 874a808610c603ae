"""The commands and options of `towline state`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import NamedTuple

from .._options import Section, check_values, each, groups_of, number, option, period
from .help import Manual

CODECS = ("json", "bytes", "msgpack")


class Action(NamedTuple):
    """`most`: bound of the words after STORE; None is any number."""

    words: str
    summary: str
    least: int = 0
    most: int | None = 0


ACTIONS: Mapping[str, Action] = {
    "get": Action("KEY ...", "print values", 1, None),
    "set": Action("KEY VALUE", "set a value; - reads it from standard input", 2, 2),
    "delete": Action("KEY ...", "remove keys", 1, None),
    "scan": Action("[PREFIX]", "print keys and values", 0, 1),
    "incr": Action("KEY [DELTA]", "add to a counter, 1 by default, and print it", 1, 2),
    "publish": Action("CHANNEL VALUE", "send a message", 2, 2),
    "subscribe": Action("[CHANNEL ...]", "print messages as they arrive", 0, None),
    "info": Action("", "print figures of the store"),
}


# A table, whose layout the formatter keeps.
# fmt: off
@dataclasses.dataclass(frozen=True)
class ValueOptions(Section, group="values", summary="values and their times to live"):
    ttl: float | None = period(None, "set, incr of a new counter: seconds until the key expires")
    if_absent: bool = option(False, "set: only a key that does not exist; else exit status 1")
    keys: bool = option(False, "scan: without the values")
    limit: int | None = number(None, "scan: at most N keys")


@dataclasses.dataclass(frozen=True)
class MessageOptions(Section, group="messages", summary="messages of channels"):
    pattern: tuple[str, ...] = each(
        (), "subscribe: also to the channels that match, such as 'room.*'; may be repeated", metavar="PATTERN")
    count: int | None = number(None, "subscribe: end after N messages")
    timeout: float | None = period(None, "subscribe: end after this time without a message, with exit status 1")


@dataclasses.dataclass(frozen=True)
class StoreOptions(Section, group="store", summary="the store and its output"):
    codec: str = option("json", "kind of the values; bytes are written and read as they are", choices=CODECS)
    namespace: str | None = option(
        None, "namespace of the keys and channels; a:b is b in a", metavar="NAME", aliases=("-n",))
    raw: bool = option(False, "print text without quotation marks", aliases=("-r",))

# fmt: on


@dataclasses.dataclass(frozen=True)
class StateOptions(StoreOptions, MessageOptions, ValueOptions):
    """The options of all commands."""

    def __post_init__(self) -> None:
        check_values(self)


class StateManual(Manual):
    """The overview begins with the commands."""

    def overview(self) -> str:
        first, heading, rest = super().overview().partition("\ncommon options:")
        lines = [
            f"  {name + ' STORE ' + action.words:<32}{action.summary}" for name, action in ACTIONS.items()
        ]
        return "\n".join([first, "commands:", *lines]) + "\n" + heading + rest


MANUAL = StateManual(
    command="towline state",
    summary="Reads and changes the state that the workers of a server share. STORE is a directory or a URL (redis://host).",
    usage="towline state COMMAND STORE [ARGUMENTS] [OPTIONS]",
    config=StateOptions,
    groups=groups_of(StateOptions),
    common=("ttl", "pattern", "codec", "namespace", "raw"),
    ending=(
        "A VALUE is read as JSON if possible, else as text. Exit status: 0; 1 no such key, or no message; 2 command",
        "line; 3 the store cannot be opened, is full, or refuses; 130 interrupted.",
    ),
    examples=(
        "towline state set /var/lib/app/state greeting '\"hello\"' --ttl 1h",
        "towline state scan redis://127.0.0.1/0 user: --keys",
        "towline state subscribe /var/lib/app/state --pattern 'room.*'",
    ),
)
