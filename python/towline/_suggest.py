"""The name that was probably meant, for error messages."""

from __future__ import annotations

from collections.abc import Iterable


def closest(name: str, known: Iterable[str]) -> str | None:
    """The known name that is most similar to `name`; None if none is."""
    import difflib  # here because only errors need it: it makes starting slower

    return next(iter(difflib.get_close_matches(name, list(known), n=1)), None)
