"""HTTPotion: an application that accepts, stores and forwards webhooks, on pairs of server and client.

`webhook_experiments()` returns the experiments of the runner; each pair is a subject like a server.
"""

from __future__ import annotations

from .pairs import PAIRS, Pair, pairs
from .run import run_webhooks
from .subject import WebhookSubject
from .webhook_experiments import QUICK_LOADS, webhook_experiments

__all__ = ["PAIRS", "QUICK_LOADS", "Pair", "WebhookSubject", "pairs", "run_webhooks", "webhook_experiments"]
