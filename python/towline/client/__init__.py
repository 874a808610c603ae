"""The calling face: `Client`, `AsyncClient`, their models, options and transports. `towline` exports all of it.

client, async_client    the two faces on the native cores; base: what they share; api: the module-level functions
options                 what a pool and a call are made with
url, query, headers, cookies, codes, request, response      the models
encode, multipart, decode       bodies in both directions; reading, streams, streaming: how a response is read
flow                    what happens around an exchange, written once; faces: what it asks of the two clients
websocket               WebSockets, whose handshake goes through the same flow
redirects, retrying, auth, digest       the rules that the flow applies
environment, mounts, foreign    which proxy, trust and transport a call takes
transports              Mock, ASGI, WSGI, native, the base classes, and adapters of other libraries
"""
