"""One client and many threads."""

from __future__ import annotations

import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import towline
from towline import errors

from tests.support.http1_peer import OK, echo_path, read_head, respond_with, scripted, serving
from tests.support.process import python


def test_each_of_forty_threads_gets_its_own_response() -> None:
    with scripted(echo_path) as server, towline.Client() as client, ThreadPoolExecutor(40) as threads:

        def calls(thread: int) -> None:
            for number in range(50):
                path = f"/{thread}/{number}"
                assert client.get(server.url + path).text == path

        list(threads.map(calls, range(40)))
        status = client.pool_status()
        assert status["active"] == status["waiting"] == status["connecting"] == 0
        assert 1 <= status["idle"] <= 40
        # A dial may be overtaken by a connection that became free.
        assert server.connections <= 80


def test_more_threads_than_connections_wait_in_order() -> None:
    limits = towline.Limits(max_connections=3)
    with (
        scripted(echo_path) as server,
        towline.Client(limits=limits) as client,
        ThreadPoolExecutor(40) as threads,
    ):
        responses = threads.map(lambda n: client.get(f"{server.url}/{n}").text, range(400))
        assert list(responses) == [f"/{n}" for n in range(400)]
        assert server.connections == 3


def test_two_hundred_threads_stream_at_once() -> None:
    body = bytes(range(256)) * 1024
    response = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body
    limits = towline.Limits(max_connections_per_host=200)
    barrier = threading.Barrier(200)

    with scripted(respond_with(response)) as server, towline.Client(limits=limits) as client:

        def stream(_: int) -> bool:
            barrier.wait(30)
            with client.stream("GET", server.url) as response:
                return b"".join(response.iter_bytes()) == body

        with ThreadPoolExecutor(200) as threads:
            assert all(threads.map(stream, range(200)))
        assert client.pool_status()["active"] == 0


def test_the_pool_timeout_names_itself() -> None:
    limits = towline.Limits(max_connections=1)
    timeout = towline.Timeout(pool=0.05)
    with (
        scripted(respond_with(OK)) as server,
        towline.Client(limits=limits, timeout=timeout) as client,
        client.stream("GET", server.url),
        pytest.raises(errors.PoolTimeout) as caught,
    ):
        client.get(server.url)
    assert caught.value.phase == "pool"
    assert caught.value.retryable


def test_close_ends_waiting_threads() -> None:
    limits = towline.Limits(max_connections=1)
    with scripted(respond_with(OK)) as server, towline.Client(limits=limits) as client:
        with client.stream("GET", server.url), ThreadPoolExecutor(1) as threads:
            waiting = threads.submit(client.get, server.url)
            while client.pool_status()["waiting"] == 0:
                pass
            client.close()
            with pytest.raises(errors.ClientClosed):
                waiting.result(10)
        with pytest.raises(errors.ClientClosed):
            client.get(server.url)


def test_a_get_survives_the_keep_alive_race_and_a_post_is_never_doubled() -> None:
    posts: list[bytes] = []

    def one_and_a_half(connection: socket.socket, number: int) -> None:
        posts.append(read_head(connection))
        connection.sendall(OK)
        posts.append(read_head(connection))

    with serving(one_and_a_half) as server, towline.Client() as client:
        for _ in range(100):
            assert client.get(server.url).text == "hello"
        posts.clear()
        with pytest.raises(errors.ServerDisconnected) as caught:
            client.post(server.url)
        assert caught.value.reused
        assert not caught.value.retryable
        assert sum(head.startswith(b"POST") for head in posts) == 1


def test_exit_leaves_no_thread_and_prints_nothing() -> None:
    with scripted(respond_with(OK)) as server:
        done = python(
            """
            import sys, threading, towline, warnings
            warnings.simplefilter("ignore", ResourceWarning)  # the client is left open on purpose
            client = towline.Client()
            workers = [threading.Thread(target=client.get, args=(sys.argv[1],)) for _ in range(8)]
            for worker in workers: worker.start()
            for worker in workers: worker.join()
            assert threading.active_count() == 1
            streamed = client.stream("GET", sys.argv[1]).__enter__()
            stuck = threading.Thread(target=client.get, args=(sys.argv[2],), daemon=True)
            stuck.start()
            """,
            server.url,
            server.url,
        )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
