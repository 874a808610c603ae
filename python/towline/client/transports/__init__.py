"""Transports: they send one request and return its response, without redirects, cookies and authentication.

The classes have the names and methods of those of httpx.
"""

from __future__ import annotations

from .asgi import ASGITransport
from .base import AsyncBaseTransport, BaseTransport
from .mock import MockTransport
from .wsgi import WSGITransport

__all__ = ["ASGITransport", "AsyncBaseTransport", "BaseTransport", "MockTransport", "WSGITransport"]
