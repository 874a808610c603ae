"""fork(2) with a warm connection: a child never uses its parent's sockets."""

from __future__ import annotations

import os
import socket

import pytest
import towline

from tests.support.http1_peer import read_head, serving


def _named(connection: socket.socket, number: int) -> None:
    """Responds with the connection's number and the path."""
    while head := read_head(connection):
        text = b"%d %b" % (number, head.split(b" ")[1])
        connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(text), text))


def _in_child(check: object) -> int:
    child = os.fork()
    if child == 0:
        status = 1
        try:
            check()  # type: ignore[operator]
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_parent_and_child_use_connections_of_their_own() -> None:
    with serving(_named) as server, towline.Client() as client:
        assert client.get(server.url + "/before").text == "0 /before"

        def child() -> None:
            for number in range(3):
                connection, path = client.get(f"{server.url}/{number}").text.split()
                assert connection != "0"
                assert path == f"/{number}"
            client.close()

        for _ in range(3):
            assert _in_child(child) == 0
            response = client.get(server.url + "/after")
            assert response.text == "0 /after"
            assert response.reused


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_an_open_response_stays_with_the_parent() -> None:
    body = b"x" * 300_000

    def large(connection: socket.socket, number: int) -> None:
        while read_head(connection):
            connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))

    with serving(large) as server, towline.Client() as client, client.stream("GET", server.url) as response:
        first = response.read(10)

        def child() -> None:
            with pytest.raises(towline.TransportError):
                response.read(65536)
            response.close()
            client.close()

        assert _in_child(child) == 0
        pieces = [first]
        while pieces[-1]:
            pieces.append(response.read(65536))
        assert b"".join(pieces) == body
