"""Towline's JSON compared with the standard library's: equal values, equal bytes, equal exceptions."""

from __future__ import annotations

import json
import math
import struct
import sys
from collections import OrderedDict
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Any, NamedTuple

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from towline import Response
from towline._native import ServerSentEvent, dump_json, load_json
from towline.client.decode import ndjson_parser
from towline.client.encode import encode_request


def their_dump(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


def outcome(function: Any, *args: Any) -> Any:
    """The value with its types, or the exception with its attributes."""
    try:
        return "value", typed(function(*args))
    except Exception as error:
        details = [getattr(error, name, None) for name in ("msg", "doc", "pos", "lineno", "colno")]
        kind = json.JSONDecodeError if isinstance(error, json.JSONDecodeError) else type(error)
        return kind, str(error), details


def typed(value: Any) -> Any:
    """Comparable: 1, 1.0 and True differ, so do 0.0 and -0.0; NaN equals itself; dicts keep their order."""
    if type(value) is dict:
        return "dict", [(typed(name), typed(item)) for name, item in value.items()]
    if type(value) is list:
        return "list", [typed(item) for item in value]
    if type(value) is float:
        return "float", "nan" if math.isnan(value) else struct.pack("d", value)
    return type(value).__name__, value


def same_dump(value: Any) -> None:
    assert outcome(dump_json, value) == outcome(their_dump, value)


def same_load(document: bytes | str) -> None:
    assert outcome(load_json, document) == outcome(json.loads, document)


TEXT = st.one_of(
    st.text(), st.text('"\\/\b\f\n\r\t\x00\x1f\x7f abé\u2028漢\U0001f600', min_size=20, max_size=120)
)
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), TEXT)
KEYS = st.one_of(TEXT, TEXT, TEXT, st.integers(), st.booleans(), st.none(), st.floats())
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=5), st.tuples(inner, inner), st.dictionaries(KEYS, inner, max_size=5)
    ),
    max_leaves=20,
)


@given(VALUES)
def test_encoding_matches_the_standard_library(value):
    same_dump(value)


@given(st.floats())
@example(1e16)
@example(9999999999999998.0)
@example(123456789012345.6)
@example(1e-4)
@example(9.999e-5)
@example(5e-324)
@example(1.7976931348623157e308)
@example(-0.0)
@example(100.0)
@example(1e22)
@example(1e23)
@example(0.1 + 0.2)
@example(562949953421312.25)  # as near to .2 as to .3
@example(-(2.0**60 + 256))
def test_floats_are_written_as_python_writes_them(number):
    same_dump(number)
    same_dump([number, {"x": number}])


class Text(str):
    __slots__ = ()


class Number(int):
    def __repr__(self) -> str:
        return "no"


class Colour(str, Enum):
    RED = "red"


class Level(IntEnum):
    LOW = 1


class Point(NamedTuple):
    x: int
    y: float


def circle() -> Any:
    value: list[Any] = []
    value.append({"again": value})
    return value


def nested(depth: int) -> Any:
    value: Any = 1
    for at in range(depth):
        value = [value] if at % 2 else {"a": value}
    return value


@pytest.mark.parametrize(
    "value",
    [
        Text("a"),
        {Text("k"): Text('"')},
        Number(5),
        [Number(5)],
        Colour.RED,
        {Colour.RED: 1},
        Level.LOW,
        Point(1, 2.0),
        OrderedDict(a=1, b=[2]),
        {1: 2, "1": 3, None: 4, False: 5, 1.5: 6},
        {(1,): 2},
        {b"a": 1},
        b"bytes",
        {1, 2},
        Decimal(1),
        object(),
        1j,
        [object()],
        "\ud800",
        ["ok", "\udfff"],
        {"\ud800": 1},
        "a" * 31 + "\n" + "b" * 40,
        "é" * 100 + '"',
        "\x7f",
        "\u2028\u2029",
        2**63 - 1,
        2**63,
        -(2**63),
        -(2**63) - 1,
        10**400,
        10**5000,
        math.nan,
        [math.inf],
        {"a": -math.inf},
        {math.nan: 1},
        (),
        [],
        {},
        "",
        ((1,), [2]),
        True,
        None,
        nested(199),
        nested(200),
        nested(201),
        nested(300),
        nested(100_000),
        circle(),
        float(2**53),
        [[]] * 3,
    ],
    ids=lambda value: type(value).__name__,
)
def test_edge_case_values(value):
    same_dump(value)


@given(
    VALUES,
    st.booleans(),
    st.sampled_from([None, 1]),
    st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "utf-32", "utf-16-be", "utf-32-le"]),
)
def test_decoding_matches_the_standard_library(value, ascii_only, indent, encoding):
    try:
        document = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    except RecursionError:
        return
    same_load(document)
    same_load(document.encode(encoding, "surrogatepass"))


@given(st.text('{}[]",:0123456789.eE+-truefalsn NIityu\\\n\t\ud800é', max_size=30))
def test_malformed_json_matches_the_standard_library(document):
    same_load(document)
    same_load(document.encode("utf-8", "surrogatepass"))


@given(st.binary(max_size=12))
def test_bytes_of_any_kind(document):
    same_load(document)


@given(VALUES, st.data())
def test_documents_with_a_byte_changed(value, data):
    document = bytearray(json.dumps(value).encode())
    at = data.draw(st.integers(0, len(document) - 1))
    document[at : at + 1] = data.draw(st.binary(max_size=2))
    same_load(bytes(document))


@pytest.mark.parametrize(
    "document",
    [
        b"",
        b" ",
        b"1 2",
        b"[1,]",
        b"[,]",
        b'{"a":1,}',
        b"{a:1}",
        b"'a'",
        b'{"a" 1}',
        b'{"a":}',
        b"[1",
        b'"a',
        b'{"a"',
        b"01",
        b"-",
        b"-01",
        b"+1",
        b"1.",
        b".5",
        b"1e",
        b"1e+",
        b"1.e1",
        b"0x1",
        b"1_0",
        b"-0",
        b"-0.0",
        b"1e400",
        b"-1e400",
        b"1e-400",
        b"123456789012345678901234567890",
        b"-9223372036854775808",
        b"9223372036854775807",
        b"9223372036854775808",
        b"-9223372036854775809",
        b"1" * 4300,
        b"1" * 4301,
        b"1" * 5000 + b".5",
        b"1" * 400 + b"e-400",
        b"NaN",
        b"-NaN",
        b"Infinity",
        b"-Infinity",
        b"[NaN,Infinity]",
        b"nan",
        b"inf",
        b"Nul",
        b"nulll",
        b"True",
        b"truex",
        b'{"a":1,"b":2,"a":3}',
        b'{"":{"":""}}',
        b'"\\ud800"',
        b'"\\udc00\\ud800"',
        b'"\\ud83d\\ude00"',
        b'"\\ud83dx"',
        b'"\\ud83d\\u0041"',
        b'"\\u00g0"',
        b'"\\u12"',
        b'"\\x41"',
        b'"\\',
        b'"\\"',
        b'"\n"',
        b'"\x00"',
        b'"\x1f"',
        b'"\x7f"',
        b'"\\u0000"',
        b'"\\/"',
        b'"\xff"',
        b'"\xc3"',
        b'"\xed\xa0\x80"',
        b'"\xf4\x90\x80\x80"',
        b'"\xc0\x80"',
        b"\xef\xbb\xbf1",
        b"\xef\xbb\xbf",
        b"\xff\xfe1\x00",
        b"\xfe\xff\x001",
        b"1\x00",
        b"\x001",
        b"1\x00\x00\x00",
        b"\x00\x00\x001",
        b"1\x00 \x00",
        b"\x0c1",
        b"\x0b1",
        b"1\x0c",
        b"1\x00\x00",
        b" \t\r\n1 \t\r\n",
        b"\xa01",
        b"\xe2\x80\xa81",
        b"1//",
        b"/*1*/1",
        b"[1]]",
        b"[1}",
        b"[" * 199 + b"]" * 199,
        b"[" * 200 + b"]" * 200,
        b"[" * 201 + b"]" * 201,
        b"[" * 300 + b"]" * 300,
        b'{"a":' * 300 + b"1" + b"}" * 300,
        b"[" * 100_000 + b"]" * 100_000,
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'["' + b"x" * 10_000 + b"\xc3\xa9" + b'"]',
        b'"' + b"x" * 40 + b"\\n" + b"y" * 40 + b'"',
        b'"' + b"x" * 15 + b"\x01" + b'"',
        b'{"a":\x80}',
    ],
)
def test_edge_case_documents(document):
    same_load(document)
    same_load(document.decode("latin-1"))
    same_load(document.decode("utf-8", "surrogatepass" if b"\xed" in document else "replace"))


def test_the_users_bound_of_digits_holds():
    before = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(700)
    try:
        same_load(b"1" * 701)
        same_load(b"1" * 700)
        same_dump(10**701)
        same_dump(10**698)
    finally:
        sys.set_int_max_str_digits(before)


def test_half_the_recursion_limit_is_no_overflow():
    def at_depth(depth: int) -> Any:
        return at_depth(depth - 1) if depth else load_json(b"[" * 150 + b"]" * 150)

    assert at_depth(sys.getrecursionlimit() // 2)


def test_where_it_is_used():
    class CustomError(Exception):
        pass

    def loads(document: bytes) -> Any:
        raise CustomError

    response = Response(200, content=b'{"a":[1,2.5,"\xc3\xa9"]}')
    assert response.json() == {"a": [1, 2.5, "é"]}
    assert response.json(parse_float=Decimal) == {"a": [1, Decimal("2.5"), "é"]}
    response._loads = loads
    with pytest.raises(CustomError):
        response.json()
    with pytest.raises(json.JSONDecodeError) as caught:
        Response(200, content=b"[1,").json()
    assert (caught.value.doc, caught.value.pos) == ("[1,", 3)
    assert encode_request(json={"a": "é"})[1].wire == '{"a":"é"}'.encode()
    assert ServerSentEvent(data="[1]").json() == [1]
    with pytest.raises(json.JSONDecodeError):
        ServerSentEvent(data="data").json()
    assert ndjson_parser().feed(b'{"a":1}\n[2]\n') == [{"a": 1}, [2]]
    assert Response(200, json=[1.0]).content == b"[1.0]"
