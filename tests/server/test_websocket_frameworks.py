"""WebSockets of Starlette, FastAPI and Litestar, as they are."""

from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.support.asgi_server import serving
from tests.support.websocket_server import BOTH_VERSIONS, open_ws


def starlette() -> Any:
    from starlette.applications import Starlette
    from starlette.endpoints import WebSocketEndpoint
    from starlette.routing import WebSocketRoute
    from starlette.websockets import WebSocket

    class Echo(WebSocketEndpoint):
        encoding = "text"

        async def on_receive(self, websocket: WebSocket, data: str) -> None:
            await websocket.send_text(data.upper())

    async def closing(websocket: WebSocket) -> None:
        await websocket.accept(subprotocol="chat")
        await websocket.send_json({"a": 1})
        await websocket.close(4001, "enough")

    return Starlette(routes=[WebSocketRoute("/echo", Echo), WebSocketRoute("/closing", closing)])


def fastapi() -> Any:
    from fastapi import FastAPI
    from fastapi.websockets import WebSocket

    app = FastAPI()

    @app.websocket("/echo")
    async def echo(websocket: WebSocket) -> None:
        await websocket.accept()
        async for text in websocket.iter_text():
            await websocket.send_text(text.upper())

    @app.websocket("/closing")
    async def closing(websocket: WebSocket) -> None:
        await websocket.accept(subprotocol="chat")
        await websocket.send_json({"a": 1})
        await websocket.close(4001, "enough")

    return app


def litestar() -> Any:
    pytest.importorskip("litestar")
    from litestar import Litestar, WebSocket, websocket, websocket_listener

    @websocket_listener("/echo")
    async def echo(data: str) -> str:
        return data.upper()

    @websocket("/closing")
    async def closing(socket: WebSocket[Any, Any, Any]) -> None:
        await socket.accept(subprotocols="chat")
        await socket.send_json({"a": 1})
        await socket.close(4001, "enough")

    return Litestar([echo, closing])


@pytest.mark.parametrize("make", [starlette, fastapi, litestar])
@BOTH_VERSIONS
def test_framework(make: Any, version: str) -> None:
    with serving(make()) as server:
        with open_ws(server, "/echo", version=version) as ws:
            for text in ("a", "b" * 100_000):
                ws.send(text)
                assert ws.recv() == text.upper()
        with open_ws(server, "/closing", version=version, subprotocols=["chat"]) as ws:
            assert ws.subprotocol == "chat"
            assert str(ws.recv()).replace(" ", "") == '{"a":1}'
            with pytest.raises(ConnectionClosed):
                ws.recv()
            assert (ws.close_code, ws.close_reason) == (4001, "enough")
        with pytest.raises(InvalidStatus) as refused, open_ws(server, "/missing", version=version):
            pass
        assert refused.value.response.status_code in (403, 404)
        assert server.errors() == []
