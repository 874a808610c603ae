"""The examples with the vendors' SDKs run unchanged; `pip install --group sdks` installs the SDKs."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "llm"
STREAMED = "You| said:| Good| morning,| how| are| you?|"


def run(name):
    program = [sys.executable, str(EXAMPLES / name)]
    return subprocess.run(program, capture_output=True, text=True, timeout=200, check=True).stdout


def test_openai():
    pytest.importorskip("openai")
    out = run("openai_chat.py")
    assert "whole:     You said: Good morning, how are you?\n" in out
    assert STREAMED in out
    assert "after 429: You said: Good morning, how are you?\n" in out
    assert "response:  You said: Good evening\n" in out
    assert "streamed:  You| said:| Good| night|\n" in out
    assert "at once:   1 kind\n" in out


def test_anthropic():
    pytest.importorskip("anthropic")
    out = run("anthropic_chat.py")
    assert "whole:     You said: Good morning, how are you?\n" in out
    assert out.count(STREAMED) == 2
    assert "stopped by end_turn\n" in out
    assert "after 429: You said: Good morning, how are you?\n" in out
    assert "at once:   1 kind\n" in out
