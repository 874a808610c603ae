"""Network conditions: `rtt=20ms,jitter=2ms,rate=100mbit,loss=0.1%` as text, as an emulator process, and as
measured.

The kernel's netem needs privileges and a module; this emulator needs neither. It is a proxy between client and
server, which every figure must mention. It carries TCP and UDP on one port. TCP's losses are modelled by the delay that
TCP makes of them, and the round trip of a handshake is added to the first request; a datagram of UDP is really lost,
reordered (`reorder=1%`) or repeated (`duplicates=1%`). `queue=5ms` is how long datagrams may wait for the link.

With `packets` it is a network interface in place of a proxy (Linux, root): packets of TCP and UDP alike are delayed and lost, so
that retransmission and congestion control of both are the real ones. `isolate` must come first.

`python -m towline.bench.netem --to HOST:PORT --rtt 20ms ...` runs the emulator by itself (`--help`).
"""

from __future__ import annotations

import ctypes
import re
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from .. import _native
from ._helper_process import HelperFailed, HelperProcess

TIMES_S = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
RATES_BYTES_PER_S = {"kbit": 1e3 / 8, "mbit": 1e6 / 8, "gbit": 1e9 / 8}
MAX_RTT_S = 60.0
MIN_RATE_BYTES_PER_S = 1000.0

ROUND_TRIPS = 30
MEASURED_S = 0.5
"""Duration of the large transfer at the requested rate."""
MAX_TRANSFER_BYTES = 32 << 20
TIMEOUT_S = 30.0
PACKETS = "packets"
_ISOLATED: list[bool] = []
"""State: not empty once this process is in a network of its own."""


class BadConditions(ValueError):
    """The text is invalid; the message says which part, and what would be valid."""


@dataclass(frozen=True)
class Conditions:
    """Conditions of the network between client and server."""

    rtt_s: float = 0.0
    jitter_s: float = 0.0
    """A round trip varies by up to this time."""
    rate_bytes_per_s: float | None = None
    """In each direction, for all connections together."""
    loss: float = 0.0
    """Share of segments and datagrams."""
    reorder: float = 0.0
    """Share of datagrams that arrive after later ones."""
    duplicates: float = 0.0
    """Share of datagrams that arrive twice."""
    queue_s: float | None = None
    """Time that datagrams may wait for the link; a round trip, and at least 10 ms, if None."""
    packets: bool = False
    """Whether the emulator is an interface, which handles packets, in place of a proxy."""

    def options(self, seed: int = 1) -> list[str]:
        """The emulator's options."""
        found = ["--rtt", f"{self.rtt_s * 1e6:.3f}us", "--jitter", f"{self.jitter_s * 1e6:.3f}us"]
        if self.rate_bytes_per_s is not None:
            found += ["--rate", f"{self.rate_bytes_per_s * 8 / 1e3:.3f}kbit"]
        if self.queue_s is not None:
            found += ["--queue", f"{self.queue_s * 1e6:.3f}us"]
        for name in ("loss", "reorder", "duplicates"):
            found += [f"--{name}", f"{getattr(self, name) * 100:.6f}%"]
        return [*found, "--seed", str(seed)]


@dataclass(frozen=True)
class Measured:
    """Measured behaviour of the emulator by itself."""

    rtt_s: float
    """Median of small exchanges."""
    rtt_least_s: float
    rtt_most_s: float
    rate_bytes_per_s: float
    """Rate of one large transfer."""


def parse(text: str) -> Conditions:
    """`rtt=20ms,jitter=2ms,rate=100mbit,loss=0.1%`, each at most once. Raises BadConditions."""
    given: dict[str, float] = {}
    parts = [part.strip() for part in text.split(",")]
    packets = PACKETS in parts
    for part in filter(None, parts):
        if part == PACKETS:
            continue
        name, equals, value = (word.strip() for word in part.partition("="))
        if name not in READERS or not equals:
            raise BadConditions(
                f"{part!r}: use {', '.join(f'{key}=...' for key in READERS)}, {PACKETS}, joined by commas"
            )
        if name in given:
            raise BadConditions(f"{name} is given twice")
        given[name] = READERS[name](value)
    if not given:
        raise BadConditions("no conditions: use, for example, rtt=20ms,jitter=2ms,rate=100mbit")
    if given.get("jitter", 0.0) > given.get("rtt", 0.0):
        raise BadConditions("jitter cannot be more than rtt: nothing arrives before it was sent")
    names = {"rtt": "rtt_s", "jitter": "jitter_s", "rate": "rate_bytes_per_s", "queue": "queue_s"}
    return Conditions(packets=packets, **{names.get(name, name): value for name, value in given.items()})


def _quantity(text: str, units: dict[str, float]) -> float | None:
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?([a-z]+)", text)
    return float(found[1]) * units[found[2]] if found and found[2] in units else None


def _time(text: str) -> float:
    found = _quantity(text, TIMES_S)
    if found is None or found > MAX_RTT_S:
        raise BadConditions(f"{text!r} is not a time up to {MAX_RTT_S:.0f}s: write 500us, 20ms or 1.5s")
    return found


def _rate(text: str) -> float:
    found = _quantity(text, RATES_BYTES_PER_S)
    if found is None or found < MIN_RATE_BYTES_PER_S:
        raise BadConditions(f"{text!r} is not a rate of 8kbit or more: write 512kbit, 100mbit or 1gbit")
    return found


def _share(text: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?%", text)
    if found is None or float(found[1]) > 50:
        raise BadConditions(f"{text!r} is not a share up to 50%: write 0.1%")
    return float(found[1]) / 100


READERS = {
    "rtt": _time,
    "jitter": _time,
    "rate": _rate,
    "loss": _share,
    "reorder": _share,
    "duplicates": _share,
    "queue": _time,
}


class Netem(HelperProcess):
    """A network emulator in front of `to` ("127.0.0.1:8000"), in a process of its own."""

    def __init__(
        self, to: str, conditions: Conditions, *, seed: int = 1, cores: Sequence[int] | None = None
    ) -> None:
        interface: list[str] = []
        if conditions.packets:
            port = int(to.rpartition(":")[2])
            name, own = f"towline{port}", _own_address(port)
            to, interface = f"{own}:{port}", ["--interface", name]
        options = ("--to", to, *interface, *conditions.options(seed))
        super().__init__(sys.executable, "-m", "towline.bench.netem", *options, cores=cores)
        if conditions.packets:
            try:
                _ip("address", "add", f"{own}/30", "dev", name)
                _ip("link", "set", name, "up")
            except HelperFailed:
                self.stop()
                raise

    @property
    def host(self) -> str:
        """The host at which the server is reached."""
        return self.address.rpartition(":")[0]

    def __enter__(self) -> Netem:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def isolate() -> None:
    """Moves this thread, and all processes that it starts from now on, into a network of its own, in which interfaces
    may be made. Raises `BadConditions` without the rights."""
    if _ISOLATED:
        return
    clone_newnet = 0x40000000
    unshare = getattr(ctypes.CDLL(None, use_errno=True), "unshare", None)
    if unshare is None or unshare(clone_newnet) != 0:
        raise BadConditions(f"{PACKETS} needs Linux and root: leave it out for a proxy in its place")
    _ISOLATED.append(True)
    try:
        _ip("link", "set", "lo", "up")
    except HelperFailed as error:
        raise BadConditions(f"{PACKETS}: {error}") from None


def _own_address(port: int) -> str:
    """The first address of a network of four in 198.18.0.0/16, which is for benchmarks (RFC 2544 C.2.2)."""
    number = port % 16_384 * 4
    return f"198.18.{number >> 8}.{(number & 255) + 1}"


def _ip(*arguments: str) -> None:
    try:
        done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    except OSError as error:
        raise HelperFailed(f"the program ip (iproute2): {error.strerror}") from None
    if done.returncode:
        raise HelperFailed(f"ip {' '.join(arguments)}: {done.stderr.strip()}")


def measure(conditions: Conditions, *, seed: int = 1, cores: Sequence[int] | None = None) -> Measured:
    """Runs an emulator with these conditions in front of a server in this process, and times it. Takes a second or
    two."""
    size = min(int((conditions.rate_bytes_per_s or 1e12) * MEASURED_S), MAX_TRANSFER_BYTES)
    with socket.create_server(("0.0.0.0" if conditions.packets else "127.0.0.1", 0)) as listener:
        threading.Thread(target=_serve, args=(listener, size), daemon=True).start()
        with Netem(f"127.0.0.1:{listener.getsockname()[1]}", conditions, seed=seed, cores=cores) as netem:
            with socket.create_connection((netem.host, netem.port), TIMEOUT_S) as client:
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                _round_trip(client, b"x")  # the handshake's round trip belongs to this one
                times = sorted(_round_trip(client, b"x") for _ in range(ROUND_TRIPS))
                rate = _transfer(client, size)
    return Measured(statistics.median(times), times[0], times[-1], rate)


def _serve(listener: socket.socket, size: int) -> None:
    """Echoes each x, and sends `size` bytes for an l."""
    with listener.accept()[0] as peer:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            while requested := peer.recv(1):
                peer.sendall(requested if requested == b"x" else bytes(size))
        except OSError:
            return  # the network emulator was stopped: the measurement is over or has failed on the other side


def _round_trip(client: socket.socket, message: bytes) -> float:
    began = time.perf_counter()
    client.sendall(message)
    if client.recv(1) != message:
        raise ConnectionError("the network emulator closed the connection under measurement")
    return time.perf_counter() - began


def _transfer(client: socket.socket, size: int) -> float:
    """Measured from the first byte, without the round trip."""
    client.sendall(b"l")
    first = received = len(client.recv(1 << 20))
    began = time.perf_counter()
    while received < size:
        data = client.recv(1 << 20)
        if not data:
            raise ConnectionError("the network emulator closed the connection under measurement")
        received += len(data)
    return (received - first) / (time.perf_counter() - began)


if __name__ == "__main__":
    sys.exit(_native.netem_main(sys.argv[1:]))
