"""JSON that the native parser leaves to the standard library: uncommon documents, and malformed ones."""

from __future__ import annotations

import json
from typing import Any

from .errors import Error


class JSONDecodeError(json.JSONDecodeError, Error):
    """The document is not JSON: `json.JSONDecodeError`, which is also a `towline.Error`."""


def loads(document: str | bytes, **options: Any) -> Any:
    """Returns what `json.loads` returns. Raises `JSONDecodeError`."""
    try:
        return json.loads(document, **options)
    except json.JSONDecodeError as error:
        raise JSONDecodeError(error.msg, error.doc, error.pos) from None
