"""Runs the examples with the Towline that is installed in this environment: `python scripts/try_examples.py`.

Those that need other packages (examples/fastapi_service, https_records, llm) are left out without them; examples/deployment
and examples/httparena, which are for Docker, and examples/ci, which is for GitHub, have their own tests only.
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
from run_hello import free_port, running_server, wait_until_open

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


def try_chat() -> None:
    with running_server("app:app", "examples/chat") as port, towline.Client() as client:
        with (
            client.websocket(f"ws://127.0.0.1:{port}/rooms/lobby") as reader,
            client.websocket(f"ws://127.0.0.1:{port}/rooms/lobby") as writer,
        ):
            expect("examples/chat", "joined" in reader.recv_json(10))
            writer.send_json({"id": 1, "text": "hello"})
            expect("examples/chat", reader.recv_json(10) == {"number": 1, "text": "hello"})


def try_files() -> None:
    with tempfile.TemporaryDirectory() as folder:
        port = free_port()
        command = [sys.executable, "examples/files/app.py", folder, "--port", str(port)]
        server = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL)
        try:
            wait_until_open(port, server)
            with towline.Client(base_url=f"http://127.0.0.1:{port}") as client:
                content = os.urandom(1 << 20)
                client.put("/uploads/one.bin", content=content).raise_for_status()
                expect("examples/files", client.get("/files/one.bin").content == content)
        finally:
            server.terminate()
            server.wait(30)


def try_gateway() -> None:
    """examples/gateway in front of the mock of examples/llm."""
    with running_server("mock_endpoint:app", "examples/llm") as mock:
        os.environ["GATEWAY_UPSTREAM"] = f"http://127.0.0.1:{mock}"
        with running_server("app:app", "examples/gateway") as port:
            request = {"model": "mock", "stream": True, "messages": [{"role": "user", "content": "hello"}]}
            url = f"http://127.0.0.1:{port}/v1/chat/completions"
            with towline.Client() as client, client.stream("POST", url, json=request) as response:
                events = [event.data for event in response.iter_sse()]
            expect("examples/gateway", "hello" in "".join(events) and events[-1] == "[DONE]")


def try_fastapi_service() -> None:
    if is_installed("fastapi", "examples/fastapi_service") and is_installed(
        "pytest", "examples/fastapi_service"
    ):
        run(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "examples/fastapi_service")


def try_https_records() -> None:
    if is_installed("dns", "examples/https_records"):
        with running_server("app:app", "examples/api") as port:
            url = f"http://127.0.0.1:{port}/events"
            expect(
                "examples/https_records",
                " 200 " in run(sys.executable, "examples/https_records/https_records.py", url),
            )


def try_llm() -> None:
    for package, script in (("openai", "openai_chat.py"), ("anthropic", "anthropic_chat.py")):
        if is_installed(package, f"examples/llm/{script}"):
            run(sys.executable, f"examples/llm/{script}")


def expect(example: str, holds: bool) -> None:
    if not holds:
        sys.exit(f"{example}: another response was expected")


def is_installed(package: str, example: str) -> bool:
    if importlib.util.find_spec(package) is not None:
        return True
    print(f"{example}: not run without {package}")
    return False


def main() -> int:
    if not Path(towline.__file__).is_relative_to(sys.prefix):
        sys.exit("towline is not the installed one")
    print(run(PROGRAM, "version", "--verbose"), end="")
    print(run(sys.executable, "scripts/run_hello.py", "--brief"), end="")
    for one in (
        try_api,
        try_chat,
        try_fastapi_service,
        try_files,
        try_gateway,
        try_https_records,
        try_llm,
        try_webhooks,
    ):
        one()
    run(PROGRAM, "bench", "--help")
    print("the examples ran")
    return 0


if __name__ == "__main__":
    sys.exit(main())
