"""The types of the client: right uses pass strict checkers, wrong ones are errors; `help()` and signatures say what to give."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from pathlib import Path

import pytest
import towline

ROOT = Path(__file__).parents[2]
USES = Path(__file__).with_name("typed_uses.py")
LINES = USES.read_text().splitlines()
WRONG = {number for number, line in enumerate(LINES, 1) if "  # error" in line}

METHODS = ("get", "head", "options", "delete", "post", "put", "patch")
CALL_ARGUMENTS = {
    *("params", "headers", "cookies", "content", "data", "files", "json", "auth", "follow_redirects"),
    *("timeout", "retries", "progress", "transport", "extensions"),
}


def test_mypy_strict() -> None:
    # Not in the environments of scripts/test_python.sh.
    pytest.importorskip("mypy")
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--no-error-summary",
        "--no-pretty",
        "--show-error-codes",
    ]
    command += [
        "--config-file=",
        "--python-version=3.10",
        "--follow-imports=silent",
        "--no-incremental",
        str(USES),
    ]
    ended = subprocess.run(
        command, env={"MYPYPATH": str(ROOT / "python"), "PATH": ""}, capture_output=True, text=True, cwd=ROOT
    )
    reports = [line for line in ended.stdout.splitlines() if ": error: " in line]
    assert ended.stderr == ""
    assert {int(line.split(":")[1]) for line in reports} == WRONG, ended.stdout


def test_pyright_strict(tmp_path: Path) -> None:
    pytest.importorskip("basedpyright")
    settings = {
        "typeCheckingMode": "strict",
        "pythonVersion": "3.10",
        "extraPaths": [str(ROOT / "python")],
        "include": [str(USES)],
        "reportUnusedExpression": "none",
        "reportUnknownArgumentType": "none",
        "reportUnusedCallResult": "none",
        "reportUnusedCoroutine": "none",
    }
    project = tmp_path / "pyrightconfig.json"
    project.write_text(json.dumps(settings))
    ended = subprocess.run(
        [sys.executable, "-m", "basedpyright", "--outputjson", "-p", str(project)],
        capture_output=True,
        text=True,
    )
    found = json.loads(ended.stdout)["generalDiagnostics"]
    errors = {one["range"]["start"]["line"] + 1 for one in found if one["severity"] == "error"}
    assert errors == WRONG, [(one["range"]["start"]["line"] + 1, one["message"]) for one in found]


@pytest.mark.parametrize("kind", [towline.Client, towline.AsyncClient])
@pytest.mark.parametrize("method", METHODS)
def test_signatures(kind: type, method: str) -> None:
    signature = inspect.signature(getattr(kind, method))
    assert list(signature.parameters)[:2] == ["self", "url"]
    assert set(signature.parameters) - {"self", "url"} == CALL_ARGUMENTS
    assert set(inspect.signature(kind.request).parameters) - {"self", "url", "method"} == CALL_ARGUMENTS  # type: ignore[attr-defined]


def test_the_arguments_of_a_call_are_those_of_its_type() -> None:
    from towline.client import call_options

    assert set(call_options.CallOptions.__optional_keys__) == CALL_ARGUMENTS
    text = (call_options.CallOptions.__doc__ or "") + (towline.Client.request.__doc__ or "")
    for argument in CALL_ARGUMENTS:
        assert text.count(argument) >= 2, argument


def documented() -> list[tuple[str, object]]:
    found: list[tuple[str, object]] = []
    for name in towline.__all__:
        value = getattr(towline, name)
        if not callable(value) or not str(getattr(value, "__module__", "")).startswith("towline"):
            continue
        found.append((name, value))
        if inspect.isclass(value):
            own = {n for base in value.__mro__ if base.__module__.startswith("towline") for n in vars(base)}
            found += [(f"{name}.{n}", getattr(value, n)) for n in sorted(own) if not n.startswith("_")]
    return found


def test_everything_public_has_a_docstring() -> None:
    missing = [
        name
        for name, value in documented()
        if (callable(value) or isinstance(value, property) or inspect.isdatadescriptor(value))
        and not inspect.getdoc(value)
    ]
    assert missing == []
