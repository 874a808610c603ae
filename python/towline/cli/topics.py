"""`towline help TOPIC`: the options of all commands that a topic is about, such as `tls`, `http3` or `websocket`."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator

from .._options import Option, flags, options_of
from .help import Manual


def manuals() -> Iterator[Manual]:
    """The commands with groups of options, but the bench and the generator, which have topics of their own."""
    from . import serve
    from .call_options import manual
    from .state_options import MANUAL

    yield serve.MANUAL
    yield manual("GET")
    yield MANUAL


def page(topic: str) -> str | None:
    """The groups that have this name or an option with this name; else those whose text has the word."""
    word = _plain(topic)
    named, about = [], []
    for book in manuals():
        for group, summary in book.groups.items():
            members = {n: o for n, (o, _) in options_of(book.config).items() if o.group == group}
            shown = f"{book.command} --help {group}\n{book.group(group)}"
            if word in (_plain(group), *map(_plain, members)):
                named.append(shown)
            elif word in _words(summary, members):
                about.append(shown)
    return "\n".join(named or about) or None


def nearest(topic: str) -> list[str]:
    """Commands, groups and options with similar names, the most similar first."""
    from . import COMMANDS

    known = [*COMMANDS]
    for book in manuals():
        known += [*book.groups, *(name.replace("_", "-") for name in options_of(book.config))]
    return difflib.get_close_matches(topic.lower(), dict.fromkeys(known), 3, 0.6)


def _words(summary: str, members: dict[str, Option]) -> set[str]:
    texts = [summary]
    for name, option in members.items():
        texts += [option.help, name.replace("_", " "), *flags(name, option)]
    return {_plain(word) for text in texts for word in re.split(r"[\s,;:()]+", text)}


def _plain(word: str) -> str:
    """The word in small letters and without signs: `HTTP/3` is `http3`."""
    return re.sub(r"[^a-z0-9]", "", word.lower())
