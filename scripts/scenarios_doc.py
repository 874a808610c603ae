"""Writes docs/scenarios.md from the scenario catalogue of the bench.

`--check` (in `make check`) fails when the page does not match the catalogue.
"""

from __future__ import annotations

import sys
from pathlib import Path

from towline.bench.scenarios import Expect, Load, Request, Scenario, Section, sections

PAGE = Path(__file__).resolve().parent.parent / "docs" / "scenarios.md"
LONG = 48
HEAD = """# Scenarios of `towline bench`

<!-- Written by scripts/scenarios_doc.py from python/towline/bench/scenarios/*.toml (`make format`); edit the source. -->

Each request is sent exactly as shown here, byte for byte, and each response is verified to its last byte: by a
checker before a subject is measured, and by the load generator during the measurement. Published figures come from
the source of the scenario and its machine. They are context, never a result of this project.

The bytes are those of HTTP/1.1. Over HTTP/2 (`h2`) the same request is sent as frames: Host becomes `:authority`,
connection-specific headers are left out (RFC 9113 8.2.2), and the response body must be the same.

## Scenarios of your own

`towline bench servers --scenarios FILE` reads a file in the format of the catalogue. A minimal file:

```toml
[[scenario]]
name = "search"
connections = 20

[[scenario.request]]
target = "/search?q={n}"       # one request for each number, in turn
first = 1
last = 100
fields = ["Host: shop.example", "Accept: application/json"]
expect = { status = 200, any_body = true, fields = ["Content-Type: application/json"] }
```

Requests can also come from other tools: `--curl "curl -H 'Accept: text/html' http://a/b"` takes a curl command line
(several are sent in turn), `--vegeta FILE` a targets file of vegeta. The request goes to the server under
measurement and keeps its Host header; any 2xx or 3xx response passes, with any body.

| key of a scenario | meaning |
|---|---|
| `name`, `title`, `source`, `tags`, `notes` | description and origin |
| `protocols` | `h1`, `h2`: each is an experiment of its own |
| `connections`, `pipeline`, `streams`, `requests_per_connection`, `barrier` | the load: keep-alive connections, pipelined requests (HTTP/1.1) or concurrent streams (HTTP/2) on each, requests before a connection is replaced, all connections sending at the same moment |
| `data` | a file with rows of values for `{{name}}` in targets, headers and bodies (CSV or JSON lines): the next row for each request |
| `more_connections` | numbers of connections with which it is measured as well |
| `says_close` | `false`: the last request of a connection has no `Connection: close`; the client closes, unannounced |
| `page` | a page load: each slice is so many requests on new connections, timed from the first attempt to connect to the last byte |
| `h1_connections` | in place of `connections` over HTTP/1.1 |
| `message` | the load consists of WebSocket messages: each connection is a WebSocket, and this text (a body as below) must be echoed; the request is the handshake, whose own headers are added |
| `mix` | `in_turn`, `at_random` (by the `weight` of each request), or `per_connection`: a connection repeats one request, and the connection that replaces it the next one |
| `interfaces`, `app` | for the fixture application: `asgi`, `wsgi`; its callable |
| `tls` | always over TLS |
| `limits` | options for the server: `requests_per_connection`, `concurrency`; with `needed = false`, servers without such an option are measured too |
| `admits`, `refusals` | number of requests that the server admits at once, and the statuses with which it refuses the others |
| `timeout_s` | timeout of a response |

| key of a request | meaning |
|---|---|
| `target`, `method`, `fields` | as sent; headers in this order, as `"Name: value"`; only a missing Host is added |
| `first`, `last` | with `{n}` (or `{n:04}`, zero-padded) in `target`: one request for each number |
| `body` | `text`, `base64`, `repeat` with `count`, `file`, or a `series` from `first` to `last` with `separator`, `before`, `after`; its Content-Length belongs in `fields` |
| `chunk_bytes` | chunked transfer coding, with chunks of this size |
| `send_mode` | `pieces` with `gap_ms`; `await_continue`; `drop_after_bytes` (the connection is closed there, and the whole request must then succeed on a new one) |
| `expect` | `status`, a body as above or `any_body = true` (with neither, the body must be empty), `fields`, `trailers`, `coding`, `interim`, `closes` |
| `weight` | relative frequency in a random mix |
| `like` | copies the first request of an earlier scenario in the file, except for the keys given here |
"""


def table_cell(text: str) -> str:
    return text.replace("|", "\\|")


def code(text: str) -> str:
    escaped = text.replace("\r", "\\r").replace("\n", "\\n")
    return f"`{escaped}`" if len(escaped) <= LONG else f"`{escaped[:LONG]}`..."


def request(one: Request) -> str:
    lines = [f"`{one.method} {one.target}`", *(code(f"{name}: {value}") for name, value in one.fields[:6])]
    if len(one.fields) > 6:
        lines.append(f"and {len(one.fields) - 6} fields more")
    if one.body is not None:
        lines.append(
            f"{one.body.length:,} bytes of body"
            + (f" in chunks of {one.chunk_bytes}" if one.chunk_bytes else "")
        )
    send_mode = one.send_mode
    if send_mode.pieces > 1:
        lines.append(f"in {send_mode.pieces} pieces, {send_mode.gap_ms:g} ms apart")
    if send_mode.await_continue:
        lines.append("the body after 100")
    if send_mode.drop_after_bytes is not None:
        lines.append(f"closed after {send_mode.drop_after_bytes} bytes of the body, then whole")
    return "<br>".join(map(table_cell, lines))


def requests(scenario: Scenario) -> str:
    few = scenario.requests if len(scenario.requests) <= 3 else scenario.requests[:1]
    more = len(scenario.requests) - len(few)
    last = f"<br>to `{scenario.requests[-1].target}`" if more else ""
    return "<br>".join(map(request, few)) + last


def wire_bytes(scenario: Scenario) -> str:
    if scenario.kind not in ("server", "webhooks") or "h1" not in scenario.protocols:
        return ""
    return ", ".join(dict.fromkeys(f"{one.wire_bytes:,}" for one in scenario.requests))


def expected(one: Expect) -> str:
    lines = [str(one.status or "2xx, 3xx")]
    if one.body is None:
        lines.append("any body")
    elif one.body.count > 1:
        lines.append(f"{code(one.body.unit.decode())} {one.body.count:,} times")
    elif one.body.length and one.body.path is None:
        body = one.body.whole()
        escaped = body[: LONG + 1].decode("latin-1")
        if escaped.replace("\r", "").replace("\n", "").isprintable():
            lines.append(code(escaped) + (f" ({len(body):,} bytes)" if len(body) > 16 else ""))
        else:
            lines.append(f"{len(body):,} bytes, binary")
    lines += [code(f"{name}: {value}") for name, value in one.fields]
    lines += [code(f"{name}: {value}") + " (trailer)" for name, value in one.trailers]
    if one.coding:
        lines.append(f"{one.coding}; decoded and compared")
    lines += [f"after {status}" for status in one.interim]
    if one.pieces > 1:
        lines.append(f"in {one.pieces} pieces")
    if one.delay_ms:
        lines.append(f"after {one.delay_ms:g} ms")
    if one.closes:
        lines.append("closed")
    return "<br>".join(map(table_cell, lines))


def load(scenario: Scenario) -> str:
    if scenario.loads:
        return "<br>".join(map(of_client, scenario.loads))
    numbers = [f"{number:,}" for number in (scenario.connections, *scenario.more_connections)]
    lines = [f"{' or '.join(numbers)} connection{'s' * (scenario.connections > 1)}"]
    if scenario.h1_connections:
        lines.append(f"{scenario.h1_connections} over HTTP/1.1")
    if scenario.count:
        lines.append(f"{scenario.count:,} requests in its source")
    if scenario.pipeline > 1:
        lines.append(f"{scenario.pipeline} in a pipeline on each")
    if scenario.streams > 1:
        lines.append(f"{scenario.streams} streams on each")
    if scenario.requests_per_connection:
        each = scenario.requests_per_connection
        lines.append("a new connection for each request" if each == 1 else f"{each:,} requests each")
    if scenario.page:
        lines.append(f"a page of {scenario.page:,} requests, its connections included")
    if scenario.barrier:
        lines.append("all at once (barrier)")
    if scenario.mix != "in_turn":
        lines.append({"at_random": "random mix", "per_connection": "one request on each"}[scenario.mix])
    if scenario.admits:
        lines.append(f"{scenario.admits} admitted")
    if scenario.tls:
        lines.append("over TLS")
    return "<br>".join(lines)


def of_client(one: Load) -> str:
    parts = [f"{one.concurrency:,} at once"]
    if one.count:
        parts.insert(0, f"{one.count:,} requests")
    if one.batch > 1:
        parts.append(f"batches of {one.batch}")
    if one.body_bytes:
        parts.append(f"{one.body_bytes:,} bytes")
    if one.origins > 1:
        parts.append(f"{one.origins} origins, pool of {one.pool:,}")
    if one.gap_s:
        parts.append(f"{one.gap_s:g} s apart")
    if one.floor_s:
        parts.append(f"floor {one.floor_s:g} s")
    return ", ".join(parts)


def published(scenario: Scenario) -> str:
    lines = []
    for one in scenario.published:
        of = "" if one.protocol == "h1" else f"{one.protocol}: "
        figures = ", ".join(
            f"{name} {value:,g}" if value < 1000 else f"{name} {value:,.0f}" for name, value in one.figures
        )
        lines.append(f"{of}{figures} {one.unit}")
    return "<br>".join(map(table_cell, lines))


def row(scenario: Scenario) -> str:
    title = scenario.title + "".join(f"<br>{note}" for note in scenario.notes)
    responses = dict.fromkeys(expected(one.expect) for one in scenario.requests)
    name = f"`{scenario.name}`" + (f"<br>{' '.join(scenario.protocols)}" if scenario.kind == "server" else "")
    columns = (
        name,
        table_cell(title),
        requests(scenario),
        wire_bytes(scenario),
        "<br>".join(responses),
        load(scenario),
        published(scenario),
    )
    return "| " + " | ".join(columns) + " |\n"


def part(section: Section) -> str:
    lines = [f"\n## {section.name}. {section.title}\n\nSource: {section.source}."]
    if section.machine:
        lines.append(f" Machine of the published figures: {section.machine}.")
    lines.append("\n\n" + "".join(f"- {line}\n" for line in (*section.contract, *section.notes)))
    lines.append(
        "\n| scenario | what | request | bytes | response | load | published |\n|---|---|---|---|---|---|---|\n"
    )
    return "".join([*lines, *map(row, section.scenarios)])


def page() -> str:
    return HEAD + "".join(map(part, sections()))


def main() -> int:
    if "--check" not in sys.argv:
        PAGE.write_text(page())
        return 0
    if not PAGE.exists() or PAGE.read_text() != page():
        print("docs/scenarios.md does not match the catalogue: run `make format`")
        return 1
    print("scenarios: the page matches the catalogue")
    return 0


if __name__ == "__main__":
    sys.exit(main())
