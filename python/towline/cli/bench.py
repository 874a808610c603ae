"""`towline bench COMMAND`: measures servers and clients, and reports on results.

Without a command, `towline bench URL URL`, `--app`, `--command` or `--git` compares the servers of that line.

Exit statuses: 0 success, 1 nothing could be measured, 2 invalid command line, 130 interrupted (the slices measured
so far are kept and shown). `gate` has its own.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from .._options import groups_of, options_of
from .._suggest import closest
from ..errors import ConfigError
from . import help as pages
from .option_parser import CommandLineError, OptionParser, joined, unknown

NOTHING_MEASURED, USAGE, INTERRUPTED = 1, 2, 130

MEASURING = {
    "quick": "one to two minutes: scenario hello on the installed servers and clients",
    "servers": "the comparisons of Roadrunner and Hornbeam, or --scenario, on servers",
    "clients": "the comparisons of httpcorexyz and Nous, or --scenario, on clients",
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
    "RUNS and DURATION are also variables; SKIP_BENCH=1 reports on the result in --output again. A result is a",
    "folder: result.json.gz has all data, report.html shows it. docs/measure.md defines the terms.",
)


COMPARISON_USAGE = (
    "usage: towline bench URL URL [OPTIONS]",
    "       towline bench --app APP | --command COMMAND ... | --git RANGE [OPTIONS]",
)
COMPARISON_EXAMPLES = (
    "towline bench http://127.0.0.1:8000/ http://127.0.0.1:9000/",
    "towline bench --app shop:app --server towline,uvicorn --path /products",
    "towline bench --command old='./old {port}' --command new='./new {port}'",
    "towline bench --git main..HEAD --app shop:app --build 'make extension'",
    "towline bench --app shop:app --requests browser.har",
)
COMPARISON_COMMON = ("app", "server", "command", "git", "requests", "path", "time")


COMMON_OPTIONS = "common"
"""`towline bench --help common`: the overview of the options of a comparison."""
HELP_EXPLAINS = " (--help explains the options)"


def main(arguments: Sequence[str]) -> int:
    """Run one command. Returns the exit status."""
    given = list(arguments)
    if not given or given in (["-h"], ["--help"], ["help"]):
        sys.stdout.write(overview())
        return 0
    command, rest = given[0], given[1:]
    try:
        if _has_no_command(given) or (
            rest == ["--help"] and command in (COMMON_OPTIONS, *comparison_manual().groups)
        ):
            if rest == ["--help"] and not command.startswith("-"):
                given = ["--help", command]  # `towline help bench GROUP`
            if (shown := _help_page(comparison_manual(), given)) is not None:
                return shown
            _need_linux()
            return compare_servers(given)
        if command in FILES:
            return _file_command(command)(rest)
        if command in MEASURING or command in OTHER:
            if (shown := _help_page(manual(command), rest)) is not None:
                return shown
            _need_linux()
            return measure(command, rest)
        raise CommandLineError(_no_command(command))
    except (CommandLineError, ConfigError) as error:
        sys.stderr.write(f"towline bench: {error}\n")
        return USAGE
    except KeyboardInterrupt:
        return INTERRUPTED  # before the first measurement, or while the report is written
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return NOTHING_MEASURED


def _need_linux() -> None:
    if sys.platform != "linux":
        raise CommandLineError(
            "needs Linux, which shows what each process uses; `towline load URL` runs here, too"
        )


def overview() -> str:
    """Comparisons, which need no command, and the commands, on one screen."""
    lines = [
        *COMPARISON_USAGE,
        "       towline bench COMMAND [OPTIONS]",
        "",
        "Compares servers, measures servers and clients, and reports on results.",
        *pages.examples((*COMPARISON_EXAMPLES, EXAMPLES[0])),
        "",
        "measure:",
    ]
    for name, summary in (MEASURING | OTHER).items():
        lines += pages.row(name, summary, 13)
    lines += ["", "results:"]
    for name, summary in FILES.items():
        lines += pages.row(name, summary, 13)
    groups = ", ".join((COMMON_OPTIONS, *comparison_manual().groups))
    ending = (
        f"`towline bench --help GROUP` explains the options of comparisons ({groups}, all), `towline bench COMMAND "
        "--help` those of a command; docs/measure.md the terms."
    )
    return "\n".join([*lines, "", *pages.paragraph(ending), ""])


def manual(command: str) -> pages.Manual:
    """The help pages of a measuring command."""
    from ..bench.runner.plan import Options

    return pages.Manual(
        command=f"towline bench {command}",
        usage=f"towline bench {command} [OPTIONS]",
        config=Options,
        groups=groups_of(Options),
        common=COMMON.get(command, DEFAULT_COMMON),
        ending=ENDING,
        summary=(MEASURING | OTHER)[command] + ".",
        examples=(f"towline bench {command}", f"towline bench {command} --runs 4 --output results"),
    )


def comparison_manual() -> pages.Manual:
    """The help pages of `towline bench URL URL`."""
    from ..bench.compare_servers.options import CompareOptions

    return pages.Manual(
        command="towline bench",
        usage="\n".join(COMPARISON_USAGE).removeprefix("usage: "),
        config=CompareOptions,
        groups=groups_of(CompareOptions),
        common=COMPARISON_COMMON,
        ending=(
            "The first line of output says what is measured and for how long, the last one which is faster. Exit status: 0;",
            "1 nothing could be compared; 2 invalid arguments, a server that does not start or does not respond as expected.",
        ),
        summary="Compares two or more servers.",
        examples=COMPARISON_EXAMPLES,
    )


# --- one line -------------------------------------------------------------------------------------------


def compare_servers(arguments: Sequence[str]) -> int:
    """Compare the servers of a command line: announce, measure, write the result folder, print table and verdicts."""
    from ..bench.compare_servers import run
    from ..bench.record import FILE
    from ..bench.runner.interrupts import Interrupts
    from ..bench.runner.progress import for_terminal
    from ..bench.runner.run import complete
    from ..bench.runner.session import Session

    options = parse_comparison(arguments, os.environ)
    progress = for_terminal(quiet=options.quiet)
    path = result_folder(options) / FILE
    with Interrupts(progress.message), contextlib.closing(progress):
        with run.prepared(options, announce, progress.message) as comparison:
            session = Session(
                comparison.design,
                progress,
                command=["towline", "bench", *run.recorded(arguments)],
                path=path,
                settings=options.chosen(),
            )
            done = complete(session, lambda session: run.compare_servers(session, comparison))
            if not any(experiment.slices for experiment in done.record.experiments):
                sys.stderr.write("towline bench: nothing was measured; see the lines above\n")
                return done.status or NOTHING_MEASURED
            analysis = publish(done.record, path, replace(options, baseline=comparison.design.baseline))
        sys.stdout.write("".join(f"{line}\n" for line in run.conclusion(analysis)))
    compared = any(experiment.comparisons for experiment in analysis.experiments)
    return done.status or (0 if compared else NOTHING_MEASURED)


def announce(line: str) -> None:
    """Print the first line at once, also into a pipe."""
    sys.stdout.write(f"towline bench: {line}\n")
    sys.stdout.flush()


def parse_comparison(arguments: Sequence[str], environment: Mapping[str, str]) -> Any:
    """The options and URLs of a comparison. Raises `CommandLineError`, `ConfigError`."""
    from ..bench.compare_servers.options import CompareOptions
    from ..bench.compare_servers.subjects import is_url

    given, others = _parsed(CompareOptions, arguments, environment)
    for other in others:
        if other.startswith("-"):
            raise CommandLineError(unknown(other, CompareOptions, HELP_EXPLAINS))
        if not is_url(other):
            raise CommandLineError(
                f"{other!r} is neither a URL nor a command; there is {', '.join([*MEASURING, *OTHER, *FILES])}"
            )
    return CompareOptions(urls=tuple(others), **given)


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
    if os.environ.get("SKIP_BENCH", "0") not in ("", "0"):
        return report_again(options)
    path = result_folder(options) / FILE
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


def report_again(options: Any) -> int:
    """SKIP_BENCH: the table and the files of an earlier result, without measuring."""
    from ..bench.report import main_report

    if options.output is None:
        raise CommandLineError(
            "SKIP_BENCH makes the tables of an earlier result again: give its folder as --output FOLDER"
        )
    formats = ("--terminal", "--html", "--markdown", "--csv", "--json")
    rules = ("--baseline", options.baseline, "--margin", str(options.margin))
    history = ("--no-history",) if options.no_history else ()
    return main_report([str(options.output), *formats, *rules, *history])


def result_folder(options: Any) -> Path:
    """The folder of `--output`, or a new one named after the time."""
    return options.output or Path("towline-bench", time.strftime("%Y%m%d-%H%M%S"))


def publish(record: Any, path: Path, options: Any) -> Any:
    """Print the table, write the files of the result folder, append the estimates to the history; returns the analysis."""
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
    _append_to_job_summary(path.parent / "report.md")
    sys.stdout.write(f"\nresult: {path}\nreport: {(path.parent / 'report.html').resolve().as_uri()}\n")
    return analysis


def _append_to_job_summary(report: Path) -> None:
    """Appends the report to the summary of a job of GitHub Actions, if this runs in one."""
    summary = os.environ.get("GITHUB_STEP_SUMMARY")
    if not summary:
        return
    try:
        with Path(summary).open("a", encoding="utf-8") as file:
            file.write(report.read_text(encoding="utf-8"))
    except OSError as error:
        sys.stderr.write(f"towline bench: not in the summary of the job: {error}\n")


def parse(arguments: Sequence[str], environment: Mapping[str, str]) -> Any:
    """The options, from the command line or else from the environment. Raises `CommandLineError`, `ConfigError`."""
    from ..bench.runner.plan import Options

    given, others = _parsed(Options, arguments, environment)
    if others:
        raise CommandLineError(unknown(others[0], Options, HELP_EXPLAINS))
    return Options(**given)


def _parsed(
    config: type, arguments: Sequence[str], environment: Mapping[str, str]
) -> tuple[dict[str, Any], list[str]]:
    """The values of the options of `config`, and the other arguments."""
    parsed, others = OptionParser("towline bench", config).parse_known_args(list(arguments))
    given = joined(vars(parsed), config)
    for name, (option, _) in options_of(config).items():
        for variable in option.variables:
            if name not in given and environment.get(variable):
                try:
                    given[name] = option.parse(environment[variable])
                except ValueError as error:
                    raise CommandLineError(f"the variable {variable}: {error}") from None
    return given, others


def _has_no_command(arguments: Sequence[str]) -> bool:
    """Whether the arguments are those of a comparison: options and URLs from the first word on."""
    if arguments[0].startswith("-"):
        return True
    from ..bench.compare_servers.subjects import is_url

    return is_url(arguments[0])


def _no_command(name: str) -> str:
    known = [*MEASURING, *OTHER, *FILES]
    close = closest(name, known)
    return f"no command {name!r}" + (
        f"; did you mean {close}?" if close else f"; there is {', '.join(known)}"
    )


def _help_page(book: pages.Manual, arguments: Sequence[str]) -> int | None:
    """Prints the page that `--help [GROUP]` requests; None without it."""
    wanted = next((at for at, word in enumerate(arguments) if word in ("-h", "--help")), None)
    if wanted is None:
        return None
    subject = arguments[wanted + 1] if wanted + 1 < len(arguments) else ""
    page = book.overview() if subject in ("", COMMON_OPTIONS) else book.group(subject)
    if page is None:
        raise CommandLineError(book.unknown_group(subject))
    sys.stdout.write(page)
    return 0


def _file_command(name: str) -> Callable[[Sequence[str]], int]:
    from ..bench import report

    found: Callable[[Sequence[str]], int] = getattr(report, f"main_{name}")
    return found
