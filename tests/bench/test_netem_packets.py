"""The emulator as a network interface: packets of TCP and UDP, in a network namespace of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import json, socket, sys, threading
from towline.bench import netem
netem.isolate()
conditions = netem.parse(sys.argv[1])
server = socket.socket(type=socket.SOCK_DGRAM)
server.bind(("0.0.0.0", 0))

def echo():
    while True:
        data, source = server.recvfrom(2048)
        server.sendto(data, source)

threading.Thread(target=echo, daemon=True).start()
with netem.Netem(f"127.0.0.1:{server.getsockname()[1]}", conditions) as emulator:
    client = socket.socket(type=socket.SOCK_DGRAM)
    client.connect((emulator.host, emulator.port))
    client.settimeout(0.5)
    came = 0
    for number in range(300):
        client.send(bytes(1000))
        if number % 20 == 19:
            try:
                while True:
                    client.recv(2048)
                    came += 1
            except TimeoutError:
                pass
found = netem.measure(conditions)
print(json.dumps({"came": came, "rtt": found.rtt_least_s, "rate": found.rate_bytes_per_s}))
"""
# Interfaces and namespaces belong to root; a container may lack the device or the rights all the same.
pytestmark = [
    pytest.mark.skipif(sys.platform != "linux" or os.getuid() != 0, reason="needs root on Linux"),
    pytest.mark.skipif(not Path("/dev/net/tun").exists(), reason="there is no /dev/net/tun"),
    pytest.mark.skipif(shutil.which("ip") is None, reason="iproute2 is not installed"),
]


def run(conditions: str) -> dict[str, float]:
    command = [sys.executable, "-c", PROGRAM, conditions]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if "Operation not permitted" in done.stderr:
        pytest.skip("the rights to make an interface are missing")
    assert done.returncode == 0, done.stderr
    found: dict[str, float] = json.loads(done.stdout)
    return found


def test_packets_of_both_protocols_take_their_time_and_pass() -> None:
    found = run("rtt=20ms,packets")
    assert found["came"] == 300
    assert found["rtt"] >= 0.0199


def test_losses_and_a_rate() -> None:
    found = run("rtt=4ms,loss=10%,rate=40mbit,packets")
    # Nine tenths in each direction.
    assert 200 <= found["came"] <= 280
    assert found["rate"] < 5.2e6
