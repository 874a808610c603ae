"""The calling face: `Client`, `AsyncClient`, their models, options and transports.

options        what a pool and a call are made with
url, headers, cookies, codes, request, response     the models
encode, decode bodies in both directions
auth, redirects, retry, flow    what happens around an exchange, sans I/O: one generator for both faces
environment    proxies and trust from the environment; mounts: which transport carries which URL
transports     Mock, ASGI, WSGI and the base classes; foreign: other libraries by name
client, async_client    the two faces on the native cores; api: the module-level functions
"""

from __future__ import annotations
