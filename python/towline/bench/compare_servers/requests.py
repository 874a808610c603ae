"""The scenario of a comparison: one request of the command line, or those of a file."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from ...errors import ConfigError
from ..scenarios import PROTOCOLS, Body, Expect, Request, Scenario
from ..scenarios.imported import content_of, request_of, title_of
from ..scenarios.request_files import from_file
from ..subjects.attached import Address
from .options import CompareOptions

NOBODY = "http://localhost"
"""The origin of requests for servers that are started here; the port is another one in every start."""


@dataclass(frozen=True)
class Requests:
    """The scenario of a comparison."""

    scenario: Scenario
    guessed: frozenset[str] = frozenset()
    """Targets with made-up values: those that a server refuses are left out."""


def requests_of(options: CompareOptions) -> Requests:
    """Raises `ConfigError` (a `ScenarioError`) for requests that cannot be sent or read."""
    if options.requests is None:
        return Requests(_loaded(_one_request(options), options))
    found = from_file(options.requests)
    scenario = found.scenario
    if options.header:
        scenario = replace(scenario, requests=tuple(_with_headers(one, options) for one in scenario.requests))
    return Requests(_loaded(scenario, options), found.guessed)


def _loaded(scenario: Scenario, options: CompareOptions) -> Scenario:
    protocol = next(one for one in PROTOCOLS if one == options.protocol)
    return replace(
        scenario,
        connections=options.connections,
        protocols=(protocol,),
        streams=options.streams,
        timeout_s=options.timeout,
        http_1_0=True,
    )


def for_address(scenario: Scenario, address: Address, own_target: str | None) -> Scenario:
    """The scenario for a running server: its own Host, and its own path and query, if it has them."""
    return replace(
        scenario,
        requests=tuple(
            replace(
                request,
                target=own_target or request.target,
                fields=tuple(
                    (name, address.authority if name.lower() == "host" else value)
                    for name, value in request.fields
                ),
            )
            for request in scenario.requests
        ),
    )


def title_for(scenario: Scenario, own_targets: Mapping[str, str | None]) -> str:
    """The title of a measurement of these subjects: their own paths, by name, in place of the path of the scenario.

    `GET /items`, or `GET /a (old), /b (new)`.
    """
    if not any(own_targets.values()):
        return scenario.title
    request = scenario.requests[0]
    targets = {name: own or request.target for name, own in own_targets.items()}
    if len(set(targets.values())) == 1:
        return title_of((replace(request, target=next(iter(targets.values()))),))
    # The name of one of several URLs with the same origin ends with its path.
    words = [f"{one:.60}" if name.endswith(one) else f"{one:.60} ({name})" for name, one in targets.items()]
    return f"{request.method} {', '.join(words)}"


def _one_request(options: CompareOptions) -> Scenario:
    body = options.body.encode() if options.body is not None else None
    if options.body_file is not None:
        body = content_of("body-file", str(options.body_file))
    method = (options.method or ("GET" if body is None else "POST")).upper()
    if not method.isalpha():
        raise ConfigError(f"method: expected a name like GET, not {options.method!r}")
    wanted = Body(options.expect.encode()) if options.expect is not None else None
    _, request = request_of(
        "header",
        NOBODY + (options.path or "/"),
        method,
        [_header(line) for line in options.header],
        body,
        Expect(status=options.status, body=wanted),
    )
    return Scenario("request", "own", title_of((request,)), "the command line", requests=(request,))


def _with_headers(request: Request, options: CompareOptions) -> Request:
    """With the headers of the command line, which replace those of the same names."""
    given = [_header(line) for line in options.header]
    names = {name.lower() for name, _ in given}
    kept = tuple(pair for pair in request.fields if pair[0].lower() not in names)
    return replace(request, fields=(*kept, *given))


def without(scenario: Scenario, targets: Collection[str]) -> Scenario:
    """The scenario without these requests, with a note. Raises `ConfigError` if none remains."""
    kept = tuple(one for one in scenario.requests if one.target not in targets)
    if not kept:
        raise ConfigError(
            f"requests: no request succeeds; the first one is {title_of(scenario.requests[:1])}"
        )
    shown = ", ".join(sorted(targets)[:3]) + (f" and {len(targets) - 3} more" if len(targets) > 3 else "")
    return replace(
        scenario,
        requests=kept,
        title=title_of(kept),
        notes=(*scenario.notes, f"left out, refused with values that were made up: {shown}"),
    )


def _header(line: str) -> tuple[str, str]:
    name, colon, value = line.partition(":")
    if not colon:
        raise ConfigError(f"header: expected 'NAME: VALUE', not {line!r}")
    return name.strip(), value.strip()
