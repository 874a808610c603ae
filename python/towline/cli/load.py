"""`towline load`: the load generator. The program is native and the same as `towline-load`, but for agents on clusters.

Exit statuses: 0 all responses were as expected, 1 some requests failed, none had a response, or the server was lost, 2 there
was no run (invalid command line, file not readable, no connection), 3 a condition of `--fail-if` held.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from .. import _native

ON_CLUSTERS = frozenset({"--cluster", "--kubernetes", "--write-job"})
"""Options of loads that `load_agents` starts; those that belong to them are in `load_agents.command`."""


def main(arguments: Sequence[str]) -> int:
    # Before native code writes to the same stream.
    sys.stdout.flush()
    match list(arguments):
        case ["--agent", "--connect", address]:
            from ..load_agents import connect

            return connect.main(address)
        case ["--help" | "-h", "clusters"] | ["--help=clusters"]:
            from ..load_agents.command import HELP

            sys.stdout.write(HELP)
            return 0
    if ON_CLUSTERS & {argument.partition("=")[0] for argument in arguments}:
        from ..load_agents import command

        return command.main(arguments)
    return _native.load_main(list(arguments))
