"""examples/files as users run it: uploads that end early, are too large or race with readers; ranges and conditions."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.process import MAX_WAIT, eventually

SCRIPT = Path(__file__).parents[2] / "examples" / "files" / "app.py"
MIB = 1 << 20
MAX_BYTES = 64 * MIB
CONTENT = bytes(range(256)) * (8 * MIB // 256)


class Service:
    def __init__(self, directory: Path, port: int) -> None:
        self.directory, self.port = directory, port

    def call(
        self, method: str, path: str, body: Any = None, **headers: str
    ) -> tuple[int, http.client.HTTPMessage, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=MAX_WAIT)
        try:
            fields = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, path, body, fields, encode_chunked="transfer-encoding" in fields)
            response = connection.getresponse()
            return response.status, response.headers, response.read()
        finally:
            connection.close()

    def put(self, name: str, body: Any, **headers: str) -> int:
        return self.call("PUT", f"/uploads/{name}", body, **headers)[0]

    def get(self, name: str, **headers: str) -> tuple[int, http.client.HTTPMessage, bytes]:
        return self.call("GET", f"/files/{name}", **headers)

    def parts(self) -> list[Path]:
        return list(self.directory.glob(".part-*"))

    @contextlib.contextmanager
    def begun(self, name: str, length: int, sent: bytes) -> Iterator[socket.socket]:
        """An upload of which `sent` has arrived."""
        with socket.create_connection(("127.0.0.1", self.port), MAX_WAIT) as sock:
            sock.sendall(
                f"PUT /uploads/{name} HTTP/1.1\r\nhost: test\r\ncontent-length: {length}\r\n\r\n".encode()
            )
            sock.sendall(sent)
            eventually(self.parts, "the part")
            yield sock


@contextlib.contextmanager
def running(directory: Path) -> Iterator[Service]:
    command = [sys.executable, str(SCRIPT), str(directory), "--port", "0", "--max-bytes", str(MAX_BYTES)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    lines: list[str] = []
    assert process.stderr
    reader = threading.Thread(target=lines.extend, args=(process.stderr,), daemon=True)
    reader.start()
    try:
        eventually(
            lambda: re.search(r"http://127\.0\.0\.1:\d+", "".join(lines)) or process.poll() is not None,
            "start",
        )
        found = re.search(r"http://127\.0\.0\.1:(\d+)", "".join(lines))
        assert found, "".join(lines)
        yield Service(directory, int(found[1]))
    except BaseException:
        sys.stderr.write("".join(lines))
        raise
    finally:
        process.send_signal(signal.SIGQUIT)
        process.wait(MAX_WAIT)
        reader.join(MAX_WAIT)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with running(tmp_path_factory.mktemp("shared") / "new") as one:
        yield one


def test_an_upload_is_a_file_and_its_digest_is_right(service: Service) -> None:
    status, headers, text = service.call("PUT", "/uploads/whole.bin", CONTENT)
    digest = hashlib.sha256(CONTENT).hexdigest()
    assert (status, json.loads(text)) == (201, {"name": "whole.bin", "bytes": len(CONTENT), "sha256": digest})
    assert headers["location"] == "/files/whole.bin"
    status, headers, content = service.get("whole.bin")
    assert (status, content) == (200, CONTENT)
    assert headers["x-content-type-options"] == "nosniff"
    assert service.parts() == []
    assert service.call("DELETE", "/uploads/whole.bin")[0] == 200
    assert service.call("DELETE", "/uploads/whole.bin")[0] == 404
    assert service.get("whole.bin")[0] == 404


def test_an_upload_without_a_length(service: Service) -> None:
    pieces = (CONTENT[at : at + 100_000] for at in range(0, len(CONTENT), 100_000))
    assert service.put("chunked.bin", pieces, transfer_encoding="chunked") == 201
    assert service.get("chunked.bin")[2] == CONTENT


def test_ranges_and_conditions(service: Service) -> None:
    assert service.put("parts.bin", CONTENT) == 201
    os.utime(service.directory / "parts.bin", (1_700_000_000, 1_700_000_000))  # old enough for a strong tag
    status, headers, content = service.get("parts.bin", range="bytes=1000-1999")
    assert (status, content) == (206, CONTENT[1000:2000])
    assert headers["content-range"] == f"bytes 1000-1999/{len(CONTENT)}"
    tag = headers["etag"]
    assert service.get("parts.bin", if_none_match=tag)[0] == 304
    assert service.get("parts.bin", range="bytes=0-9", if_range=tag)[2] == CONTENT[:10]
    assert service.put("parts.bin", CONTENT[::-1]) == 201
    # The file has been replaced: the range of the old one is not mixed with the new one.
    status, _, content = service.get("parts.bin", range="bytes=0-9", if_range=tag)
    assert (status, content) == (200, CONTENT[::-1])
    assert service.get("parts.bin", range="bytes=99999999-")[0] == 416


def test_a_reader_sees_the_old_file_until_the_new_one_is_whole(service: Service) -> None:
    assert service.put("replaced.bin", b"old") == 201
    with service.begun("replaced.bin", len(CONTENT), CONTENT[: 4 * MIB]) as sock:
        assert service.get("replaced.bin")[2] == b"old"
        sock.sendall(CONTENT[4 * MIB :])
        assert sock.recv(12) == b"HTTP/1.1 201"
    assert service.get("replaced.bin")[2] == CONTENT


def test_a_client_that_leaves_leaves_nothing(service: Service) -> None:
    with service.begun("left.bin", len(CONTENT), CONTENT[: 2 * MIB]):
        assert service.get(service.parts()[0].name)[0] == 404, "a part is hidden"
    eventually(lambda: not service.parts(), "the removal of the part")
    assert not (service.directory / "left.bin").exists()


def test_new_files_only(service: Service) -> None:
    assert service.put("only.txt", b"first", if_none_match="*") == 201
    assert service.put("only.txt", b"second", if_none_match="*") == 412
    # Two at once: the second one learns it when it is whole.
    with service.begun("race.txt", 10, b"slow ") as slow:
        assert service.put("race.txt", b"quick", if_none_match="*") == 201
        slow.sendall(b"slow ")
        assert slow.recv(12) == b"HTTP/1.1 201"  # without the condition it replaces
    assert service.get("only.txt")[2] == b"first"
    assert service.get("race.txt")[2] == b"slow slow "
    assert service.parts() == []


def test_an_upload_that_is_too_large(service: Service) -> None:
    with socket.create_connection(("127.0.0.1", service.port), MAX_WAIT) as sock:
        sock.sendall(
            b"PUT /uploads/large.bin HTTP/1.1\r\nhost: test\r\ncontent-length: %d\r\n\r\n" % (MAX_BYTES + 1)
        )
        assert sock.recv(12) == b"HTTP/1.1 413"  # before its first byte
    with socket.create_connection(("127.0.0.1", service.port), MAX_WAIT) as sock:
        sock.sendall(b"PUT /uploads/large.bin HTTP/1.1\r\nhost: test\r\ntransfer-encoding: chunked\r\n\r\n")
        with contextlib.suppress(OSError):
            for _ in range(MAX_BYTES // MIB + 1):
                sock.sendall(b"%x\r\n%s\r\n" % (MIB, bytes(MIB)))
        with contextlib.suppress(ConnectionResetError):
            assert sock.recv(12) in (b"HTTP/1.1 413", b"")
    eventually(lambda: not service.parts(), "the removal of the part")
    assert not (service.directory / "large.bin").exists()


@pytest.mark.parametrize(
    "name", [".hidden", "a/b", "..%2fescape", "%2e%2e", "", "x" * 201, "a b", "style.css.gz"]
)
def test_wrong_names_write_nothing(service: Service, name: str) -> None:
    before = sorted(service.directory.parent.rglob("*"))
    assert service.put(name.replace(" ", "%20"), b"content") in (400, 404)
    assert sorted(service.directory.parent.rglob("*")) == before


def test_other_methods(service: Service) -> None:
    assert service.call("GET", "/uploads/some.txt")[1]["allow"] == "PUT, DELETE"
    assert service.call("POST", "/files/some.txt", b"")[0] == 405
    assert service.call("GET", "/")[0] == 404


@pytest.mark.parametrize(
    "arguments", [[], ["/dev/null/no"], [".", "--port", "none"], [".", "--max-bytes", "1 GB"]]
)
def test_wrong_arguments_are_refused_at_the_start(arguments: list[str]) -> None:
    done = subprocess.run([sys.executable, SCRIPT, *arguments], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "usage: " in done.stderr
    assert "Traceback" not in done.stderr
