"""The version, as the installed package states it."""

from __future__ import annotations

from ._native import VERSION

__version__: str = VERSION
