"""WSGI applications with WebSockets: Flask-Sock, Flask-SocketIO in the mode `threading`, and simple-websocket alone.

`apps:flask` and the others are also programs of their own for `towline serve`.
"""

from __future__ import annotations

import os
import threading
from typing import Any

from flask import Flask
from flask_sock import Sock
from flask_socketio import SocketIO, emit
from simple_websocket import ConnectionClosed, Server


class Watched:
    """Close codes that the handlers have seen, and a signal to end one."""

    def __init__(self) -> None:
        self.codes: list[int] = []
        self.release = threading.Event()


def flask_sock(watched: Watched | None = None, **options: Any) -> Flask:
    """`/echo`; `/closing` closes after one message, `/ticks` only sends; `/pid` and `/slow` are plain."""
    app = Flask(__name__)
    app.config["SOCK_SERVER_OPTIONS"] = options
    sock = Sock(app)
    watched = watched or Watched()

    @sock.route("/echo")  # type: ignore[untyped-decorator]
    def echo(ws: Server) -> None:
        try:
            while True:
                ws.send(ws.receive())
        except ConnectionClosed as closed:
            watched.codes.append(closed.reason)
            raise

    @sock.route("/closing")  # type: ignore[untyped-decorator]
    def closing(ws: Server) -> None:
        ws.send("hello")
        ws.close(4001, "enough")

    @sock.route("/ticks")  # type: ignore[untyped-decorator]
    def ticks(ws: Server) -> None:
        while not watched.release.wait(0.02):
            ws.send("tick")

    @sock.route("/fail")  # type: ignore[untyped-decorator]
    def fail(ws: Server) -> None:
        ws.receive()
        raise ValueError("a mistake of the handler")

    app.add_url_rule("/pid", view_func=lambda: str(os.getpid()), endpoint="pid")
    return app


def flask_socketio() -> Flask:
    """Echoes the event `echo` as an acknowledgement and as the event `echoed`."""
    app = Flask(__name__)
    socketio = SocketIO(app, async_mode="threading")

    @socketio.on("echo")  # type: ignore[untyped-decorator]
    def echo(data: Any) -> Any:
        emit("echoed", data)
        return data

    return app
