"""The task that a cluster runs on a node. It is sent there by value, so that it needs no module of this package there."""

from __future__ import annotations

from collections.abc import Callable


def agent_task() -> Callable[[str, dict[str, str]], None]:
    """A function that runs an agent to its end, and raises with its last words if it fails."""

    def run_agent(address: str, variables: dict[str, str]) -> None:
        import os
        import subprocess
        import sys

        command = [sys.executable, "-m", "towline", "load", "--agent", "--connect", address]
        # The pipe to its input ends the agent with this process.
        agent = subprocess.Popen(
            command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, **variables}
        )
        assert agent.stdin is not None
        assert agent.stderr is not None
        try:
            words = agent.stderr.read()
            status = agent.wait()
        finally:
            agent.kill()
            agent.wait()
            agent.stdin.close()
            agent.stderr.close()
        if status != 0:
            last = words.decode(errors="replace").strip()[-500:]
            raise RuntimeError(f"the agent ended with status {status}: {last}")

    return run_agent
