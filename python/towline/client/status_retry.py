"""Retries by status code: which requests are sent again, after what delay, and how many.

Retries of connecting, and resending after a stale connection, are in the native pools.
"""

from __future__ import annotations

import math
import threading
from email.utils import parsedate_to_datetime
from typing import Any

from .._native import IDEMPOTENT_METHODS
from .options import Retry
from .request import Request

IDEMPOTENT = frozenset(IDEMPOTENT_METHODS)
_RESERVE = 10.0
_MAX_TOKENS = 1000.0


class Budget:
    """A token bucket: each call deposits a share of a token, each retry withdraws one token.

    ```
     call ── + share ──► [ initially 10, at most 1000 ] ── - 1 ──► retry
    ```
    """

    def __init__(self, share: float) -> None:
        self._share = share
        self._tokens = _RESERVE
        self._lock = threading.Lock()

    def deposit(self) -> None:
        with self._lock:
            self._tokens = min(self._tokens + self._share, _MAX_TOKENS)

    def withdraw(self) -> bool:
        with self._lock:
            if self._tokens < 1:
                return False
            self._tokens -= 1
            return True


def retry_delay(
    retry: Retry, request: Request, response: Any, attempt: int, now: float, random: float
) -> float | None:
    """Returns the seconds to wait before sending `request` again; None: return the response.

    `attempt` counts from 0, `now` is Unix time, `random` is in [0, 1).
    """
    if response.status_code not in retry.status or attempt >= retry.times:
        return None
    if request.method not in IDEMPOTENT and request.method not in retry.methods:
        return None
    if not request.replayable:
        return None
    retry_after = retry_after_s(response, now) if retry.respect_retry_after else None
    if retry_after is not None:
        # not earlier, and not all clients at the same time
        wait = retry_after + (random * min(retry_after, 1.0) if retry.jitter else 0.0)
    else:
        wait = min(retry.backoff * 2.0 ** min(attempt, 30), retry.max_delay)
        wait *= random if retry.jitter else 1.0
    return wait if wait <= retry.max_delay else None


def retry_after_s(response: Any, now: float) -> float | None:
    """Returns Retry-After, a number or a date (RFC 9110 10.2.3), in seconds from now."""
    value = response.headers.get("retry-after", "").strip()
    if value.isascii() and value.isdigit():
        return float(value[:12])
    try:
        when = parsedate_to_datetime(value).timestamp()
    except (ValueError, TypeError, OverflowError, IndexError):
        return None
    return max(0.0, when - now) if math.isfinite(when) else None
