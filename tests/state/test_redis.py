"""Promises of the store on Redis and Valkey alone: lost servers, full servers, passwords, TLS, forks, other programs' keys."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from towline import state as towline_state
from towline.errors import StateError, StateFull, StateUnavailable, UsageError

from tests.support.process import eventually
from tests.support.redis_servers import KINDS, Server, free_port, server

redis = pytest.importorskip("redis")


@pytest.fixture(params=KINDS)
def running(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server that the test may kill."""
    with server(request.param) as started:
        yield started


@pytest.fixture
def own(running: Server) -> Iterator[Any]:
    """The client of another program on the same server."""
    with redis.Redis(unix_socket_path=running.socket) as client:
        yield client


def test_a_lost_server_is_unavailable_and_comes_back(running: Server) -> None:
    with towline_state.open(running.url, timeout=1) as state:
        state.set("a", 1)
        running.stop()
        with pytest.raises(StateUnavailable):
            state.get("a")
        with pytest.raises(StateUnavailable):
            state.subscribe("chat")
        running.start()
        assert state.get("a") is None
        state.set("a", 2)
        with state.subscribe("chat") as messages:
            state.publish("chat", 1)
            message = messages.receive(timeout=20)
            assert message is not None
            assert message.data == 1


def test_a_lost_server_ends_subscriptions(running: Server) -> None:
    """Messages may have been missed, so the subscriber is told; what it had received before is delivered first."""
    with towline_state.open(running.url, timeout=1) as state:
        messages = state.subscribe("chat")
        state.publish("chat", "before")
        source: Any = messages
        eventually(source._source.inbox.is_ready, "message")
        running.stop()
        received = messages.receive(timeout=20)
        assert received is not None
        assert received.data == "before"
        with pytest.raises(StateUnavailable):
            messages.receive(timeout=20)
        messages.close()


def test_a_lost_server_ends_subscriptions_of_a_loop(running: Server) -> None:
    async def main() -> None:
        async with towline_state.open_async(running.url, timeout=1) as state:
            async with state.subscribe("chat") as messages:
                running.stop()
                with pytest.raises(StateUnavailable):
                    await asyncio.wait_for(messages.receive(), 20)
            with pytest.raises(StateUnavailable):
                await state.get("a")
            running.start()
            async with state.subscribe("chat") as messages:
                await state.publish("chat", 1)
                message = await asyncio.wait_for(messages.receive(), 20)
                assert message is not None
                assert message.data == 1

    asyncio.run(main())


def test_a_server_that_hangs_is_unavailable(running: Server) -> None:
    with towline_state.open(running.url, timeout=0.3) as state:
        state.set("a", 1)
        os.kill(running.process.pid, 19)
        try:
            started = time.monotonic()
            with pytest.raises(StateUnavailable, match="may or may not have been made"):
                state.set("a", 2)
            assert 0.3 <= time.monotonic() - started < 10
        finally:
            os.kill(running.process.pid, 18)


def test_a_full_server_is_full_and_changes_nothing(running: Server, own: Any) -> None:
    with towline_state.open(running.url, codec="bytes") as state:
        state.set("a", b"1")
        own.config_set("maxmemory-policy", "noeviction")
        own.config_set("maxmemory", 1)
        for full in (
            lambda: state.set("b", b"2"),
            lambda: state.set_many({"b": b"2", "c": b"3"}),
            lambda: state.increment("n"),
            lambda: state.increment("n", ttl=5),
            lambda: state.sliding_window("w", 5, 10),
        ):
            with pytest.raises(StateFull):
                full()
        assert state.get("a") == b"1"
        assert state.delete("a") == 1
        own.config_set("maxmemory", 0)
        assert list(state.keys()) == []


def test_a_script_is_sent_again_to_a_server_that_forgot_it(running: Server, own: Any) -> None:
    with towline_state.open(running.url) as state:
        assert state.set_if_absent("a", 1)
        own.script_flush()
        assert not state.set_if_absent("a", 2)


def test_other_programs_keys_are_passed_over(running: Server, own: Any) -> None:
    own.rpush("list", 1)
    with towline_state.open(running.url) as state:
        state.set("a", 1)
        assert dict(state.scan()) == {"a": 1}
        with pytest.raises(StateError, match="WRONGTYPE"):
            state.get("list")
        assert own.get("a") == b"1"


def test_the_address_has_a_password_and_a_database() -> None:
    port = free_port()
    with server("redis", "--requirepass", "secret", port=port):
        with towline_state.open(f"redis://:secret@127.0.0.1:{port}/1") as state:
            state.set("a", 1)
        with towline_state.open(f"valkey://:secret@127.0.0.1:{port}/2") as state:
            assert state.get("a") is None
        with towline_state.open(f"redis://:wrong@127.0.0.1:{port}") as state:
            with pytest.raises(StateUnavailable) as caught:
                state.get("a")
            assert "wrong" not in repr(state) + str(caught.value)


@pytest.mark.parametrize("scheme", ["rediss", "valkeys"])
def test_tls(scheme: str, tmp_path: Path) -> None:
    trustme = pytest.importorskip("trustme")
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    certificate.private_key_pem.write_to_path(tmp_path / "key.pem")
    certificate.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    port = free_port()
    files = ("--tls-key-file", f"{tmp_path}/key.pem", "--tls-cert-file", f"{tmp_path}/cert.pem")
    # Debian's Redis has TLS; the wheel's Valkey has not, and their protocols are the same.
    with server("redis", "--tls-port", str(port), *files, "--tls-auth-clients", "no"):
        with towline_state.open(f"{scheme}://127.0.0.1:{port}?ssl_ca_certs={tmp_path}/ca.pem") as state:
            state.set("a", 1)
            assert state.get("a") == 1
        with towline_state.open(f"{scheme}://127.0.0.1:{port}") as state:
            with pytest.raises(StateUnavailable):
                state.get("a")


def test_a_fork_has_its_own_connections(running: Server) -> None:
    with towline_state.open(running.url) as state, state.subscribe("chat") as messages:
        state.set("n", 0)
        children = []
        for _ in range(3):
            pid = os.fork()
            if pid == 0:
                status = 1
                try:
                    for _ in range(100):
                        state.increment("n")
                    with pytest.raises(StateUnavailable, match="belongs to the process"):
                        messages.receive()
                    with state.subscribe("other") as own:
                        state.publish("chat", os.getpid())
                        state.namespace("x").publish("other", 1)
                        assert own.receive(timeout=0.2) is None
                    status = 0
                finally:
                    os._exit(status)
            children.append(pid)
            for _ in range(100):
                state.increment("n")
        assert [os.waitpid(pid, 0)[1] for pid in children] == [0, 0, 0]
        assert state.get("n") == 600
        heard = [messages.receive(timeout=20) for _ in range(3)]
        assert sorted(message.data for message in heard if message) == sorted(children)


def test_threads_share_a_bounded_number_of_connections(running: Server, own: Any) -> None:
    with towline_state.open(running.url, connections=4) as state:
        threads = [
            threading.Thread(target=lambda: [state.increment("n") for _ in range(50)]) for _ in range(16)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert state.get("n") == 800
        assert own.info("clients")["connected_clients"] <= 5


def test_tasks_share_a_bounded_number_of_connections(running: Server, own: Any) -> None:
    async def main() -> None:
        async with towline_state.open_async(running.url, connections=4) as state:
            await asyncio.gather(*(state.increment("n") for _ in range(200)))
            assert await state.get("n") == 200
            assert own.info("clients")["connected_clients"] <= 5

    asyncio.run(main())


def test_a_state_is_used_in_two_loops_one_after_the_other(running: Server) -> None:
    state = towline_state.open_async(running.url)

    async def once() -> int:
        return await state.increment("n")

    assert [asyncio.run(once()) for _ in range(3)] == [1, 2, 3]


def test_subscriptions_share_one_connection(running: Server, own: Any) -> None:
    async def main() -> None:
        async with towline_state.open_async(running.url) as state:
            before = own.info("clients")["connected_clients"]
            subscriptions = [state.subscribe("all", patterns=["x.*"]) for _ in range(100)]
            await asyncio.gather(*(each.__aenter__() for each in subscriptions))
            assert own.info("clients")["connected_clients"] - before <= 2
            assert own.pubsub_numsub("all") == [(b"all", 1)]
            await state.publish("all", 1)
            heard = await asyncio.wait_for(asyncio.gather(*(each.receive() for each in subscriptions)), 20)
            assert [message.data for message in heard if message] == [1] * 100
            await asyncio.gather(*(each.close() for each in subscriptions[1:]))
            assert own.pubsub_numsub("all") == [(b"all", 1)]
            await subscriptions[0].close()
            for _ in range(1000):
                if own.pubsub_numsub("all") == [(b"all", 0)]:
                    break
                await asyncio.sleep(0.01)
            assert own.pubsub_numsub("all") == [(b"all", 0)]

    asyncio.run(main())


def test_cancelling_a_reader_loses_nothing(running: Server) -> None:
    async def main() -> None:
        async with towline_state.open_async(running.url) as state, state.subscribe("n") as messages:
            heard = []
            sender = asyncio.create_task(send(state))
            while len(heard) < 300:
                try:
                    message = await asyncio.wait_for(messages.receive(), 0.001)
                except asyncio.TimeoutError:
                    continue
                assert message is not None
                heard.append(message.data)
            await sender
            assert heard == list(range(300))

    async def send(state: Any) -> None:
        for number in range(300):
            await state.publish("n", number)
            await asyncio.sleep(0.0005)

    asyncio.run(main())


def test_a_cancelled_subscription_is_not_left_behind(running: Server, own: Any) -> None:
    async def main() -> None:
        async with towline_state.open_async(running.url) as state, state.subscribe("kept"):
            os.kill(running.process.pid, 19)
            try:
                with pytest.raises(asyncio.TimeoutError):
                    await asyncio.wait_for(state.subscribe("left").__aenter__(), 0.1)
            finally:
                os.kill(running.process.pid, 18)
            for _ in range(1000):
                if own.pubsub_numsub("left") == [(b"left", 0)]:
                    break
                await asyncio.sleep(0.01)
            assert own.pubsub_numsub("left", "kept") == [(b"left", 0), (b"kept", 1)]

    asyncio.run(main())


def test_info_names_the_server(running: Server) -> None:
    with towline_state.open(running.url) as state:
        info = state.info()
        assert info["server"].startswith(f"{running.kind} ")
        assert info["memory_bytes"] > 0


@pytest.mark.parametrize(
    ("url", "options", "message"),
    [
        ("redis://127.0.0.1:port", {}, "the URL of the store"),
        ("redis://127.0.0.1", {"size": 5}, "has no option 'size'; it has timeout, connections"),
        ("redis://127.0.0.1", {"timeout": 0}, "timeout="),
        ("mongodb://127.0.0.1", {}, "there is no store for mongodb://"),
    ],
)
def test_a_bad_address_or_option_is_a_usage_error(url: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        towline_state.open(url, **options)
    with pytest.raises(UsageError, match=message):
        towline_state.open_async(url, **options)
