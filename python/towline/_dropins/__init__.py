"""What the drop-ins share: `towline.httpx`, `towline.httpx2` and `towline.requests` are thin faces on this room.

A transport moves one exchange: no redirect, no decoding, no cookie. Everything above it is the other package's
own code, unchanged.
"""
