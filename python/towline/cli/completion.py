"""`towline completion bash|zsh|fish`: a script that completes commands, options and their choices.

eval "$(towline completion bash)"                        # in ~/.bashrc
eval "$(towline completion zsh)"                         # in ~/.zshrc, after compinit
towline completion fish > ~/.config/fish/completions/towline.fish
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from .. import _native
from .._options import flags as spellings
from .._options import options_of

SHELLS = ("bash", "zsh", "fish")
USAGE = """usage: towline completion bash|zsh|fish

Prints a script for the shell, which completes commands, options and choices.

examples:
  eval "$(towline completion bash)"    # in ~/.bashrc
  eval "$(towline completion zsh)"     # in ~/.zshrc, after compinit
  towline completion fish > ~/.config/fish/completions/towline.fish
"""


class Flag(NamedTuple):
    name: str
    help: str = ""
    choices: tuple[str, ...] = ()
    takes_value: bool = False


def main(arguments: Sequence[str]) -> int:
    if len(arguments) == 1 and arguments[0] in SHELLS:
        sys.stdout.write({"bash": bash, "zsh": zsh, "fish": fish}[arguments[0]]())
        return 0
    if not arguments or arguments[0] in ("-h", "--help"):
        sys.stdout.write(USAGE)
        return 0
    sys.stderr.write(f"towline completion: no shell {arguments[0]!r}; there is {', '.join(SHELLS)}\n")
    return 2


def commands() -> dict[str, str]:
    """The commands with their summaries."""
    from . import COMMANDS

    return {name: command.summary for name, command in COMMANDS.items()}


def flags() -> dict[str, list[Flag]]:
    """The options of each command."""
    from ..bench.compare_servers.options import CompareOptions
    from ..bench.runner.plan import Options
    from ..config import ServerConfig
    from .call_options import CallOptions
    from .serve_arguments import ACTIONS
    from .state_options import StateOptions

    serve = [Flag("--config", "file with options", takes_value=True)]
    serve += [Flag(f"--{name.replace('_', '-')}", text) for name, text in ACTIONS.items()]
    calls = _flags(CallOptions, has_negatives=False)
    found = {"serve": serve + _flags(ServerConfig), "load": _load_flags()}
    # Options of comparisons first, then those of other commands.
    compare = _flags(CompareOptions, has_negatives=False)
    names = {flag.name for flag in compare}
    others = [flag for flag in _flags(Options, has_negatives=False) if flag.name not in names]
    found["bench"] = compare + others
    found["state"] = _flags(StateOptions, has_negatives=False)
    found |= dict.fromkeys(("get", "post", "put", "patch", "delete", "head", "options"), calls)
    return found


def _load_flags() -> list[Flag]:
    """The options of the native load generator, and those that start agents on a cluster."""
    from ..load_agents.command import VALUED

    found = [Flag("--help", "show the options")]
    for name, value, text in _native.load_options():
        choices = tuple(value.split("|")) if "|" in value else ()
        found.append(Flag(f"--{name}", text, choices, takes_value=bool(value)))
    return found + [Flag(name, takes_value=True) for name in VALUED]


def _flags(config: type, *, has_negatives: bool = True) -> list[Flag]:
    found = [Flag("--help", "show the options")]
    for name, (option, default) in options_of(config).items():
        flag = spellings(name, option)[0]
        choices = option.choices
        if option.switch and default is True and has_negatives:
            found.append(Flag(f"--no-{flag.removeprefix('--')}", f"disable {option.help}"))
        else:
            found.append(Flag(flag, option.help, choices, not option.switch and option.const is None))
    return found


def subcommands() -> Mapping[str, Sequence[str]]:
    """Words that follow a command."""
    from . import bench
    from .state_options import ACTIONS

    return {
        "state": tuple(ACTIONS),
        "bench": (*bench.MEASURING, *bench.OTHER, *bench.FILES),
        "completion": SHELLS,
        "help": tuple(commands()),
    }


def bash() -> str:
    """A function for `complete -F`."""
    lines = [
        "_towline() {",
        '    local word="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD-1]}" words=""',
    ]
    lines += ['    local command="${COMP_WORDS[1]}"', "    COMPREPLY=()"]
    lines += [
        f'    if (( COMP_CWORD == 1 )); then words="{" ".join(commands())}"; else',
        '    case "$command" in',
    ]
    for command, known in _by_flags().items():
        lines += [f"    {command})", '        case "$before" in']
        lines += [
            f'        {flag.name}) words="{" ".join(flag.choices)}" ;;' for flag in known if flag.choices
        ]
        files = "|".join(flag.name for flag in known if flag.takes_value and not flag.choices)
        if files:
            lines.append(f'        {files}) COMPREPLY=($(compgen -f -- "$word")); return ;;')
        lines.append(f'        *) words="{" ".join(flag.name for flag in known)}" ;;')
        lines += ["        esac", *_bash_following(command), "        ;;"]
    for command in _without_flags():
        lines += [f"    {command})", *_bash_following(command), "        ;;"]
    lines += ["    esac", "    fi", '    COMPREPLY=($(compgen -W "$words" -- "$word"))', "}"]
    lines += ["complete -o default -F _towline towline", ""]
    return "\n".join(lines)


def _bash_following(command: str) -> list[str]:
    """The line for words that follow a command, if there are any."""
    words = subcommands().get(command)
    return [f'        (( COMP_CWORD == 2 )) && words="$words {" ".join(words)}"'] if words else []


def _without_flags() -> list[str]:
    """Commands that only words follow."""
    return [command for command in subcommands() if command not in flags()]


def _by_flags() -> dict[str, list[Flag]]:
    """The options by the pattern of their commands: commands with the same options share one."""
    found: dict[str, list[Flag]] = {}
    for command, known in flags().items():
        same = next((pattern for pattern, other in found.items() if other == known), None)
        if same is not None:
            del found[same]
            command = f"{same}|{command}"
        found[command] = known
    return found


def zsh() -> str:
    """A function for compdef."""
    lines = [
        "#compdef towline",
        "_towline() {",
        "    local -a found",
        "    if (( CURRENT == 2 )); then",
        "        found=(",
    ]
    lines += [f"            {_quoted(f'{name}:{summary}')}" for name, summary in commands().items()]
    lines += [
        "        )",
        "        _describe command found",
        "        return",
        "    fi",
        '    case "$words[2]" in',
    ]
    for command, known in _by_flags().items():
        lines += [f"    {command})", *_zsh_following(command), "        _arguments \\"]
        lines += [f"            {_quoted(_zsh_flag(flag))} \\" for flag in known]
        lines += ["            '*:file:_files' ;;"]
    for command in _without_flags():
        lines += [f"    {command})", *_zsh_following(command), "        ;;"]
    lines += ["    esac", "}", "compdef _towline towline", ""]
    return "\n".join(lines)


def _zsh_following(command: str) -> list[str]:
    """The line for words that follow a command, if there are any."""
    words = subcommands().get(command)
    return [f"        (( CURRENT == 3 )) && compadd -- {' '.join(words)}"] if words else []


def _zsh_flag(flag: Flag) -> str:
    text = flag.help.replace("[", "(").replace("]", ")").replace(":", ";")
    shown = f"*{flag.name}[{text}]" if text else f"*{flag.name}"
    if flag.choices:
        return f"{shown}:value:({' '.join(flag.choices)})"
    return f"{shown}:value:_files" if flag.takes_value else shown


def fish() -> str:
    """Lines of `complete`."""
    lines = [
        f"complete -c towline -n __fish_use_subcommand -f -a {name} -d {_quoted(text)}"
        for name, text in commands().items()
    ]
    for command, known in flags().items():
        condition = f"-n '__fish_seen_subcommand_from {command}'"
        for flag in known:
            line = f"complete -c towline {condition} -l {flag.name.removeprefix('--')}"
            line += f" -d {_quoted(flag.help)}" if flag.help else ""
            line += " -r" if flag.takes_value else ""
            lines.append(line + (f" -f -a {_quoted(' '.join(flag.choices))}" if flag.choices else ""))
    for command, following in subcommands().items():
        lines.append(
            f"complete -c towline -n '__fish_seen_subcommand_from {command}' -f -a {_quoted(' '.join(following))}"
        )
    return "\n".join([*lines, ""])


def _quoted(text: str) -> str:
    """In single quotes, for all three shells."""
    return "'" + text.replace("'", "\u2019").replace("\\", "/") + "'"
