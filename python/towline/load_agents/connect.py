"""`towline load --agent --connect HOST:PORT`: an agent that a cluster has started, which connects to its controller."""

from __future__ import annotations

import json
import os
import socket
import stat
import sys
import threading
import time

from .. import _native
from .reception import NAME_VARIABLE, TOKEN_VARIABLE, Address

CONNECTS_WITHIN_S = 60.0


def main(text: str) -> int:
    """Serve the controller at `text` until it closes the connection."""
    try:
        address = Address.parse(text)
        token = os.environ.pop(TOKEN_VARIABLE)
    except (ValueError, KeyError) as error:
        sys.stderr.write(f"towline load --agent --connect: {error}\n")
        return 2
    name = os.environ.get(NAME_VARIABLE) or socket.gethostname()
    try:
        connection = _connected(address)
        connection.sendall(json.dumps({"token": token, "name": name}).encode() + b"\n")
    except OSError as error:
        sys.stderr.write(f"towline load --agent --connect: no connection to {address}: {error}\n")
        return 1
    _end_with_parent()
    sys.stdout.flush()
    os.dup2(connection.fileno(), 0)
    os.dup2(connection.fileno(), 1)
    connection.close()
    return _native.load_main(["--agent"])


def _connected(address: Address) -> socket.socket:
    """A connection to the controller, which may begin to listen later."""
    deadline = time.monotonic() + CONNECTS_WITHIN_S
    while True:
        try:
            connection = socket.create_connection((address.host, address.port), timeout=10.0)
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)
            continue
        connection.settimeout(None)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection


def _end_with_parent() -> None:
    """Ends the process with the worker that has started it, whose end of the input's pipe closes then."""
    if not stat.S_ISFIFO(os.fstat(0).st_mode):
        return
    parent = os.dup(0)

    def watch() -> None:
        while os.read(parent, 64):
            pass
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
