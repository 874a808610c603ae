"""The arena's gRPC service on ASGI: messages by protobuf, their frames and the status as gRPC over HTTP/2 has them.

service BenchmarkService {
  rpc GetSum (SumRequest) returns (SumReply);
  rpc StreamSum (StreamRequest) returns (stream SumReply);
}
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]

HEADERS = [(b"content-type", b"application/grpc")]
OK = [(b"grpc-status", b"0")]
INTERNAL, UNIMPLEMENTED = b"13", b"12"
PREFIX = 5
"""Bytes before a message: a flag for compression, and the length."""
REPLIES_IN_A_ROW = 500
"""Replies until other requests have their turn."""


class RpcError(Exception):
    """Status and message of a call that fails."""


def _messages(**fields_of: tuple[str, ...]) -> list[Any]:
    """Classes of messages whose fields are int32, numbered from 1. protoc makes the same of a .proto file."""
    file = descriptor_pb2.FileDescriptorProto(name="benchmark.proto", package="benchmark", syntax="proto3")
    kind = descriptor_pb2.FieldDescriptorProto
    for name, fields in fields_of.items():
        message = file.message_type.add(name=name)
        for number, field in enumerate(fields, 1):
            message.field.add(name=field, number=number, type=kind.TYPE_INT32, label=kind.LABEL_OPTIONAL)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return [
        message_factory.GetMessageClass(pool.FindMessageTypeByName(f"benchmark.{name}")) for name in fields_of
    ]


SumRequest, StreamRequest, SumReply = _messages(
    SumRequest=("a", "b"), StreamRequest=("a", "b", "count"), SumReply=("result",)
)


async def get_sum(scope: Any, receive: Receive, send: Send) -> None:
    try:
        request = await _request(SumRequest, receive)
    except RpcError as error:
        await _fail(send, *error.args)
        return
    await send({"type": "http.response.start", "status": 200, "headers": HEADERS, "trailers": True})
    await send({"type": "http.response.body", "body": _reply(request.a + request.b)})
    await send({"type": "http.response.trailers", "headers": OK})


async def stream_sum(scope: Any, receive: Receive, send: Send) -> None:
    try:
        request = await _request(StreamRequest, receive)
    except RpcError as error:
        await _fail(send, *error.args)
        return
    first = request.a + request.b
    await send({"type": "http.response.start", "status": 200, "headers": HEADERS, "trailers": True})
    for number in range(request.count):
        await send({"type": "http.response.body", "body": _reply(first + number), "more_body": True})
        if number % REPLIES_IN_A_ROW == REPLIES_IN_A_ROW - 1:
            await asyncio.sleep(0)
    await send({"type": "http.response.body"})
    await send({"type": "http.response.trailers", "headers": OK})


async def _request(kind: Any, receive: Receive) -> Any:
    """The message of a call that has one. The server limits the size of the body."""
    message = await receive()
    body = message.get("body", b"")
    while message.get("more_body"):
        message = await receive()
        body += message.get("body", b"")
    if body[:1] == b"\1":
        raise RpcError(UNIMPLEMENTED, b"compressed messages are not supported")
    if len(body) < PREFIX or len(body) - PREFIX != int.from_bytes(body[1:PREFIX], "big"):
        raise RpcError(INTERNAL, b"expected one message")
    try:
        return kind.FromString(body[PREFIX:])
    except DecodeError:
        raise RpcError(INTERNAL, b"the message is not valid protobuf") from None


def _reply(result: int) -> bytes:
    """A reply in its frame. An int32 wraps around."""
    message: bytes = SumReply(result=(result + (1 << 31)) % (1 << 32) - (1 << 31)).SerializeToString()
    return b"\0" + len(message).to_bytes(4, "big") + message


async def _fail(send: Send, status: bytes, message: bytes) -> None:
    headers = [*HEADERS, (b"grpc-status", status), (b"grpc-message", message)]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body"})
