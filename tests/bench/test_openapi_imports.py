"""OpenAPI descriptions: servers, references, styles of parameters and merge keys of YAML."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from towline.bench.scenarios import ScenarioError
from towline.bench.scenarios.imported import Imported
from towline.bench.scenarios.request_files import from_file

COLOURS = {"R": 100, "G": "a b"}
LIST = ["a b", "c,d"]


def read(folder: Path, content: Any) -> Imported:
    (folder / "api").write_text(content if isinstance(content, str) else json.dumps(content))
    return from_file(folder / "api")


def described(paths: Any, **more: Any) -> dict[str, Any]:
    return {"openapi": "3.1.0", "paths": paths, **more}


@pytest.mark.parametrize(
    ("servers", "url"),
    [
        (None, "http://localhost/a"),
        ([], "http://localhost/a"),
        ([{"url": "/"}], "http://localhost/a"),
        ([{"url": "/api/v1/"}], "http://localhost/api/v1/a"),
        ([{"url": "v1"}], "http://localhost/v1/a"),
        ([{"url": "./v1"}], "http://localhost/v1/a"),
        ([{"url": "../v1"}], "http://localhost/v1/a"),
        ([{"url": "//h:8000/v1"}], "http://h:8000/v1/a"),
        ([{"url": "https://h"}, {"url": "https://other"}], "https://h/a"),
        (
            [
                {
                    "url": "{scheme}://{env}.h:{port}/{base}",
                    "variables": {
                        "scheme": {"enum": ["https", "http"]},
                        "env": {"default": "eu"},
                        "port": {"default": 8443},
                        "base": {"default": ""},
                    },
                }
            ],
            "https://eu.h:8443/a",
        ),
    ],
)
def test_servers(servers: Any, url: str, tmp_path: Path) -> None:
    found = read(tmp_path, described({"/a": {"get": {}}}, servers=servers))
    assert found.origin + found.scenario.requests[0].target == url


def test_servers_of_swagger_2(tmp_path: Path) -> None:
    plain = {
        "swagger": "2.0",
        "host": "h:81",
        "basePath": "v1/",
        "schemes": ["https"],
        "paths": {"/a": {"get": {}}},
    }
    found = read(tmp_path, plain)
    assert found.origin + found.scenario.requests[0].target == "https://h:81/v1/a"


def test_paths_and_operations_have_servers_of_their_own(tmp_path: Path) -> None:
    plain = described(
        {
            "/a": {"get": {}},
            "/b": {
                "servers": [{"url": "https://h/two"}],
                "get": {},
                "head": {"servers": [{"url": "https://files.h"}]},
            },
            "/c": {"get": {"servers": [{"url": "https://{x}.h"}]}},
            "x-more": 1,
        },
        servers=[{"url": "https://h/one"}],
    )
    found = read(tmp_path, plain)
    assert [one.target for one in found.scenario.requests] == ["/one/a", "/two/b"]
    assert found.scenario.notes == (
        "left out, no value for a parameter: GET /c (the server https://{x}.h has a variable without a default)",
        "left out, in another file or on another server: HEAD /b (https://files.h)",
    )


def test_references(tmp_path: Path) -> None:
    item = {"parameters": [{"$ref": "#/components/parameters/id"}], "get": {}}
    plain = described(
        {
            "/a/{id}": {"$ref": "#/components/pathItems/item"},
            "/b/{id}": {"$ref": "#/paths/~1a~1%7Bid%7D", "summary": "the same"},
            "/c": {"$ref": "other.yaml#/c"},
            "/d": {"$ref": "#/components/pathItems/none"},
            "/e": {"get": {"parameters": [{"$ref": "https://h/parameters.json#/x"}]}},
            "/f/{id}": {"get": {"parameters": [{"$ref": "#/x-list/1"}]}},
            "/g": {"get": {"parameters": [{"$ref": "#/components/parameters/none"}]}},
        },
        components={
            "pathItems": {"item": item},
            "parameters": {
                "id": {"name": "id", "in": "path", "required": True, "schema": {"type": "integer"}}
            },
        },
    )
    plain["x-list"] = [0, {"name": "id", "in": "path", "schema": {"$ref": "#/x-schema", "default": 7}}]
    plain["x-schema"] = {"type": "integer"}
    found = read(tmp_path, plain)
    assert [one.target for one in found.scenario.requests] == ["/a/1", "/b/1", "/f/7"]
    assert found.scenario.notes == (
        "left out, no value for a parameter: GET /e (https://h/parameters.json#/x is in another file), "
        "GET /g (#/components/parameters/none is not in the description)",
        "left out, in another file or on another server: /c (other.yaml#/c is in another file), "
        "/d (#/components/pathItems/none is not in the description)",
    )


@pytest.mark.parametrize(
    ("place", "value", "style", "sent"),
    [
        ("query", "a b&", {}, "?p=a+b%26"),
        ("query", LIST, {}, "?p=a+b&p=c%2Cd"),
        ("query", LIST, {"explode": False}, "?p=a+b,c%2Cd"),
        ("query", COLOURS, {}, "?R=100&G=a+b"),
        ("query", COLOURS, {"explode": False}, "?p=R,100,G,a+b"),
        ("query", LIST, {"style": "spaceDelimited"}, "?p=a+b%20c%2Cd"),
        ("query", LIST, {"style": "pipeDelimited"}, "?p=a+b%7Cc%2Cd"),
        ("query", LIST, {"style": "pipeDelimited", "explode": True}, "?p=a+b&p=c%2Cd"),
        ("query", COLOURS, {"style": "deepObject", "explode": True}, "?p%5BR%5D=100&p%5BG%5D=a+b"),
        (
            "query",
            {"a": {"b": 1}, "c": [1, 2]},
            {"style": "deepObject"},
            "?p%5Ba%5D%5Bb%5D=1&p%5Bc%5D=1&p%5Bc%5D=2",
        ),
        ("query", "/a?b=c&d", {"allowReserved": True}, "?p=/a?b=c%26d"),
        ("query", [True, None, 1.5], {}, "?p=true&p=&p=1.5"),
        ("path", "a/b c", {}, "/a%2Fb%20c"),
        ("path", LIST, {}, "/a%20b,c%2Cd"),
        ("path", COLOURS, {}, "/R,100,G,a%20b"),
        ("path", COLOURS, {"explode": True}, "/R=100,G=a%20b"),
        ("path", LIST, {"style": "label"}, "/.a%20b,c%2Cd"),
        ("path", LIST, {"style": "label", "explode": True}, "/.a%20b.c%2Cd"),
        ("path", COLOURS, {"style": "label", "explode": True}, "/.R=100.G=a%20b"),
        ("path", 5, {"style": "matrix"}, "/;p=5"),
        ("path", LIST, {"style": "matrix"}, "/;p=a%20b,c%2Cd"),
        ("path", LIST, {"style": "matrix", "explode": True}, "/;p=a%20b;p=c%2Cd"),
        ("path", COLOURS, {"style": "matrix", "explode": True}, "/;R=100;G=a%20b"),
        ("header", LIST, {}, "p: a b,c,d"),
        ("header", COLOURS, {"explode": True}, "p: R=100,G=a b"),
        ("cookie", "a b", {}, "Cookie: p=a%20b"),
        ("cookie", LIST, {}, "Cookie: p=a%20b,c%2Cd"),
    ],
)
def test_styles_of_lists_and_objects(place: str, value: Any, style: Any, sent: str, tmp_path: Path) -> None:
    parameter = {"name": "p", "in": place, "required": True, "schema": {"example": value}, **style}
    path = "/{p}" if place == "path" else "/"
    (request,) = read(tmp_path, described({path: {"get": {"parameters": [parameter]}}})).scenario.requests
    if place in ("header", "cookie"):
        assert ": ".join(request.fields[-1]) == sent
    else:
        assert request.target.removeprefix("/" if place == "query" else "") == sent


@pytest.mark.parametrize(
    ("parameter", "query"),
    [
        ({"type": "array", "items": {"enum": ["a b"]}}, "p=a+b"),
        ({"type": "array", "default": [1, 2]}, "p=1,2"),
        ({"type": "array", "default": [1, 2], "collectionFormat": "ssv"}, "p=1%202"),
        ({"type": "array", "default": [1, 2], "collectionFormat": "pipes"}, "p=1%7C2"),
        ({"type": "array", "default": [1, 2], "collectionFormat": "multi"}, "p=1&p=2"),
    ],
)
def test_collections_of_swagger_2(parameter: Any, query: str, tmp_path: Path) -> None:
    parameter = {"name": "p", "in": "query", "required": True, **parameter}
    found = read(tmp_path, {"swagger": "2.0", "paths": {"/": {"get": {"parameters": [parameter]}}}})
    assert found.scenario.requests[0].target == f"/?{query}"


@pytest.mark.parametrize(
    ("schema", "query"),
    [
        ({"type": "integer", "minimum": 0, "exclusiveMinimum": 4}, "p=5"),
        ({"type": "integer", "minimum": 4, "exclusiveMinimum": True}, "p=5"),
        ({"type": "integer", "maximum": -3}, "p=-3"),
        ({"type": "integer", "minimum": 7, "multipleOf": 5}, "p=10"),
        ({"type": "object", "properties": {"a": {"const": 1}, "b": {"const": 2}}, "required": ["b"]}, "b=2"),
        ({"allOf": [{"properties": {"a": {"const": 1}}}, {"properties": {"b": {"const": 2}}}]}, "a=1&b=2"),
        ({"anyOf": [True, {"type": "null"}, {"type": "boolean"}]}, "p=true"),
        (
            {"content": {"application/json": {"example": {"a": [1, "é"]}}}},
            "p=%7B%22a%22%3A%5B1%2C%22%C3%A9%22%5D%7D",
        ),
        ({"examples": {"one": {"$ref": "#/x-example"}}}, "p=of+a+reference"),
    ],
)
def test_values(schema: Any, query: str, tmp_path: Path) -> None:
    own = schema if "content" in schema or isinstance(schema.get("examples"), dict) else {"schema": schema}
    parameter = {"name": "p", "in": "query", "required": True, **own}
    plain = described({"/": {"get": {"parameters": [parameter]}}})
    found = read(tmp_path, {**plain, "x-example": {"value": "of a reference"}})
    assert found.scenario.requests[0].target == f"/?{query}"


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "minLength": 10**12},
        {"type": "integer", "minimum": 5, "maximum": 4},
        {"properties": {"a": {"example": [[1]]}}},
        {},
        True,
    ],
)
def test_operations_without_a_value_are_left_out(schema: Any, tmp_path: Path) -> None:
    parameter = {"name": "p", "in": "query", "required": True, "schema": schema}
    with pytest.raises(ScenarioError, match="left out, no value for a parameter: GET /"):
        read(tmp_path, described({"/": {"get": {"parameters": [parameter]}}}))


MERGED = """\
openapi: 3.0.3
x-limit: &limit {name: limit, in: query, required: true, schema: &number {type: integer, default: 5}}
x-more: &more {explode: false, style: form}
paths:
  /a:
    get: &get
      summary: <<
      parameters:
        - <<: *limit
          name: own
        - <<: [*limit, *more]
          schema: {<<: *number, default: 6}
  /b:
    get: {<<: *get}
"""


def test_merge_keys_of_yaml(tmp_path: Path) -> None:
    found = read(tmp_path, MERGED)
    assert [one.target for one in found.scenario.requests] == ["/a?own=5&limit=6", "/b?own=5&limit=6"]
    levels = "".join(
        f"x-{n}: &l{n} {{<<: [{', '.join([f'*l{n - 1}'] * 9)}], k{n}: 1}}\n" for n in range(1, 30)
    )
    found = read(tmp_path, f"openapi: 3.0.3\nx-0: &l0 {{k0: 1}}\n{levels}paths: {{/a: {{get: {{}}}}}}\n")
    assert found.scenario.requests[0].target == "/a"
