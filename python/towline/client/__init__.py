"""The HTTP client: `Client`, `AsyncClient`, their models, options and transports. `towline` exports the public names.

client, async_client                the two clients on the native base classes; base: their common part; api: functions
options                             configuration of clients, pools and calls
url, query, headers, cookies, status_codes, request, response       the models
encode, multipart, decode           bodies in both directions
body_reader, body_sources, streaming        reading a response on demand
flow                                redirects, authentication, retries, cookies, hooks; backends: how it waits and sends
redirects, status_retry, auth, digest   the rules that the flow applies
websocket                           WebSockets; the opening handshake goes through the same flow
environment, mounts, transport_choice       selection of proxy, trust store and transport
aio                                 primitives for asyncio and trio
transports                          Mock, ASGI, WSGI, native, the base classes, and adapters of other libraries
"""
