"""Reads scenario files (TOML) into `model.Scenario`: the catalogue of this package, and users' files of the same
form."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from . import model
from .bodies import numbered, read_body
from .model import Expect, Fields, Limits, Load, Published, Request, Scenario, Section, SendMode
from .table import ScenarioError, Table

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

CATALOGUE = (
    "servers",
    "applications",
    "clients",
    "json_clients",
    "webhooks",
    "network",
    "httparena",
    "web_frameworks",
)
TOKEN = set("!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")

KINDS: tuple[model.Kind, ...] = ("server", "client", "webhooks", "llm")
BY_GENERATOR = ("server", "webhooks")
"""Kinds whose requests the generator sends byte for byte; in the others the client writes them."""

Raw = Mapping[str, Any]


@cache
def sections() -> tuple[Section, ...]:
    """The whole catalogue, in the order of the published comparisons."""
    folder = resources.files(__package__)
    files = [(f"{name}.toml", folder / f"{name}.toml") for name in CATALOGUE]
    return tuple(parse(file.read_text(), name) for name, file in files)


@cache
def catalogue() -> dict[str, Scenario]:
    """Every scenario of the catalogue by its name."""
    return {scenario.name: scenario for section in sections() for scenario in section.scenarios}


def load(path: Path) -> dict[str, Scenario]:
    """Reads a user's file. Raises `ScenarioError` with one line that says what to change."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ScenarioError(f"cannot read {path}: {why}") from None
    return {scenario.name: scenario for scenario in parse(text, str(path), path.parent).scenarios}


def parse(text: str, where: str, folder: Path | None = None) -> Section:
    """Parses one file; `folder` is where the files that it names are."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ScenarioError(f"{where}: {error}") from None
    top = Table(document, where)
    head = Table(top.take("section", dict, {}), f"{where}: [section]")
    raw = top.several("scenario", dict)
    top.end()
    if not raw:
        raise top.error("no [[scenario]] in it")
    section = Section(
        name=head.take("name", str, "own"),
        title=head.take("title", str, "own scenarios"),
        source=head.take("source", str, where),
        machine=head.take("machine", str, ""),
        contract=head.several("contract", str),
        notes=head.several("notes", str),
    )
    head.end()
    found: dict[str, Scenario] = {}
    first_requests: dict[str, Raw] = {}
    for number, plain in enumerate(raw, 1):
        scenario = _scenario(plain, section, (where, number, folder), first_requests)
        if scenario.name in found:
            raise ScenarioError(f"{where}: scenario `{scenario.name}` is defined twice")
        found[scenario.name] = scenario
    return Section(**{**vars(section), "scenarios": tuple(found.values())})


def _scenario(
    plain: Raw, section: Section, place: tuple[str, int, Path | None], earlier: dict[str, Raw]
) -> Scenario:
    file, number, folder = place
    table = Table(plain, f"{file}: scenario {number}")
    name = table.need("name", str)
    if not name or not set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789_-"):
        raise table.error(f"`name` is {name!r}; use small letters, digits, _ and -")
    table.where = f"{file}: scenario `{name}`"
    kind = table.choice("kind", KINDS, "server")
    requests: list[Request] = []
    for at, one in enumerate(table.several("request", dict), 1):
        whole = _with_model(one, earlier, f"{table.where}, request {at}")
        earlier.setdefault(name, whole)
        found = _requests(Table(whole, f"{table.where}, request {at}"), folder)
        if kind in BY_GENERATOR:
            _framing(found[0], f"{table.where}, request {at}")
        requests += found
    message = Table(table.take("message", dict, {}), f"{table.where}, message")
    scenario = Scenario(
        name=name,
        section=section.name,
        title=table.take("title", str, name),
        source=table.take("source", str, section.source),
        kind=kind,
        app=table.take("app", str, "app"),
        interfaces=table.choices("interfaces", ("asgi", "wsgi"), ("asgi", "wsgi")),
        protocols=table.choices("protocols", model.PROTOCOLS, ("h1",)),
        tls=table.take("tls", bool, False),
        requests=tuple(requests),
        mix=table.choice("mix", ("in_turn", "at_random", "per_connection"), "in_turn"),
        data=folder / data if folder and (data := table.maybe("data", str)) else None,
        connections=table.at_least("connections", 1, 50),
        more_connections=table.several("more_connections", int),
        h1_connections=table.at_least("h1_connections", 1, None),
        count=table.at_least("count", 1, None),
        pipeline=table.at_least("pipeline", 1, 1),
        streams=table.at_least("streams", 1, 1),
        requests_per_connection=table.at_least("requests_per_connection", 1, None),
        says_close=table.take("says_close", bool, True),
        barrier=table.take("barrier", bool, False),
        page=table.at_least("page", 1, None),
        admits=table.at_least("admits", 1, None),
        limits=_limits(Table(table.take("limits", dict, {}), f"{table.where}, limits")),
        message=read_body(message, folder),
        call=table.maybe("call", str),
        backends=table.choices("backends", ("async", "sync"), ()),
        loads=tuple(_load(Table(one, f"{table.where}, load")) for one in table.several("load", dict)),
        refusals=table.several("refusals", int),
        timeout_s=table.seconds("timeout_s", 5.0),
        quick=table.take("quick", bool, False),
        tags=table.several("tags", str),
        notes=table.several("notes", str),
        published=tuple(
            _published(Table(one, f"{table.where}, published"), section.machine)
            for one in table.several("published", dict)
        ),
    )
    message.end()
    table.end()
    _check_combination(scenario, table)
    return scenario


def _check_combination(scenario: Scenario, table: Table) -> None:
    """Checks keys that are valid by themselves but not in combination."""
    if scenario.kind == "server" and not scenario.requests:
        raise table.error("a scenario of servers needs a [[scenario.request]]")
    if scenario.kind == "client" and not (scenario.call and scenario.loads):
        raise table.error("a scenario of clients needs `call` and a [[scenario.load]]")
    for key, users in (("pipeline", ("h1",)), ("streams", ("h2", "h3"))):
        if getattr(scenario, key) > 1 and not set(users) & set(scenario.protocols):
            raise table.error(f"`{key}` is of {' and '.join(users)}, which `protocols` does not name")
    if scenario.page is not None and (scenario.kind != "server" or scenario.message or scenario.barrier):
        raise table.error("`page` is of servers, without `message` and `barrier`")
    if any(number < 1 for number in scenario.more_connections):
        raise table.error("`more_connections` has a number below 1")
    if scenario.h1_connections is not None and "h1" not in scenario.protocols:
        raise table.error("`h1_connections` is of h1, which `protocols` does not name")
    if scenario.message is not None and not _is_echo(scenario):
        raise table.error(
            "`message` needs a WebSocket: over h1 and asgi, a GET without a body and with status 101"
        )
    if scenario.kind == "client" and len(scenario.protocols) != 1:
        raise table.error("a scenario of clients has one protocol")
    if scenario.admits is not None and scenario.admits >= scenario.connections:
        raise table.error("`admits` must be below `connections`, or nothing is ever refused")
    for request in scenario.requests:
        for key in ("pipeline", "streams"):
            if request.send_mode != SendMode() and getattr(scenario, key) > 1:
                raise table.error(f"`{key}` does not go with a request that has a send mode")


def _is_echo(scenario: Scenario) -> bool:
    plain = all(
        (one.method, one.body, one.expect.status, one.send_mode) == ("GET", None, 101, SendMode())
        for one in scenario.requests
    )
    return plain and (scenario.protocols, scenario.interfaces) == (("h1",), ("asgi",))


def _with_model(plain: Raw, earlier: Mapping[str, Raw], where: str) -> Raw:
    """`like = "hello"`: the first request of an earlier scenario in the file, except for the keys given here."""
    like = plain.get("like")
    if like is None:
        return plain
    if like not in earlier:
        raise ScenarioError(
            f"{where}: `like` names {like!r}, which is not an earlier scenario with a request"
        )
    return {**earlier[like], **{key: value for key, value in plain.items() if key != "like"}}


def _requests(table: Table, folder: Path | None) -> list[Request]:
    """One request, or one for each member of a series of targets."""
    targets = numbered(table, table.need("target", str))
    for target in targets:
        if not target.startswith(("/", "*")) or not all("!" <= sign <= "~" for sign in target):
            raise table.error(f"`target` is {target!r:.80}; write a path, percent-encoded")
    method = table.take("method", str, "GET")
    if not method or not set(method) <= TOKEN:
        raise table.error(f"`method` is {method!r}; it must be a token")
    fields = _fields(table)
    given = Table(table.take("body", dict, {}), f"{table.where}, body")
    body = read_body(given, folder)
    given.end()
    chunk_bytes = table.at_least("chunk_bytes", 1, None)
    send_mode = _send_mode(table, body)
    weight = table.at_least("weight", 1, 1)
    expect = _expect_table(Table(table.take("expect", dict, {}), f"{table.where}, expect"), folder)
    table.end()
    return [
        Request(target, method, fields, body, chunk_bytes, send_mode, weight, expect) for target in targets
    ]


def _framing(request: Request, where: str) -> None:
    """Checks Content-Length and Transfer-Encoding: a wrong length would measure nothing."""
    named = {name.lower(): value for name, value in request.fields}
    length, chunked = named.get("content-length"), named.get("transfer-encoding", "").lower()
    size = request.body.length if request.body else 0
    if request.chunk_bytes is not None:
        if request.body is None or chunked != "chunked" or length is not None:
            raise ScenarioError(
                f"{where}: `chunk_bytes` needs a body and the field `Transfer-Encoding: chunked`, and no length"
            )
    elif chunked:
        raise ScenarioError(f"{where}: `Transfer-Encoding: chunked` needs `chunk_bytes`")
    elif length is not None and length != str(size):
        raise ScenarioError(f"{where}: Content-Length is {length}, the body has {size} bytes")
    elif request.body is not None and length is None:
        raise ScenarioError(f"{where}: a body needs the field `Content-Length: {size}`")


def _send_mode(table: Table, body: model.Body | None) -> SendMode:
    plain = Table(table.take("send_mode", dict, {}), f"{table.where}, send_mode")
    send_mode = SendMode(
        pieces=plain.at_least("pieces", 1, 1),
        gap_ms=plain.seconds("gap_ms", 0.0),
        await_continue=plain.take("await_continue", bool, False),
        drop_after_bytes=plain.at_least("drop_after_bytes", 0, None),
    )
    plain.end()
    ways = (send_mode.pieces > 1) + send_mode.await_continue + (send_mode.drop_after_bytes is not None)
    if ways > 1:
        raise plain.error("choose one of `pieces`, `await_continue` and `drop_after_bytes`")
    needs_body = send_mode.await_continue or send_mode.drop_after_bytes is not None
    if needs_body and body is None:
        raise plain.error("a body is missing")
    if body is not None and (send_mode.drop_after_bytes or 0) >= max(body.length, 1):
        raise plain.error("`drop_after_bytes` must be less than the body")
    return send_mode


def _expect_table(table: Table, folder: Path | None) -> Expect:
    any_body = table.take("any_body", bool, False)
    body = read_body(table, folder)
    if any_body and body is not None:
        raise table.error("`any_body` and a body exclude each other")
    expected = Expect(
        status=table.at_least("status", 100, 200),
        body=None if any_body else body or model.Body(),
        fields=_fields(table),
        coding=table.choice("coding", (None, "gzip", "deflate"), None),
        interim=table.several("interim", int),
        trailers=_fields(table, "trailers"),
        closes=table.maybe("closes", bool),
        delay_ms=table.seconds("delay_ms", 0.0),
        pieces=table.at_least("pieces", 1, 1),
    )
    table.end()
    if expected.status is not None and expected.status > 599:
        raise table.error(f"`status` is {expected.status}; it must be below 600")
    return expected


def _fields(table: Table, key: str = "fields") -> Fields:
    """Lines of `Name: value`."""
    found = []
    for line in table.several(key, str):
        name, colon, value = line.partition(":")
        value = value.strip(" ")
        if not colon or not name or not set(name) <= TOKEN:
            raise table.error(f"`{key}`: {line!r:.80} is not `Name: value`")
        if not all(" " <= sign != "\x7f" or sign == "\t" for sign in value):
            raise table.error(f"`{key}`: {name} has a control character")
        found.append((name, value))
    return tuple(found)


def _limits(table: Table) -> Limits:
    limits = Limits(
        requests_per_connection=table.at_least("requests_per_connection", 1, None),
        concurrency=table.at_least("concurrency", 1, None),
        needed=table.take("needed", bool, True),
    )
    table.end()
    return limits


def _load(table: Table) -> Load:
    load = Load(
        name=table.take("name", str, ""),
        concurrency=table.at_least("concurrency", 1, 1),
        count=table.at_least("count", 1, None),
        batch=table.at_least("batch", 1, 1),
        body_bytes=table.at_least("body_bytes", 0, 0),
        pool=table.at_least("pool", 1, 100),
        origins=table.at_least("origins", 1, 1),
        gap_s=table.seconds("gap_s", 0.0),
        floor_s=table.seconds("floor_s", None),
    )
    table.end()
    return load


def _published(table: Table, machine: str) -> Published:
    figures = Table(table.need("figures", dict), table.where)
    published = Published(
        figures=tuple((name, figures.need(name, float)) for name in figures.names()),
        unit=table.take("unit", str, "requests/s"),
        machine=table.take("machine", str, machine),
        protocol=table.take("protocol", str, "h1"),
    )
    table.end()
    return published
