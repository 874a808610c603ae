"""The commands and options of `towline state`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import NamedTuple

from .. import _options as kind
from .._options import above_zero, at_least, option, options_of
from .help import Manual

VALUES = "values"
MESSAGES = "messages"
STORE = "store"
GROUPS: dict[str, str] = {
    VALUES: "values and their times to live",
    MESSAGES: "messages of channels",
    STORE: "the store and its output",
}
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


@dataclasses.dataclass(frozen=True)
class StateOptions:
    """The options of all commands."""

    ttl: float | None = option(
        None,
        "set, incr of a new counter: seconds until the key expires",
        group=VALUES,
        parse=kind.seconds,
        metavar="SECONDS",
        check=above_zero,
    )
    if_absent: bool = option(False, "set: only a key that does not exist; else exit status 1", group=VALUES)
    keys: bool = option(False, "scan: without the values", group=VALUES)
    limit: int | None = option(
        None, "scan: at most N keys", group=VALUES, parse=kind.integer, metavar="N", check=at_least(1)
    )
    pattern: tuple[str, ...] = option(
        (),
        "subscribe: also to the channels that match, such as 'room.*'; may be repeated",
        group=MESSAGES,
        parse=lambda value: (value,),
        metavar="PATTERN",
        repeat=True,
    )
    count: int | None = option(
        None,
        "subscribe: end after N messages",
        group=MESSAGES,
        parse=kind.integer,
        metavar="N",
        check=at_least(1),
    )
    timeout: float | None = option(
        None,
        "subscribe: end after so long without a message, with exit status 1",
        group=MESSAGES,
        parse=kind.seconds,
        metavar="SECONDS",
        check=above_zero,
    )
    codec: str = option(
        "json", "kind of the values; bytes are written and read as they are", group=STORE, choices=CODECS
    )
    namespace: str | None = option(
        None, "of the keys and channels; a:b is b in a", group=STORE, metavar="NAME", aliases=("-n",)
    )
    raw: bool = option(False, "print text without quotation marks", group=STORE, aliases=("-r",))

    def __post_init__(self) -> None:
        for name, (described, _) in options_of(type(self)).items():
            if described.check is not None and getattr(self, name) is not None:
                described.check(name.replace("_", "-"), getattr(self, name))


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
    groups=GROUPS,
    common=("ttl", "pattern", "codec", "namespace", "raw"),
    ending=(
        "A VALUE that is JSON is that value, any other is text. Exit status: 0; 1 no such key, or nothing came; 2 command",
        "line; 3 the store cannot be opened, is full, or refuses; 130 interrupted.",
    ),
    examples=(
        "towline state set /var/lib/app/state greeting '\"hello\"' --ttl 1h",
        "towline state scan redis://127.0.0.1/0 user: --keys",
        "towline state subscribe /var/lib/app/state --pattern 'room.*'",
    ),
)
