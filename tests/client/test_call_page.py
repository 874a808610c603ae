"""docs/call.md: its examples run, its defaults and its tree of errors are the code's."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
from pathlib import Path

import towline
from towline import MockTransport, Response, errors
from towline.client.websocket import WebSocketOptions

from tests.client.websocket_faces import peer

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "call.md").read_text()
FOUND = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
SOCKETS = [example for example in FOUND if "websocket(" in example]
EXAMPLES = [example for example in FOUND if example not in SOCKETS]


def answer(request: towline.Request) -> Response:
    if request.url.path == "/events":
        return Response(200, headers={"Content-Type": "text/event-stream"}, content=b"data: 1\n\n")
    if request.url.path == "/missing":
        return Response(404)
    return Response(200, json={"path": request.url.path})


def test_the_examples_run(monkeypatch):
    monkeypatch.setattr("towline.client.transport_choice.configured", lambda *_: (MockTransport(answer),) * 2)
    names = {}
    assert len(EXAMPLES) == 8
    for example in EXAMPLES:
        exec(compile(example, "call.md", "exec"), names)
    assert names["users"] == {"path": "/v1/users"}


def test_the_websocket_examples_run():
    def handler(ws):
        ws.send("the first")
        ws.send("the last")
        list(ws)

    assert len(SOCKETS) == 2
    with peer(handler, select_subprotocol=lambda _, offered: "chat" if offered else None) as url:
        for example in SOCKETS:
            here = example.replace("wss://api.example", url)
            assert here != example
            names = {"towline": towline, "asyncio": asyncio}
            exec(compile(here, "call.md", "exec"), names)


def test_the_websocket_defaults_are_those_of_the_code():
    for client in (towline.Client, towline.AsyncClient):
        parameters = inspect.signature(client.websocket).parameters
        rows = dict(re.findall(r"^\| `(\w+)` \| `?(.+?)`? \|", PAGE, re.MULTILINE))
        names = [name for name in vars(WebSocketOptions()) if name != "subprotocols"]
        for name in names:
            assert (
                ast.literal_eval(rows[name]) == parameters[name].default == getattr(WebSocketOptions(), name)
            )


def test_the_defaults_are_those_of_the_code():
    rows = dict(re.findall(r"^\| `(\w+)` \| `?(.+?)`? \|", PAGE, re.MULTILINE))
    parameters = inspect.signature(towline.Client).parameters
    made = {"timeout": towline.Timeout(), "limits": towline.Limits(), "retries": towline.Retry()}
    for name, text in rows.items():
        if name in made:
            assert (
                eval(
                    text,
                    vars(towline)
                    | {"Timeout": towline.Timeout, "Limits": towline.Limits, "Retry": towline.Retry},
                )
                == made[name]
            )
        elif name in parameters:
            assert eval(text) == parameters[name].default
    assert {"timeout", "limits", "retries", "stream_window", "max_redirects"} <= rows.keys()


def test_the_tree_is_that_of_the_code():
    (tree,) = re.findall(r"^```\n(Error\n.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    for name in re.findall(r"(?<![.\w])[A-Z]\w+", tree):
        kind = getattr(errors, name, None) or __builtins__.get(name)
        assert kind is not None, name


def test_the_index_leads_there():
    assert "(call.md)" in (Path(__file__).resolve().parents[2] / "docs" / "index.md").read_text()
