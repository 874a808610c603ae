"""The native responder as a process, and that it ends with its parent."""

import json
import resource
import signal
import subprocess
import sys
import urllib.request

import pytest
import towline
from towline.bench._helper_process import HelperFailed
from towline.bench.responder import Responder

COMMAND = [sys.executable, "-m", "towline.bench.responder"]


def get(url):
    with urllib.request.urlopen(url, timeout=10) as response:
        return response.read()


def test_it_serves_and_counts_its_cpu_time():
    with Responder("--port", "0") as responder:
        assert responder.alive()
        before = responder.cpu_s()
        assert len(get(f"{responder.base_url}/bytes?n=20000000")) == 20_000_000
        assert responder.cpu_s() > before
    assert not responder.alive()


def test_it_may_hold_many_connections():
    """Independent of the soft limit of descriptors here."""
    with Responder("--port", "0") as responder:
        soft, hard = resource.prlimit(responder.pid, resource.RLIMIT_NOFILE)
        assert (
            soft == resource.RLIM_INFINITY or soft >= min(hard, 65_536) > 0 or hard == resource.RLIM_INFINITY
        )


def test_an_invalid_option_is_an_error():
    with pytest.raises(HelperFailed, match="--nonsense"):
        Responder("--nonsense")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_end_it(number):
    process = subprocess.Popen(COMMAND, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    with process:
        assert process.stdout.readline().startswith("127.0.0.1:")
        process.send_signal(number)
        assert process.wait(20) == 0


def test_each_line_of_its_input_has_a_reply():
    with Responder() as responder:
        first = responder.ask()
        assert first["version"] == towline.__version__
        assert responder.ask()["cpu_s"] >= first["cpu_s"] > 0
        assert responder._process.stdin is not None
        responder._process.stdin.write(b"half a line, \n and two lines\n\nno line")
        responder._process.stdin.flush()
        replies = [json.loads(responder.read_line()) for _ in range(3)]
        assert [reply["version"] for reply in replies] == [towline.__version__] * 3
        responder._process.stdin.close()
        assert responder._process.wait(10) == 0
        assert responder._process.stdout is not None
        assert responder._lines._held + responder._process.stdout.read() == b""


def test_the_end_of_its_input_ends_it():
    process = subprocess.Popen(COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with process:
        assert process.stdout.readline().startswith("127.0.0.1:")
        process.stdin.close()
        assert process.wait(20) == 0
