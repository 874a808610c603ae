"""What the tests of clients over HTTP/2 share: a client with prior knowledge, of each face that speaks it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.client_backends import FACES, HTTP2_FACES

Open = Callable[..., Any]


@pytest.fixture(params=HTTP2_FACES)
def h2_face(request: pytest.FixtureRequest) -> Iterator[Open]:
    """Makes clients that speak nothing else, and closes them."""
    made: list[Any] = []

    def open_face(**options: Any) -> Any:
        face = FACES[request.param](**{"http1": False, "http2": True, "trust_env": False, **options})
        made.append(face)
        return face

    yield open_face
    for face in made:
        face.close()
