"""`towline state COMMAND STORE ...`: reads and changes shared state from the command line.

Exit statuses: 0 success, 1 no such key or no message, 2 invalid command line, 3 trouble with the store, 130 interrupted.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from typing import Any

from .._suggest import closest
from ..errors import ConfigError, Error, UsageError
from .option_parser import CommandLineError, OptionParser, joined, unknown
from .state_options import ACTIONS, MANUAL, StateOptions

NOTHING, USAGE, FAILED, INTERRUPTED = 1, 2, 3, 130


def main(arguments: Sequence[str]) -> int:
    """Run one command. Returns the exit status."""
    if not arguments or any(word in ("-h", "--help") for word in arguments):
        return _help(arguments)
    try:
        return _run(*parse(arguments))
    except (CommandLineError, UsageError) as error:
        return _fail(f"{error} (towline state --help explains the command)", USAGE)
    except (Error, TypeError, ValueError) as error:
        return _fail(" ".join(str(error).split()), FAILED)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of the output has exited; without this Python reports it again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED


def parse(arguments: Sequence[str]) -> tuple[str, str, list[str], StateOptions]:
    """Command, store, further words and options. Raises `CommandLineError`."""
    parser = OptionParser("towline state", StateOptions)
    parser.add_argument("words", nargs="*")
    parsed, others = parser.parse_known_intermixed_args(list(arguments))
    given = joined(vars(parsed), StateOptions)
    words = given.pop("words", [])
    negative = [word for word in others if word[1:].isdigit()]
    if other := next((word for word in others if word not in negative), None):
        raise CommandLineError(unknown(other, StateOptions))
    if words[:1] and words[0] not in ACTIONS:
        close = closest(words[0], ACTIONS)
        raise CommandLineError(
            f"no command {words[0]!r}"
            + (f"; did you mean {close}?" if close else f"; there is {', '.join(ACTIONS)}")
        )
    if len(words) < 2:
        raise CommandLineError("STORE is missing: a directory or a URL" if words else "a command is missing")
    command, store = words[:2]
    rest = [*words[2:], *negative]
    action = ACTIONS[command]
    if not action.least <= len(rest) <= (len(rest) if action.most is None else action.most):
        raise CommandLineError(f"usage: towline state {command} STORE {action.words}".rstrip())
    try:
        return command, store, rest, StateOptions(**given)
    except ConfigError as error:
        raise CommandLineError(str(error)) from None


def _help(arguments: Sequence[str]) -> int:
    words = [word for word in arguments if word not in ("-h", "--help")]
    group = next((word for word in words if word in (*MANUAL.groups, "all")), None)
    if len(words) == 1 and group is None and words[0] not in ACTIONS:
        return _fail(MANUAL.unknown_group(words[0]), USAGE)
    sys.stdout.write((MANUAL.group(group) if group else None) or MANUAL.overview())
    return 0


def _fail(message: str, status: int) -> int:
    sys.stderr.write(f"towline state: {message}\n")
    return status


# --- the commands -------------------------------------------------------------------------------


def _run(command: str, store: str, words: list[str], options: StateOptions) -> int:
    from .. import state as towline_state

    with towline_state.open(store, codec=options.codec) as state:  # type: ignore[call-overload]
        for name in options.namespace.split(":") if options.namespace else ():
            state = state.namespace(name)
        return _Command(state, options).run(command, words)


class _Command:
    def __init__(self, state: Any, options: StateOptions) -> None:
        self._state = state
        self._options = options
        self._stdout = sys.stdout.buffer

    def run(self, command: str, words: list[str]) -> int:
        status: int = getattr(self, f"_{command}")(*words)
        return status

    def _get(self, *names: str) -> int:
        found = self._state.get_many(names)
        for name in names:
            if name in found:
                self._print(*([name] if len(names) > 1 else []), value=found[name])
        if missing := [name for name in names if name not in found]:
            return _fail(f"no key {', '.join(missing)}", NOTHING)
        return 0

    def _set(self, name: str, text: str) -> int:
        value = self._value(text)
        if not self._options.if_absent:
            self._state.set(name, value, ttl=self._options.ttl)
        elif not self._state.set_if_absent(name, value, ttl=self._options.ttl):
            return _fail(f"there is a key {name} already", NOTHING)
        return 0

    def _delete(self, *names: str) -> int:
        removed = self._state.delete(*names)
        return (
            0
            if removed == len(set(names))
            else _fail(f"{removed} of {len(set(names))} keys existed", NOTHING)
        )

    def _scan(self, prefix: str = "") -> int:
        seen: set[str] = set()  # a key may be seen twice
        pairs = (
            ((name, None) for name in self._state.keys(prefix))
            if self._options.keys
            else self._state.scan(prefix)
        )
        for name, value in pairs:
            if name in seen:
                continue
            seen.add(name)
            self._line(name) if self._options.keys else self._print(name, value=value)
            if len(seen) == self._options.limit:
                break
        return 0

    def _incr(self, name: str, delta: str = "1") -> int:
        try:
            number = int(delta)
        except ValueError:
            raise CommandLineError(f"DELTA is a whole number, not {delta!r}") from None
        self._line(str(self._state.increment(name, number, ttl=self._options.ttl)))
        return 0

    def _publish(self, channel: str, text: str) -> int:
        self._state.publish(channel, self._value(text))
        return 0

    def _subscribe(self, *channels: str) -> int:
        options = self._options
        received = 0
        with self._state.subscribe(*channels, patterns=options.pattern) as messages:
            while received != options.count:
                message = messages.receive(timeout=options.timeout)
                if message is None:
                    return _fail(f"no message for {options.timeout:g} s", NOTHING)
                self._print(message.channel, value=message.data)
                received += 1
            if messages.dropped:
                _fail(f"{messages.dropped} messages were dropped, because they came too fast", 0)
        return 0

    def _info(self) -> int:
        for name, value in self._state.info().items():
            self._line(f"{name:<18} {value}")
        return 0

    def _value(self, text: str) -> Any:
        """The value of an argument: bytes, JSON, or text."""
        data = sys.stdin.buffer.read() if text == "-" else os.fsencode(text)
        if self._options.codec == "bytes":
            return data
        decoded = data.decode()
        try:
            return json.loads(decoded)
        except ValueError:
            return decoded

    def _print(self, *before: str, value: Any) -> None:
        """A line of names and a value. A single value of bytes is printed without a line break."""
        if isinstance(value, bytes):
            self._stdout.write(
                b"".join(name.encode(errors="surrogateescape") + b"\t" for name in before) + value
            )
            self._stdout.write(b"\n" if before else b"")
            self._stdout.flush()
            return
        is_text = self._options.raw and isinstance(value, str)
        self._line(
            "\t".join([*before, value if is_text else json.dumps(value, ensure_ascii=False, default=repr)])
        )

    def _line(self, text: str) -> None:
        self._stdout.write(text.encode(errors="surrogateescape") + b"\n")
        self._stdout.flush()
