"""The `towline` program: finds the subcommand and hands over.

Each subcommand is a module with `SUMMARY` and `main(arguments) -> exit status`, imported only when it is
asked for, so that none pays for another. Exit statuses: 0 done, 2 the command line makes no sense, 3
start-up failed.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

COMMANDS = {"serve": "towline.cli.serve"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; `arguments` defaults to the process's own. Returns the exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not given or given[0] in ("-h", "--help", "help"):
        sys.stdout.write(_overview())
        return 0
    if given[0] in ("-V", "--version"):
        from .._version import __version__

        sys.stdout.write(f"towline {__version__}\n")
        return 0
    if given[0] not in COMMANDS:
        return _unknown(given[0])
    command: int = import_module(COMMANDS[given[0]]).main(given[1:])
    return command


def _overview() -> str:
    lines = ["usage: towline COMMAND ...", "       towline --version", "", "commands:"]
    for name, module in COMMANDS.items():
        lines.append(f"  {name:<8} {import_module(module).SUMMARY}")
    lines += ["", "`towline COMMAND --help` explains one.", ""]
    return "\n".join(lines)


def _unknown(name: str) -> int:
    from difflib import get_close_matches

    close = get_close_matches(name, COMMANDS, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else f"; there is {', '.join(COMMANDS)}"
    sys.stderr.write(f"towline: no command {name!r}{hint}\n")
    return 2
