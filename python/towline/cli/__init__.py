"""The `towline` program: dispatches to the subcommands.

Each command is a module with `main(arguments) -> exit status`, imported only when it is used, for a fast start.
Exit statuses: 0 success, 2 invalid command line, 3 start-up failed; the client commands use curl's (call.py).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NamedTuple

from .._imports import collections_paused
from .._standard_streams import open_standard_streams
from .._suggest import closest


class Command(NamedTuple):
    """`extra`: further arguments of the module's `main`."""

    module: str
    summary: str
    extra: tuple[str, ...] = ()


COMMANDS = {
    "serve": Command("towline.cli.serve", "serve an ASGI or WSGI application"),
    "get": Command("towline.cli.call", "fetch a URL", ("GET",)),
    "post": Command("towline.cli.call", "send a body to a URL", ("POST",)),
    "put": Command("towline.cli.call", "send a body with PUT", ("PUT",)),
    "patch": Command("towline.cli.call", "send a body with PATCH", ("PATCH",)),
    "delete": Command("towline.cli.call", "send a DELETE request", ("DELETE",)),
    "head": Command("towline.cli.call", "print the head of the response only", ("HEAD",)),
    "options": Command("towline.cli.call", "send an OPTIONS request", ("OPTIONS",)),
    "bench": Command("towline.cli.bench", "compare servers and clients with others"),
    "load": Command("towline.cli.load", "generate load on a server and measure it"),
    "state": Command("towline.cli.state", "read and change the state that workers share"),
    "completion": Command("towline.cli.completion", "print a script of completions for a shell"),
    "version": Command("towline.cli.version", "print the version; -v: also Python and platform"),
    "help": Command("", "explain a command, or a topic such as tls"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; `arguments` defaults to the process's own. Returns the exit status."""
    open_standard_streams()
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given and given[0] == "help":
        if len(given) == 2 and given[1] not in COMMANDS:
            return _topic(given[1])
        given = _help(given[1:])
    if not given or given[0] in ("-h", "--help"):
        sys.stdout.write(_overview())
        return 0
    if given[0] in ("-V", "--version") or "--version" in _before_dashes(given):
        given = ["version"]
    if given[0] not in COMMANDS:
        return _unknown(given[0])
    command = COMMANDS[given[0]]
    if given[0] == "serve":
        _end_at_ctrl_c()
    with collections_paused():
        module = import_module(command.module)
    status: int = module.main(given[1:], *command.extra)
    return status


def _help(words: list[str]) -> list[str]:
    """The arguments that show the help for `towline help COMMAND [GROUP]`."""
    if words[:1] == ["bench"]:
        return [*words[:2], "--help", *words[2:]]
    return [*words[:1], "--help", *words[1:]] if words and words[0] != "help" else ["--help"]


def _topic(topic: str) -> int:
    from . import topics

    page = topics.page(topic)
    if page is not None:
        sys.stdout.write(page)
        return 0
    close = topics.nearest(topic)
    hint = (
        f"; did you mean {' or '.join(map(repr, close))}?" if close else f"; there is {', '.join(COMMANDS)}"
    )
    sys.stderr.write(f"towline: no command or topic {topic!r}{hint}\n")
    return 2


def _before_dashes(arguments: list[str]) -> list[str]:
    return arguments[: arguments.index("--")] if "--" in arguments else arguments


def _end_at_ctrl_c() -> None:
    """Let Ctrl-C end the process without a traceback, until the supervisor handles signals."""
    import signal

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def _overview() -> str:
    lines = ["usage: towline COMMAND [OPTIONS] ...", "", "examples:"]
    lines += [
        "  towline serve main:app --reload",
        "  towline get https://example.org/",
        "  towline load http://127.0.0.1:8000/ -d 5s",
        "  towline bench http://127.0.0.1:8000/ http://127.0.0.1:9000/",
    ]
    lines += ["", "commands:", *(f"  {name:<12} {command.summary}" for name, command in COMMANDS.items())]
    lines += ["", "`towline help COMMAND` or `towline COMMAND --help` explains its options.", ""]
    return "\n".join(lines)


def _unknown(name: str) -> int:
    close = closest(name, COMMANDS)
    hint = f"; did you mean {close!r}?" if close else f"; there is {', '.join(COMMANDS)}"
    sys.stderr.write(f"towline: no command {name!r}{hint}\n")
    return 2
