"""Lists what a release of another server, client or load generator has changed: its options, names and defaults.

    python scripts/peer_options.py             # what is installed here, against the snapshot
    python scripts/peer_options.py --install   # the newest releases, in a scratch environment (`make peer-options`)
    python scripts/peer_options.py --install --write   # and a new snapshot, after the pages were looked at

`scripts/peer_options.json` is the snapshot: version, options with their defaults, names. For each difference the script prints
the rows of `towline._migration` and the lines of the pages that name it. Without a network it says so and succeeds.
tests/cli/test_migration.py reads the options of servers with the functions below.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import inspect
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

ROOT = Path(__file__).resolve().parent.parent
SNAPSHOT = ROOT / "scripts" / "peer_options.json"
PAGES = [
    *(
        ROOT / "docs" / f"{name}.md"
        for name in ("comparison", "http3", "migrate", "migrate-client", "migrate-load")
    )
]
HELP_SECONDS = 60

# Package -> its program.
PROGRAMS = {
    **dict.fromkeys(("daphne", "waitress", "flask"), ""),
    **{
        name: name for name in ("uvicorn", "gunicorn", "granian", "hypercorn", "h2corn", "m0serve", "saltare")
    },
    **{name: name for name in ("tigrcorn", "caddysnake", "fastpysgi", "locust")},
    **{"peregrine-server": "peregrine", "weft-server": "weft"},
}
# Package -> module and the classes whose constructors are compared.
CLIENTS = {
    "httpx": "httpx Client AsyncClient HTTPTransport Timeout Limits",
    "httpx2": "httpx2 Client AsyncClient HTTPTransport Timeout Limits",
    "requests": "requests Session Session.request adapters.HTTPAdapter",
    "aiohttp": "aiohttp ClientSession TCPConnector ClientTimeout",
    "niquests": "niquests Session AsyncSession",
    "wreq": "wreq Client",
    "pyqwest": "pyqwest HTTPTransport SyncHTTPTransport",
    "pyreqwest": "pyreqwest.client ClientBuilder",
    "httpr": "httpr Client AsyncClient",
    "curl_cffi": "curl_cffi Session AsyncSession",
    "primp": "primp Client",
    "zapros": "zapros Client AsyncClient",
    "hishel": "hishel SqliteStorage CacheOptions",
}
PEERS = {**PROGRAMS, **CLIENTS}

# --- options of servers ---

Options = Iterator[tuple[str, bool, Any]]
"""Flag, whether it takes a value, default."""


def of_click(command: Any) -> Options:
    for parameter in command.params:
        if parameter.param_type_name == "option":
            for flag in (*parameter.opts, *parameter.secondary_opts):
                yield flag, not parameter.is_flag, parameter.default


def of_argparse(parser: argparse.ArgumentParser) -> Options:
    for action in parser._actions:
        for flag in action.option_strings:
            yield flag, action.nargs != 0, action.default


def of_uvicorn() -> Options:
    importlib.import_module("uvicorn.main")
    yield from of_click(sys.modules["uvicorn.main"].main)


def of_granian() -> Options:
    yield from of_click(importlib.import_module("granian.cli").cli)


def of_gunicorn() -> Options:
    for setting in importlib.import_module("gunicorn.config").KNOWN_SETTINGS:
        for flag in setting.cli or ():
            yield flag, setting.action not in ("store_true", "store_false", "store_const"), setting.default


def of_hypercorn() -> Options:
    """The program builds its parser within its main function."""
    main = importlib.import_module("hypercorn.__main__").main
    with mock.patch.object(
        argparse.ArgumentParser, "parse_args", autospec=True, side_effect=KeyError
    ) as parsing:
        try:
            main([])
        except KeyError:
            pass
    yield from of_argparse(parsing.call_args.args[0])


def of_daphne() -> Options:
    yield from of_argparse(importlib.import_module("daphne.cli").CommandLineInterface().parser)


def of_waitress() -> Options:
    adjustments = importlib.import_module("waitress.adjustments")
    for name, kind in adjustments.Adjustments._params:
        flag = name.replace("_", "-")
        yield f"--{flag}", kind is not adjustments.asbool, getattr(adjustments.Adjustments, name, None)
        if kind is adjustments.asbool:
            yield f"--no-{flag}", False, None
    yield "--call", False, None


def of_flask() -> Options:
    cli = importlib.import_module("flask.cli")
    yield from of_click(cli.run_command)
    yield from of_click(cli.FlaskGroup())


SERVERS = {
    "uvicorn": of_uvicorn,
    "gunicorn": of_gunicorn,
    "granian": of_granian,
    "hypercorn": of_hypercorn,
    "daphne": of_daphne,
    "waitress": of_waitress,
    "flask": of_flask,
}
"""Servers whose lines `towline serve` takes."""


def of_help(program: str) -> dict[str, str]:
    """Flag -> default, as the program's help has them."""
    path = Path(sys.executable).with_name(program)
    done = subprocess.run([path, "--help"], capture_output=True, text=True, timeout=HELP_SECONDS, check=False)
    found: dict[str, str] = {}
    # A flag stands at the beginning of its entry, or after another one and a comma.
    entries = re.split(r"\n(?=\s{0,8}-)", done.stdout or done.stderr)
    for entry in entries:
        head = re.match(
            r"\s*((?:-\w|--[\w.-]+)(?:[ =][^\s,]+)?(?:,\s*(?:-\w|--[\w.-]+)(?:[ =][^\s,]+)?)*)", entry
        )
        default = re.search(r"[(\[]default:?\s+([^)\]]*)[)\]]", " ".join(entry.split()))
        for flag in re.findall(r"(?<![\w-])--[\w.-]+", head[1] if head else ""):
            found[flag] = default[1] if default else ""
    return found


def of_source(package: str) -> dict[str, str]:
    """Flags in the Python files of a package, which this interpreter cannot import."""
    files = importlib.metadata.files(package) or []
    sources = [Path(str(file.locate())) for file in files if file.suffix == ".py"]
    return {
        flag: "" for path in sources for flag in re.findall(r"""['"](--[a-z][\w-]+)['"]""", path.read_text())
    }


def options_of(package: str) -> dict[str, str]:
    if package in SERVERS:
        return {flag: plain(default) for flag, _, default in SERVERS[package]()}
    return of_help(PROGRAMS[package]) or of_source(package)


# --- names of clients ---


def names_of(package: str) -> dict[str, str]:
    """Public name -> "", and "Class(argument)" -> default."""
    module_name, *classes = CLIENTS[package].split()
    module = importlib.import_module(module_name)
    public = getattr(module, "__all__", None) or dir(module)
    found = {name: "" for name in public if not name.startswith("_")}
    for name in classes:
        kind: Any = module
        for part in name.split("."):
            kind = getattr(kind, part)
        try:
            parameters = inspect.signature(kind).parameters.values()
        except (TypeError, ValueError):  # a native class without a signature
            continue
        for one in parameters:
            if one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD) or one.name == "self":
                continue
            found[f"{name}({one.name})"] = "" if one.default is one.empty else plain(one.default)
    return found


def plain(value: Any) -> str:
    """The text of a default; "" for None, for the current directory, and for an object without a text of its own."""
    text = "" if value == os.getcwd() else repr(value)
    return "" if value is None or re.fullmatch(r"<.*>|Sentinel\.\w+", text, re.DOTALL) else text


# --- the snapshot ---


def collect(packages: list[str]) -> dict[str, Any]:
    """Package -> version and options, of those that are installed here."""
    found: dict[str, Any] = {}
    for package in packages:
        try:
            version = importlib.metadata.version(package)
            options = options_of(package) if package in PROGRAMS else names_of(package)
        except importlib.metadata.PackageNotFoundError:
            continue
        except Exception as error:  # a release whose interface is another one
            print(f"{package}: cannot be read: {type(error).__name__}: {error}", file=sys.stderr)
            continue
        found[package] = {"version": version, "options": dict(sorted(options.items()))}
    return found


def differences(before: dict[str, str], after: dict[str, str]) -> dict[str, str]:
    """Option -> what has changed."""
    changed = {
        name: "new" + (f", default {after[name]}" if after[name] else "")
        for name in after.keys() - before.keys()
    }
    changed |= dict.fromkeys(before.keys() - after.keys(), "removed")
    for name in before.keys() & after.keys():
        if before[name] != after[name]:
            changed[name] = f"default {before[name] or 'none'} is now {after[name] or 'none'}"
    return dict(sorted(changed.items()))


def concerned(package: str, option: str) -> list[str]:
    """Rows of the tables about this peer, and lines of the pages, that name the option."""
    from towline._migration import ALL_ROWS

    rows = [row for row in ALL_ROWS if row.flag == option and package in row.servers.split()]
    places = [f"_migration.py: row {option}"] * bool(rows)
    name = option.partition("(")[2].rstrip(")") or option
    if package in SERVERS or package in (
        "httpx",
        "requests",
        "aiohttp",
    ):  # the others have no table of options
        places += lines_with(rf"`{re.escape(name)}\b")
    return places


def mentions(package: str) -> list[str]:
    return lines_with(rf"(?i)\b{(PROGRAMS.get(package) or package).replace('_', '[_-]')}\b")


def lines_with(pattern: str) -> list[str]:
    """Pages with the numbers of the lines that match."""
    found = []
    for page in PAGES:
        lines = enumerate(page.read_text().splitlines(), 1)
        if numbers := [str(number) for number, line in lines if re.search(pattern, line)]:
            found.append(f"{page.relative_to(ROOT)}:{','.join(numbers)}")
    return found


def report(before: dict[str, Any], after: dict[str, Any]) -> int:
    """Prints the differences; returns how many there are."""
    count = 0
    for package, now in after.items():
        known = before.get(package, {"version": "none", "options": {}})
        changed = differences(known["options"], now["options"])
        if known["version"] == now["version"] and not changed:
            print(f"{package} {now['version']}: as in the snapshot")
            continue
        print(f"{package} {known['version']} -> {now['version']}: {len(changed)} differences")
        for option, what in changed.items():
            places = concerned(package, option)
            print(f"  {option}: {what}" + (f"  [{'; '.join(places)}]" if places else ""))
        print(f"  pages that name it: {'; '.join(mentions(package)) or 'none'}")
        count += len(changed)
    for package in sorted(before.keys() - after.keys()):
        print(f"{package}: not installed")
    return count


def newest(folder: Path) -> dict[str, Any] | None:
    """The newest releases, in one environment. None: there is no network."""
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    python = folder / "bin" / "python"
    options = ["--quiet", "--disable-pip-version-check", "--only-binary", ":all:", "--retries", "1"]

    def installs(*packages: str) -> bool:
        command = [python, "-m", "pip", "install", *options, *packages]
        return not subprocess.run(command, capture_output=True, check=False).returncode

    failed: list[str] = []
    if not installs(*PEERS):  # one has no wheel for this platform, or two contradict each other
        for number, package in enumerate(PEERS):
            if not installs(package):
                failed.append(package)
            if len(failed) > number == min(2, len(PEERS) - 1):
                return None
    if failed:
        print(f"not to be had for this platform: {', '.join(failed)}")
    done = subprocess.run([python, __file__, "--collect"], capture_output=True, text=True, check=True)
    sys.stderr.write(done.stderr)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description="What releases of other servers and clients have changed.")
    parser.add_argument(
        "--install", action="store_true", help="compare the newest releases, in a scratch environment"
    )
    parser.add_argument("--write", action="store_true", help="write the snapshot")
    parser.add_argument("--collect", action="store_true", help="print what is installed as JSON")
    given = parser.parse_args()
    if given.collect:
        print(json.dumps(collect([*PEERS])))
        return 0
    before = json.loads(SNAPSHOT.read_text()) if SNAPSHOT.exists() else {}
    if given.install:
        with tempfile.TemporaryDirectory() as folder:
            after = newest(Path(folder) / "venv")
    else:
        after = collect([*PEERS])
    if after is None:
        print("no package can be installed: there is no network, or no registry; nothing was compared")
        return 0
    report(before, after)
    if given.write:
        SNAPSHOT.write_text(json.dumps({**before, **after}, indent=1, sort_keys=True) + "\n")
        print(f"{SNAPSHOT.relative_to(ROOT)} is written")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
