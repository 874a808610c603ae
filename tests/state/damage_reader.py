"""Reads and changes everything in the stores of its arguments, each in a process of its own.

Prints a line for each: `right`, what else was found, the `StateError` that stopped it, or the signal that ended it.
"""

from __future__ import annotations

import os
import sys

import towline.state

COUNT = 150


def value(number: int) -> str:
    """Some values are longer than a page."""
    return f"{number}-" * (2000 if number % 20 == 0 else 40)


def fill(path: str) -> None:
    with towline.state.open(path, size=1 << 20) as state:
        for number in range(COUNT * 2):
            state.set(f"key-{number:04}", value(number), ttl=3600 if number % 3 == 0 else None)
        for number in range(COUNT, COUNT * 2):  # leaves a list of free pages
            state.delete(f"key-{number:04}")
        for number in range(20):
            state.publish("channel", "x" * number * 100)


def read(path: str) -> None:
    try:
        with towline.state.open(path) as state:
            found = dict(state.scan())
            assert found.keys() <= {f"key-{number:04}" for number in range(COUNT * 2)}, "foreign keys"
            missing = sum(found.get(f"key-{number:04}") is None for number in range(COUNT))
            wrong = sum(found.get(f"key-{number:04}") != value(number) for number in range(COUNT)) - missing
            for number in range(COUNT):
                state.set(f"key-{number:04}", value(number + 1), ttl=60)
                state.publish("channel", number)
            state.clear()
    except towline.state.StateError as error:
        print(f"{type(error).__name__}: {error}")
    else:
        print("right" if not missing + wrong else f"{missing} values missing, {wrong} wrong")


def main(paths: list[str]) -> None:
    for path in paths:
        sys.stdout.flush()
        child = os.fork()
        if not child:
            read(path)
            sys.stdout.flush()
            os._exit(0)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status:
            print(f"exit status {status}")


if __name__ == "__main__":
    main(sys.argv[1:])
