"""docs/call.md: its defaults and its tree of exceptions are those of the code. tests/pages runs its examples."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import towline
from towline import errors
from towline.client.websocket import WebSocketOptions

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "call.md").read_text()


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
    generated = {"timeout": towline.Timeout(), "limits": towline.Limits(), "retries": towline.Retry()}
    for name, text in rows.items():
        if name in generated:
            assert (
                eval(
                    text,
                    vars(towline)
                    | {"Timeout": towline.Timeout, "Limits": towline.Limits, "Retry": towline.Retry},
                )
                == generated[name]
            )
        elif name in parameters:
            assert eval(text) == parameters[name].default
    assert {"timeout", "limits", "retries", "stream_window", "max_redirects"} <= rows.keys()


def test_the_tree_is_that_of_the_code():
    (tree,) = re.findall(r"^```\n(Error\n.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    for name in re.findall(r"(?<![.\w])[A-Z]\w+", tree):
        kind = getattr(errors, name, None) or __builtins__.get(name) or getattr(towline, name)
        assert kind is not None, name


def test_the_index_links_to_the_page():
    assert "(call.md)" in (Path(__file__).resolve().parents[2] / "docs" / "index.md").read_text()
