"""`towline bench COMMAND`: measures servers and clients, and reports on results.

Exit statuses: 0 success, 1 nothing could be measured, 2 invalid command line, 130 interrupted (the slices measured
so far are kept and shown). `gate` has its own.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from .._options import options_of
from .._suggest import closest
from ..errors import ConfigError
from . import help as pages

NOTHING_MEASURED, USAGE, INTERRUPTED = 1, 2, 130

MEASURING = {
    "quick": "one to two minutes: scenario hello on the installed servers and clients",
    "servers": "sections A and B, or --scenario, on servers",
    "clients": "sections C and D, or --scenario, on clients",
    "webhooks": "a webhook forwarder under load: no request may fail, no webhook may be lost",
    "llm": "latency of an OpenAI-compatible endpoint; without a key, of a local mock",
    "all": "servers, clients, webhooks, and llm on the mock endpoint (or the real one with --real-endpoint)",
}
FILES = {
    "report": "create tables, charts and verdicts of a result again",
    "compare": "compare two results",
    "gate": "check a result against a baseline, for CI",
    "history": "list earlier results",
}
OTHER = {"selftest": "determine the smallest difference that this machine can resolve"}
COMMON: Mapping[str, tuple[str, ...]] = {
    "servers": (
        "scenario",
        "subject",
        "servers",
        "runs",
        "duration",
        "connections",
        "rate",
        "curve",
        "output",
        "list",
    ),
    "clients": ("scenario", "subject", "client_python", "loop", "runs", "duration", "output", "list"),
    "llm": ("scenario", "subject", "base_url", "scale", "client_python", "loop", "runs", "output"),
}
DEFAULT_COMMON = ("scenario", "subject", "runs", "duration", "seed", "cores", "output", "list")
EXAMPLES = (
    "towline bench quick",
    "towline bench servers --scenario hello --subject towline,uvicorn",
    "towline bench gate new/result.json.gz --baseline old/result.json.gz",
)
ENDING = (
    "RUNS and DURATION are also variables. A result is a folder: result.json.gz has all data, report.html shows",
    "it; `towline bench report FILE` creates the other files again. docs/measure.md defines the terms.",
)


class CommandLine(Exception):
    """An invalid command line."""


def main(arguments: Sequence[str]) -> int:
    """Run one command. Returns the exit status."""
    given = list(arguments)
    if not given or given[0] in ("-h", "--help", "help"):
        sys.stdout.write(overview())
        return 0
    command, rest = given[0], given[1:]
    try:
        if command in FILES:
            return _file_command(command)(rest)
        if command in MEASURING or command in OTHER:
            if (shown := _help_wanted(command, rest)) is not None:
                return shown
            return measure(command, rest)
        raise CommandLine(_no_command(command))
    except (CommandLine, ConfigError) as error:
        sys.stderr.write(f"towline bench: {error}\n")
        return USAGE
    except KeyboardInterrupt:
        return INTERRUPTED  # before the first measurement, or while the report is written
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return NOTHING_MEASURED


def overview() -> str:
    """The commands, on one screen."""
    lines = [
        "usage: towline bench COMMAND [OPTIONS]",
        "",
        "Measures servers and clients, and reports on results.",
    ]
    lines += [*pages.examples(EXAMPLES), "", "measure:"]
    for name, summary in (MEASURING | OTHER).items():
        lines += pages.row(name, summary, 13)
    lines += ["", "results:"]
    for name, summary in FILES.items():
        lines += pages.row(name, summary, 13)
    lines += ["", "`towline bench COMMAND --help` explains its options; docs/measure.md the terms.", ""]
    return "\n".join(lines)


def manual(command: str) -> pages.Manual:
    """The help pages of a measuring command."""
    from ..bench.runner.plan import GROUPS, Options

    return pages.Manual(
        command=f"towline bench {command}",
        usage=f"towline bench {command} [OPTIONS]",
        config=Options,
        groups=GROUPS,
        common=COMMON.get(command, DEFAULT_COMMON),
        ending=ENDING,
        summary=(MEASURING | OTHER)[command] + ".",
        examples=(f"towline bench {command}", f"towline bench {command} --runs 4 --output results"),
    )


# --- measuring ------------------------------------------------------------------------------------------


def measure(command: str, arguments: Sequence[str]) -> int:
    """Measure, write the result folder, print the table."""
    from ..bench.record import FILE
    from ..bench.runner.interrupts import Interrupts
    from ..bench.runner.progress import for_terminal
    from ..bench.runner.protocol import Failed
    from ..bench.runner.run import listing, run

    options = parse(arguments, os.environ)
    if command == "selftest":
        from ..bench.selftest import selftest

        return selftest(options, for_terminal(quiet=options.quiet))
    if options.list:
        sys.stdout.write(listing(command, options))
        return 0
    folder = options.output or Path("towline-bench", time.strftime("%Y%m%d-%H%M%S"))
    path = folder / FILE
    progress = for_terminal(quiet=options.quiet)
    with Interrupts(progress.message):
        try:
            done = run(command, options, progress, path=path, arguments=tuple(arguments))
        except Failed as failed:
            sys.stderr.write(f"towline bench: {failed}\n{failed.log or ''}")
            return NOTHING_MEASURED
        measured = any(experiment.slices for experiment in done.record.experiments)
        publish(done.record, path, options)
    if not measured and done.status == 0:
        sys.stderr.write(
            "towline bench: nothing was measured; see the lines above (--list shows scenarios and subjects)\n"
        )
        return NOTHING_MEASURED
    return done.status


def publish(record: Any, path: Path, options: Any) -> None:
    """Print the table, write the files of the result folder, and append the estimates to the history."""
    from ..bench.analysis import analyse
    from ..bench.report import render, show
    from ..bench.report.history import History, HistoryError

    analysis = analyse(record, options.baseline, options.margin)
    show(analysis)
    if (
        not options.no_history
        and not record.interrupted
        and any(experiment.slices for experiment in record.experiments)
    ):
        try:
            History().append(analysis)
        except (HistoryError, OSError) as error:
            sys.stderr.write(f"towline bench: not kept in the history: {error}\n")
    render(analysis, path.parent, history=None if options.no_history else History())
    sys.stdout.write(f"\nresult: {path}\nreport: {(path.parent / 'report.html').resolve().as_uri()}\n")


def parse(arguments: Sequence[str], environment: Mapping[str, str]) -> Any:
    """The options, from the command line or else from the environment. Raises `CommandLine`, `ConfigError`."""
    from ..bench.runner.plan import Options

    parser = _Parser(
        prog="towline bench", add_help=False, allow_abbrev=False, argument_default=argparse.SUPPRESS
    )
    known = options_of(Options)
    for name, (option, _) in known.items():
        flags = pages.flags(name, option)
        if option.switch:
            parser.add_argument(*flags, dest=name, action="store_true")
        else:
            action = "append" if option.repeat else "store"
            parser.add_argument(
                *flags, dest=name, type=_checked(option.parse), action=action, metavar=option.metavar
            )
    parsed, unknown = parser.parse_known_args(list(arguments))
    if unknown:
        raise CommandLine(
            _unknown(
                unknown[0], [flag for name, (one, _) in known.items() for flag in pages.flags(name, one)]
            )
        )
    given = vars(parsed)
    for name, (option, _) in known.items():
        if option.repeat and name in given:
            given[name] = tuple(member for part in given[name] for member in part)
        for variable in option.variables:
            if name not in given and environment.get(variable):
                try:
                    given[name] = option.parse(environment[variable])
                except ValueError as error:
                    raise CommandLine(f"the variable {variable}: {error}") from None
    return Options(**given)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise CommandLine(message)


def _checked(convert: Callable[[str], Any]) -> Callable[[str], Any]:
    def converted(value: str) -> Any:
        try:
            return convert(value)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return converted


def _unknown(argument: str, known: Sequence[str]) -> str:
    close = closest(argument.partition("=")[0], known)
    hint = f"; did you mean {close}?" if close else " (--help explains the options)"
    return f"unknown argument {argument!r}{hint}"


def _no_command(name: str) -> str:
    known = [*MEASURING, *OTHER, *FILES]
    close = closest(name, known)
    return f"no command {name!r}" + (
        f"; did you mean {close}?" if close else f"; there is {', '.join(known)}"
    )


def _help_wanted(command: str, arguments: Sequence[str]) -> int | None:
    wanted = next((at for at, word in enumerate(arguments) if word in ("-h", "--help")), None)
    if wanted is None:
        return None
    subject = arguments[wanted + 1] if wanted + 1 < len(arguments) else ""
    book = manual(command)
    page = book.group(subject) if subject else book.overview()
    if page is None:
        raise CommandLine(book.unknown_group(subject))
    sys.stdout.write(page)
    return 0


def _file_command(name: str) -> Callable[[Sequence[str]], int]:
    from ..bench import report

    found: Callable[[Sequence[str]], int] = getattr(report, f"main_{name}")
    return found
