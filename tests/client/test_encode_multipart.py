"""multipart/form-data, parsed back by two other parsers."""

from __future__ import annotations

import asyncio
import email.parser
import email.policy
import io
import os
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from python_multipart.multipart import FormParser, parse_options_header
from towline.client.encode import READ_BYTES, encode_request
from towline.client.multipart import MultipartBody, boundary_of
from towline.errors import InvalidHeader


def sent(body: Any) -> bytes:
    return b"".join(body)


def by_python_multipart(body: MultipartBody) -> list[tuple[str, str | None, bytes]]:
    """(name, filename, content) of every part."""
    found: list[tuple[str, str | None, bytes]] = []

    def on_field(field: Any) -> None:
        found.append((field.field_name.decode(), None, field.value or b""))

    def on_file(file: Any) -> None:
        file.file_object.seek(0)
        found.append((file.field_name.decode(), file.file_name.decode(), file.file_object.read()))

    parameters = parse_options_header(body.content_type)[1]
    parser = FormParser("multipart/form-data", on_field, on_file, boundary=parameters[b"boundary"])
    for piece in body:
        parser.write(piece)
    parser.finalize()
    return found


def by_email(body: MultipartBody) -> list[tuple[str | None, str | None, bytes, str]]:
    head = f"Content-Type: {body.content_type}\r\n\r\n".encode()
    message = email.parser.BytesParser(policy=email.policy.HTTP).parsebytes(head + sent(body))
    return [
        (
            part.get_param("name", header="content-disposition"),  # type: ignore[misc]
            part.get_filename(),
            part.get_payload(decode=True),
            part.get_content_type(),
        )
        for part in message.iter_parts()  # type: ignore[attr-defined]
    ]


def test_fields_and_files() -> None:
    fields, body = encode_request(
        data={"a": "1", "list": ["x", 2, None, True], "bytes": b"\xff\r\n"},
        files={"file": ("a.txt", b"content\r\n--not"), "other": ("b.bin", io.BytesIO(b"\0" * 100))},
    )
    assert isinstance(body, MultipartBody)
    content = sent(body)
    assert fields == [("Content-Length", str(len(content))), ("Content-Type", body.content_type)]
    assert by_python_multipart(body) == [
        ("a", None, b"1"),
        ("list", None, b"x"),
        ("list", None, b"2"),
        ("list", None, b""),
        ("list", None, b"true"),
        ("bytes", None, b"\xff\r\n"),
        ("file", "a.txt", b"content\r\n--not"),
        ("other", "b.bin", b"\0" * 100),
    ]
    assert by_email(body)[6:] == [
        ("file", "a.txt", b"content\r\n--not", "text/plain"),
        ("other", "b.bin", b"\0" * 100, "application/octet-stream"),
    ]


FILES: list[Any] = [
    {"file": b"bytes"},
    {"file": "text é"},
    {"file": io.BytesIO(b"file")},
    {"file": ("name.txt", "text")},
    {"file": (None, b"no name")},
    {"file": ("", b"no name")},
    {"file": ("name", b"x", "text/plain; charset=x")},
    {"file": ("name.html", b"x", None)},
    {"file": ("name", b"x", "a/b", {"X-Part": "1"})},
    {"file": ("name", b"x", "a/b", {"content-type": "c/d"})},
    [("file", b"1"), ("file", ("two", b"2"))],
    {"file": (Path("a") / "b.png").name},
    {"ä": ("ü.bin", b"x")},
]


@pytest.mark.parametrize("files", FILES)
def test_the_same_bytes_as_httpx(files: Any) -> None:
    headers = {"Content-Type": "multipart/form-data; boundary=edge"}
    expected = httpx.Request("POST", "http://x", data={"a": ["1", "2"]}, files=files, headers=headers)
    fields, body = encode_request(data={"a": ["1", "2"]}, files=files, boundary="edge")
    assert sent(body) == expected.read()
    assert fields[0] == ("Content-Length", expected.headers["Content-Length"])


@given(name=st.text(min_size=1), filename=st.text(min_size=1))
def test_no_name_breaks_out_of_its_field(name: str, filename: str) -> None:
    if any(0xD800 <= ord(char) < 0xE000 for char in name + filename):
        return
    body = MultipartBody({}, {name: (filename, b"x")})
    head = sent(body).split(b"\r\n\r\n")[0].split(b"\r\n")
    assert len(head) == 3
    disposition = head[1].decode()
    escaped = [
        text.replace('"', "%22").replace("\r", "%0D").replace("\n", "%0A") for text in (name, filename)
    ]
    assert disposition == f'Content-Disposition: form-data; name="{escaped[0]}"; filename="{escaped[1]}"'


def test_a_parts_header_cannot_bring_others() -> None:
    for headers in ({"X": "1\r\nY: 2"}, {"X\r\nY": "1"}):
        with pytest.raises(InvalidHeader):
            MultipartBody({}, {"file": ("n", b"x", "a/b", headers)})
    with pytest.raises(InvalidHeader):
        MultipartBody({}, {"file": ("n", b"x", "a/b\r\nY: 2")})


def test_files_are_sent_completely_and_again(tmp_path: Path) -> None:
    with (tmp_path / "file").open("w+b") as file:
        file.write(b"x" * 200_000)  # and its position is at the end
        _, body = encode_request(files={"file": file})
        assert body.replayable
        first, second = sent(body), sent(body)
    assert first == second
    assert len(first) == body.size
    assert by_size(body) <= 65_536


def by_size(body: Any) -> int:
    reopened = MultipartBody({}, {"file": io.BytesIO(bytes(200_000))})
    return max(len(piece) for piece in reopened)


def test_a_file_that_cannot_seek_makes_it_chunked() -> None:
    reading, writing = os.pipe()
    os.write(writing, b"piped")
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        fields, body = encode_request(files={"file": ("name", pipe)})
        assert fields[0] == ("Transfer-Encoding", "chunked")
        assert (body.size, body.replayable) == (None, False)
        assert b"\r\n\r\npiped\r\n--" in sent(body)


def test_small_forms_in_memory_go_in_one_piece() -> None:
    body = MultipartBody({"a": "1"}, {"f": ("n", b"x")})
    assert isinstance(body.wire, bytes)
    assert not isinstance(MultipartBody({}, {"f": ("n", bytes(100_000))}).wire, bytes)


def test_content_in_memory_is_not_copied() -> None:
    data = bytes(1_000_000)
    assert any(piece is data for piece in MultipartBody({}, {"f": ("n", data)}))


def test_a_file_is_read_once_and_never_held_in_memory() -> None:
    """Work that grows with the size only: every byte is read once, in chunks, and passed on unchanged."""
    size = 16 << 20
    reads: list[bytes] = []

    class Counting(io.BytesIO):
        def read(self, n: int | None = -1, /) -> bytes:
            reads.append(super().read(n))
            return reads[-1]

    body = MultipartBody({}, {"f": ("n", Counting(bytes(size)))})
    assert not reads
    largest = 0
    for passed, piece in enumerate(body):
        read = sum(map(len, reads))
        largest = max(largest, len(piece))
        assert len(reads) <= passed + 1
        assert not reads or piece is reads[-1] or len(piece) < 200
    assert read == size
    assert largest == READ_BYTES
    assert len(reads) <= size // READ_BYTES + 1


@pytest.mark.parametrize("files", [{"f": 5}, {"f": io.StringIO("text")}, {"f": ("a", b"", "t", {}, 1)}])
def test_an_invalid_file_is_refused(files: Any) -> None:
    with pytest.raises(TypeError):
        MultipartBody({}, files)


@pytest.mark.parametrize("data", [{1: "a"}, {"a": {"b": 1}}, {"a": object()}])
def test_an_invalid_field_is_refused(data: Any) -> None:
    with pytest.raises(TypeError):
        MultipartBody(data, {"f": b""})


def test_boundaries() -> None:
    bodies = [MultipartBody({}, {"f": b""}) for _ in range(100)]
    assert len({body.boundary for body in bodies}) == 100
    assert boundary_of(bodies[0].content_type) == bodies[0].boundary
    assert boundary_of('multipart/form-data; charset=x; boundary="a b"') == "a b"
    assert boundary_of("multipart/mixed; boundary=a") is None
    assert boundary_of("multipart/form-data") is None
    assert boundary_of(None) is None
    assert MultipartBody({}, {"f": b""}, "a b").content_type == 'multipart/form-data; boundary="a b"'
    for bad in ("a\r\nb", 'a"b', "x" * 71, "é", "a "):
        with pytest.raises(ValueError):
            MultipartBody({}, {"f": b""}, bad)


def test_asynchronously() -> None:
    body = MultipartBody({"a": "1"}, {"f": io.BytesIO(b"x")})

    async def collect() -> bytes:
        return b"".join([piece async for piece in body])

    assert asyncio.run(collect()) == sent(body)
