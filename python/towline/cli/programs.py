"""A line that starts another server, with `towline serve` in front: `towline serve gunicorn mysite.wsgi -w 4`.

The first word is the name of a program only if it is exactly that name, or a path that ends with it: an application with
this name is written `gunicorn:app`. Words that a shell or a Procfile puts before the name may stay: `web:`, `exec`,
`NAME=VALUE`, `python -m`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from .._suggest import closest
from .option_parser import CommandLineError
from .serve_arguments import ACTIONS

PROGRAMS = {"waitress-serve": "waitress"}
PROGRAMS |= {
    name: name
    for name in ["uvicorn", "gunicorn", "granian", "hypercorn", "daphne", "waitress", "flask", "fastapi"]
}
DEFAULTS: dict[str, dict[str, Any]] = {
    "uvicorn": {"access_log": "-"},
    "daphne": {"access_log": "-"},
    "fastapi": {"access_log": "-", "host": "0.0.0.0"},
    "flask": {"access_log": "-", "port": 5000, "threads": 8},
    "waitress": {"host": "0.0.0.0", "port": 8080, "threads": 4, "uds_permissions": 0o600},
}
"""Defaults of a program where they differ from ours and a deployment may rely on them."""
WRAPPERS = re.compile(
    "ddtrace-run|dotenv|dumb-init|gosu|newrelic-admin|nohup|opentelemetry-instrument|pdm|pipenv|poetry|sudo|tini|uv"
)


class Line(NamedTuple):
    """The `arguments` of a `program` (empty: ours), and the `variables` that are set in front of it."""

    arguments: list[str]
    program: str = ""
    variables: Mapping[str, str] = {}


def read(arguments: Sequence[str]) -> Line:
    """Raises `CommandLineError` for the line of a program that is no server."""
    words = [*arguments]
    actions = []
    while words and words[0].removeprefix("--").replace("-", "_") in ACTIONS:
        actions.append(words.pop(0))
    variables = {}
    while words[1:] and (found := re.fullmatch(r"exec|env|[\w-]+:|([A-Za-z_]\w*)=(.*)", words[0], re.DOTALL)):
        if found[1]:
            variables[found[1]] = found[2]
        words.pop(0)
    name = "" if words[:1] == [] or words[0].startswith("-") else os.path.basename(words[0])
    if re.fullmatch(r"python[\d.]*", name):
        name, words = _of_python(words)
    if WRAPPERS.fullmatch(name):
        raise CommandLineError(f"{name}: stays in front: {name} ... towline serve ...")
    if name == "uwsgi":
        raise CommandLineError(
            "uwsgi: its options are not read: towline serve module:callable --workers N --threads N"
        )
    program = PROGRAMS.get(name, "")
    if not program:
        meant = (
            closest(name, PROGRAMS) if name.isalpha() and words[1:] and not words[1].startswith("-") else None
        )
        if meant:
            raise CommandLineError(f"no program {name!r}; did you mean {meant}?")
        return Line([*words, *actions], "", variables)
    words = words[1:]
    if program in ("flask", "fastapi"):
        words = _of_flask(words, variables) if program == "flask" else _of_fastapi(words)
    elif program == "hypercorn":
        for at, word in enumerate(words):
            if found := re.fullmatch(r"(asgi|wsgi):([^:]+:.+)", word):
                words[at : at + 1] = [f"--interface={found[1]}", found[2]]
    return Line([*words, *actions], program, variables)


def _of_python(words: list[str]) -> tuple[str, list[str]]:
    """The module of `python -m`, and the words from its name on."""
    at = 1
    while at < len(words) and words[at].startswith("-") and words[at] != "-m":
        at += 2 if words[at] in ("-X", "-W") else 1
    if words[at : at + 1] != ["-m"] or words[at + 1 : at + 2] == [] or words[at + 1] not in PROGRAMS:
        shown = " ".join(words[:3])
        raise CommandLineError(f"{shown}: starts no server that is known here: towline serve module:app")
    return words[at + 1], words[at + 1 :]


def _of_flask(words: list[str], variables: dict[str, str]) -> list[str]:
    """`flask --app x run --debug`: the command is left out, and -h becomes --host."""
    at = 0
    while at < len(words) and words[at].startswith("-"):
        at += 2 if words[at] in ("-A", "--app", "-e", "--env-file") else 1
    if words[at : at + 1] != ["run"]:
        raise CommandLineError(f"flask {' '.join(words[at : at + 1])}: only `flask run` is a server")
    if "--debug" in words:
        variables["FLASK_DEBUG"] = "1"
    return words[:at] + ["--host" if word == "-h" else word for word in words[at + 1 :]]


def _of_fastapi(words: list[str]) -> list[str]:
    """`fastapi run main.py --app api`: the application is main.py:api."""
    if words[:1] not in (["run"], ["dev"]):
        raise CommandLineError(f"fastapi {' '.join(words[:1])}: only `fastapi run` and `fastapi dev` serve")
    rest = ["--reload", "--host", "127.0.0.1"] if words[0] == "dev" else []
    path = next(filter(os.path.exists, ("main.py", "app.py", "api.py", "app/main.py")), "main.py")
    words = words[1:]
    if words and not words[0].startswith("-"):
        path, *words = words
    for flag in ("--app", "--entrypoint", "-e"):
        if flag in words[:-1]:
            at = words.index(flag)
            path = f"{path}:{words[at + 1]}" if flag == "--app" else words[at + 1]
            del words[at : at + 2]
    return [path, *rest, *words]


def variables(line: Line, environment: Mapping[str, str]) -> dict[str, str]:
    """Variables that the line sets, and those of the files that `flask` reads (`.env`, `.flaskenv`)."""
    found = dict(line.variables)
    if line.program == "flask" and not environment.get("FLASK_SKIP_DOTENV"):
        from dotenv import dotenv_values

        for path in (".env", ".flaskenv"):
            found = {**{name: value or "" for name, value in dotenv_values(path).items()}, **found}
    return {name: value for name, value in found.items() if name in line.variables or name not in environment}


def complete(line: Line, given: dict[str, Any], notices: list[str]) -> dict[str, Any]:
    """The fields, with those that the program has without options, and addresses in our form."""
    found = dict(DEFAULTS.get(line.program, {}))
    if line.program == "flask":
        found["app"] = next(filter(os.path.exists, ("wsgi.py", "app.py")), None)
    if given.get("log_level") in ("warning", "error", "critical") or given.get("log_config"):
        found.pop("access_log", None)  # there its lines are of level info, or those of uvicorn.access
    if line.program == "daphne" and given.get("bind") and given.keys() & {"host", "port"}:
        host = given.get("host", "127.0.0.1")
        given = {**given, "bind": (*given["bind"], f"[{host}]" if ":" in host else host)}
    if line.program == "hypercorn" and all(each.startswith("http://") for each in given.get("bind") or [""]):
        given = {**given, "bind": (*(given.get("bind") or ()), "127.0.0.1")}
    if line.program == "waitress":
        found["limit_request_body"] = 1 << 30
    found |= given
    if line.program == "gunicorn" and found.get("reload") and found.get("preload"):
        notices.append("--preload: ignored: --reload imports the application again after each change")
        found["preload"] = False
    port = found.get("port", 8000)
    if isinstance(found.get("bind"), (tuple, list)):
        found["bind"] = tuple(_address(address, port) for address in found["bind"])
    return found


def _address(address: Any, port: int) -> Any:
    """`unix:PATH` for `unix:///PATH`, `:8000` for `*:8000`, and a port for an address without one."""
    if not isinstance(address, str):
        return address
    address = re.sub(r"^(unix:)//(?=/)|^tcp://|^\*(?=:)", r"\1", address)
    return address if ":" in address.rpartition("]")[2] or "/" in address else f"{address}:{port}"
