"""Machines that share a kernel: network namespaces with an interface (veth) each, whose rate a token bucket limits."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress

NETWORK = "10.213.{number}.{end}"


def run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)


def are_available() -> bool:
    """Whether this user may make them here."""
    if os.getuid() != 0 or shutil.which("ip") is None or shutil.which("tc") is None:
        return False
    name = f"towline-probe-{os.getpid()}"
    probe = subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False)
    if probe.returncode != 0:
        return False
    run("ip", "netns", "delete", name)
    return True


@contextmanager
def machines(count: int, rate: str = "1gbit") -> Iterator[list[tuple[str, str, str]]]:
    """Namespaces with their own address, and that of this machine on the other end of the cable."""
    made = []
    try:
        for number in range(count):
            name, own = f"towline{os.getpid()}n{number}", _interface(number)
            inner, outer = NETWORK.format(number=number, end=2), NETWORK.format(number=number, end=1)
            run("ip", "netns", "add", name)
            made.append((name, inner, outer))
            run("ip", "link", "add", own, "type", "veth", "peer", "name", "eth0", "netns", name)
            run("ip", "address", "add", f"{outer}/30", "dev", own)
            run("ip", "link", "set", own, "up")
            inside = ("ip", "netns", "exec", name)
            run(*inside, "ip", "address", "add", f"{inner}/30", "dev", "eth0")
            run(*inside, "ip", "link", "set", "eth0", "up")
            run(*inside, "ip", "link", "set", "lo", "up")
            run(*inside, "ip", "route", "add", "default", "via", outer)
            bucket = ("rate", rate, "burst", "256kb", "latency", "50ms")
            run(*inside, "tc", "qdisc", "add", "dev", "eth0", "root", "tbf", *bucket)
        yield made
    finally:
        # A process or an orphaned connection can keep a namespace, with the interface in it: the session of an sshd behind a cut
        # cable. So both are removed by themselves.
        for number, (name, _, _) in enumerate(made):
            found = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True, check=False)
            for pid in found.stdout.split():
                with suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            subprocess.run(["ip", "link", "delete", _interface(number)], capture_output=True, check=False)
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)


def _interface(number: int) -> str:
    """The end of a cable on this machine; Linux allows 15 characters."""
    return f"tl{os.getpid() % 100_000}n{number}"
