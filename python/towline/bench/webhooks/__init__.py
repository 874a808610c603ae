"""Section E: an application that accepts webhooks, keeps them and forwards them, on pairs of server and client.

`relay_cells()` gives the runner its cells; each pair is a subject as a server is.
"""

from __future__ import annotations

from .pairs import PAIRS, Pair, pairs
from .run import run_relay
from .subject import RelaySubject
from .webhook_experiments import QUICK_LOADS, relay_cells

__all__ = ["PAIRS", "QUICK_LOADS", "Pair", "RelaySubject", "pairs", "relay_cells", "run_relay"]
