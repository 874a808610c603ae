"""Runs the code blocks of one page as they are written: `python -m tests.pages.run_page docs/call.md`.

A page is a program; test_pages.py explains its rules. The exit status is 0 when every block ran, and each block that
was not run is a line on standard output.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import traceback
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^( *)```(\w*)\n(.*?)^\1```", re.DOTALL | re.MULTILINE)
NEEDS = re.compile(r"# needs: (.+)")
FILE = re.compile(r"# (?:examples/\S+/)?(\w+\.py)\b")
HERE = re.compile(r"(127\.0\.0\.1|localhost|(?:(?<=^)|(?<=\s))):8000\b")
DEFAULT_SERVER = ("asgi_app:app", "--app-dir", "examples/hello")
# An address of its own, a process manager's socket, files that the page does not bring: checked, not started.
RUNNABLE_SERVE_OPTIONS = {
    "--app-dir",
    "--workers",
    "--threads",
    "--factory",
    "--interface",
    "--lifespan",
    "--port",
}
RUN = {"get", "post", "put", "patch", "delete", "head"}
START_TIMEOUT_S, COMMAND_TIMEOUT_S = 20, 30


@dataclass(frozen=True)
class Block:
    language: str
    text: str
    line: int  # of its first line in the page

    @property
    def needs(self) -> str | None:
        found = NEEDS.match(self.text.lstrip("$ "))
        return found[1] if found else None


def blocks_of(text: str) -> list[Block]:
    found = []
    for match in BLOCK.finditer(text):
        indent, language, body = match.groups()
        lines = [line.removeprefix(indent) for line in body.splitlines(keepends=True)]
        found.append(Block(language, "".join(lines), text.count("\n", 0, match.start(3)) + 1))
    return found


@dataclass
class Command:
    """A line of a shell block, with the output that the page shows below it."""

    line: str
    output: list[str] = field(default_factory=list)

    def words(self) -> list[str]:
        return shlex.split(self.line, comments=True)


def commands_of(block: Block) -> list[Command]:
    """Lines after `$ ` (`console`), or all lines (`sh`); a backslash at the end continues one."""
    commands: list[Command] = []
    text = block.text.replace("\\\n", " ")
    for line in text.splitlines():
        if block.language == "sh":
            if line.strip() and not line.lstrip().startswith("#"):
                commands.append(Command(line))
        elif line.startswith("$ "):
            commands.append(Command(line[2:]))
        elif commands:
            commands[-1].output.append(line)
    return commands


class Failed(Exception):
    """A block does not do what the page says."""


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def check_command_line(words: list[str]) -> None:
    """The command line of `towline` means something, without running it."""
    from towline.cli import COMMANDS

    name, rest = (words[1] if len(words) > 1 else ""), words[2:]
    if name.startswith("-") or name in ("", "help", "version"):
        return
    if name not in COMMANDS:
        raise Failed(f"no command {name!r}")
    if "--help" in rest or "-h" in rest:
        return
    try:
        if name == "serve":
            from towline.cli.option_parser import CommandLineError
            from towline.cli.programs import read
            from towline.cli.serve_arguments import parse as parse_serve

            try:
                line = read(rest)
                parse_serve(line.arguments, line.program)
            except CommandLineError as error:
                raise Failed(str(error)) from None
        elif name in RUN:
            from towline.cli.call import parse

            parse(rest, name.upper())
        elif name == "bench":
            check_bench(rest)
        elif name == "state":
            from towline.cli.state import parse as parse_state

            parse_state(rest)
    except SystemExit as ended:
        raise Failed(f"refused with status {ended.code}") from None


def check_bench(words: list[str]) -> None:
    from towline.cli import bench

    command, rest = words[0], words[1:]
    if command in bench.FILES:
        module = {"report": "main"}.get(command, f"{command}_command")
        import_module(f"towline.bench.report.{module}").parser().parse_args(rest)
    elif command in bench.MEASURING or command in bench.OTHER:
        bench.parse(rest, {})
    elif is_comparison(words):
        bench.parse_comparison(words, {})
    else:
        raise Failed(f"no command 'bench {command}'")


def is_comparison(words: list[str]) -> bool:
    """`towline bench URL URL`, `--app` and so on, without a command."""
    from towline.bench.compare_servers.subjects import is_url

    return words[0].startswith("--") or is_url(words[0])


def short_load(words: list[str]) -> list[str]:
    """The command line of a load of at most some tenths of a second."""
    if "--stages" in words:
        times = words.index("--stages") + 1
        stages = re.sub(r"\d+[ms]:", "0.1s:", words[times])
        return [*words[:times], stages, *words[times + 1 :]]
    return words if "-n" in words else [*words, "--duration", "0.1"]


def load_statuses(words: list[str]) -> tuple[int, ...]:
    """The exit statuses that are right on a slow machine as well: a condition that holds, a peak that is not found."""
    return (0, *((3,) if "--fail-if" in words else ()), *((1,) if "--find-peak" in words else ()))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Page:
    """The blocks of one page in order, in one namespace, with one server at a time on one free port."""

    def __init__(self, path: Path, folder: Path) -> None:
        self.path, self.folder = path, folder
        self.blocks = blocks_of(path.read_text())
        # Not "__main__": a block under that guard is for a file of the reader's.
        self.names: dict[str, Any] = {"__name__": "page"}
        self.port = free_port()
        self.server: subprocess.Popen[bytes] | None = None
        self.skipped: list[str] = []
        self.environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]),
            "TOWLINE_PORT": str(self.port),
            "NO_COLOR": "1",
        }
        sys.path.insert(0, str(folder))

    def run(self) -> None:
        for block in self.blocks:
            if block.needs:
                self.skip(block, block.needs)
            elif block.language == "python":
                self.python(block)
            elif block.language in ("console", "sh"):
                self.shell(block)

    def skip(self, block: Block, reason: str) -> None:
        self.skipped.append(f"{self.path.relative_to(ROOT)}:{block.line}: not run, needs {reason}")

    def here(self, text: str) -> str:
        """The page's port 8000 is a free one."""
        return HERE.sub(rf"\1:{self.port}", text)

    def python(self, block: Block) -> None:
        if name := FILE.match(block.text):
            (self.folder / name[1]).write_text(block.text)
        if HERE.search(block.text) and self.server is None and "port=8000" not in block.text:
            self.serve(list(DEFAULT_SERVER))
        # As many empty lines before it as make a traceback name the line of the page.
        source = "\n" * (block.line - 1) + self.here(block.text)
        exec(compile(source, str(self.path.relative_to(ROOT)), "exec"), self.names)

    def shell(self, block: Block) -> None:
        for command in commands_of(block):
            try:
                self.command(command)
            except Failed as failed:
                where = f"{self.path.relative_to(ROOT)}:{block.line}"
                raise Failed(f"{where}: {command.line}: {failed}") from None

    def command(self, command: Command) -> None:
        words = command.words()
        while words and re.fullmatch(r"[A-Z_]+=\S*", words[0]):
            words.pop(0)
        if not words:
            return
        program = Path(words[0]).name
        if program == "make":
            targets = [word for word in words[1:] if "=" not in word and not word.startswith("-")]
            if unknown := set(targets) - make_targets():
                raise Failed(f"no target {', '.join(sorted(unknown))}")
        elif program == "towline":
            check_command_line(words)
            self.towline(command, words[1:])
        elif program == "curl" and HERE.search(command.line) and shutil.which("curl"):
            self.output_of(command, words)

    def towline(self, command: Command, words: list[str]) -> None:
        name, rest = words[0], words[1:]
        if name == "serve":
            options = {word.split("=")[0] for word in rest if word.startswith("--")}
            if options <= RUNNABLE_SERVE_OPTIONS and (not options & {"--port"} or "8000" in rest):
                self.serve([word for word in rest if word not in ("--port", "8000")])
        elif name in RUN and HERE.search(command.line):
            self.output_of(command, [sys.executable, "-m", "towline", *words])
        elif name == "load" and HERE.search(command.line):
            self.output_of(
                command, [sys.executable, "-m", "towline", *short_load(words)], load_statuses(words)
            )
        elif name == "bench" and is_comparison(rest) and self.has_servers_of(rest):
            short = ["--runs", "1", "--duration", "0.1", "--warm-up", "0.1", "--no-control", "--no-history"]
            self.output_of(
                command,
                [sys.executable, "-m", "towline", *words, *short, "--output", str(self.folder / "bench")],
            )

    def has_servers_of(self, words: list[str]) -> bool:
        """Whether a comparison can run: URLs of the page's server only, or an application of the page or the examples."""
        urls = [word for word in words if "://" in word]
        local = bool(urls) or "--app-dir" in words or any(map(self.has_module_of, words))
        return all(HERE.search(url) for url in urls) and local

    def has_module_of(self, word: str) -> bool:
        return ":" in word and (self.folder / f"{word.partition(':')[0]}.py").exists()

    def output_of(self, command: Command, words: list[str], statuses: tuple[int, ...] = (0,)) -> None:
        if self.server is None:
            self.serve(list(DEFAULT_SERVER))
        done = subprocess.run(
            [self.here(word) for word in words],
            cwd=ROOT,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=COMMAND_TIMEOUT_S,
            check=False,
        )
        if done.returncode not in statuses:
            raise Failed(f"ended with status {done.returncode}\n{done.stdout}{done.stderr}")
        shown = [line for line in command.output if line.strip()]
        if shown and shown != [line for line in done.stdout.splitlines() if line.strip()]:
            raise Failed(f"the page shows {shown}, it printed {done.stdout!r}")

    def serve(self, words: list[str]) -> None:
        self.stop()
        self.server = subprocess.Popen(
            [sys.executable, "-m", "towline", "serve", *words],
            cwd=ROOT,
            env=self.environment,
            stdin=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self.answers():
            if (status := self.server.poll()) is not None:
                raise Failed(f"the server ended with status {status} during start-up")
            if time.monotonic() > deadline:
                raise Failed(f"no response after {START_TIMEOUT_S} s")
            time.sleep(0.05)

    def answers(self) -> bool:
        """Whether the application responds."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/", timeout=1):
                return True
        except urllib.error.HTTPError:
            return True
        except OSError:
            return False

    def stop(self) -> None:
        if self.server is not None:
            self.server.terminate()
            try:
                self.server.wait(START_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self.server.kill()
            self.server = None


def needs_of(path: Path) -> Iterator[tuple[int, str]]:
    """Line and reason of each block that is not run."""
    for block in blocks_of(path.read_text()):
        if block.needs:
            yield block.line, block.needs


def main() -> int:
    os.chdir(ROOT)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TOWLINE_STATE"] = f"{folder}/state"  # the store of the page's server
        page = Page(ROOT / sys.argv[1], Path(folder))
        try:
            page.run()
        except Failed as failed:
            print(failed, file=sys.stderr)
            return 1
        except Exception:
            traceback.print_exc()
            return 1
        finally:
            page.stop()
        print("\n".join(page.skipped))
    return 0


if __name__ == "__main__":
    sys.exit(main())
