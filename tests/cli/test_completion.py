"""The scripts of `towline completion`, run by the shells themselves."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from towline import _native
from towline._options import flags, options_of
from towline.bench.compare_servers.options import CompareOptions
from towline.bench.runner.plan import Options
from towline.cli import completion
from towline.cli.call_options import CallOptions
from towline.cli.state_options import StateOptions
from towline.config import ServerConfig
from towline.load_agents.command import VALUED

SCRIPTS = {"bash": completion.bash, "zsh": completion.zsh, "fish": completion.fish}


def completed(line: str, cwd: Path) -> list[str]:
    """Completions of bash at the end of a line."""
    script = (
        completion.bash()
        + f"""
COMP_WORDS=({line} "")
COMP_CWORD=$(({len(line.split())}))
[[ "{line}" == *" "* && "{line}" != *" " ]] && {{ unset 'COMP_WORDS[-1]'; COMP_CWORD=$((COMP_CWORD-1)); }}
_towline
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    )
    result = subprocess.run(["bash", "-c", script], cwd=cwd, capture_output=True, text=True, timeout=30)
    assert (result.returncode, result.stderr) == (0, "")
    return result.stdout.split()


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_bash_completes_commands_options_choices_and_files(tmp_path: Path) -> None:
    (tmp_path / "cert.pem").write_text("")
    assert completed("towline ser", tmp_path) == ["serve"]
    assert completed("towline serve --time", tmp_path) == [
        flag.name for flag in completion.flags()["serve"] if flag.name.startswith("--time")
    ]
    assert completed("towline serve --ssl-certfile cer", tmp_path) == ["cert.pem"]
    assert completed("towline serve --lifespan o", tmp_path) == ["on", "off"]
    assert completed("towline post --form", tmp_path) == ["--form"]
    assert completed("towline bench g", tmp_path) == ["gate"]
    assert completed("towline bench --ap", tmp_path) == ["--app", "--app-dir"]
    assert completed("towline bench --app shop:app --protocol h", tmp_path) == ["h1", "h2", "h3"]
    assert completed("towline bench servers --find", tmp_path) == ["--find-peak"]
    assert completed("towline state pub", tmp_path) == ["publish"]
    assert completed("towline state get --codec m", tmp_path) == ["msgpack"]
    assert "--no-ws" in completed("towline serve --no", tmp_path)


@pytest.mark.parametrize("shell", SCRIPTS)
def test_the_script_is_valid(shell: str, tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    path = tmp_path / "script"
    path.write_text(SCRIPTS[shell]())
    result = subprocess.run([shell, "-n", str(path)], capture_output=True, text=True, timeout=30)
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.parametrize("shell", SCRIPTS)
def test_the_script_has_every_command_and_balanced_quotes(shell: str) -> None:
    script = SCRIPTS[shell]()
    for command in completion.commands():
        assert re.search(rf"\b{command}\b", script)
    assert "timeout-graceful-shutdown" in script
    for line in script.splitlines():
        assert line.count("'") % 2 == 0, line


def declared(*configs: type) -> set[str]:
    """The options that dataclasses declare."""
    options = [(name, option) for config in configs for name, (option, _) in options_of(config).items()]
    return {flags(name, option)[0] for name, option in options}


def test_completion_has_every_option_of_every_command() -> None:
    native = {f"--{name}" for name, _, _ in _native.load_options()}
    assert {"--fail-if", "--stages", "--goal", "--cookie"} <= native
    expected = {
        "serve": declared(ServerConfig),
        "bench": declared(CompareOptions, Options),
        "state": declared(StateOptions),
        "load": native | set(VALUED),
    } | dict.fromkeys(("get", "post", "put", "patch", "delete", "head", "options"), declared(CallOptions))
    found = completion.flags()
    assert found.keys() == expected.keys()
    for command, options in expected.items():
        names = {flag.name for flag in found[command]}
        # A switch that is on by default is completed as its negative.
        missing = {name for name in options - names if f"--no-{name.removeprefix('--')}" not in names}
        assert not missing, command


def test_an_unknown_shell_is_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert completion.main(["csh"]) == 2
    assert capsys.readouterr().err == "towline completion: no shell 'csh'; there is bash, zsh, fish\n"
    assert completion.main([]) == 0
