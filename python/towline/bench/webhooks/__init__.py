"""Section E: an application that accepts webhooks, keeps them and forwards them, on pairs of server and client.

`webhook_experiments()` gives the runner its experiments; each pair is a subject as a server is.
"""

from __future__ import annotations

from .pairs import PAIRS, Pair, pairs
from .run import run_webhooks
from .subject import WebhookSubject
from .webhook_experiments import QUICK_LOADS, webhook_experiments

__all__ = ["PAIRS", "QUICK_LOADS", "Pair", "WebhookSubject", "pairs", "run_webhooks", "webhook_experiments"]
