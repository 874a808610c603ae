"""Kills writers of a store at random instants and checks what they leave: `python -m tests.state.crash_driver DIR KILLS`.

Each writer counts what was acknowledged in memory that it shares with the driver. It transfers between accounts, adds to a
counter of its own, sets a value, and publishes numbers. After each kill:

- the sum of all accounts is what it was: a transfer took place completely or not at all;
- the counter, the value and the messages are those that were acknowledged, or one more, which was under way;
- other writers go on.
"""

from __future__ import annotations

import mmap
import os
import random
import signal
import sys
import time

from towline import _native

ACCOUNTS, MONEY = 16, 1000
WRITERS = 3


def key(text: str) -> bytes:
    return text.encode()


def write_for_ever(store: _native.StateStore, number: int, acknowledged: memoryview, seed: int) -> None:
    """One writer. `acknowledged`: four integers: adds, values, transfers, messages."""
    chance = random.Random(seed)
    counts = [0, 0, 0, 0]
    while True:
        kind = chance.randrange(4)
        if kind == 0:
            store.add(key(f"counter-{number}"), 1)
        elif kind == 1:
            # Sizes change, so that pages split and merge, and large values have pages of their own.
            size = chance.choice((10, 300, 2000, 9000))
            store.set(
                key(f"value-{number}"), b"%d " % (counts[1] + 1) + bytes(size), chance.choice((None, 900.0))
            )
        elif kind == 2:
            if not transfer(store, chance):
                continue
        else:
            message = b"%d %d" % (number, counts[3] + 1)
            store.apply([], [(key(f"sent-{number}"), b"%d" % (counts[3] + 1), None)], [(b"numbers", message)])
        counts[kind] += 1
        acknowledged[kind] = counts[
            kind
        ]  # one store of eight bytes: struct.pack_into would write zeros first


def transfer(store: _native.StateStore, chance: random.Random) -> bool:
    giver, taker = (key(f"account-{each}") for each in chance.sample(range(ACCOUNTS), 2))
    amounts = store.get_many([giver, taker])
    gives, takes = (int(amount or b"0") for amount in amounts)
    checks = [(giver, b"%d" % gives), (taker, b"%d" % takes)]
    writes = [(giver, b"%d" % (gives - 1), None), (taker, b"%d" % (takes + 1), None)]
    return store.apply(checks, writes)


class Writer:
    """A forked writer, and what it has had acknowledged."""

    def __init__(self, path: str, number: int) -> None:
        self.number = number
        self.acknowledged = memoryview(mmap.mmap(-1, 4096)).cast("q")
        self.started_at = time.monotonic()
        self.pid = os.fork()
        if not self.pid:
            try:
                write_for_ever(_native.StateStore(path), number, self.acknowledged, number)
            finally:
                os._exit(1)

    def kill(self) -> list[int]:
        os.kill(self.pid, signal.SIGKILL)
        _, status = os.waitpid(self.pid, 0)
        assert os.WIFSIGNALED(status), f"writer {self.number} ended by itself: {status}"
        return self.acknowledged[:4].tolist()


def check(store: _native.StateStore, number: int, acknowledged: list[int], received: dict[int, int]) -> None:
    adds, values, _, messages = acknowledged
    found = int(store.get(key(f"counter-{number}")) or 0)
    assert adds <= found <= adds + 1, f"counter of {number}: {found}, acknowledged {adds}"
    value = store.get(key(f"value-{number}"))
    found = int(value.split()[0].rstrip(b"\0")) if value else 0
    assert values <= found <= values + 1, f"value of {number}: {found}, acknowledged {values}"
    found = int(store.get(key(f"sent-{number}")) or 0)
    assert messages <= found <= messages + 1, f"messages of {number}: {found}, acknowledged {messages}"
    assert received.get(number, 0) == found, f"{number}: received {received.get(number)} of {found}"
    accounts = store.get_many([key(f"account-{each}") for each in range(ACCOUNTS)])
    total = sum(int(amount or b"0") for amount in accounts)
    assert total == ACCOUNTS * MONEY, f"the accounts have {total}"


def read_all(log: _native.StateLog, received: dict[int, int]) -> None:
    """Every message of a writer comes once, in order, however its writer ended."""
    while True:
        posts, lost, _ = log.read(256, 1 << 20)
        assert not lost, f"{lost} messages lost"
        for _, message in posts:
            number, count = map(int, message.split())
            assert count == received.get(number, 0) + 1, f"{number}: {count} after {received.get(number)}"
            received[number] = count
        if not posts:
            return


def main(path: str, kills: int, seed: int) -> None:
    chance = random.Random(seed)
    store = _native.StateStore(path, size=32 << 20)
    store.apply([], [(key(f"account-{each}"), b"%d" % MONEY, None) for each in range(ACCOUNTS)])
    log, received = store.open_log(), dict[int, int]()
    writers = [Writer(path, number) for number in range(WRITERS)]
    acknowledged = 0
    for number in range(WRITERS, WRITERS + kills):
        time.sleep(chance.uniform(0, 0.006))
        victim = writers.pop(0)
        counts = victim.kill()
        acknowledged += sum(counts)
        read_all(log, received)
        check(store, victim.number, counts, received)
        store.delete([key(f"{kind}-{victim.number}") for kind in ("counter", "value", "sent")])
        received.pop(victim.number, None)
        writers.append(Writer(path, number))
    for writer in writers:
        writer.kill()
    info = store.info()
    print(f"{kills} kills, {acknowledged} acknowledged writes, {info['file_bytes']} bytes of file")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else random.randrange(1 << 30))
