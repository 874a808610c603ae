"""Every argument of the clients, of a call and of the server has a row with its default in `help()` and in the API pages."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import towline
from towline._keywords import RENAMED, fields
from towline._serve_options import ServeOptions
from towline.client import call_options
from towline.client.base import BaseClient
from towline.client.options import UNSET

API = Path(__file__).resolve().parents[2] / "docs" / "api"
SENDING = ("request", "get", "head", "options", "delete", "post", "put", "patch", "stream")


def rows(text: str | None) -> dict[str, str]:
    """The rows `- name[, name]: meaning` of a docstring, their further lines included."""
    found = {}
    for names, meaning in re.findall(
        r"^- ([\w`, ]+): (.+(?:\n  .*)*)", inspect.cleandoc(text or ""), re.MULTILINE
    ):
        found |= {name.strip("` "): " ".join(meaning.split()) for name in names.split(",")}
    return found


def keys(arguments: Any) -> frozenset[str]:
    """The keys of a TypedDict, none of which is required."""
    optional: frozenset[str] = arguments.__optional_keys__
    return optional


def shows(default: Any, meaning: str) -> bool:
    """Whether a row ends with the default. UNSET and None may stand for an object, such as `Limits()`."""
    text = meaning.rpartition("default ")[2]
    shown = f'"{default}"' if isinstance(default, str) else repr(default)
    return text.startswith(shown) or (default in (None, UNSET) and text.startswith("`"))


@pytest.mark.parametrize("kind", [towline.Client, towline.AsyncClient])
def test_arguments_of_a_client(kind: type) -> None:
    documented = rows(kind.__init__.__doc__)
    parameters = inspect.signature(kind).parameters
    assert documented.keys() == parameters.keys()
    wrong = {name for name, one in parameters.items() if not shows(one.default, documented[name])}
    assert wrong == set()


def test_arguments_of_a_call() -> None:
    documented = rows(call_options.CallOptions.__doc__)
    assert documented.keys() == keys(call_options.CallOptions)
    assert all("default" in meaning for meaning in documented.values())
    single = rows(call_options.SingleCallOptions.__doc__)
    assert single.keys() | documented.keys() == keys(call_options.SingleCallOptions)
    native = rows(towline.Client.request.__doc__)
    assert documented.keys() <= native.keys()
    assert {"method", "url"} == native.keys() - documented.keys()


@pytest.mark.parametrize("kind", [towline.Client, towline.AsyncClient])
@pytest.mark.parametrize("name", ["send", "websocket", "sse", "prewarm", "build_request", *SENDING])
def test_arguments_of_the_methods(kind: type, name: str) -> None:
    """Each has a row, or is one that `request` explains, to which the docstring leads."""
    method: Callable[..., Any] = getattr(kind, name)
    text = method.__doc__ or ""
    if kind is towline.AsyncClient and "`Client." in text:
        method = getattr(towline.Client, name)
        text = method.__doc__ or ""
    documented = rows(text)
    leads = "`request`" in text or name == "request"
    for parameter in inspect.signature(method).parameters.values():
        if (
            parameter.name in ("self", "url", "method", "request", "arguments")
            and parameter.name not in documented
        ):
            assert parameter.default is parameter.empty or parameter.name == "arguments", parameter
        elif parameter.name not in documented:
            assert f"`{parameter.name}`" in text or (
                leads and parameter.name in rows(call_options.CallOptions.__doc__)
            )


@pytest.mark.parametrize(
    "text", [towline.serve.__doc__, towline.ServerConfig.__doc__], ids=["serve", "config"]
)
def test_arguments_of_the_server(text: str | None) -> None:
    documented = rows(text)
    parameters = dict(inspect.signature(towline.ServerConfig).parameters)
    if "hooks" not in documented:  # no keyword of `serve`
        del parameters["app"], parameters["hooks"]
    assert documented.keys() == parameters.keys()
    assert all("default" in meaning for name, meaning in documented.items() if name != "app")


def test_the_page_of_the_server() -> None:
    page = (API / "server.md").read_text()
    shown = re.findall(r"^\| `(\w+)` \| `.+` \| `.+` \| .+ \|$", page, re.MULTILINE)
    assert [*inspect.signature(towline.ServerConfig).parameters] == ["app", *shown, "hooks"]
    assert "`app` is the application" in page
    assert "`hooks`" in page


def test_the_page_of_the_client() -> None:
    page = (API / "client.md").read_text()
    for name in (BaseClient, call_options.CallOptions, call_options.SingleCallOptions):
        assert f"::: {name.__module__}.{name.__qualname__}\n" in page
    for name in (*SENDING, "Client", "AsyncClient"):
        assert f"::: towline.{name}\n" in page


def test_the_typed_keywords_of_serve_are_accepted() -> None:
    names = keys(ServeOptions)
    assert inspect.signature(towline.ServerConfig).parameters.keys() - {"app", "hooks"} <= names
    values: dict[str, Any] = {"http": "h11"} | dict.fromkeys(RENAMED, "a")
    for name in names - inspect.signature(towline.ServerConfig).parameters.keys():
        fields({name: values.get(name)})
