"""The bench's adapters for the recorders of peers, in this process or in the environment that a peer needs for itself."""

from importlib import import_module
from os import pathsep
from pathlib import Path
from typing import Any

from towline.bench.clients.subjects import CLIENTS, Interpreters

ROOT = Path(__file__).parent.parent.parent
PATHS = pathsep.join((str(ROOT), str(ROOT / "python")))
"""Import path of a child in another environment: the tests, and the modules of the package without dependencies."""


def adapter_of(subject: str) -> Any:
    """The adapter's class. Raises ImportError when its library is not there."""
    module, _, attribute = CLIENTS[subject].adapter.partition(":")
    return getattr(import_module(f"towline.bench.clients.worker.adapters.{module}"), attribute)


def interpreter(subject: str) -> str:
    """Raises Missing with a remedy."""
    return str(Interpreters.usual().of(CLIENTS[subject]))
