"""HTTP/2 server on the package `h2` that enforces its limit of streams from the first byte on.

A stream above the limit ends the connection, as the package's own examples do. Run it as
`python -m tests.support.limited_h2_server PORT LIMIT KEY CERT`; an empty KEY means no TLS.
"""

from __future__ import annotations

import asyncio
import ssl
import sys

import h2.config
import h2.connection
import h2.events
import h2.exceptions
import h2.settings

from tests.support.interop_app import SMALL

DELAY = 0.005
"""Seconds between a request and its response, so that streams overlap."""


async def serve_connection(limit: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    conn = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))
    conn.local_settings = h2.settings.Settings(
        client=False,
        initial_values={
            h2.settings.SettingCodes.MAX_CONCURRENT_STREAMS: limit,
            h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 65_535,
        },
    )
    conn.initiate_connection()
    writer.write(conn.data_to_send())

    def respond(stream: int) -> None:
        conn.send_headers(stream, [(":status", "200"), ("content-length", str(len(SMALL)))])
        conn.send_data(stream, SMALL, end_stream=True)
        writer.write(conn.data_to_send())

    try:
        while data := await reader.read(65_536):
            for event in conn.receive_data(data):
                match event:
                    case h2.events.DataReceived():
                        conn.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                    case h2.events.StreamEnded():
                        asyncio.get_running_loop().call_later(DELAY, respond, event.stream_id)
            writer.write(conn.data_to_send())
    except h2.exceptions.ProtocolError as error:
        print(f"connection error: {error!r}", file=sys.stderr, flush=True)
        writer.write(conn.data_to_send())
    finally:
        writer.close()


async def main(port: int, limit: int, key: str, cert: str) -> None:
    context = None
    if key:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(cert, key)
        context.set_alpn_protocols(["h2"])
    server = await asyncio.start_server(
        lambda reader, writer: serve_connection(limit, reader, writer), "127.0.0.1", port, ssl=context
    )
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:5]))
