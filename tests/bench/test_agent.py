"""The connection to the generator: its reports, and a generator that hangs, dies or sends garbage."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest
from towline.bench.runner import agent as agents
from towline.bench.runner.agent import Agent, AgentFailed
from towline.bench.runner.protocol import SliceSpec

CONFIG = {"targets": [{"url": "http://127.0.0.1:1/"}], "timeout_s": 0.1, "connect_timeout_s": 0.1}
FAKE = """
import json, os, sys, time
for line in sys.stdin:
    order = json.loads(line)
    if order["op"] == "slice":
        {slice}
    print(json.dumps({{"ok": True, "order": order, "slice": {{"pid": os.getpid()}}}}), flush=True)
"""


def fake(tmp_path: Path, on_slice: str) -> list[str]:
    """A generator that works until its first slice."""
    path = tmp_path / "generator.py"
    path.write_text(FAKE.format(slice=on_slice))
    return [sys.executable, str(path)]


@pytest.fixture(autouse=True)
def short_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agents, "TIMEOUT_S", 1.0)


@pytest.mark.parametrize(
    ("on_slice", "message"),
    [
        ("time.sleep(600)", "did not reply to 'slice' in "),
        (
            "sys.stderr.write('out of memory'); sys.stderr.flush(); os._exit(7)",
            "ended during 'slice' (exit status 7)",
        ),
        ("os.kill(os.getpid(), 9)", "ended during 'slice' (signal SIGKILL)"),
        ("os.write(1, b'hello\\n')", "reply is not JSON: b'hello'"),
    ],
    ids=["hangs", "ends", "is killed", "babbles"],
)
def test_a_failed_generator_is_reported_and_replaced(tmp_path: Path, on_slice: str, message: str) -> None:
    with Agent(command=fake(tmp_path, f"if order['duration_s'] > 0.5: {on_slice}")) as agent:
        agent.open("a", CONFIG)
        first = agent.pid
        with pytest.raises(AgentFailed) as caught:
            agent.slice("a", SliceSpec(0.6))
        assert message in str(caught.value)
        if "exit status 7" in message:
            assert caught.value.log == "out of memory"
        # The next one is another process, with the session reopened.
        assert agent.slice("a", SliceSpec(0.1))["pid"] != first


def test_an_interrupt_does_not_confuse_later_replies(tmp_path: Path) -> None:
    with Agent(command=fake(tmp_path, "time.sleep(order['duration_s'])")) as agent:
        agent.open("a", CONFIG)
        threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            agent.slice("a", SliceSpec(60.0))
        started = time.monotonic()
        assert "pid" in agent.slice("a", SliceSpec(0.01))
        assert time.monotonic() - started < 30


def test_the_real_generator_refuses_invalid_commands_and_stays_usable() -> None:
    with Agent() as agent:
        with pytest.raises(AgentFailed, match="reply to 'open'"):
            agent.open("a", {"targets": []})
        first = agent.pid
        agent.open("b", CONFIG)
        assert agent.pid == first
        report = agent.slice("b", SliceSpec(0.05, 0.0, requests=3))
        one = agents.slice_of(report, "b")
        assert one.answered == 0
        assert one.failed > 0
        assert set(one.errors) == {"connect"}
