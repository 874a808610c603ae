"""The common part of the drop-ins `towline.httpx`, `towline.httpx2` and `towline.requests`.

A drop-in replaces the transport of the other package: it sends one request, without redirects, decoding and cookies.
Everything above the transport is the unchanged code of the other package.
"""
