"""Connect's conformance service, as an ASGI application on the package `connectrpc`: what a call defines is its response."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from typing import Any

from connectrpc.code import Code
from connectrpc.compression.brotli import BrotliCompression
from connectrpc.compression.gzip import GzipCompression
from connectrpc.compression.zstd import ZstdCompression
from connectrpc.conformance.v1 import config_pb2, service_pb2
from connectrpc.errors import ConnectError
from connectrpc.method import IdempotencyLevel, MethodInfo
from connectrpc.server import ConnectASGIApplication, Endpoint
from google.protobuf.any_pb2 import Any as AnyMessage

SERVICE = "connectrpc.conformance.v1.ConformanceService"
RequestInfo = service_pb2.ConformancePayload.RequestInfo


def received(context: Any, messages: list[Any]) -> Any:
    """The received request, which each response reports."""
    info = RequestInfo()
    timeout_ms = context.timeout_ms()
    if timeout_ms is not None:
        info.timeout_ms = int(timeout_ms)
    headers = context.request_headers()
    for name in headers:
        info.request_headers.add(name=name, value=headers.getall(name))
    for message in messages:
        packed = AnyMessage()
        packed.Pack(message)
        info.requests.append(packed)
    return info


def add_metadata(context: Any, definition: Any) -> None:
    for fields, target in (
        (definition.response_headers, context.response_headers()),
        (definition.response_trailers, context.response_trailers()),
    ):
        for field in fields:
            for value in field.value:
                target.add(field.name, value)


def failure(error: Any, *info: Any) -> ConnectError:
    name = config_pb2.Code.Name(error.code).removeprefix("CODE_")
    return ConnectError(Code[name], error.message, [*error.details, *info])


async def wait(definition: Any) -> None:
    if definition.response_delay_ms:
        await asyncio.sleep(definition.response_delay_ms / 1000)


async def one_response(kind: Any, definition: Any, messages: list[Any], context: Any) -> Any:
    info = received(context, messages)
    if definition is not None:
        add_metadata(context, definition)
        await wait(definition)
        if definition.WhichOneof("response") == "error":
            raise failure(definition.error, info)
    payload = service_pb2.ConformancePayload(request_info=info)
    if definition is not None:
        payload.data = definition.response_data
    return kind(payload=payload)


async def unary(message: Any, context: Any) -> Any:
    definition = message.response_definition if message.HasField("response_definition") else None
    return await one_response(service_pb2.UnaryResponse, definition, [message], context)


async def idempotent_unary(message: Any, context: Any) -> Any:
    definition = message.response_definition if message.HasField("response_definition") else None
    return await one_response(service_pb2.IdempotentUnaryResponse, definition, [message], context)


async def client_stream(messages: AsyncIterator[Any], context: Any) -> Any:
    found = [message async for message in messages]
    first = found[0] if found else None
    definition = first.response_definition if first and first.HasField("response_definition") else None
    return await one_response(service_pb2.ClientStreamResponse, definition, found, context)


async def server_stream(message: Any, context: Any) -> AsyncIterator[Any]:
    definition = message.response_definition
    add_metadata(context, definition)
    async for response in rest(service_pb2.ServerStreamResponse, definition, [message], context):
        yield response


async def rest(
    kind: Any, definition: Any, messages: list[Any], context: Any, sent: int = 0
) -> AsyncIterator[Any]:
    """The responses of a stream after those that were `sent`, and its error."""
    info = received(context, messages)
    for number in range(sent, len(definition.response_data)):
        await wait(definition)
        payload = service_pb2.ConformancePayload(data=definition.response_data[number])
        if number == 0:
            payload.request_info.CopyFrom(info)
        yield kind(payload=payload)
    if definition.HasField("error"):
        raise failure(definition.error, *([] if definition.response_data else [info]))


async def bidi_stream(messages: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
    """Full duplex: a response after each message. Half duplex: all of them after the last one."""
    definition, is_full_duplex, waiting, sent = None, False, [], 0
    async for message in messages:
        if definition is None:
            definition, is_full_duplex = message.response_definition, message.full_duplex
            add_metadata(context, definition)
        waiting.append(message)
        if not is_full_duplex:
            continue
        if sent >= len(definition.response_data):
            break
        await wait(definition)
        info = received(context, waiting)
        payload = service_pb2.ConformancePayload(data=definition.response_data[sent], request_info=info)
        yield service_pb2.BidiStreamResponse(payload=payload)
        sent, waiting = sent + 1, []
    if definition is not None:
        async for response in rest(service_pb2.BidiStreamResponse, definition, waiting, context, sent):
            yield response


class Application(ConnectASGIApplication[Any]):
    path = f"/{SERVICE}"


def endpoints(_service: Any) -> dict[str, Endpoint[Any, Any]]:
    def method(name: str, level: IdempotencyLevel = IdempotencyLevel.UNKNOWN) -> MethodInfo[Any, Any]:
        request, response = (getattr(service_pb2, f"{name}{part}") for part in ("Request", "Response"))
        return MethodInfo(
            name=name, service_name=SERVICE, input=request, output=response, idempotency_level=level
        )

    async def unimplemented(message: Any, context: Any) -> Any:
        raise ConnectError(Code.UNIMPLEMENTED, "not implemented")

    idempotent = method("IdempotentUnary", IdempotencyLevel.NO_SIDE_EFFECTS)
    return {
        f"/{SERVICE}/{one.method.name}": one
        for one in (
            Endpoint.unary(method("Unary"), unary),
            Endpoint.unary(method("Unimplemented"), unimplemented),
            Endpoint.unary(idempotent, idempotent_unary),
            Endpoint.client_stream(method("ClientStream"), client_stream),
            Endpoint.server_stream(method("ServerStream"), server_stream),
            Endpoint.bidi_stream(method("BidiStream"), bidi_stream),
        )
    }


app = Application(
    service=object(),
    endpoints=endpoints,
    read_max_bytes=int(os.environ.get("READ_MAX_BYTES", "0")) or None,
    compressions=(GzipCompression(), ZstdCompression(), BrotliCompression()),
)
