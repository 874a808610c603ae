"""The service and its catalogue over real sockets, on ports of 127.0.0.1: `pytest examples/fastapi_service`.

`towline_server` is a fixture of Towline's pytest plugin: it serves an application until the end of a test.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import towline
from fastapi import FastAPI, Response
from orders import Settings, create_app
from towline.testing import Running

Serve = Callable[..., Running]
TEA = {"item": "green tea", "quantity": 3}


class Catalogue:
    """A catalogue that behaves as a test says."""

    def __init__(self) -> None:
        self.status = 200
        self.failures = 0
        self.delay = 0.0
        self.requests: list[str] = []
        self.app = FastAPI()
        self.app.get("/items/{name}")(self.item)

    async def item(self, name: str, response: Response) -> dict[str, Any]:
        self.requests.append(name)
        await asyncio.sleep(self.delay)
        if self.failures > 0:
            self.failures -= 1
            response.status_code = 503
        elif name == "mug":
            response.status_code = 404
        else:
            response.status_code = self.status
        return {"name": name, "price": "2.50"}


@pytest.fixture
def catalogue() -> Catalogue:
    return Catalogue()


@pytest.fixture
def settings(catalogue: Catalogue, towline_server: Serve, tmp_path: Path) -> Settings:
    url = towline_server(catalogue.app).url
    return Settings(catalogue=url, catalogue_timeout=0.5, state=str(tmp_path / "state"), orders_per_minute=10)


@pytest.fixture
def client(settings: Settings, towline_server: Serve) -> Iterator[towline.Client]:
    with towline.Client(base_url=towline_server(create_app(settings)).url) as one:
        yield one


def test_an_order_is_stored_with_its_price(client: towline.Client, catalogue: Catalogue) -> None:
    created = client.post("/orders", json=TEA)
    assert created.status_code == 201
    order = created.json()
    assert order["total"] == "7.50"
    assert client.get(f"/orders/{order['id']}").json() == order
    assert catalogue.requests == ["green tea"]
    assert client.get("/orders/unknown").status_code == 404


@pytest.mark.parametrize(
    "wrong", [{}, {"item": "tea"}, {"item": "", "quantity": 1}, {"item": "tea", "quantity": 0}, [TEA]]
)
def test_wrong_orders_do_not_reach_the_catalogue(
    client: towline.Client, catalogue: Catalogue, wrong: Any
) -> None:
    assert client.post("/orders", json=wrong).status_code == 422
    assert catalogue.requests == []


def test_an_item_that_does_not_exist_is_the_clients_mistake(client: towline.Client) -> None:
    response = client.post("/orders", json={"item": "mug", "quantity": 1})
    assert (response.status_code, response.json()) == (422, {"detail": "there is no mug"})


def test_a_name_keeps_its_place_in_the_url(client: towline.Client, catalogue: Catalogue) -> None:
    assert client.post("/orders", json={"item": "mug?x=1#y", "quantity": 1}).status_code == 201
    assert client.post("/orders", json={"item": "../admin", "quantity": 1}).status_code == 422
    assert catalogue.requests == ["mug?x=1#y"]


def test_a_catalogue_that_restarts_costs_no_order(client: towline.Client, catalogue: Catalogue) -> None:
    catalogue.failures = 2
    assert client.post("/orders", json=TEA).status_code == 201
    assert len(catalogue.requests) == 3


@pytest.mark.parametrize("status", [500, 401])
def test_a_catalogue_that_fails(client: towline.Client, catalogue: Catalogue, status: int) -> None:
    catalogue.status = status
    response = client.post("/orders", json=TEA)
    assert (response.status_code, response.headers["retry-after"]) == (503, "5")


def test_a_catalogue_that_is_silent(client: towline.Client, catalogue: Catalogue) -> None:
    catalogue.delay = 60.0
    response = client.post("/orders", json=TEA)
    assert response.status_code == 503
    assert response.elapsed.total_seconds() < 10


def test_a_catalogue_that_is_away(settings: Settings, towline_server: Serve) -> None:
    def away(request: towline.Request) -> towline.Response:
        raise towline.ConnectError("refused")

    # Instead of a network: the application's own client gets another transport.
    server = towline_server(create_app(settings, towline.MockTransport(away)))
    assert towline.post(f"{server.url}/orders", json=TEA).status_code == 503


def test_a_repeated_request_is_one_order(client: towline.Client, catalogue: Catalogue) -> None:
    key = {"idempotency-key": "7f3a"}
    first, again = (client.post("/orders", json=TEA, headers=key) for _ in range(2))
    assert first.json() == again.json()
    assert again.headers["idempotent-replayed"] == "true"
    assert len(catalogue.requests) == 1
    other = client.post("/orders", json={**TEA, "quantity": 4}, headers=key)
    assert other.status_code == 422


def test_too_many_orders_of_one_client(client: towline.Client) -> None:
    statuses = [client.post("/orders", json=TEA).status_code for _ in range(11)]
    assert statuses == [201] * 10 + [429]
