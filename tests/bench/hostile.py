"""Subjects that misbehave, as small programs: `hostile(folder, source)` makes a definition of one."""

from __future__ import annotations

import os
import sys
import textwrap
from pathlib import Path
from typing import Any

from towline.bench.subjects import Server, load_servers

# A minimal server with a response of hello; `answer` may be replaced by a case.
GOOD = """
import os, signal, socket, sys, threading, time

listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)

def listen():
    listener.bind(("127.0.0.1", int(sys.argv[1])))
    listener.listen(128)

def answer(connection):
    while connection.recv(65536):
        connection.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Length: 7\\r\\n\\r\\nalive\\r\\n")

def one(connection):
    try:
        answer(connection)
    except OSError:
        pass
    finally:
        connection.close()

def serve():
    listen()
    while True:
        threading.Thread(target=one, args=(listener.accept()[0],), daemon=True).start()

def daemon(act):
    # as daemons do it: two forks, a session of its own
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            act()
        os._exit(0)
    os.wait()
"""


def hostile(folder: Path, source: str, name: str = "hostile", **keys: Any) -> Server:
    """The definition of a subject that runs `source` after GOOD's definitions."""
    script = folder / f"{name}.py"
    script.write_text(GOOD + textwrap.dedent(source))
    return define(folder, f"{sys.executable} -S -E {script} {{port}}", name, **keys)


def define(folder: Path, command: str, name: str = "hostile", **keys: Any) -> Server:
    """A definition as a user writes it: in a file."""
    path = folder / f"{name}.toml"
    lines = [f"[{name}]", f"command = {command!r}", *(f"{key} = {value!r}" for key, value in keys.items())]
    path.write_text("\n".join(lines) + "\n")
    return load_servers(path)[name]


def processes_with(text: str) -> list[int]:
    """Processes whose command line or environment contains `text`, without unreaped ended ones."""
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            command_line = (
                Path(f"/proc/{entry}/cmdline").read_bytes() + Path(f"/proc/{entry}/environ").read_bytes()
            )
            state = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if text.encode() in command_line and state not in "ZX" and int(entry) != os.getpid():
            found.append(int(entry))
    return found
