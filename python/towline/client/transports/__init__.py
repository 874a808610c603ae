"""What carries one exchange: no redirects, no cookies, no authentication. The classes have httpx's names and methods."""

from __future__ import annotations

from .asgi import ASGITransport
from .base import AsyncBaseTransport, BaseTransport
from .mock import MockTransport
from .wsgi import WSGITransport

__all__ = ["ASGITransport", "AsyncBaseTransport", "BaseTransport", "MockTransport", "WSGITransport"]
