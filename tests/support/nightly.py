"""Tests that run each night only: long random runs, and the further variants of a test whose first ones run for each change."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import pytest

IS_NIGHT = bool(os.environ.get("TOWLINE_NIGHTLY"))
nightly = pytest.mark.skipif(not IS_NIGHT, reason="a nightly test (TOWLINE_NIGHTLY=1)")


def by_night(values: Iterable[Any]) -> list[Any]:
    """Parameters of a test that run each night only."""
    return [
        pytest.param(*value.values, id=value.id, marks=nightly)
        if hasattr(value, "values")
        else pytest.param(value, marks=nightly)
        for value in values
    ]
