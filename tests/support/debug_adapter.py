"""A client of the Debug Adapter Protocol, as an editor is one: requests, their responses, and events."""

from __future__ import annotations

import json
import queue
import socket
import threading
from collections.abc import Callable
from typing import Any

from tests.support.process import MAX_WAIT, eventually


class DebugAdapter:
    """One session: of the process that was started, or of a child that the debugger has announced."""

    def __init__(self, port: int) -> None:
        connected: list[socket.socket] = []
        eventually(
            lambda: _try(lambda: connected.append(socket.create_connection(("127.0.0.1", port)))), "debugpy"
        )
        self._socket = connected[0]
        self._events: queue.Queue[dict[str, Any]] = queue.Queue()
        self._responses: dict[int, dict[str, Any]] = {}
        self._sent = 0
        self.stopped: int | None = None
        """The thread that has last come to a breakpoint."""
        threading.Thread(target=self._read, daemon=True).start()

    def attach(self, path: str, line: int, **arguments: Any) -> None:
        """Take the session over with one breakpoint."""
        self.request(
            "initialize", adapterID="test", pathFormat="path", linesStartAt1=True, columnsStartAt1=True
        )
        attached = self.send("attach", **arguments)
        self.event("initialized")
        self.request("setBreakpoints", source={"path": path}, breakpoints=[{"line": line}])
        self.request("configurationDone")
        self.response(attached)

    def send(self, command: str, **arguments: Any) -> int:
        self._sent += 1
        message = {"seq": self._sent, "type": "request", "command": command, "arguments": arguments}
        body = json.dumps(message).encode()
        self._socket.sendall(b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
        return self._sent

    def response(self, number: int) -> dict[str, Any]:
        eventually(lambda: number in self._responses, f"the response to request {number}")
        response = self._responses[number]
        assert response["success"], response
        body: dict[str, Any] = response.get("body", {})
        return body

    def request(self, command: str, **arguments: Any) -> dict[str, Any]:
        return self.response(self.send(command, **arguments))

    def event(self, name: str) -> dict[str, Any]:
        """The body of the next event of this kind."""
        while True:
            message = self._events.get(timeout=MAX_WAIT)
            if message["event"] == name:
                body: dict[str, Any] = message.get("body", {})
                return body

    def close(self) -> None:
        self._socket.close()

    def _read(self) -> None:
        with self._socket.makefile("rb") as file:
            while line := file.readline():
                length = int(line.partition(b":")[2])
                file.readline()
                message = json.loads(file.read(length))
                if message.get("event") == "stopped":
                    self.stopped = message["body"]["threadId"]
                if message["type"] == "event":
                    self._events.put(message)
                elif message["type"] == "response":
                    self._responses[message["request_seq"]] = message


def _try(action: Callable[[], object]) -> bool:
    try:
        action()
    except OSError:
        return False
    return True
