"""docs/scenarios.md from the catalogue of the bench: one source for what is measured and what is read.

`--check` (in `make check`) fails when the page is not what the catalogue says.
"""

from __future__ import annotations

import sys
from pathlib import Path

from towline.bench.scenarios import Answer, Load, Request, Scenario, Section, sections

PAGE = Path(__file__).resolve().parent.parent / "docs" / "scenarios.md"
LONG = 48
HEAD = """# Scenarios of `towline bench`

<!-- Written by scripts/scenarios_doc.py from python/towline/bench/scenarios/*.toml (`make format`); edit the source. -->

Every request is sent as it stands here, to the byte, and every answer is verified to its last byte: by a checker
before a subject is measured, and by the load while it is. Published figures are other people's, on their
machines: context, never a result of ours.

The bytes are those of HTTP/1.1. Over HTTP/2 (`h2`) the same request leaves as frames: Host is `:authority`, the fields
that speak of a connection are left out, and the answer must be the same to its last byte.

## Scenarios of your own

`towline bench servers --scenarios FILE` reads a file of the same form as the catalogue's. The least one:

```toml
[[scenario]]
name = "search"
connections = 20

[[scenario.request]]
target = "/search?q={n}"       # one request for each number, in turn
first = 1
last = 100
fields = ["Host: shop.example", "Accept: application/json"]
answer = { status = 200, any_body = true, fields = ["Content-Type: application/json"] }
```

A request that is at hand elsewhere needs no file: `--curl "curl -H 'Accept: text/html' http://a/b"` takes a command
line of curl (several are asked in turn), `--vegeta FILE` vegeta's targets. The address is that of the server that
is measured, Host stays; any 2xx or 3xx passes, with any body.

| key of a scenario | meaning |
|---|---|
| `name`, `title`, `source`, `tags`, `notes` | what it is called and where it comes from |
| `protocols` | `h1`, `h2`: each is a cell of its own |
| `connections`, `pipeline`, `streams`, `requests_per_connection`, `barrier` | how the load stands on the server: kept connections, requests ahead (HTTP/1.1) or streams at once (HTTP/2), when a connection is made anew, all at the same moment |
| `message` | the load is messages: each connection is a WebSocket, and this text (a body as below) goes there and must come back; the request, answered with 101, is its handshake, whose own fields are made |
| `mix` | `in_turn` or `at_random` (by each request's `weight`) |
| `interfaces`, `app` | of the fixture application: `asgi`, `wsgi`; its callable |
| `tls` | over TLS, whatever the run says |
| `limits` | what the server is told: `requests_per_connection`, `concurrency`; with `needed = false` a server without such an option is measured all the same |
| `admits`, `refusals` | how many the server takes at once, and the statuses that decline the others |
| `timeout_s` | how long an answer may take |

| key of a request | meaning |
|---|---|
| `target`, `method`, `fields` | as they leave, the fields in this order as `"Name: value"`; nothing but a missing Host is added |
| `first`, `last` | with `{n}` (or `{n:04}`, padded) in `target`: one request for each number |
| `body` | `text`, `base64`, `repeat` with `count`, `file`, or a `series` from `first` to `last` with `separator`, `before`, `after`; its Content-Length stands in `fields` |
| `chunk_bytes` | the body goes chunked, so many bytes a chunk |
| `send_mode` | `pieces` with `gap_ms`; `await_continue`; `drop_after_bytes` (the connection is closed there, and the whole request must then succeed) |
| `answer` | `status`, a body as above or `any_body = true` (without either it must be empty), `fields`, `coding`, `interim`, `closes` |
| `weight` | relative frequency at random |
| `like` | the first request of an earlier scenario of the file, but for the keys given here |
"""


def cell(text: str) -> str:
    return text.replace("|", "\\|")


def code(text: str) -> str:
    shown = text.replace("\r", "\\r").replace("\n", "\\n")
    return f"`{shown}`" if len(shown) <= LONG else f"`{shown[:LONG]}`..."


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
    return "<br>".join(map(cell, lines))


def requests(scenario: Scenario) -> str:
    few = scenario.requests if len(scenario.requests) <= 3 else scenario.requests[:1]
    more = len(scenario.requests) - len(few)
    last = f"<br>to `{scenario.requests[-1].target}`" if more else ""
    return "<br>".join(map(request, few)) + last


def wire_bytes(scenario: Scenario) -> str:
    if scenario.kind not in ("server", "relay") or "h1" not in scenario.protocols:
        return ""
    return ", ".join(dict.fromkeys(f"{one.wire_bytes:,}" for one in scenario.requests))


def answer(one: Answer) -> str:
    lines = [str(one.status or "2xx, 3xx")]
    if one.body is None:
        lines.append("any body")
    elif one.body.count > 1:
        lines.append(f"{code(one.body.unit.decode())} {one.body.count:,} times")
    elif one.body.length and one.body.path is None:
        whole = one.body.whole()
        shown = whole[: LONG + 1].decode("latin-1")
        if shown.replace("\r", "").replace("\n", "").isprintable():
            lines.append(code(shown) + (f" ({len(whole):,} bytes)" if len(whole) > 16 else ""))
        else:
            lines.append(f"{len(whole):,} bytes that are no text")
    lines += [code(f"{name}: {value}") for name, value in one.fields]
    if one.coding:
        lines.append(f"{one.coding}; decoded and compared")
    lines += [f"after {status}" for status in one.interim]
    if one.pieces > 1:
        lines.append(f"in {one.pieces} pieces")
    if one.delay_ms:
        lines.append(f"after {one.delay_ms:g} ms")
    if one.closes:
        lines.append("closed")
    return "<br>".join(map(cell, lines))


def load(scenario: Scenario) -> str:
    if scenario.loads:
        return "<br>".join(map(of_client, scenario.loads))
    lines = [f"{scenario.connections} connections"]
    if scenario.count:
        lines.append(f"{scenario.count:,} requests in its source")
    if scenario.pipeline > 1:
        lines.append(f"{scenario.pipeline} at once on each")
    if scenario.streams > 1:
        lines.append(f"{scenario.streams} streams on each")
    if scenario.requests_per_connection:
        each = scenario.requests_per_connection
        lines.append("fresh for each request" if each == 1 else f"{each:,} requests each")
    if scenario.barrier:
        lines.append("all together")
    if scenario.mix == "at_random":
        lines.append("at random")
    if scenario.admits:
        lines.append(f"{scenario.admits} admitted")
    if scenario.tls:
        lines.append("over TLS")
    return "<br>".join(lines)


def of_client(one: Load) -> str:
    parts = [f"{one.at_once:,} at once"]
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
    return "<br>".join(map(cell, lines))


def row(scenario: Scenario) -> str:
    title = scenario.title + "".join(f"<br>{note}" for note in scenario.notes)
    answers = dict.fromkeys(answer(one.answer) for one in scenario.requests)
    name = f"`{scenario.name}`" + (f"<br>{' '.join(scenario.protocols)}" if scenario.kind == "server" else "")
    cells = (name, cell(title), requests(scenario), wire_bytes(scenario), "<br>".join(answers), load(scenario), published(scenario))  # fmt: skip
    return "| " + " | ".join(cells) + " |\n"


def part(section: Section) -> str:
    lines = [f"\n## {section.letter}. {section.title}\n\nSource: {section.source}."]
    if section.machine:
        lines.append(f" Published figures are of: {section.machine}.")
    lines.append("\n\n" + "".join(f"- {line}\n" for line in (*section.contract, *section.notes)))
    lines.append(
        "\n| scenario | what | request | bytes | answer | load | published |\n|---|---|---|---|---|---|---|\n"
    )
    return "".join([*lines, *map(row, section.scenarios)])


def page() -> str:
    return HEAD + "".join(map(part, sections()))


def main() -> int:
    if "--check" not in sys.argv:
        PAGE.write_text(page())
        return 0
    if not PAGE.exists() or PAGE.read_text() != page():
        print("docs/scenarios.md is not what the catalogue says: run `make format`")
        return 1
    print("scenarios: the page is what the catalogue says")
    return 0


if __name__ == "__main__":
    sys.exit(main())
