"""Runs the examples with the Towline that is installed in this environment: `python scripts/try_examples.py`.

Standard library and Towline only (examples/llm needs its SDKs and is left out without them).
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import towline
from run_hello import running_server

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = str(Path(sys.prefix, "bin", "towline"))


def run(*command: str) -> str:
    print("$", *(Path(command[0]).name, *command[1:]), flush=True)
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode != 0:
        sys.exit(f"status {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


@contextmanager
def webhooks(folder: Path) -> Iterator[towline.Client]:
    """examples/webhooks, which forwards to examples/webhooks/destination.py."""
    with running_server("examples.webhooks.destination:app", ".") as destination:
        os.environ["WEBHOOKS_DESTINATION"] = f"http://127.0.0.1:{destination}"
        os.environ["WEBHOOKS_DATABASE"] = str(folder / "webhooks.sqlite")
        with (
            running_server("examples.webhooks.app:app", ".") as port,
            towline.Client(base_url=f"http://127.0.0.1:{port}") as client,
        ):
            yield client


def try_webhooks() -> None:
    with tempfile.TemporaryDirectory() as folder, webhooks(Path(folder)) as client:
        stored = client.post("/api/webhooks/signup", json={"first_name": "Jony"})
        if stored.status_code != 202:
            sys.exit(f"examples/webhooks: status {stored.status_code}")
        deadline = time.monotonic() + 20
        while (status := client.get("/api/status").json()).get("forwarded") != 1:
            if time.monotonic() > deadline:
                sys.exit(f"examples/webhooks: not forwarded: {status}")
            time.sleep(0.1)


def try_api() -> None:
    with running_server("app:app", "examples/api") as port:
        url = f"http://127.0.0.1:{port}"
        if run(PROGRAM, "get", f"{url}/events").count("data: token") != 3:
            sys.exit("examples/api: three events were expected")
        run(PROGRAM, "load", "-n", "200", "-c", "4", "--expect-status", "200", f"{url}/events")


def try_llm() -> None:
    for package, script in (("openai", "openai_chat.py"), ("anthropic", "anthropic_chat.py")):
        if importlib.util.find_spec(package) is None:
            print(f"examples/llm/{script}: not run without {package}")
        else:
            run(sys.executable, f"examples/llm/{script}")


def main() -> int:
    if not Path(towline.__file__).is_relative_to(sys.prefix):
        sys.exit("towline is not the installed one")
    print(run(PROGRAM, "version", "--verbose"), end="")
    print(run(sys.executable, "scripts/run_hello.py", "--brief"), end="")
    try_api()
    try_webhooks()
    try_llm()
    run(PROGRAM, "bench", "--help")
    print("every example ran")
    return 0


if __name__ == "__main__":
    sys.exit(main())
