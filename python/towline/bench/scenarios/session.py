"""A scenario as the configuration of a session of the generator's agent."""

from __future__ import annotations

from typing import Any

from .model import Body, Expect, Protocol, Request, Scenario


def session_config(
    scenario: Scenario,
    base_url: str,
    *,
    protocol: Protocol = "h1",
    connections: int | None = None,
    seed: int = 1,
    trust: str | dict[str, str] = "any",
) -> dict[str, Any]:
    """The agent's CONFIG for `scenario` on the server at `base_url` (`http://127.0.0.1:8000`)."""
    return {
        "targets": [
            target(request, base_url, protocol)
            if scenario.message is None
            else socket(request, scenario.message, base_url)
            for request in scenario.requests
        ],
        "mix": scenario.mix,
        **({"data": str(scenario.data)} if scenario.data else {}),
        "connections": connections or scenario.connections_over(protocol),
        "threads": 1,
        "protocol": protocol,
        **({"pipeline": scenario.pipeline} if protocol == "h1" else {"streams": scenario.streams}),
        "requests_per_connection": scenario.requests_per_connection,
        "says_close": scenario.says_close,
        "barrier": scenario.barrier,
        "connects_in_slice": scenario.page is not None,
        "timeout_s": scenario.timeout_s,
        "connect_timeout_s": scenario.timeout_s,
        "trust": trust,
        "seed": seed,
        "refusal_statuses": list(scenario.refusals),
    }


def target(request: Request, base_url: str, protocol: Protocol = "h1") -> dict[str, Any]:
    """One request and its expected response, in the form that the agent reads."""
    plain: dict[str, Any] = {
        "url": base_url.rstrip("/") + request.target,
        "method": request.method,
        "fields": [list(pair) for pair in request.fields_over(protocol)],
        "body": request.body.plain() if request.body else None,
        "expect": _expect(request.expect),
        "weight": request.weight,
        "send_mode": request.send_mode.plain(),
    }
    if request.chunk_bytes is not None:
        plain["chunk_bytes"] = request.chunk_bytes
    return plain


def socket(request: Request, message: Body, base_url: str) -> dict[str, Any]:
    """A WebSocket that must echo `message`; the agent adds the headers of the handshake."""
    return {
        # http becomes ws, and https becomes wss.
        "url": "ws" + base_url.rstrip("/").removeprefix("http") + request.target,
        "fields": [list(pair) for pair in request.fields],
        "body": message.plain(),
        "message": "text",
        "weight": request.weight,
    }


def _expect(expected: Expect) -> dict[str, Any]:
    body = expected.body
    return {
        "status": expected.status,
        # Length as transferred, which is unknown for coded bodies.
        "length": body.length if body is not None and expected.coding is None else None,
        "body": body.plain() if body is not None else None,
        "sha256": None,
        "coding": expected.coding,
        "fields": [list(pair) for pair in expected.fields],
        "trailers": [list(pair) for pair in expected.trailers],
    }
