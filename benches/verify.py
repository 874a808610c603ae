"""Every subject answers every request of a cell once, and rightly, before it gets a number."""

from __future__ import annotations

import http.client
import socket

from benches.cells import Cell


class WrongAnswer(Exception):
    """What the server sent instead; its cell has no figure."""


def verify(cell: Cell, port: int) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        for _ in range(2):  # the second over the kept-alive connection, where the server keeps it
            connection.request(cell.method, cell.path, cell.body or None)
            response = connection.getresponse()
            body = response.read()
            if response.status != 200 or body != cell.expected:
                raise WrongAnswer(f"{response.status} with {len(body)} bytes: {body[:60]!r}")
    except (OSError, http.client.HTTPException) as error:
        raise WrongAnswer(f"no answer: {error!r}") from error
    finally:
        connection.close()
    if cell.pipeline > 1:
        verify_pipelined(cell, port)


def verify_pipelined(cell: Cell, port: int) -> None:
    """As many requests in one write as the cell sends, and as many right answers in order."""
    request = f"{cell.method} {cell.path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(request * cell.pipeline)
        with connection.makefile("rb") as stream:
            for index in range(cell.pipeline):
                try:
                    body = read_response(stream)
                except (OSError, ValueError) as error:
                    raise WrongAnswer(f"pipelined answer {index + 1}: {error}") from error
                if body != cell.expected:
                    raise WrongAnswer(f"pipelined answer {index + 1}: {body[:60]!r}")


def read_response(stream) -> bytes:
    status = stream.readline()
    if b" 200 " not in status:
        raise ValueError(f"status line {status!r}")
    length = None
    while (line := stream.readline().strip()) != b"":
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            length = int(value)
    if length is None:
        raise ValueError("no content-length")
    return stream.read(length)
