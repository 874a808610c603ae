"""Any file ends in requests that can be sent, or in one line that says why not."""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from towline.bench.scenarios import ScenarioError, session_config
from towline.bench.scenarios.request_files import from_file

CURL = r"""#!/bin/sh
NAME='a b'
curl -sS http://a/x?y=1 -H "X: $NAME" -b 'a=b' --data-raw $'it\'s \u00e9 \xc3\xa9 \ud83d\ude00' | jq . > /dev/null
curl -F 'a=b;type=x/y' -u me:secret --url 'http://a/[1-3]/{x,y}' --variable v=1 --expand-header 'V: {{v:trim:b64}}'
time curl -G http://a:80/ --data-urlencode 'q=a b' --url-query '+c' --json '{}' --next -T /dev/null http://a/up/
"""
HAR: Any = {
    "log": {
        "entries": [
            {
                "request": {
                    "method": "POST",
                    "url": "https://h:443/x?y=z#f",
                    "headers": [{"name": "content-type", "value": "multipart/form-data; boundary=X"}],
                    "cookies": [{"name": "a", "value": "b"}],
                    "bodySize": 3,
                    "postData": {"mimeType": "x/y", "params": [{"name": "f", "fileName": "g", "value": "v"}]},
                },
                "response": {"status": 200},
            },
            {
                "request": {
                    "method": "PUT",
                    "url": "https://h/",
                    "headers": [{"name": "content-length", "value": "3"}],
                    "postData": {"text": "\xff\xfe\0", "encoding": "x"},
                },
                "response": {"status": 404},
            },
        ]
    }
}
OPENAPI: Any = {
    "openapi": "3.1.0",
    "servers": [{"url": "https://{e}.h/v1", "variables": {"e": {"default": "a", "enum": ["a"]}}}],
    "paths": {
        "/a/{id}": {
            "parameters": [{"$ref": "#/components/parameters/id"}],
            "get": {
                "parameters": [
                    {
                        "name": "q",
                        "in": "query",
                        "required": True,
                        "style": "deepObject",
                        "schema": {"allOf": [{"$ref": "#/s"}]},
                    },
                    {
                        "name": "h",
                        "in": "header",
                        "required": True,
                        "content": {"application/json": {"example": {}}},
                    },
                    {"name": "c", "in": "cookie", "required": True, "examples": {"a": {"value": [1, "b"]}}},
                ]
            },
        },
        "/b": {"$ref": "#/components/pathItems/b"},
    },
    "s": {
        "type": "object",
        "properties": {"n": {"type": "integer", "minimum": 2, "multipleOf": 3}},
        "required": ["n"],
    },
    "components": {
        "parameters": {"id": {"name": "id", "in": "path", "schema": {"type": "string", "format": "uuid"}}},
        "pathItems": {"b": {"head": {}, "servers": [{"url": "/x"}]}},
    },
}
SWAGGER: Any = {
    "swagger": "2.0",
    "host": "h",
    "basePath": "/v",
    "paths": {
        "/a": {
            "get": {
                "parameters": [
                    {
                        "name": "p",
                        "in": "query",
                        "required": True,
                        "type": "array",
                        "items": {"type": "number"},
                    }
                ]
            }
        }
    },
}
YAML = """\
openapi: 3.0.0
x-p: &p {name: p, in: query, required: true, schema: {type: string}}
paths:
  /a: {get: {parameters: [{<<: *p, name: q}, *p]}}
"""
VEGETA = "GET http://a/x\nX: 1\n\nPOST http://a/y\n@/dev/null\n"
TARGETS = '{"method": "POST", "url": "http://a/", "header": {"X": ["1"]}, "body": "AAE="}\n'
TEXTS = [CURL, YAML, VEGETA, TARGETS, *(json.dumps(one) for one in (HAR, OPENAPI, SWAGGER))]

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(
        ["#/s", "{x}", "http://[", "//", "\ud83d", "x-", "a\nb", "%", "object", "array", "multi"]
    ),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=4) | st.just("/a\n{x}"), inner, max_size=3)
    ),
    max_leaves=5,
)


def check(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "file"
        path.write_bytes(content)
        try:
            found = from_file(path)
        except ScenarioError as error:
            assert "\n" not in str(error)
            assert "Error('" not in str(error) or "is no" in str(error)
            return
    for request in found.scenario.requests:
        assert re.fullmatch(r"/[!-~]*", request.target)
        assert request.wire()
        assert all("\n" not in value for _, value in request.fields)
    assert json.dumps(session_config(found.scenario, "http://127.0.0.1:1"))
    assert all("\n" not in note for note in found.scenario.notes)


def places(plain: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    members = (
        plain.items() if isinstance(plain, dict) else enumerate(plain) if isinstance(plain, list) else ()
    )
    return [path, *(place for key, one in members for place in places(one, (*path, key)))]


def replaced(plain: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    copy = dict(plain) if isinstance(plain, dict) else list(plain)
    copy[path[0]] = replaced(copy[path[0]], path[1:], value)
    return copy


def removed(plain: Any, path: tuple[Any, ...]) -> Any:
    copy = dict(plain) if isinstance(plain, dict) else list(plain)
    if len(path) == 1:
        del copy[path[0]]
    else:
        copy[path[0]] = removed(copy[path[0]], path[1:])
    return copy


@pytest.mark.parametrize("text", TEXTS)
def test_the_files_themselves_are_imported(text: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text(text)
    assert from_file(tmp_path / "file").scenario.requests


@given(st.binary(max_size=200) | st.text(max_size=200).map(lambda text: text.encode("utf-8", "replace")))
def test_arbitrary_bytes(content: bytes) -> None:
    check(content)


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_files_with_other_bytes(data: st.DataObject) -> None:
    content = bytearray(data.draw(st.sampled_from(TEXTS)).encode("utf-8", "replace"))
    for _ in range(data.draw(st.integers(1, 4))):
        begin = data.draw(st.integers(0, len(content)))
        end = data.draw(st.integers(begin, min(len(content), begin + 12)))
        words = st.sampled_from(
            [
                b"'",
                b'"',
                b"\\",
                b"$'",
                b"$(",
                b"`",
                b"{",
                b"[",
                b"\n",
                b"\0",
                b"\xff",
                b"--",
                b"@",
                b"<<",
                b"&",
                b"*p",
            ]
        )
        content[begin:end] = data.draw(words | st.binary(max_size=4) | st.just(bytes(content[begin:end] * 2)))
    check(bytes(content))


@pytest.mark.parametrize("plain", [HAR, OPENAPI, SWAGGER], ids=["har", "openapi", "swagger"])
@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_files_with_other_values(plain: Any, data: st.DataObject) -> None:
    for _ in range(data.draw(st.integers(1, 2))):
        path = data.draw(st.sampled_from([place for place in places(plain) if place] or [()]))
        if path and data.draw(st.booleans()):
            plain = removed(plain, path)
        else:
            plain = replaced(plain, path, data.draw(values))
    check(json.dumps(plain).encode("utf-8", "replace"))


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from([*CURL.split(), "-H", "-d", "-F", "-b", "-K", "-u", "--json", "--variable", "--expand-url", "{{x:url}}",
    "@/dev/null", "-T", "-G", "-I", "http://[::1]/", "HTTP://h:80", "x:y", "X;", "[9-1]", "{}", "%", "é", "-Xé", "--", "-"]), max_size=8))  # fmt: skip
def test_other_command_lines(words: list[str]) -> None:
    check(f"curl {' '.join(words)}".encode())
