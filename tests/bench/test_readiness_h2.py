"""The readiness request over HTTP/2 compared with an independent implementation, and invalid responses."""

from __future__ import annotations

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import RequestReceived, StreamEnded
from hpack import Encoder
from towline.bench.subjects import readiness_h2


def response(status: int, *fields: tuple[str, str], path: str = "/") -> bytes:
    """The frames that a server sends for the request, which it must understand."""
    server = H2Connection(H2Configuration(client_side=False, header_encoding="ascii"))
    server.initiate_connection()
    events = server.receive_data(readiness_h2.request("127.0.0.1:80", path, secure=False))
    request = next(event for event in events if isinstance(event, RequestReceived))
    assert dict(request.headers) == {
        ":method": "GET",
        ":scheme": "http",
        ":path": path,
        ":authority": "127.0.0.1:80",
    }
    assert any(isinstance(event, StreamEnded) for event in events)
    server.send_headers(1, [(":status", str(status)), *fields])
    server.send_data(1, b"alive", end_stream=True)
    return server.data_to_send()


@pytest.mark.parametrize(
    "status", [200, 204, 304, 404, 500, 201, 299, 301, 345, 418, 429, 503, 567, 599, 986]
)
def test_a_status_is_found_at_every_cut(status: int) -> None:
    wire = response(status, ("content-type", "text/plain"))
    found = [readiness_h2.status(wire[:end]) for end in range(len(wire) + 1)]
    assert found[-1] == status
    assert set(found) == {None, status}
    assert found == sorted(found, key=bool)


@pytest.mark.parametrize("path", ["/", "/health?" + "x" * 112, "/" + "x" * 126, "/" + "x" * 4000])
def test_a_path_of_any_length(path: str) -> None:
    assert readiness_h2.status(response(200, path=path)) == 200


def test_literal_statuses_and_interim_responses() -> None:
    server = H2Connection(H2Configuration(client_side=False))
    server.initiate_connection()
    server.receive_data(readiness_h2.request("a", "/", secure=True))
    server.send_headers(1, [(":status", "103"), ("link", "</a>")])
    assert readiness_h2.status(server.data_to_send()) is None
    encoder = Encoder()
    encoder.header_table_size = 256
    block = encoder.encode(
        [(b":status", b"503", True)], huffman=False
    )  # never indexed, after a new size of the table
    settings = b"\0\0\0\4\0\0\0\0\0"
    wire = settings + len(block).to_bytes(3, "big") + b"\1\4\0\0\0\1" + block
    assert readiness_h2.status(wire) == 503
    padded = (
        settings + (len(block) + 8).to_bytes(3, "big") + b"\1\x2c\0\0\0\1\2" + b"\0" * 5 + block + b"\0\0"
    )
    assert readiness_h2.status(padded) == 503


def test_invalid_responses_are_refused() -> None:
    with pytest.raises(ValueError, match=r"is not HTTP/2: b'HTTP/1\.1 400"):
        readiness_h2.status(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    server = H2Connection(H2Configuration(client_side=False))
    server.initiate_connection()
    server.receive_data(readiness_h2.request("a", "/", secure=False))
    preface = server.data_to_send()
    server.reset_stream(1, ErrorCodes.REFUSED_STREAM)
    with pytest.raises(ValueError, match="it aborted the request with HTTP/2 error 7"):
        readiness_h2.status(preface + server.data_to_send())
    server.close_connection(ErrorCodes.ENHANCE_YOUR_CALM)
    with pytest.raises(ValueError, match="it aborted the request with HTTP/2 error 11"):
        readiness_h2.status(preface + server.data_to_send())
    headers = b"\0\0\1\1\4\0\0\0\1"
    for block in (b"\xbf", b"\x40"):
        with pytest.raises(ValueError, match="does not begin with a status"):
            readiness_h2.status(preface + headers + block)
