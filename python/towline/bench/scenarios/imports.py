"""Scenarios from what other programs send: command lines of curl, targets of vegeta."""

from .curl import from_curl
from .vegeta import from_vegeta

__all__ = ["from_curl", "from_vegeta"]
