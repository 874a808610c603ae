"""The options of `towline load` that start agents on a cluster; all others are native."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from urllib.parse import parse_qs, urlsplit

from .. import _native
from .dask import DaskPlacement
from .kubernetes import JobOptions, JobPlacement, manifest
from .ray import RayPlacement
from .reception import Address, PlacementFailed, Reception, address_towards, socket_list

NO_RUN = 2
"""The exit status when there was no run."""
STARTS_WITHIN_S = 120.0
VALUED = ("--cluster", "--listen", "--kubernetes", "--image", "--kubectl", "--write-job")
HELP = """\
Load from the machines of a cluster                            (--help clusters)

      --cluster dask://HOST:PORT
                            Start an agent on each node of a Dask cluster, or on
                            each worker with ?per=worker; needs towline[dask]
      --cluster ray://HOST:PORT
                            Start an agent on each node of a Ray cluster; needs
                            towline[ray]
      --listen HOST[:PORT]  Address of this machine for the agents of --cluster
                            (default: its address towards HOST)
      --kubernetes N --image IMAGE
                            Start a Job of N pods with kubectl, and delete it at
                            the end; IMAGE has towline on its PATH
      --kubectl COMMAND     kubectl and its options ('kubectl -n load')
      --write-job FILE      Write the Job to FILE (- for stdout) and exit

Connections, requests and rates are totals over all agents; -t is the number of
threads of each. --help hosts describes what happens if an agent is lost.
Agents of --cluster show a token that their task has; what they exchange is not
encrypted. kubectl encrypts, and needs no way back from the pods.
"""


class Mistake(Exception):
    """The command line is wrong."""


@dataclass
class Given:
    """Options of this module, and all others."""

    values: dict[str, str] = field(default_factory=dict)
    native: list[str] = field(default_factory=list)


def main(arguments: Sequence[str]) -> int:
    """Run a load on a cluster. Returns the exit status."""
    try:
        given = _split(arguments)
        if "--cluster" in given.values and "--kubernetes" in given.values:
            raise Mistake("--cluster and --kubernetes exclude each other")
        if "--cluster" in given.values:
            return _on_cluster(given)
        return _on_kubernetes(given)
    except (Mistake, PlacementFailed) as error:
        sys.stderr.write(f"towline load: {error}\n")
        return NO_RUN
    except KeyboardInterrupt:
        sys.stderr.write("towline load: stopped before the start\n")
        return NO_RUN


def _split(arguments: Sequence[str]) -> Given:
    given = Given()
    rest = iter(arguments)
    for argument in rest:
        name, equals, value = argument.partition("=")
        if name not in VALUED:
            given.native.append(argument)
        elif equals:
            given.values[name] = value
        else:
            following = next(rest, None)
            if following is None:
                raise Mistake(f"{name} needs a value")
            given.values[name] = following
    return given


def _threads(native: Sequence[str]) -> int:
    """The threads of each agent, which is the number of CPUs that it asks for."""
    threads = 1
    for at, argument in enumerate(native):
        text = None
        if argument in ("-t", "--threads"):
            text = native[at + 1] if at + 1 < len(native) else None
        elif argument.startswith("--threads="):
            text = argument.partition("=")[2]
        elif argument.startswith("-t"):
            text = argument[2:].removeprefix("=")
        if text is not None and text.isascii() and text.isdigit():
            threads = max(1, int(text))
    return threads


def _on_cluster(given: Given) -> int:
    url = urlsplit(given.values["--cluster"])
    if url.scheme not in ("dask", "ray") or not url.hostname or not url.port:
        raise Mistake(f"{given.values['--cluster']!r} is neither dask://HOST:PORT nor ray://HOST:PORT")
    per = parse_qs(url.query).get("per", ["node"])[-1]
    if per not in ("node", "worker") or (per == "worker" and url.scheme == "ray"):
        raise Mistake("?per is node, or with Dask worker")
    try:
        local = given.values.get("--listen") or address_towards(url.hostname, url.port)
        reception = Reception(Address.parse(local, port=0))
    except (OSError, ValueError) as error:
        raise Mistake(f"cannot listen for agents: {error}") from error
    with reception:
        if url.scheme == "dask":
            placed: DaskPlacement | RayPlacement = DaskPlacement(f"tcp://{url.netloc}", per == "worker")
        else:
            placed = RayPlacement(f"ray://{url.netloc}", _threads(given.native))
        with placed:
            names = placed.start(reception)
            sockets = reception.receive(names, STARTS_WITHIN_S, placed.failures)
            status = _run(given.native, socket_list(sockets))
            _show(placed.failures())
            return status


def _on_kubernetes(given: Given) -> int:
    pods, image = given.values.get("--kubernetes", ""), given.values.get("--image")
    if not pods.isascii() or not pods.isdigit() or not 1 <= int(pods) <= 1000:
        raise Mistake("--kubernetes takes a number of pods, 1 to 1000")
    if not image:
        raise Mistake("--kubernetes needs --image, an image with towline on its PATH")
    kubectl = tuple(shlex.split(given.values.get("--kubectl", "kubectl")))
    options = JobOptions(int(pods), image, _threads(given.native), kubectl or ("kubectl",))
    if path := given.values.get("--write-job"):
        text = json.dumps(manifest(options), indent=2) + "\n"
        if path == "-":
            sys.stdout.write(text)
        else:
            with open(_native.open_output(path), "w") as file:
                file.write(text)
        return 0
    with JobPlacement(options) as job:
        status = _run(given.native, socket_list(job.start()))
        _show(job.failures())
        return status


def _run(native: Sequence[str], sockets: str) -> int:
    sys.stdout.flush()
    return _native.load_main(["--agent-sockets", sockets, *native])


def _show(failures: dict[str, str]) -> None:
    """The reasons of the engine for agents that were lost."""
    for name, why in failures.items():
        sys.stderr.write(f"towline load: {name}: {why}\n")
