"""Files of requests: HAR, curl, vegeta and OpenAPI become scenarios; each mistake is one clear error."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from towline.bench.scenarios.request_files import from_file
from towline.bench.scenarios.table import ScenarioError

HOST = ("Host", "shop.example.org")


def written(folder: Path, name: str, content: Any) -> Path:
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def entry(url: str, method: str = "GET", status: int = 200, **request: Any) -> dict[str, Any]:
    return {
        "request": {"method": method, "url": url, "headers": [], **request},
        "response": {"status": status},
    }


def har(*entries: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"log": {"version": "1.2", "entries": list(entries), **more}}


def test_a_har_file(tmp_path: Path) -> None:
    headers = [
        {"name": ":authority", "value": "shop.example.org"},
        {"name": "Connection", "value": "keep-alive"},
        {"name": "If-None-Match", "value": '"1"'},
        {"name": "Cookie", "value": "session=1"},
    ]
    found = from_file(
        written(
            tmp_path,
            "shop.har",
            har(
                entry("https://shop.example.org/?q=a%20b#top", headers=headers),
                entry("https://cdn.example.org/x.js"),
                entry(
                    "https://shop.example.org/cart", "POST", postData={"mimeType": "text/plain", "text": "é"}
                ),
                entry(
                    "https://shop.example.org/form",
                    "POST",
                    postData={"params": [{"name": "a", "value": "1 2"}]},
                ),
                entry("https://shop.example.org/raw", "PUT", postData={"text": "AAE=", "encoding": "base64"}),
                entry("https://shop.example.org/favicon.ico", status=404),
                entry("https://shop.example.org/cancelled", status=0),
                entry("wss://shop.example.org/socket", status=101),
                entry("data:text/plain,x"),
            ),
        )
    )
    scenario = found.scenario
    assert found.origin == "https://shop.example.org"
    assert scenario.name == "shop.har"
    assert scenario.title == "GET /?q=a%20b and 4 more, in turn"
    assert scenario.notes == (
        "1 request to https://cdn.example.org left out: one server is measured at a time",
    )
    page, cart, form, raw, icon = scenario.requests
    assert page.fields == (HOST, ("Cookie", "session=1"))
    assert (page.expect.status, page.expect.body) == (None, None)
    assert cart.body is not None
    assert cart.body.whole() == "é".encode()
    assert cart.fields == (HOST, ("Content-Type", "text/plain"), ("Content-Length", "2"))
    assert form.body is not None
    assert form.body.whole() == b"a=1+2"
    assert raw.body is not None
    assert raw.body.whole() == b"\x00\x01"
    assert icon.expect.status == 404


def test_curl_command_lines(tmp_path: Path) -> None:
    found = from_file(
        written(
            tmp_path,
            "requests.sh",
            """#!/bin/sh
# the page
$ curl 'http://127.0.0.1:8000/a?b=c' \\
  -H 'Accept: text/html' ;

curl -X POST http://127.0.0.1:8000/items --json '{
  "name": "x"
}' &
# the end
""",
        )
    )
    first, second = found.scenario.requests
    assert (first.method, first.target) == ("GET", "/a?b=c")
    assert ("Accept", "text/html") in first.fields
    assert second.method == "POST"
    assert second.body is not None
    assert json.loads(second.body.whole()) == {"name": "x"}


@pytest.mark.parametrize(
    "text",
    [
        "GET http://127.0.0.1:8000/a\nAccept: x\n\nPOST http://127.0.0.1:8000/b\n",
        '{"method": "GET", "url": "http://127.0.0.1:8000/a"}\n{"method": "POST", "url": "http://127.0.0.1:8000/b"}\n',
        '\ufeff{"method": "GET", "url": "http://127.0.0.1:8000/a"}',
    ],
)
def test_targets_of_vegeta(text: str, tmp_path: Path) -> None:
    if text.startswith("\ufeff"):
        text = text[1:]
    found = from_file(written(tmp_path, "targets", text))
    shown = [f"{one.method} {one.target}" for one in found.scenario.requests]
    assert shown == ["GET /a", "POST /b"][: len(shown)]


def description(paths: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"openapi": "3.1.0", "paths": paths, **more}


def parameter(name: str, place: str, schema: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"name": name, "in": place, "required": True, "schema": schema, **more}


def test_an_openapi_description(tmp_path: Path) -> None:
    found = from_file(
        written(
            tmp_path,
            "openapi.json",
            description(
                {
                    "/items": {
                        "get": {
                            "parameters": [
                                parameter("page", "query", {"type": "integer", "default": 2}),
                                parameter("tags", "query", {"type": "array", "items": {"enum": ["a b"]}}),
                                {**parameter("optional", "query", {"type": "string"}), "required": False},
                                parameter("X-Token", "header", {"example": "t"}),
                                parameter("id", "cookie", {"const": "c"}),
                            ]
                        },
                        "post": {},
                    },
                    "/items/{item}": {
                        "parameters": [{"$ref": "#/components/parameters/item"}],
                        "get": {},
                        "head": {
                            "parameters": [parameter("item", "path", {"type": "string"}, example="x/y")]
                        },
                        "delete": {},
                    },
                    "/exact/{code}": {
                        "get": {
                            "parameters": [
                                parameter("code", "path", {"type": "string", "pattern": "^[A-Z]$"})
                            ]
                        }
                    },
                    "/forgotten/{it}": {"get": {}},
                    "/nullable": {
                        "get": {
                            "parameters": [
                                parameter(
                                    "when",
                                    "query",
                                    {"anyOf": [{"type": "null"}, {"type": "string", "format": "date"}]},
                                )
                            ]
                        }
                    },
                },
                servers=[
                    {
                        "url": "https://shop.example.org/api/{version}/",
                        "variables": {"version": {"default": "v1"}},
                    }
                ],
                components={
                    "parameters": {"item": parameter("item", "path", {"$ref": "#/components/schemas/id"})},
                    "schemas": {"id": {"type": "integer", "minimum": 7}},
                },
            ),
        )
    )
    items, item, head, nullable = found.scenario.requests
    assert items.target == "/api/v1/items?page=2&tags=a+b"
    assert items.fields == (HOST, ("Accept", "*/*"), ("X-Token", "t"), ("Cookie", "id=c"))
    assert item.target == "/api/v1/items/7"
    assert (head.method, head.target) == ("HEAD", "/api/v1/items/x%2Fy")
    assert nullable.target == "/api/v1/nullable?when=2024-01-01"
    assert found.guessed == {item.target, nullable.target}
    assert found.scenario.notes == (
        "left out, no value for a parameter: GET /exact/{code} (code), GET /forgotten/{it} (it is not described)",
        "left out, not repeatable: POST /items, DELETE /items/{item}",
    )


def test_swagger_2(tmp_path: Path) -> None:
    plain = {
        "swagger": "2.0",
        "basePath": "/v2",
        "paths": {"/pets/{id}": {"get": {"parameters": [{"name": "id", "in": "path", "type": "integer"}]}}},
    }
    found = from_file(written(tmp_path, "swagger.json", plain))
    assert [one.target for one in found.scenario.requests] == ["/v2/pets/1"]


OPENAPI_YAML = """\
# The types are those of YAML 1.2: neither a date nor a boolean nor sixty times twelve.
openapi: 3.1.0
info: {title: shop, description: "curl http://elsewhere/"}
servers: [{url: https://shop.example.org/v1}]
paths:
  /items/{country}:
    parameters:
      - {name: country, in: path, required: true, example: no}
    get:
      summary: |
        For example:
        curl https://shop.example.org/v1/items/no
      parameters:
        - {name: since, in: query, required: true, schema: {type: string, format: date, default: 2024-01-01}}
        - {name: at, in: query, required: true, schema: {type: string, example: 12:30}}
        - {name: n, in: query, required: true, example: 010}
        - {name: hex, in: query, required: true, example: 0x1f}
        - {name: share, in: query, required: true, example: 1e3}
        - {name: "yes", in: query, required: true, example: true}
        - &page {name: page, in: query, required: true, example: 2}
      responses: {200: {description: fine}}
    put: {}
  /pages:
    get: {parameters: [*page]}
"""


def test_openapi_in_yaml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = from_file(written(tmp_path, "shop.yaml", OPENAPI_YAML))
    assert [one.target for one in found.scenario.requests] == [
        "/v1/items/no?since=2024-01-01&at=12%3A30&n=10&hex=31&share=1000.0&yes=true&page=2",
        "/v1/pages?page=2",
    ]
    assert found.scenario.notes == ("left out, not repeatable: PUT /items/{country}",)
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(ScenarioError, match=r"YAML needs PyYAML: pip install 'towline\[bench\]'"):
        from_file(tmp_path / "shop.yaml")


LOOP = {"$ref": "#/components/schemas/loop"}
WRONG = [
    ("x.har", "{", "x.har: is not JSON: "),
    ("x.har", {"log": {}}, "is no HAR file: log.entries is missing"),
    ("x.har", har(), "contains no request of http or https"),
    (
        "x.har",
        har(entry("http://a/", headers=[{"name": "x"}])),
        "request 1 is no entry of a HAR file (KeyError('value'))",
    ),
    (
        "x.har",
        har(entry("http://a/", "PUT", postData={"text": "?", "encoding": "base64"})),
        "request 1 is no entry",
    ),
    ("x.json", {"a": 1}, "is none of a HAR file"),
    ("x.json", description({}), "no GET operation that can be sent"),
    ("x.json", {"openapi": "3.1.0"}, "is no OpenAPI description: it has no paths"),
    ("x.json", description({"/a": []}), "paths./a is no object"),
    ("x.json", description({"/a": {"post": {}}}), "left out, not repeatable: POST /a"),
    ("x.json", description({"/a": {"get": {"parameters": ["x"]}}}), "get of /a is no operation"),
    (
        "x.json",
        description(
            {"/a": {"get": {"parameters": [parameter("q", "query", LOOP)]}}},
            components={"schemas": {"loop": LOOP}},
        ),
        "no value for a parameter: GET /a (its references have no end)",
    ),
    (
        "x.json",
        description(
            {"/a": {"get": {"parameters": [parameter("q", "query", LOOP)]}}},
            components={"schemas": {"loop": {"allOf": [LOOP]}}},
        ),
        "no value for a parameter: GET /a (q)",
    ),
    ("x.yaml", "openapi: 3.1.0\npaths: {}\n", "no GET operation that can be sent"),
    ("x.yaml", "# shop\nopenapi: 3.1.0\npaths: [\n", "x.yaml: is not YAML: while parsing"),
    (
        "x.yaml",
        "openapi: 3.1.0\npaths: !!python/object/apply:os.getcwd []\n",
        "is not YAML: could not determine",
    ),
    ("x.txt", "hello\n", "is none of a HAR file"),
    ("x.sh", "curl --proxy x http://a/\n", "--proxy is not imported"),
    ("x.txt", "GET http://a/\nnope\n", "is no header field"),
    ("x.txt", "GET http://a/\n\nGET http://b/\n", "one server is measured at a time"),
]


@pytest.mark.parametrize(("name", "content", "message"), WRONG)
def test_files_that_cannot_be_imported(name: str, content: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(ScenarioError) as caught:
        from_file(written(tmp_path, name, content))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=r"cannot read none: No such file"):
        from_file(tmp_path / "none")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ScenarioError, match="not UTF-8"):
        from_file(tmp_path / "binary")
    with pytest.raises(ScenarioError, match="Is a directory"):
        from_file(tmp_path)
